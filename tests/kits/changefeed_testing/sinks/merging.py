"""What every sink that merges typed rows must do, as a list of cases over a harness.

Like :mod:`changefeed_testing.sinks.conformance`, for sinks of ``Accepts.ROWS`` with their own
tables:

    class MyHarness(MergeHarness):
        def sink(self, options=None): return open_sink(uri, options)
        def rows(self, topic): return everything the table holds, as dicts

    @pytest.mark.parametrize("case", MERGE_CASES, ids=str)
    def test_my_sink(case: MergeCase, my_harness: MyHarness) -> None:
        if reason := run_merge_case(case, my_harness):
            pytest.skip(reason)

A target is compared with the table of a
:class:`changefeed_testing.sinks.rows.SourceDouble`. Columns that a sink adds begin with an
underscore; all other columns and their values must equal the source's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from changefeed.core.errors import Action, ChangefeedError, Code, Scope
from changefeed.core.events import Resolved
from changefeed.core.halves import by_halves, sifted
from changefeed.core.types import Kind, LogicalType
from changefeed.options import Feature
from changefeed_testing.sinks.comparing import COMPARING_CASES
from changefeed_testing.sinks.conformance import LARGE_TEXT
from changefeed_testing.sinks.keeping_history import HISTORY_CASES
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import check, feed_of, keyed, keyless, visible
from changefeed_testing.sinks.outside import assert_connects_to_nothing, assert_prints_nothing
from changefeed_testing.sinks.owning import OWNING_CASES
from changefeed_testing.sinks.rows import (
    RowChange,
    RowFeed,
    SourceDouble,
    column_of,
    delete,
    insert,
    ordered,
    table_of,
    truncate,
    update,
)
from sinks.base import Epoch, Sink, SinkContext


@dataclass(frozen=True, slots=True)
class MergeCase:
    """One thing a merging sink must do; ``run`` fails by an assertion."""

    name: str
    run: Callable[[MergeHarness], None]

    def __str__(self) -> str:
        return self.name


def run_merge_case(case: MergeCase, harness: MergeHarness) -> str:
    """Run a case; returns why it was not run, or nothing."""
    unknown = set(harness.never) - {known.name for known in MERGE_CASES}
    assert not unknown, f"never names unknown cases: {unknown}"
    if case.name in harness.never:
        return harness.never[case.name]
    case.run(harness)
    return ""


# ------------------------------------------------------------------------------- plain merges


def merges(harness: MergeHarness) -> None:
    """Inserts, updates and deletes in many rounds, with several changes of a key in one round."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    for step in range(1, 7):
        source.commit(*(insert("t", a=step * 10 + i, b=f"new {step}") for i in range(3)))
        source.commit(update("t", {"a": step * 10}, b=f"changed {step}"))
        source.commit(update("t", {"a": step * 10}, b=None), delete("t", a=step * 10 + 1))
        feed.deliver(sink)
        check(harness, source)
    sink.close()


