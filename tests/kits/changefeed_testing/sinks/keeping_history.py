"""Cases of :mod:`.merging` about the history that a sink of typed rows must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import feed_of, keyed, visible
from changefeed_testing.sinks.rows import (
    SourceDouble,
    delete,
    insert,
    table_of,
    truncate,
    update,
)


def deletes_softly(harness: MergeHarness) -> None:
    """``deletes = 'soft'``: a deleted row stays and is marked; its key may be inserted again."""
    options = {"deletes": "soft"}
    source = SourceDouble(keyed())
    feed = feed_of(harness, source, options)
    sink = feed.open(harness.sink(options))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"), insert("t", a=3, b="z"))
    feed.deliver(sink)
    source.commit(delete("t", a=1), delete("t", a=2))
    feed.deliver(sink)
    source.commit(insert("t", a=2, b="back"))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    found = {(row["a"], row["b"]): row["_deleted"] for row in harness.rows(harness.topic("t"))}
    assert found == {(1, "x"): True, (2, "back"): False, (3, "z"): False}
    sink.close()


def keeps_versions(harness: MergeHarness) -> None:
    """``history = 'scd2'``: every version has its times; the current ones equal the source."""
    options = {"history": "scd2"}
    source = SourceDouble(keyed())
    source.load("t", [{"a": 1, "b": "scanned"}, {"a": 2, "b": "scanned"}])
    feed = feed_of(harness, source, options)
    sink = feed.open(harness.sink(options))
    feed.scan(sink, "t")
    source.commit(update("t", {"a": 1}, b="second"))
    source.commit(update("t", {"a": 1}, b="third"), insert("t", a=3, b="new"))
    feed.deliver(sink)
    source.commit(delete("t", a=2), update("t", {"a": 3}, a=4))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    rows = harness.rows(harness.topic("t"))
    assert visible([row for row in rows if row["_is_current"]]) == source.rows("t")
    assert sorted((row["a"], row["b"]) for row in rows) == [
        (1, "scanned"), (1, "second"), (1, "third"), (2, "scanned"), (3, "new"), (4, "new"),
    ]  # fmt: skip
    for row in rows:
        assert (row["_valid_to"] is None) == row["_is_current"]
        later = [r for r in rows if r["a"] == row["a"] and r["_valid_from"] > row["_valid_from"]]  # type: ignore[operator]
        if later:
            assert row["_valid_to"] == min(r["_valid_from"] for r in later)  # type: ignore[type-var]
    sink.close()


def marks_versions(harness: MergeHarness) -> None:
    """``history = 'scd2'`` with ``deletes = 'soft'``: a version that a delete, a TRUNCATE or a scan
    has ended is marked, whatever the number of rounds; one that another version followed is not.
    """
    options = {"history": "scd2", "deletes": "soft"}
    source = SourceDouble(keyed())
    feed = feed_of(harness, source, options)
    sink = feed.open(harness.sink(options))
    source.commit(*(insert("t", a=i, b="first") for i in range(5)))
    feed.deliver(sink)
    source.commit(update("t", {"a": 1}, b="second"), delete("t", a=2))
    source.commit(insert("t", a=6, b="brief"))
    source.commit(delete("t", a=6), update("t", {"a": 1}, b="third"))
    source.commit(insert("t", a=2, b="back"))
    feed.deliver(sink)
    marked = {(0, "first"): False, (1, "first"): False, (1, "third"): False, (2, "first"): True}
    marked |= {(2, "back"): False, (3, "first"): False, (4, "first"): False, (6, "brief"): True}
    found = {(r["a"], r["b"]): r["_deleted"] for r in harness.rows(harness.topic("t"))}
    assert found == marked | {(1, "second"): False}
    source.commit(delete("t", a=0))
    feed.place = len(source.log)  # never delivered
    feed.scan(feed.open(sink), "t")
    source.commit(truncate("t"))
    feed.deliver(sink)
    found = {(r["a"], r["b"]): r["_deleted"] for r in harness.rows(harness.topic("t"))}
    ended = {(0, "first"), (1, "third"), (2, "back"), (3, "first"), (4, "first")}
    assert found == marked | {(1, "second"): False} | dict.fromkeys(ended, True)
    sink.close()


def scans_versions(harness: MergeHarness) -> None:
    """``history = 'scd2'``: a scan adds no version of an equal row. It ends the current version of
    a row that differs and begins another, and ends versions of rows that it does not find."""
    options = {"history": "scd2"}
    source = SourceDouble(keyed())
    source.load("t", [{"a": i, "b": None if i == 4 else "old"} for i in range(5)])
    feed = feed_of(harness, source, options)
    sink = feed.open(harness.sink(options))
    feed.scan(sink, "t")
    source.commit(update("t", {"a": 1}, b="new"), delete("t", a=2), insert("t", a=9, b="new"))
    source.commit(update("t", {"a": 3}, b=None))
    feed.place = len(source.log)  # never delivered
    for _ in range(2):
        feed.scan(feed.open(sink), "t")
        rows = harness.rows(harness.topic("t"))
        assert visible([row for row in rows if row["_is_current"]]) == source.rows("t")
        ends = {(row["a"], row["b"]): row["_valid_to"] for row in rows}
        assert len(ends) == len(rows)
        begins = {row["a"]: row["_valid_from"] for row in rows if row["_is_current"]}
        new = begins[9]
        assert ends == {
            (0, "old"): None,
            (1, "old"): new,
            (1, "new"): None,
            (2, "old"): new,
            (3, "old"): new,
            (3, None): None,
            (4, None): None,
            (9, "new"): None,
        }
        assert begins[1] == begins[3] == new
        assert begins[0] == begins[4] < new  # type: ignore[operator]
    sink.close()


def carries_unsent_values(harness: MergeHarness) -> None:
    """In a history, a value that the source did not send equals that of the version before, which
    is in the transaction, the round, or the target. Without such a version it is NULL. The columns
    of ``append`` do not depend on ``deletes``."""
    schema = table_of("t", key=("a",), a="int32", b="text", c="text", d="int32")
    for options in ({"history": "append", "deletes": "soft"}, {"history": "scd2"}):
        name = str(options["history"])
        source = SourceDouble(replace(schema, table=replace(schema.table, name=name)))
        source.load(name, [{"a": 1, "b": "scanned", "c": "large", "d": 7}])
        feed = feed_of(harness, source, options)
        sink = feed.open(harness.sink(options))
        feed.scan(sink, name)
        source.commit(insert(name, a=2, b="x", c="first"), insert(name, a=3, b="x", c=None, d=3))
        source.commit(update(name, {"a": 1}, ["c", "d"], b="y"))  # last version: in the target
        source.commit(update(name, {"a": 2}, ["c"], b="y", d=2), update(name, {"a": 2}, c="next"))
        feed.deliver(sink)
        source.commit(update(name, {"a": 2}, ["c", "d"], b="z"), delete(name, a=3))
        source.commit(insert(name, a=3, b="back", c="second", d=None))
        source.commit(update(name, {"a": 3}, ["c", "d"], b="y"), update(name, {"a": 1}, ["c"], d=8))
        # The second row is an insert in the log, too, because the transaction inserted the row.
        source.commit(insert(name, a=4, b="x", c="own"), update(name, {"a": 4}, ["c"], b="y"))
        feed.deliver(sink)
        source.commit(update(name, {"a": 3}, ["d"], c="third"), update(name, {"a": 4}, ["c"], d=4))
        source.commit(update(name, {"a": 2}, ["c"], a=5))  # no earlier version has this key
        feed.deliver(sink)
        source.commit(insert(name, a=6, b="x", c="cut"), update(name, {"a": 6}, ["c"], b="y"))
        feed.deliver(sink, chunk=1)  # a large transaction comes in several batches
        for start in (0, len(source.log) // 2):
            feed.deliver(sink, start)
        sink.close()
        within: list[tuple[int, str, str | None, int | None]] = []
        if name == "append":
            within = [(2, "y", "first", 2), (4, "x", "own", None), (6, "x", "cut", None)]
        expected: list[tuple[int, str, str | None, int | None]] = [
            (1, "scanned", "large", 7),
            (1, "y", "large", 7),
            (1, "y", "large", 8),
            (2, "x", "first", None),
            *within,
            (2, "y", "next", 2),
            (2, "z", "next", 2),
            (3, "x", None, 3),
            (3, "back", "second", None),
            (3, "y", "second", None),
            (3, "y", "third", None),
            (4, "y", "own", None),
            (4, "y", "own", 4),
            (5, "z", None, 2),
            (6, "y", "cut", None),
        ]
        rows = harness.rows(harness.topic(name))
        found = [(r["a"], r["b"], r["c"], r["d"]) for r in rows if r.get("_operation") != "DELETE"]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        assert all("_deleted" not in row for row in rows)


def appends_changes(harness: MergeHarness) -> None:
    """``history = 'append'``: each change has one row, in the form that all targets share
    (:mod:`sinks.merged.history`). The next whole scan removes what a broken one left."""
    options = {"history": "append"}
    schema = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(schema, table_of("v", key=("a",), a="int32", b="text"))
    source.load("t", [{"a": i, "b": "old", "c": "large"} for i in (7, 8)])
    feed = feed_of(harness, source, options)
    broken = feed.open(harness.sink(options))
    feed.scan(broken, "t", upto=1, end=False)
    broken.close()
    source.commit(insert("v", a=1, b="x"))
    sink = feed.open(harness.sink(options))
    scanned = feed.scan(sink, "t").version
    source.commit(insert("t", a=1, b="x", c="large"))
    source.commit(update("t", {"a": 1}, ["c"], b="y"), insert("t", a=2, b="x", c="large"))
    feed.deliver(sink)
    source.commit(delete("t", a=1))
    feed.deliver(sink)
    source.commit(insert("t", a=3, b="x", c=None), truncate("t"), insert("t", a=4, b="x", c=None))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    found = harness.rows(harness.topic("t"))
    shown = [(row["_operation"], row["a"], row["b"], row["c"]) for row in found]
    expected: list[tuple[str, int | None, str | None, str | None]] = [
        ("READ", 7, "old", "large"),
        ("READ", 8, "old", "large"),
        ("INSERT", 1, "x", "large"),
        ("UPDATE", 1, "y", "large"),  # not sent by the source: the value of the version before
        ("INSERT", 2, "x", "large"),
        ("DELETE", 1, None, None),
        ("INSERT", 3, "x", None),
        ("TRUNCATE", None, None, None),
        ("INSERT", 4, "x", None),
    ]
    assert sorted(shown, key=repr) == sorted(expected, key=repr)
    for row in found:
        own = {"_operation", "_sequence_num", "_ord", "_committed_at"}
        assert set(row) - {"a", "b", "c", "_row"} == own
        assert row["_committed_at"] is not None
        if row["_operation"] == "READ":
            assert row["_sequence_num"] == scanned
    order = sorted(
        (row["_sequence_num"], row["_ord"], row["_operation"], row["a"])
        for row in found
        if row["_operation"] != "READ"
    )
    assert [(row[2], row[3]) for row in order] == [(e[0], e[1]) for e in expected[2:]]
    sink.close()


def appends_scans_once(harness: MergeHarness) -> None:
    """``history = 'append'``: nothing is left of scans that broke off, even if the next whole scan
    has the same instant or finds no row. Whole scans stay; a repeated scan of the same instant adds
    nothing."""
    options = {"history": "append"}
    source = SourceDouble(keyed())
    source.load("t", [{"a": i, "b": "old"} for i in range(3)])
    feed = feed_of(harness, source, options)
    broken = feed.open(harness.sink(options))
    feed.scan(broken, "t", upto=2, end=False)
    broken.close()
    sink = feed.open(harness.sink(options))
    whole = feed.scan(sink, "t").version
    expected = [(whole, i) for i in range(3)]
    assert _scanned(harness) == expected
    sink.close()
    # The run died before it had saved that the scan was whole, and nothing was committed since.
    sink = feed.open(harness.sink(options))
    assert feed.scan(sink, "t").version == whole
    assert _scanned(harness) == expected
    source.commit(delete("t", a=0), delete("t", a=1))
    sink = feed.open(sink)
    feed.scan(sink, "t", end=False)
    source.commit(delete("t", a=2))
    feed.scan(feed.open(sink), "t")
    assert _scanned(harness) == expected
    sink.close()


def appends_scans_whose_end_was_not_saved(harness: MergeHarness) -> None:
    """``history = 'append'``: one run died before it had saved that its scan was whole, the next
    one before its first row, and another one after it. Nothing is left of these scans."""
    options = {"history": "append"}
    source = SourceDouble(keyed())
    source.load("t", [{"a": i, "b": "old"} for i in range(3)])
    feed = feed_of(harness, source, options)
    sink = feed.open(harness.sink(options))
    began = feed.scan(sink, "t")
    assert _scanned(harness) == [(began.version, i) for i in range(3)]
    for upto in (0, 2):
        sink.close()
        source.commit(insert("t", a=upto + 5, b="new"))
        sink = feed.open(harness.sink(options), {"t": began})
        feed.scan(sink, "t", upto=upto, end=False)
    source.commit(insert("t", a=9, b="new"))
    whole = feed.scan(feed.open(sink, {"t": began}), "t").version
    assert _scanned(harness) == [(whole, a) for a in (0, 1, 2, 5, 7, 9)]
    sink.close()


def _scanned(harness: MergeHarness) -> list[tuple[int, int]]:
    """Version and key of each row of a scan."""
    rows = harness.rows(harness.topic("t"))
    return sorted((r["_sequence_num"], r["a"]) for r in rows if r["_operation"] == "READ")  # type: ignore[misc]


#: In the order of the documentation.
HISTORY_CASES: tuple[Callable[[MergeHarness], None], ...] = (
    deletes_softly,
    keeps_versions,
    marks_versions,
    scans_versions,
    carries_unsent_values,
    appends_changes,
    appends_scans_once,
    appends_scans_whose_end_was_not_saved,
)
