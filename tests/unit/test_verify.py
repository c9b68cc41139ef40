"""Which feeds VERIFY refuses before it looks at anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.verify.table import TableVerifier


def test_a_feed_without_a_sink_has_no_target() -> None:
    unused, job = cast(Any, None), cast(Any, SimpleNamespace(sink_uri=None))
    with pytest.raises(ChangefeedError, match="without a sink") as refused:
        TableVerifier(unused, job, unused, unused, unused, unused, unused)
    assert refused.value.code is Code.NOT_SUPPORTED