def merges_changed_keys(harness: MergeHarness) -> None:
    """A key that changes, again and again (0 to 1 to 2), in one transaction and over several."""
    source = SourceDouble(keyed())
    source.commit(insert("t", a=0, b="alice"), insert("t", a=7, b="other"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    source.commit(update("t", {"a": 0}, a=1))
    source.commit(update("t", {"a": 1}, a=2))
    feed.deliver(sink)
    check(harness, source)
    source.commit(update("t", {"a": 2}, a=3), update("t", {"a": 3}, a=0, b="moved"))
    source.commit(update("t", {"a": 7}, a=2))
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def merges_swapped_keys(harness: MergeHarness) -> None:
    """Two rows exchange their keys in one transaction."""
    source = SourceDouble(keyed())
    source.commit(insert("t", a=1, b="one"), insert("t", a=2, b="two"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    swap = (update("t", {"b": "one"}, a=3), update("t", {"b": "two"}, a=1))
    source.commit(*swap, update("t", {"b": "one"}, a=2))
    feed.deliver(sink)
    check(harness, source)
    feed.deliver(sink, 0)
    check(harness, source)
    sink.close()


def merges_reused_keys(harness: MergeHarness) -> None:
    """A row is deleted and its key inserted again: in one transaction, one round, two rounds."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="first"), insert("t", a=2, b="kept"))
    feed.deliver(sink)
    source.commit(delete("t", a=1), insert("t", a=1, b="second"))
    feed.deliver(sink)
    check(harness, source)
    source.commit(delete("t", a=1))
    source.commit(insert("t", a=1, b="third"))
    source.commit(insert("t", a=3, b="brief"), delete("t", a=3))
    feed.deliver(sink)
    check(harness, source)
    source.commit(delete("t", a=1))
    feed.deliver(sink)
    source.commit(insert("t", a=1, b="fourth"))
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def merges_wide_keys(harness: MergeHarness) -> None:
    """A key of several columns that are not the first ones."""
    schema = table_of("t", key=("c", "a"), a="text", b="text", c="int64")
    source = SourceDouble(schema)
    source.commit(insert("t", a="x", b="1", c=1), insert("t", a="y", b="2", c=1))
    source.commit(insert("t", a="x", b="3", c=2), update("t", {"b": "2"}, b="4"))
    source.commit(update("t", {"b": "1"}, a="z"), delete("t", a="x", c=2))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def merges_a_key_of_two_texts(harness: MergeHarness) -> None:
    """-0 becomes 0 and -0 again, in one round and in several: it stays one row."""
    schema = table_of("t", key=("k", "a"), k="float64", a="int32", b="text", c="text")
    source = SourceDouble(schema)
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())

    def is_there(**rows: str) -> None:
        feed.deliver(sink)
        found = visible(harness.rows(harness.topic("t")))
        assert sorted((row["b"], row["c"]) for row in found) == sorted(rows.items())

    source.commit(insert("t", k="-0", a=1, b="one", c="x"), insert("t", k="0", a=2, b="two", c="y"))
    is_there(one="x", two="y")
    source.commit(update("t", {"a": 1}, k="0"), update("t", {"a": 2}, k="-0"))
    source.commit(update("t", {"a": 2}, b="both"), insert("t", k="1", a=3, b="three", c="z"))
    is_there(one="x", both="y", three="z")
    source.commit(update("t", {"a": 1}, k="-0", b="turned", c="w"))
    source.commit(update("t", {"a": 1}, ["c"], b="back"), update("t", {"a": 3}, ["c"], b="same"))
    is_there(back="w", both="y", same="z")
    source.commit(update("t", {"a": 1}, k="0"), delete("t", a=1), update("t", {"a": 2}, k="0"))
    is_there(both="y", same="z")
    sink.close()


def merges_awkward_text(harness: MergeHarness) -> None:
    """NULL is not the empty text; quotes, separators, line breaks and emoji come through."""
    source = SourceDouble(keyed())
    texts = [None, "", '"', "'", "\\", "a,b", "line\nbreak", "\ttab", "\U0001f600 ☃", "NULL", "\\N"]
    source.commit(*(insert("t", a=i, b=text) for i, text in enumerate(texts)))
    source.commit(insert("t", a=99, b="x" * 100_000))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def merges_large_values(harness: MergeHarness) -> None:
    """A value of five megabytes arrives whole, or stops its table and names the column; never a
    part of it."""
    source = SourceDouble(keyed())
    source.commit(insert("t", a=1, b="small"), insert("t", a=2, b=LARGE_TEXT))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    try:
        feed.deliver(sink)
    except ChangefeedError as error:
        assert error.scope is Scope.TABLE, error.code.number
        shown = f"{error.message} {error.detail}"
        assert "b" in re.findall(r"[a-z]+", shown), shown
        assert LARGE_TEXT[:100] not in shown, "an error shows no value"
        assert [row for row in visible(harness.rows(harness.topic("t"))) if row["a"] == 2] == []
    else:
        check(harness, source)
    sink.close()


def merges_several_tables(harness: MergeHarness) -> None:
    """Tables of one round do not mix."""
    source = SourceDouble(keyed("t"), keyed("u"), keyless("v"))
    source.commit(insert("t", a=1, b="t"), insert("u", a=1, b="u"), insert("v", a=1, b="v"))
    source.commit(update("t", {"a": 1}, b="t2"), delete("u", a=1), insert("v", a=1, b="v"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def commits_nothing(harness: MergeHarness) -> None:
    """A round without rows is legal, and a resolved timestamp may follow it."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    sink.resolved(Resolved(source.now()), b"")
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    sink.resolved(Resolved(source.now()), b"")
    check(harness, source)
    sink.close()


# ------------------------------------------------------------------------------- again


def replays_a_round(harness: MergeHarness) -> None:
    """Every round is delivered twice, the second time by another run: nothing changes."""
    source = SourceDouble(keyed(), keyless("v"))
    feed = feed_of(harness, source)
    rounds: list[tuple[RowChange, ...]] = [
        (insert("t", a=0, b="alice"), insert("v", a=1, b="x"), insert("v", a=1, b="x")),
        (update("t", {"a": 0}, a=1), update("v", {"a": 1}, b="y")),
        (update("t", {"a": 1}, a=2), insert("v", a=1, b="x")),
        (delete("t", a=2), delete("v", a=1, b="x")),
        (insert("t", a=0, b="Alice"), insert("t", a=1, b="blob"), delete("v", b="y")),
        (update("t", {"a": 1}, b="Bob"), insert("v", a=None, b=None)),
    ]
    for changes in rounds:
        start = len(source.log)
        source.commit(*changes)
        for _ in range(2):
            sink = feed.open(harness.sink())
            feed.deliver(sink, start)
            check(harness, source)
            sink.close()


def replays_old_rounds(harness: MergeHarness) -> None:
    """After everything was applied, the whole log is delivered again, in large and small rounds."""
    source = SourceDouble(keyed(), keyless("v"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    for step in range(4):
        source.commit(insert("t", a=step, b="x"), insert("v", a=7, b="same"))
        source.commit(update("t", {"a": step}, b="y"))
    source.commit(delete("t", a=1), delete("v", a=7), update("t", {"a": 3}, a=9))
    feed.deliver(sink)
    check(harness, source)
    feed.deliver(sink, 0)
    check(harness, source)
    sink.close()
    again = feed.open(harness.sink())
    for start in range(0, len(source.log), 5):
        feed.deliver(again, start, min(start + 5, len(source.log)))
    check(harness, source)
    again.close()


def never_resurrects(harness: MergeHarness) -> None:
    """The insert of a row that has since been deleted is repeated: the row stays deleted."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"))
    first = len(source.log)
    feed.deliver(sink)
    source.commit(delete("t", a=1))
    feed.deliver(sink)
    feed.deliver(sink, 0, first)
    check(harness, source)
    sink.close()
    again = feed.open(harness.sink())
    feed.deliver(again, 0, first)
    check(harness, source)
    again.close()


def survives_crash_before_commit(harness: MergeHarness) -> None:
    """A run dies between write and commit; the next one begins the round again, longer."""
    source = SourceDouble(keyed(), keyless("v"))
    source.commit(insert("t", a=1, b="x"), insert("v", a=1, b="x"))
    feed = feed_of(harness, source)
    first = feed.open(harness.sink())
    feed.write(first, 0, len(source.log))
    first.close()
    source.commit(update("t", {"a": 1}, b="y"), insert("v", a=1, b="x"))
    second = feed.open(harness.sink())
    feed.deliver(second, 0)
    check(harness, source)
    second.close()


def aborts(harness: MergeHarness) -> None:
    """After ``abort`` a longer round with the same rows is written to the same sink object."""
    source = SourceDouble(keyed(), keyless("v"))
    source.commit(insert("t", a=1, b="x"), insert("v", a=1, b="x"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    epoch, receipts = feed.write(sink, 0, len(source.log))
    sink.abort(epoch, receipts)
    source.commit(update("t", {"a": 1}, b="y"), insert("v", a=1, b="x"))
    feed.deliver(sink, 0)
    check(harness, source)
    sink.close()


def finds_refused_rows(harness: MergeHarness) -> None:
    """With ``Feature.DEAD_LETTERS``: rows without a key, in the middle of a transaction, are found
    by halves, and all others are in the target (``on_row_error = 'dead_letter'``)."""
    if Feature.DEAD_LETTERS not in harness.sink().capabilities.features:
        return
    source = SourceDouble(keyed())
    source.commit(*(insert("t", a=n, b="x") for n in range(1, 6)))
    source.commit(
        insert("t", a=6, b="x"), insert("t", a=None, b="secret-value"), update("t", {"a": 1}, b="y")
    )
    source.commit(delete("t", a=2), update("t", {"a": 3}, b="z"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    assert _refused(feed, sink) == [6]
    rows = {row["a"]: row["b"] for row in visible(harness.rows(harness.topic("t")))}
    assert rows == {1: "y", 3: "z", 4: "x", 5: "x", 6: "x"}
    sink.close()


def finds_refused_values(harness: MergeHarness) -> None:
    """With ``Feature.DEAD_LETTERS``: values that a column cannot hold, of changes and of a scan."""
    if Feature.DEAD_LETTERS not in harness.sink().capabilities.features:
        return
    for number, (logical, bad) in enumerate(harness.unfit.items()):
        name = f"t{number}"
        source = SourceDouble(table_of(name, key=("a",), a="int32", v=logical))
        source.commit(
            insert(name, a=1, v=None), insert(name, a=2, v=bad), insert(name, a=3, v=None)
        )
        source.commit(update(name, {"a": 1}, v=bad), insert(name, a=4, v=None))
        feed = feed_of(harness, source)
        sink = feed.open(harness.sink())
        # A scan is refused as a whole, and is taken without the row.
        before = source.now()
        try:
            feed.scan(sink, name)
        except ChangefeedError as error:
            _require_of_row(error, bad)
            sink.abort(Epoch(0, before), ())
        else:
            raise AssertionError(f"{bad} was taken into {logical}")
        feed.scan(sink, name, left=lambda row: row["v"] is None)
        assert [row["a"] for row in visible(harness.rows(harness.topic(name)))] == [3, 4]
        sink.close()
        name = f"u{number}"
        source = SourceDouble(table_of(name, key=("a",), a="int32", v=logical))
        source.commit(
            insert(name, a=1, v=None), insert(name, a=2, v=bad), insert(name, a=3, v=None)
        )
        source.commit(update(name, {"a": 1}, v=bad), insert(name, a=4, v=None), delete(name, a=3))
        source.commit(update(name, {"a": 2}, v=None))
        feed = feed_of(harness, source)
        sink = feed.open(harness.sink())
        assert _refused(feed, sink, bad) == [1, 3]
        assert [row["a"] for row in visible(harness.rows(harness.topic(name)))] == [1, 2, 4]
        sink.close()


def _refused(feed: RowFeed, sink: Sink, value: str = "secret-value") -> list[int]:
    """Deliver the whole log as a feed with dead letters does. Returns the places of the rows that
    are refused."""
    found: list[int] = []

    def places(rows: pa.Table) -> list[int]:
        return list(rows["n"].to_pylist())

    def refused(row: pa.Table, error: ChangefeedError) -> None:
        _require_of_row(error, value)
        found.extend(places(row))

    log = pa.table({"n": list(range(len(feed.source.log)))})
    rest, known = sifted(log, lambda rows: feed.examine(sink, places(rows)))
    for place, error in known:
        refused(log.slice(place, 1), error)
    by_halves(rest, lambda rows: feed.write_some(sink, places(rows)), refused)
    return sorted(found)


def _require_of_row(error: ChangefeedError, value: str) -> None:
    assert error.about_row and error.scope is Scope.TABLE, error.fields()
    assert value not in str(error.fields())


def opens_again(harness: MergeHarness) -> None:
    """``open`` is idempotent, and takes tables that joined later."""
    source = SourceDouble(keyed(), keyed("u"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.open(sink)
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    feed.open(sink)
    source.commit(insert("u", a=1, b="u"), update("t", {"a": 1}, b="y"))
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def checks(harness: MergeHarness) -> None:
    """``check`` finds no problem and creates nothing, and a feed can begin afterwards."""
    source = SourceDouble(keyed())
    for _ in range(2):
        looking = harness.sink()
        assert looking.check(SinkContext("validate", 0, ())) == []
        looking.close()
        assert visible(harness.rows(harness.topic("t"))) == source.rows("t")
        source.commit(insert("t", a=len(source.log), b="x"))
        feed = feed_of(harness, source)
        sink = feed.open(harness.sink())
        feed.deliver(sink)
        sink.close()
        check(harness, source)


# ------------------------------------------------------------------------------- truncation


def truncates(harness: MergeHarness) -> None:
    """A TRUNCATE between transactions and inside one; replayed, it removes nothing newer."""
    source = SourceDouble(keyed(), keyless("v"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="x"), insert("v", a=1, b="x"))
    source.commit(truncate("t"), truncate("v"))
    source.commit(insert("t", a=1, b="y"), insert("v", a=1, b="x"))
    feed.deliver(sink)
    check(harness, source)
    source.commit(
        update("t", {"a": 1}, b="gone"), truncate("t"), insert("t", a=5, b="after"), truncate("v")
    )
    feed.deliver(sink)
    check(harness, source)
    feed.deliver(sink, 0)
    check(harness, source)
    sink.close()


# ------------------------------------------------------------------------------- scans


def scans(harness: MergeHarness) -> None:
    """A scan, then changes. ``end_scan`` may be called twice, and removes no existing row."""
    source = SourceDouble(keyed(), keyless("v"))
    source.load("t", [{"a": i, "b": f"old {i}"} for i in range(5)])
    source.load("v", [{"a": i // 2, "b": None} for i in range(5)])
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    for table in ("t", "v"):
        feed.open(sink)
        at = feed.scan(sink, table)
        sink.end_scan(feed.targets[table], source.schemas[table], at)
    check(harness, source)
    source.commit(update("t", {"a": 0}, b="new"), delete("t", a=1), insert("v", a=0, b=None))
    source.commit(delete("v", a=1), insert("t", a=9, b="new"))
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def scans_anew(harness: MergeHarness) -> None:
    """A scan breaks off. After the changes since then, a whole scan removes deleted rows."""
    source = SourceDouble(keyed(), keyless("v"))
    source.load("t", [{"a": i, "b": f"old {i}"} for i in range(6)])
    source.load("v", [{"a": 1, "b": "x"} for _ in range(3)] + [{"a": 2, "b": "y"}])
    feed = feed_of(harness, source)
    for table in ("t", "v"):
        first = feed.open(harness.sink())
        feed.scan(first, table, upto=3, end=False)
        first.close()
    source.commit(delete("t", a=0), update("t", {"a": 1}, b="new"), delete("v", a=1))
    source.commit(insert("t", a=7, b="new"), insert("v", a=3, b="z"))
    second = feed.open(harness.sink())
    feed.deliver(second)
    for table in ("t", "v"):
        feed.open(second)
        feed.scan(second, table)
    check(harness, source)
    source.commit(delete("v", a=1), update("t", {"a": 2}, b="last"))
    feed.deliver(second)
    check(harness, source)
    second.close()


def goes_on_with_scans(harness: MergeHarness) -> None:
    """A scan breaks off. After the changes since then, another one delivers only the rows that were
    left, and ends; rows of both and older rows stay or go as the source says."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    first = feed.open(harness.sink())
    if not first.capabilities.continues_scans:
        return first.close()
    source.commit(insert("t", a=1, b="old"), insert("t", a=20, b="gone"), insert("t", a=5, b="old"))
    feed.deliver(first)
    source.commit(delete("t", a=20))
    feed.place = len(source.log)  # never delivered
    source.load("t", [{"a": i, "b": f"row {i}"} for i in (0, 2, 3, 4, 6)])
    feed.open(first)
    since = feed.scan(first, "t", left=lambda row: int(str(row["a"])) < 4, end=False)
    first.close()
    source.commit(delete("t", a=0), update("t", {"a": 2}, b="new"), delete("t", a=4))
    source.commit(update("t", {"a": 5}, b="new"), insert("t", a=-1, b="new"))
    # Rows that move from what is left to what was delivered, and the other way round.
    source.commit(update("t", {"a": 6}, a=-6), update("t", {"a": 3}, a=30))
    second = feed.open(harness.sink())
    assert second.holds_target(feed.targets["t"])
    feed.deliver(second)
    feed.open(second)
    feed.scan(second, "t", left=lambda row: int(str(row["a"])) >= 4, since=since)
    check(harness, source)
    source.commit(update("t", {"a": 1}, b="last"), delete("t", a=30))
    feed.deliver(second)
    check(harness, source)
    second.close()


def scans_over_leftovers(harness: MergeHarness) -> None:
    """The target has older rows, which were deleted at the source while no feed was running."""
    source = SourceDouble(keyed(), keyless("v"))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="gone"), insert("v", a=1, b="gone"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    source.commit(delete("t", a=2), delete("v", a=1), insert("v", a=2, b="new"))
    feed.place = len(source.log)  # never delivered
    for table in ("t", "v"):
        feed.open(sink)
        feed.scan(sink, table)
    check(harness, source)
    sink.close()


# ------------------------------------------------------------------------------- no key, no value


def counts_duplicates(harness: MergeHarness) -> None:
    """A table without a key: as many copies of each row as the source has."""
    source = SourceDouble(keyless())
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(*(insert("t", a=1, b="x") for _ in range(4)), insert("t", a=None, b=None))
    source.commit(insert("t", a=None, b=None), insert("t", a=2, b=None))
    feed.deliver(sink)
    check(harness, source)
    source.commit(delete("t", a=1), delete("t", a=None), update("t", {"a": 1}, b="y"))
    feed.deliver(sink)
    check(harness, source)
    source.commit(insert("t", a=3, b="brief"), delete("t", a=3))
    source.commit(delete("t", b="x"), delete("t", b="x"), insert("t", a=1, b="y"))
    feed.deliver(sink)
    check(harness, source)
    sink.close()


def keeps_unsent_values(harness: MergeHarness) -> None:
    """A column whose value the source did not send keeps what it has."""
    schema = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(schema)
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x", c="large"), insert("t", a=2, b="x", c="large"))
    feed.deliver(sink)
    source.commit(update("t", {"a": 1}, ["c"], b="y"))
    source.commit(update("t", {"a": 2}, c="new"))
    source.commit(update("t", {"a": 2}, ["c"], b="z"))
    feed.deliver(sink)
    check(harness, source)
    source.commit(insert("t", a=3, b="x", c="large"), update("t", {"a": 3}, ["c"], b="y"))
    feed.deliver(sink, chunk=1)  # a large transaction comes in several batches
    check(harness, source)
    sink.close()


def forgets_values_of_reused_keys(harness: MergeHarness) -> None:
    """A row gets the key of a deleted row, with a value that the source did not send. It must not
    get the deleted row's value: in the round of the delete, in its transaction, in a later round.
    """
    schema = table_of("t", key=("a",), a="int32", b="text", c="text")
    for name, options in (("hard", {}), ("soft", {"deletes": "soft"})):
        source = SourceDouble(replace(schema, table=replace(schema.table, name=name)))
        feed = feed_of(harness, source, options)
        sink = feed.open(harness.sink(options))
        source.commit(*(insert(name, a=a, b="x", c=f"of {a}") for a in range(1, 9)))
        feed.deliver(sink)
        source.commit(delete(name, a=5))
        feed.deliver(sink)
        source.commit(update(name, {"a": 1}, ["c"], a=5))  # its row went in the round before
        source.commit(update(name, {"a": 6}, c="last words"))
        source.commit(delete(name, a=6))
        source.commit(update(name, {"a": 2}, ["c"], a=6))  # in the same round
        source.commit(update(name, {"a": 6}, ["c"], b="y"))
        source.commit(delete(name, a=7), update(name, {"a": 3}, ["c"], a=7))  # in one transaction
        source.commit(insert(name, a=9, b="x", c="own"), update(name, {"a": 9}, ["c"], b="z"))
        feed.deliver(sink)
        rows = [r for r in harness.rows(harness.topic(name)) if not r.get("_deleted")]
        sink.close()
        found = {row["a"]: (row["b"], row["c"]) for row in rows}
        assert found == {
            4: ("x", "of 4"),
            5: ("x", None),
            6: ("y", None),
            7: ("x", None),
            8: ("x", "of 8"),
            9: ("z", "own"),
        }


# ------------------------------------------------------------------------------- shape


def evolves(harness: MergeHarness) -> None:
    """Columns are added, renamed, widened and dropped between rows; then all is replayed."""
    source = SourceDouble(keyed())
    old = source.schemas["t"]
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"))
    a, b = old.columns
    c = column_of("c", "int32", 3)
    source.alter("t", replace(old, columns=(a, b, c)))
    source.commit(insert("t", a=2, b="y", c=5))
    source.commit(update("t", {"a": 1}, c=6))
    feed.deliver(sink)
    check(harness, source)
    wide = replace(c, logical=LogicalType(Kind.INT64), type_name="bigint")
    source.alter("t", replace(old, columns=(a, replace(b, name="label"), wide)))
    source.commit(insert("t", a=3, label="z", c=5_000_000_000))
    feed.deliver(sink)
    check(harness, source)
    sink.close()
    again = feed.open(harness.sink())
    feed.deliver(again, 0)
    check(harness, source)
    again.close()


def evolves_before_any_row(harness: MergeHarness) -> None:
    """A change of columns may be the first thing that a target hears of: before its scan begins.
    The new column is the first one of the source's, before the key."""
    source = SourceDouble(keyed())
    old = source.schemas["t"]
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.alter("t", replace(old, columns=(column_of("c", "int32", 3), *old.columns), key=(1,)))
    source.commit(insert("t", a=1, b="x", c=5))
    feed.deliver(sink)
    check(harness, source)
    feed.scan(sink, "t")
    check(harness, source)
    sink.close()


def keeps_dropped_columns(harness: MergeHarness) -> None:
    """A dropped column stays, and is NULL in new rows; a column of its name may be added again."""
    schema = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(schema)
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x", c="old"))
    source.alter("t", replace(schema, columns=schema.columns[:2]))
    source.commit(insert("t", a=2, b="y"))
    feed.deliver(sink)
    found = ordered(visible(harness.rows(harness.topic("t"))))
    assert found == ordered([{"a": 1, "b": "x", "c": "old"}, {"a": 2, "b": "y", "c": None}])
    source.alter("t", replace(schema, columns=(*schema.columns[:2], column_of("c", "int32", 4))))
    source.commit(insert("t", a=3, b="z", c=7))
    feed.deliver(sink)
    found = visible(harness.rows(harness.topic("t")))
    shown = ordered({name: row[name] for name in ("a", "b", "c")} for row in found)
    assert shown == source.rows("t")
    sink.close()


def refuses_other_shapes(harness: MergeHarness) -> None:
    """A change of shape that the target cannot follow stops the table, with the reason."""
    source = SourceDouble(keyed())
    old = source.schemas["t"]
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    source.alter("t", replace(old, key=(1,)))
    try:
        feed.deliver(sink)
    except ChangefeedError as error:
        assert error.code is Code.SINK_CANNOT_TAKE_TABLE, error.code.number
        assert error.action is Action.STOP
        assert "key" in f"{error.message} {error.detail}", error.message
    else:
        raise AssertionError("a changed key was taken without a word")
    assert visible(harness.rows(harness.topic("t"))) == [{"a": 1, "b": "x"}]
    sink.close()


def leaves_dropped_tables(harness: MergeHarness) -> None:
    """A table dropped at the source stays, and goes with ``on_drop = 'drop'``."""
    for options, left in (({}, 1), ({"on_drop": "drop"}, 0)):
        source = SourceDouble(keyed())
        feed = feed_of(harness, source, options)
        source.commit(insert("t", a=1, b="x"))
        sink = feed.open(harness.sink(options))
        feed.deliver(sink, 0)
        for _ in range(2):
            sink.dropped(feed.targets["t"])
        assert len(harness.rows(harness.topic("t"))) == left
        sink.close()


def keeps_sequence_beside(harness: MergeHarness) -> None:
    """``sequence_column = 'none'``: the target has the source's columns and no other."""
    options = {"sequence_column": "none"}
    source = SourceDouble(keyed(), keyless("v"))
    source.load("t", [{"a": i, "b": "old"} for i in range(4)])
    source.load("v", [{"a": 1, "b": "old"}, {"a": 1, "b": "old"}])
    feed = feed_of(harness, source, options)
    first = feed.open(harness.sink(options))
    feed.scan(first, "t", upto=3, end=False)
    first.close()
    source.commit(delete("t", a=0), update("t", {"a": 3}, a=5))
    sink = feed.open(harness.sink(options))
    feed.deliver(sink)
    for table in ("t", "v"):
        feed.open(sink)
        feed.scan(sink, table)
    source.commit(insert("t", a=9, b="new"), delete("v", a=1), update("t", {"a": 1}, b="new"))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    for table in ("t", "v"):
        assert ordered(harness.rows(harness.topic(table))) == source.rows(table)
    sink.close()


def hides_secrets(harness: MergeHarness) -> None:
    """Nothing a sink says of itself, and nothing it writes, holds the password of its URI."""
    source = SourceDouble(keyed())
    source.commit(insert("t", a=1, b="x"))
    feed = feed_of(harness, source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    assert harness.secret not in repr(sink) + str(sink)
    assert harness.secret.encode() not in harness.raw()
    sink.close()


def connects_to_nothing(harness: MergeHarness) -> None:
    """The constructor makes no connection and leaves none open."""
    assert_connects_to_nothing(harness.sink).close()


def prints_nothing(harness: MergeHarness) -> None:
    """A sink writes nothing to standard output or error, which are the user's."""
    source = SourceDouble(keyed())
    feed = feed_of(harness, source)
    with assert_prints_nothing():
        sink = feed.open(harness.sink())
        source.commit(insert("t", a=1, b="x"))
        feed.deliver(sink)
        source.commit(update("t", {"a": 1}, b="y"))
        feed.deliver(sink)
        sink.close()


#: Every case, in the order of the documentation.
MERGE_CASES: tuple[MergeCase, ...] = tuple(
    MergeCase(run.__name__, run)
    for run in (
        merges,
        merges_changed_keys,
        merges_swapped_keys,
        merges_reused_keys,
        merges_wide_keys,
        merges_a_key_of_two_texts,
        merges_awkward_text,
        merges_large_values,
        merges_several_tables,
        commits_nothing,
        replays_a_round,
        replays_old_rounds,
        never_resurrects,
        survives_crash_before_commit,
        aborts,
        finds_refused_rows,
        finds_refused_values,
        opens_again,
        checks,
        truncates,
        scans,
        scans_anew,
        goes_on_with_scans,
        scans_over_leftovers,
        counts_duplicates,
        keeps_unsent_values,
        forgets_values_of_reused_keys,
        evolves,
        evolves_before_any_row,
        keeps_dropped_columns,
        refuses_other_shapes,
        leaves_dropped_tables,
        *HISTORY_CASES,
        keeps_sequence_beside,
        hides_secrets,
        connects_to_nothing,
        prints_nothing,
        *OWNING_CASES,
        *COMPARING_CASES,
    )
)
