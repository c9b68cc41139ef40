"""What the feeds of a source make of the limits of its change log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.capture.process import _settings
from changefeed.catalog import Catalog


@pytest.mark.parametrize(
    ("feeds", "size"),
    [
        ([], None),
        ([{}], None),
        ([{"gc_size": "1GB"}], 1_000_000_000),
        ([{"gc_size": "1GB"}, {"gc_size": "3GB"}], 3_000_000_000),
        ([{"gc_size": "1GB"}, {}], None),
    ],
)
def test_history_is_cut_to_the_largest_size_that_a_feed_allows(
    feeds: list[dict[str, Any]], size: int | None
) -> None:
    jobs = [SimpleNamespace(options=options) for options in feeds]
    catalog = cast(Catalog, SimpleNamespace(source_jobs=lambda name: jobs))
    made = _settings(catalog, "shop", disk=7)
    assert (made.keep_bytes, made.disk_budget) == (size, 7)
