"""Which feeds VERIFY refuses before it looks at anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.verify.table import TableVerifier


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"sink_uri": "duckdb:///x.db", "is_query": True}, "CDC query"),
        ({"sink_uri": None, "is_query": False}, "without a sink"),
    ],
)
def test_what_has_no_comparable_target_is_refused(job: dict[str, object], why: str) -> None:
    unused = cast(Any, None)
    with pytest.raises(ChangefeedError, match=why) as refused:
        TableVerifier(unused, cast(Any, SimpleNamespace(**job)), unused, unused, unused)
    assert refused.value.code is Code.NOT_SUPPORTED
