"""Steps that several cases of merging sinks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from changefeed.core.schema import TableSchema
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.rows import (
    Row,
    RowFeed,
    SourceDouble,
    ordered,
    table_of,
)


def keyed(name: str = "t") -> TableSchema:
    return table_of(name, key=("a",), a="int32", b="text")


def keyless(name: str = "t") -> TableSchema:
    return table_of(name, a="int32", b="text")


def feed_of(
    harness: MergeHarness, source: SourceDouble, options: Mapping[str, object] | None = None
) -> RowFeed:
    """A feed that delivers ``source`` to sinks of the harness."""
    return RowFeed(
        source,
        harness.topic,
        options=options,
        write_scan=harness.write_scan,
        context=harness.context,
    )


def visible(rows: Sequence[Mapping[str, object]]) -> list[Row]:
    """Rows without the columns that a sink adds, sorted."""
    return ordered({n: v for n, v in row.items() if not n.startswith("_")} for row in rows)


def check(harness: MergeHarness, source: SourceDouble, *tables: str) -> None:
    for table in tables or tuple(source.schemas):
        found, truth = visible(harness.rows(harness.topic(table))), source.rows(table)
        assert found == truth, f"{table} is {found}, the source has {truth}"
