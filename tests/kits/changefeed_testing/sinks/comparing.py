"""Cases for sinks that can be compared with their source (``Capabilities.compares``)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.rows import (
    RowFeed,
    SourceDouble,
    delete,
    insert,
    scanned_row,
    table_of,
    update,
)
from sinks.base import Difference


def _feed(harness: MergeHarness, source: SourceDouble, options: Mapping[str, object]) -> RowFeed:
    return RowFeed(
        source,
        harness.topic,
        options=options,
        write_scan=harness.write_scan,
        context=harness.context,
    )


def differences(
    harness: MergeHarness,
    truth: SourceDouble,
    feed: RowFeed,
    limit: int = 100,
    options: Mapping[str, object] | None = None,
) -> list[Difference]:
    """How the target of ``feed`` differs from the rows of ``truth``, found by a new sink object."""
    schema, sink = truth.schemas["t"], harness.sink(options)
    assert sink.capabilities.compares
    rows = [scanned_row(schema, row, truth.now()) for row in truth.rows("t")]
    batches = [
        pa.Table.from_pylist(rows[i : i + 2], schema=schema.log_schema())
        for i in range(0, len(rows), 2)
    ]
    try:
        return sink.compare(feed.context(), feed.targets["t"], schema, batches, limit)
    finally:
        sink.close()


def _kinds(found: list[Difference]) -> list[tuple[str, str]]:
    return [(d.kind, d.key) for d in found]


def _apart(harness: MergeHarness, options: Mapping[str, object]) -> None:
    """Deliver one source by a feed, and compare its target with another source."""
    schema = table_of("t", key=("a",), a="int32", b="text", n="int64")
    written, truth = SourceDouble(schema), SourceDouble(schema)
    for source in (written, truth):
        source.commit(insert("t", a=1, b="same ", n=1), insert("t", a=2, b=None, n=None))
        source.commit(insert("t", a=3, b="x", n=3), insert("t", a=4, b="goes", n=4))
    feed = _feed(harness, written, options)
    sink = feed.open(harness.sink(options))
    feed.deliver(sink)
    assert differences(harness, truth, feed, options=options) == []
    for source in (written, truth):
        source.commit(delete("t", a=4), update("t", {"a": 3}, n=30))
    feed.deliver(sink)
    assert differences(harness, truth, feed, options=options) == [], "after changes and deletes"
    written.commit(insert("t", a=9, b="only there", n=None), update("t", {"a": 1}, b="same"))
    written.commit(update("t", {"a": 2}, b="", n=None))
    truth.commit(insert("t", a=5, b="only here", n=5))
    feed.deliver(sink)
    found = differences(harness, truth, feed, options=options)
    sink.close()
    expected = [("changed", "[1]"), ("changed", "[2]"), ("missing", "[5]"), ("extra", "[9]")]
    assert _kinds(found) == expected, f"found {found}"
    assert found[0].source == '{"b": "same "}' and found[0].target == '{"b": "same"}'
    assert found[1].source == '{"b": null}' and found[1].target == '{"b": ""}'
    assert found[2].target is None and found[3].source is None
    some = differences(harness, truth, feed, 3, options=options)
    assert _kinds(some) == expected[:3], "the first ones where there are more than asked for"


def compares(harness: MergeHarness) -> None:
    """Missing, extra and changed rows are named by key; texts are compared by their bytes."""
    _apart(harness, {})


def compares_soft_deletes(harness: MergeHarness) -> None:
    """A row that is marked as deleted does not count as a row."""
    _apart(harness, {"deletes": "soft"})


def compares_versions(harness: MergeHarness) -> None:
    """Of a table that keeps versions, the current ones are compared."""
    _apart(harness, {"history": "scd2"})


def compares_equal_rows(harness: MergeHarness) -> None:
    """Of a table without a key, equal rows are counted on both sides."""
    schema = table_of("t", a="int32", b="text")
    written, truth = SourceDouble(schema), SourceDouble(schema)
    for source in (written, truth):
        source.commit(insert("t", a=1, b="x"), insert("t", a=1, b="x"), insert("t", a=2, b=None))
    feed = _feed(harness, written, {})
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    assert differences(harness, truth, feed) == []
    written.commit(insert("t", a=1, b="x"), insert("t", a=9, b="there"))
    truth.commit(insert("t", a=2, b=None), insert("t", a=5, b="here"))
    feed.deliver(sink)
    found = {(d.kind, d.source, d.target) for d in differences(harness, truth, feed)}
    sink.close()
    assert found == {
        ("count", '2 x {"a": "1", "b": "x"}', '3 x {"a": "1", "b": "x"}'),
        ("count", '2 x {"a": "2", "b": null}', '1 x {"a": "2", "b": null}'),
        ("missing", '1 x {"a": "5", "b": "here"}', None),
        ("extra", None, '1 x {"a": "9", "b": "there"}'),
    }


def _repairs(harness: MergeHarness, options: Mapping[str, object]) -> None:
    schema = table_of("t", key=("a", "c"), a="int32", b="text", c="text")
    written, truth = SourceDouble(schema), SourceDouble(schema)
    for source in (written, truth):
        source.commit(*(insert("t", a=a, b=f"row {a}", c="x") for a in range(1, 6)))
    feed = _feed(harness, written, options)
    sink = feed.open(harness.sink(options))
    if not sink.capabilities.repairs:
        sink.close()
        return
    feed.deliver(sink)
    written.commit(delete("t", a=1), update("t", {"a": 2}, b="wrong"))
    written.commit(insert("t", a=9, b="only there", c="x"))
    feed.deliver(sink)
    found = differences(harness, truth, feed, options=options)
    assert [(d.kind, d.values) for d in found] == [
        ("missing", ("1", "x")),
        ("changed", ("2", "x")),
        ("extra", ("9", "x")),
    ], f"found {found}"
    at = written.now()
    rows = [scanned_row(schema, row, at) for row in truth.rows("t") if row["a"] in (1, 2)]
    # Row 8 is not in the target: a delete of it is no error.
    for key in (9, 8):
        none = scanned_row(schema, {"a": None, "b": None, "c": None}, at)
        rows.append(none | {"op": "d", "b0": key, "b2": "x"})
    # It comes again after a crash, by another object.
    for _ in range(2):
        again = feed.open(harness.sink(options))
        feed.repair(again, "t", rows, at)
        again.close()
        assert differences(harness, truth, feed, options=options) == []
    for source in (written, truth):
        source.commit(insert("t", a=9, b="again", c="x"), update("t", {"a": 3}, b="later"))
    feed.deliver(sink)
    assert differences(harness, truth, feed, options=options) == [], "changes go on after it"
    sink.close()


def repairs_single_rows(harness: MergeHarness) -> None:
    """Single rows come again as rows of a scan, and deletes among them; other rows stay."""
    _repairs(harness, {})


def repairs_single_rows_marked(harness: MergeHarness) -> None:
    """The same where a deleted row is marked."""
    _repairs(harness, {"deletes": "soft"})


COMPARING_CASES = (
    compares,
    compares_soft_deletes,
    compares_versions,
    compares_equal_rows,
    repairs_single_rows,
    repairs_single_rows_marked,
)
