"""Spanner's emulator, and the fake for machines without it, against the merging list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions as api

from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Resolved
from changefeed.core.types import Kind, LogicalType
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import visible
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from changefeed_testing.sinks.rounds import run_random_rounds
from changefeed_testing.sinks.rows import (
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
from sinks.base import Batch, Epoch, Sink, SinkContext
from sinks.registry import open_sink
from sinks.warehouse.spanner.sink import SpannerSink
from tests.conformance.test_warehouse import late_run
from tests.services.cache import server_folder
from tests.services.spanner import SpannerServer

pytestmark = pytest.mark.spanner


class SpannerHarness(MergeHarness):
    never: Mapping[str, str] = {
        "keeps_versions": "Spanner keeps no history: an error at CREATE",
        "marks_versions": "Spanner keeps no history: an error at CREATE",
        "scans_versions": "Spanner keeps no history: an error at CREATE",
        "carries_unsent_values": "Spanner keeps no history: an error at CREATE",
        "appends_changes": "Spanner keeps no history: an error at CREATE",
        "appends_scans_once": "Spanner keeps no history: an error at CREATE",
        "appends_scans_whose_end_was_not_saved": "Spanner keeps no history: an error at CREATE",
        "hides_secrets": "the URI of an emulator holds none",
        "keeps_foreign_rows": "rows that are not the feed's are refused or replaced",
        "compares_versions": "Spanner keeps no history: an error at CREATE",
        "keeps_sequence_beside": "has a table without a key, which has columns of ours in Spanner",
    }

    #: The fake has other words for what Spanner refuses: see tests/unit/test_spanner.py.
    unfit: Mapping[str, str] = {"decimal(9,2)": '"NaN"'}

    def __init__(self, server: SpannerServer, database: str, scratch: Path) -> None:
        self.server = server
        self.database = database
        self._scratch = scratch

    def context(self, context: SinkContext) -> SinkContext:
        return replace(context, scratch=str(self._scratch))

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(self.server.uri(self.database), options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        return self.server.rows(self.database, topic)

    def make_foreign(self, name: str) -> None:
        self.server.define(
            self.database, f"CREATE TABLE `{name}` (a INT64, b STRING(MAX)) PRIMARY KEY (a)"
        )
        sink = self.sink()
        assert isinstance(sink, SpannerSink)
        sink.server.connect()
        sink.server.transact(lambda tx: tx.upsert(name, ("a", "b"), [("9", "theirs")]))
        sink.close()


@pytest.fixture
def harness(spanner: SpannerServer, tmp_path: Path) -> Iterator[SpannerHarness]:
    with spanner.database() as name:
        yield SpannerHarness(spanner, name, tmp_path)
    assert not list(tmp_path.rglob("verify-*")), "the file of a comparison stays"


@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_merges(case: MergeCase, harness: SpannerHarness) -> None:
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


class WithoutVersion(SpannerHarness):
    """Versions of rows are in a table beside the target."""

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return super().sink({**(options or {}), "sequence_column": "none"})


def test_a_scan_goes_on_whose_versions_are_beside(spanner: SpannerServer, tmp_path: Path) -> None:
    case = next(case for case in MERGE_CASES if case.name == "goes_on_with_scans")
    with spanner.database() as name:
        assert run_merge_case(case, WithoutVersion(spanner, name, tmp_path)) == ""


def test_late_run(harness: SpannerHarness) -> None:
    late_run(harness)


# ---------------------------------------------------------------------- commits


class _Cut(Exception):
    """The process ends here."""


class _Watched:
    """A sink with small commits; ``after`` is called after each of them, ``cut`` ends the process
    before one."""

    def __init__(
        self, sink: Sink, after: Callable[[], None] = lambda: None, cells: int = 12
    ) -> None:
        assert isinstance(sink, SpannerSink)
        self.sink, self.commits, self.cut = sink, 0, 10**9
        sink.commits.most_cells = cells
        transact: Any = sink.server.transact

        def watched(work: Any, *topics: str) -> Any:
            if self.commits >= self.cut:
                raise _Cut
            self.commits += 1
            found = transact(work, *topics)
            after()
            return found

        sink.server.transact = watched  # type: ignore[method-assign]


def test_readers_see_whole_transactions(harness: SpannerHarness) -> None:
    """A round of many commits: after each of them both tables are as the source once had them."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"), table_of("v", a="int32"))

    def now() -> list[object]:
        return [source.rows(table) for table in ("t", "v")]

    def found() -> list[object]:
        return [visible(harness.rows(table)) for table in ("t", "v")]

    states = [now()]
    for step in range(6):
        source.commit(insert("t", a=step, b="x"), insert("v", a=1))
        states.append(now())
        changes = [update("t", {"a": step}, b="y"), insert("v", a=2)]
        source.commit(*changes, *([delete("t", a=step - 1), delete("v", a=1)] if step else []))
        states.append(now())
    seen: list[list[object]] = []
    feed = RowFeed(source)
    watched = _Watched(feed.open(harness.sink()), lambda: seen.append(found()), 20)
    feed.deliver(watched.sink)
    places = [states.index(state) for state in seen]
    assert places == sorted(places)
    assert len(set(places)) >= 6 and places[-1] == len(states) - 1, "it was not many commits"
    watched.sink.close()


def test_a_transaction_larger_than_a_commit(harness: SpannerHarness) -> None:
    """It is several commits, and wherever they are cut the rest comes, once."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"), table_of("v", a="int32"))
    source.commit(*(insert("t", a=i, b="x") for i in range(20)), *(insert("v", a=1),) * 9)
    feed = RowFeed(source)
    commits = 0
    for cut in range(3, 40, 3):
        watched = _Watched(feed.open(harness.sink()))
        watched.cut = cut
        try:
            feed.deliver(watched.sink, 0)
        except _Cut:
            commits += 1
            partial = visible(harness.rows("t"))
            assert all(row in source.rows("t") for row in partial)
        watched.sink.close()
    assert commits >= 2, "nothing was cut"
    for table in ("t", "v"):
        assert visible(harness.rows(table)) == source.rows(table)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [{}, {"deletes": "soft"}, {"sequence_column": "none"}], ids=str)
def test_random_rounds_replays_cuts_and_scans(
    harness: SpannerHarness, options: Mapping[str, object], seed: int
) -> None:
    """A round may be cut before each of its commits, which are small."""
    run_random_rounds(harness, seed, options, _deliver_until)


def _deliver_until(feed: RowFeed, sink: Sink, begin: int, commits: int) -> None:
    watched = _Watched(sink)
    watched.cut = commits
    with suppress(_Cut):
        feed.deliver(watched.sink, begin)


def test_a_large_round_is_within_the_limits(harness: SpannerHarness) -> None:
    """100,000 mutations come, and go again in one transaction. The fake counts them."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text", c="int64"))
    source.commit(*(insert("t", a=i, b="x", c=i) for i in range(25_000)))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    count = "SELECT COUNT(*) AS n FROM t"
    assert harness.server.query(harness.database, count) == [{"n": 25_000}]
    source.commit(truncate("t"), insert("t", a=1, b="after", c=None))
    feed.deliver(sink)
    assert visible(harness.rows("t")) == source.rows("t")
    sink.close()


@pytest.mark.parametrize("options", [{}, {"sequence_column": "none"}], ids=str)
def test_a_commit_that_is_too_large_is_cut_again(
    harness: SpannerHarness, options: Mapping[str, object]
) -> None:
    """Indexes of somebody's make more mutations than the sink knows of."""
    keyless = [] if options else [table_of("v", a="int32", b="text")]
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"), *keyless)
    source.load("t", [{"a": i, "b": "x"} for i in range(50)])
    if keyless:
        source.load("v", [{"a": i // 2, "b": "x"} for i in range(50)])

    def write(sink: Sink, batch: Batch) -> None:
        sink.write(batch)  # all of a scan is one commit

    feed = RowFeed(source, options=options, write_scan=write)
    sink = feed.open(harness.sink(options))
    assert isinstance(sink, SpannerSink)
    sink.commits.most_cells, sink.commits.fewest_cells = 400, 10
    transact: Any = sink.server.transact
    refused: list[int] = []

    def strict(work: Any, *topics: str) -> Any:
        def counted(transaction: Any) -> Any:
            found = work(transaction)
            count = _cells(transaction.request)
            if count > 30:
                refused.append(count)
                wrong: Any = api.InvalidArgument
                raise wrong("The transaction contains too many mutations.")
            return found

        return transact(counted, *topics)

    sink.server.transact = strict  # type: ignore[method-assign]
    for table in source.schemas:
        at = feed.scan(sink, table, end=False)
        feed.commit(sink, Epoch(1, at), [])
        assert refused and 10 <= sink.commits.most_cells < 400
        assert visible(harness.rows(table)) == source.rows(table)
        sink.end_scan(feed.targets[table], source.schemas[table], at)
        sink.commits.most_cells = 400
        source.commit(*(insert(table, a=i, b="y") for i in range(100, 150)))
        feed.deliver(sink)
        assert visible(harness.rows(table)) == source.rows(table)
        sink.commits.most_cells = 400
    if options:
        source._rows["t"] = []  # all rows went unseen, and the next scan tells
        feed.open(sink)
        source._step += 1
        feed.scan(sink, "t")
        assert not harness.rows("t") and not harness.rows("changefeed_sequence_t")
        sink.commits.most_cells = 400
    sink.commits.fewest_cells = 100
    source.commit(*(insert("t", a=i, b="y") for i in range(200, 250)))
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006" and "fewer mutations" in caught.value.message
    sink.close()


def _cells(request: Any) -> int:
    """Mutations of a commit, as Spanner counts those of tables without an index."""
    writes = [w for m in request.mutations for w in (m.insert_or_update, m.update)]
    keys = [m.delete.key_set.keys for m in request.mutations]
    return sum(len(w.columns) * len(w.values) for w in writes) + sum(map(len, keys))


def test_a_refused_row_names_its_table(harness: SpannerHarness) -> None:
    """A commit of several tables that is refused is made table by table."""
    define = harness.server.define
    define(harness.database, "CREATE TABLE t (a INT64, b INT64) PRIMARY KEY (a)")
    tables = [table_of(name, key=("a",), a="int32", b="text") for name in ("s", "t", "u")]
    source = SourceDouble(*tables)
    source.commit(*(insert(name, a=1, b="text") for name in ("s", "t", "u")))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006" and "table t" in caught.value.message
    assert visible(harness.rows("s")) == source.rows("s") and not harness.rows("t")
    sink.close()


def test_an_aborted_transaction_begins_anew(harness: SpannerHarness) -> None:
    """Another run commits between the reads of a transaction and its commit."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="x"))
    feed = RowFeed(source)
    late, other = feed.open(harness.sink()), feed.open(harness.sink())
    assert isinstance(late, SpannerSink)
    epoch, receipts = feed.write(late, 0, 2)
    source.commit(delete("t", a=1), update("t", {"a": 2}, b="y"))
    attempt: Any = late.server._attempt
    attempts = []

    def meanwhile(work: Any) -> Any:
        def later(transaction: Any) -> Any:
            found = work(transaction)
            attempts.append(1)
            if len(attempts) == 1:
                feed.deliver(other, 0)
            return found

        return attempt(later)

    late.server._attempt = meanwhile  # type: ignore[method-assign]
    feed.commit(late, epoch, receipts)
    assert len(attempts) == 2
    assert visible(harness.rows("t")) == source.rows("t")
    late.close()
    other.close()


def test_a_late_change_of_shape(harness: SpannerHarness) -> None:
    """A run that follows a change that another one has left behind takes nothing back."""
    old = table_of("t", key=("a",), a="int32", b="text")
    source = SourceDouble(old)
    source.commit(insert("t", a=1, b="x"))
    feed = RowFeed(source)
    late, other = feed.open(harness.sink()), feed.open(harness.sink())
    feed.deliver(late)
    source.alter("t", replace(old, columns=(*old.columns, column_of("c", "text", 3))))
    source.commit(delete("t", a=1), insert("t", a=2, b="y", c="z"))
    feed.deliver(other)
    feed.deliver(late, 0, 2)
    [row] = harness.rows("changefeed_applied")
    assert row["version"] == source.now().version
    feed.deliver(late, 0)
    assert visible(harness.rows("t")) == source.rows("t")
    late.close()
    other.close()


@pytest.mark.parametrize("options", [{}, {"sequence_column": "none"}], ids=str)
def test_a_late_truncate(harness: SpannerHarness, options: Mapping[str, object]) -> None:
    """What another run has truncated softly is not gone through again."""
    options = {"deletes": "soft", **options}
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="x"))
    feed = RowFeed(source, options=options)
    late, other = feed.open(harness.sink(options)), feed.open(harness.sink(options))
    assert isinstance(late, SpannerSink)
    feed.deliver(late)
    source.commit(truncate("t"), insert("t", a=2, b="y"))
    feed.deliver(other)
    ended: list[object] = []
    late._end_all = lambda *given: ended.append(given)  # type: ignore[method-assign]
    feed.deliver(late, 1)
    assert not ended
    rows = {row["a"]: row["_deleted"] for row in harness.rows("t")}
    assert rows == {1: True, 2: False}
    late.close()
    other.close()


def test_the_longest_names(harness: SpannerHarness) -> None:
    name = "n" * 128
    source = SourceDouble(table_of(name, key=("a",), a="int32"))
    source.commit(insert(name, a=1), insert(name, a=2), delete(name, a=1))
    feed = RowFeed(source)
    sink = feed.open(harness.sink({"sequence_column": "none"}))
    feed.deliver(sink)
    assert visible(harness.rows(name)) == source.rows(name)
    sink.close()


# ---------------------------------------------------------------------- values and shapes


def test_values_come_through(harness: SpannerHarness) -> None:
    """Every type that has a form of its own on the wire, as a value and as a key that is found."""
    if not harness.server.real:
        pytest.skip("the fake keeps numbers and JSON as texts")
    wide = {
        "flag": ("bool", True, True),
        "big": ("int64", -(2**63), -(2**63)),
        "real": ("float64", "1.5e-300", 1.5e-300),
        "odd": ("float64", '"NaN"', "NaN"),
        "low": ("float32", '"-Infinity"', "-Infinity"),
        "price": ("decimal(12,2)", "-0012.50", "-12.5"),
        "free": ("decimal", "1234567890123456789.000000001", "1234567890123456789.000000001"),
        "data": ("bytes", "\\x00ff10", "AP8Q"),
        "day": ("date", "0001-01-01", "0001-01-01"),
        "local": ("timestamp", "2024-03-31T01:02:03.120000", "2024-03-31T01:02:03.12Z"),
        "at": ("timestamptz", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        "doc": ("json", '{"b": [1, null], "a": "x"}', '{"a":"x","b":[1,null]}'),
        "list": ("array<int32>", "[1,null]", "[1,null]"),
        "id": (
            "uuid",
            "0d9a2c40-7d1c-4a86-9d8c-8a9f3f6b2d11",
            "0d9a2c40-7d1c-4a86-9d8c-8a9f3f6b2d11",
        ),
        "clock": ("time", "23:59:60", "23:59:60"),
    }
    schema = table_of("t", key=("k",), k="int32", **{n: kind for n, (kind, _, _) in wide.items()})
    source = SourceDouble(schema)
    source.commit(insert("t", k=1, **{n: value for n, (_, value, _) in wide.items()}))
    source.commit(insert("t", k=2))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    one, two = sorted(harness.rows("t"), key=lambda row: str(row["k"]))
    for name, (_, _, kept) in wide.items():
        assert one[name] == kept, name
        assert two[name] is None
    sink.close()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("decimal(12,4)", ["1.5000", "10.0000", "0.0000", "-2.2500"]),
        (
            "timestamptz",
            ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5Z", "2024-01-01T00:00:00.12Z"],
        ),
        (
            "timestamp",
            ["2024-01-01T00:00:00.100000", "1900-01-01T10:00:00", "2024-01-01T00:00:00.1"],
        ),
        ("float64", ["1.5", "1e+300", "-0.25"]),
        ("bytes", ["\\x", "\\x00", "\\xff00"]),
        ("bool", [True, False]),
        ("text", ["", "a", "é\n"]),
    ],
)
def test_rows_are_found_by_keys_of_all_types(
    harness: SpannerHarness, kind: str, keys: Sequence[object]
) -> None:
    """A stored number guards a row, so an answered key has to be known again."""
    if kind.startswith("decimal") and not harness.server.real:
        pytest.skip("the fake keeps numbers as texts")
    source = SourceDouble(table_of("t", key=("k",), k=kind, n="int32"))
    source.commit(*(insert("t", k=key, n=i) for i, key in enumerate(keys[:2])))
    feed = RowFeed(source, options={"deletes": "soft"})
    sink = feed.open(harness.sink({"deletes": "soft"}))
    feed.deliver(sink)
    source.commit(delete("t", k=keys[0]), update("t", {"k": keys[1]}, n=7))
    feed.deliver(sink)
    rows = sorted((row["n"], row["_deleted"]) for row in harness.rows("t"))
    assert rows == [(0, True), (7, False)]
    assert isinstance(sink, SpannerSink)
    sink.server.transact(
        lambda tx: tx.update(
            "t",
            ("k", "_sequence_num", "n"),
            [(key, str(2**62), "9") for key in _answered(sink)],
        )
    )
    source.commit(update("t", {"k": keys[1]}, n=8))
    feed.deliver(sink)
    assert [row["n"] for row in harness.rows("t")] == [9, 9], "a newer row was overwritten"
    sink.close()


def _answered(sink: SpannerSink) -> list[Any]:
    return [row[0] for row in sink.server.query("SELECT k FROM t")]


def test_the_number_beside_the_table(harness: SpannerHarness) -> None:
    """``sequence_column = 'none'``: as in the list, without the table that has no key."""
    options = {"sequence_column": "none"}
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.load("t", [{"a": i, "b": "old"} for i in range(4)])
    feed = RowFeed(source, options=options)
    first = feed.open(harness.sink(options))
    feed.scan(first, "t", upto=3, end=False)
    first.close()
    source.commit(delete("t", a=0), update("t", {"a": 3}, a=5))
    sink = feed.open(harness.sink(options))
    feed.deliver(sink)
    feed.open(sink)
    feed.scan(sink, "t")
    source.commit(insert("t", a=9, b="new"), update("t", {"a": 1}, b="new"))
    feed.deliver(sink)
    feed.deliver(sink, 0)
    assert ordered(harness.rows("t")) == source.rows("t")
    numbers = {row["a"] for row in harness.rows("changefeed_sequence_t")}
    assert numbers == {row["a"] for row in source.rows("t")}
    source.commit(truncate("t"))
    feed.deliver(sink)
    assert not harness.rows("t") and not harness.rows("changefeed_sequence_t")
    sink.close()


def test_a_table_without_a_key_gets_columns(harness: SpannerHarness) -> None:
    """Rows are found by a digest that outlives a new column and a new name of one."""
    old = table_of("v", a="int32", b="text")
    source = SourceDouble(old)
    source.commit(insert("v", a=1, b="x"), insert("v", a=1, b="x"), insert("v", a=2, b=None))
    a, b = old.columns
    columns = (a, replace(b, name="c"), column_of("d", "text", 3))
    source.alter("v", replace(old, columns=columns, key=(0, 1, 2)))
    source.commit(delete("v", a=1), insert("v", a=3, c="y", d="z"), delete("v", a=2))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    assert visible(harness.rows("v")) == source.rows("v")
    lost = replace(source.schemas["v"], columns=columns[:2], key=(0, 1))
    source.alter("v", lost)
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006" and "column d" in caught.value.message
    sink.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [("rename", "cannot rename the column a"), ("widen", "cannot change the type of a column (b)")],
)
def test_what_cannot_be_altered(harness: SpannerHarness, change: str, words: str) -> None:
    old = table_of("t", key=("a",), a="int32", b="int32")
    source = SourceDouble(old)
    source.commit(insert("t", a=1, b=1))
    a, b = old.columns
    if change == "rename":
        source.alter("t", replace(old, columns=(replace(a, name="z"), b)))
    else:
        wide = replace(b, logical=LogicalType(Kind.DECIMAL), type_name="numeric")
        source.alter("t", replace(old, columns=(a, wide)))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006" and words in caught.value.message
    assert [row["a"] for row in harness.rows("t")] == [1]
    sink.close()


def test_a_rename_that_fails_again_and_again(harness: SpannerHarness) -> None:
    """DROP COLUMN is refused while an index of somebody's stands on it: nothing gets lost, nothing
    runs for ever, and when the index is gone it is done."""
    old = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(old)
    source.commit(insert("t", a=1, b="x", c="y"), insert("t", a=2, b=None, c="y"))
    a, b, c = old.columns
    feed = RowFeed(source)
    feed.deliver(feed.open(harness.sink()))
    source.alter("t", replace(old, columns=(a, replace(b, name="d"), c)))
    source.commit(update("t", {"a": 1}, d="z"))
    start = feed.place
    if harness.server.real:
        harness.server.define(harness.database, "CREATE INDEX i ON t (b)")
    for attempt in range(4):
        sink = feed.open(harness.sink())
        assert isinstance(sink, SpannerSink)
        run: Any = sink.server.run

        def refusing(statements: Any, run: Any = run) -> None:
            if any("DROP COLUMN `b`" in s.sql for s in statements):
                raise ChangefeedError("CF5006", "an index stands on it")
            run(statements)

        if not harness.server.real:  # the fake lets it go
            sink.server.run = refusing  # type: ignore[method-assign]
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink, start)
        assert caught.value.code.number == "CF5006", attempt
        rows = sorted((row["a"], row["b"]) for row in harness.rows("t"))
        assert rows == [(1, "x"), (2, None)]
        sink.close()
    if harness.server.real:
        harness.server.define(harness.database, "DROP INDEX i")
    # Somebody changes the old column meanwhile: it counts.
    client = harness.sink()
    assert isinstance(client, SpannerSink)
    feed.open(client)
    client.server.transact(lambda tx: tx.update("t", ("a", "b"), [("2", "w")]))
    client.server.transact(lambda tx: tx.update("t", ("a", "b"), [("1", None)]))
    feed.deliver(client, start, start + 1)
    found = {row["a"]: row["d"] for row in harness.rows("t")}
    assert found == {1: None, 2: "w"} and "b" not in harness.rows("t")[0]
    feed.deliver(client)
    assert {row["a"]: row["d"] for row in harness.rows("t")} == {1: "z", 2: "w"}
    client.close()


def test_what_was_dropped_is_moved_aside_whole(harness: SpannerHarness) -> None:
    """Cut after each definition and each copy: the values of a dropped column are not those of the
    one that got its name."""
    old = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(old)
    source.commit(insert("t", a=1, b="x", c="y"), insert("t", a=2, b=None, c="y"))
    a, b, _ = old.columns
    source.alter("t", replace(old, columns=(a, b)))
    source.alter("t", replace(old, columns=(a, replace(b, name="c"))))
    feed = RowFeed(source)
    feed.deliver(feed.open(harness.sink()), stop=3)
    for cut in range(6):
        sink = feed.open(harness.sink())
        assert isinstance(sink, SpannerSink)
        steps = iter(range(cut))

        def once(call: Any, steps: Iterator[int] = steps) -> Any:
            def counted(*given: Any) -> None:
                if next(steps, None) is None:
                    raise _Cut
                call(*given)

            return counted

        server: Any = sink.server
        server.run, server.change_all = once(server.run), once(server.change_all)
        with suppress(_Cut):
            feed.deliver(sink, 3)
        sink.close()
    rows = {row["a"]: (row["c"], row["_dropped_2_c"]) for row in harness.rows("t")}
    assert rows == {1: ("x", "y"), 2: (None, "y")}
    assert "b" not in harness.rows("t")[0]


def test_names_that_differ_only_in_case(harness: SpannerHarness) -> None:
    """They are one in Spanner: a rename from one to the other has nothing to do."""
    if not harness.server.real:
        pytest.skip("the fake tells names of columns apart by case")
    old = table_of("t", key=("id",), id="int32", foo="text")
    source = SourceDouble(old)
    source.commit(insert("t", id=1, foo="x"), insert("t", id=2, foo="x"))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    key, foo = old.columns
    source.alter("t", replace(old, columns=(replace(key, name="ID"), replace(foo, name="Foo"))))
    source.commit(update("t", {"ID": 1}, Foo="y"), delete("t", ID=2), insert("t", ID=3, Foo="z"))
    feed.deliver(sink)
    sink.close()
    sink = feed.open(harness.sink())
    feed.deliver(sink, 0)
    source.commit(update("t", {"ID": 3}, Foo="zz"))
    feed.deliver(sink)
    found = {row["id"]: row["foo"] for row in harness.rows("t")}
    assert found == {1: "y", 3: "zz"}
    wide = source.schemas["t"]
    source.alter("t", replace(wide, columns=(wide.columns[0], replace(foo, name="bar"))))
    feed.deliver(sink)
    assert {row["id"]: row["bar"] for row in harness.rows("t")} == {1: "y", 3: "zz"}
    assert set(harness.rows("t")[0]) == {"id", "bar", "_sequence_num"}
    # A dropped column makes room for a new one whose name differs in case.
    source.alter("t", replace(wide, columns=wide.columns[:1]))
    source.alter("t", replace(wide, columns=(wide.columns[0], column_of("BAR", "int32", 9))))
    source.commit(insert("t", ID=4, BAR=4))
    feed.deliver(sink)
    found = {row["id"]: (row["BAR"], row["_dropped_9_BAR"]) for row in harness.rows("t")}
    assert found == {1: (None, "y"), 3: (None, "zz"), 4: (4, None)}
    sink.close()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"b": "c", "c": "b"}, "has another name"),
        ({"b": "c", "c": "d"}, "has another name"),
        ({"b": "c", "c": ""}, ""),
        ({"b": "c", "c": "", "new": "b"}, "has another name"),
        ({"b": "", "new": "B"}, "only in case"),
    ],
    ids=str,
)
def test_names_that_go_round_are_refused(
    harness: SpannerHarness, names: Mapping[str, str], words: str
) -> None:
    old = table_of("t", key=("a",), a="int32", b="text", c="text")
    source = SourceDouble(old)
    source.commit(insert("t", a=1, b="x", c="y"))
    columns = [replace(each, name=names.get(each.name, each.name)) for each in old.columns]
    columns = [each for each in columns if each.name]
    if "new" in names:
        columns.append(column_of(names["new"], "text", 9))
    source.alter("t", replace(old, columns=tuple(columns)))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    if not words:
        feed.deliver(sink)
        assert [row["c"] for row in harness.rows("t")] == ["x"]
    else:
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink)
        assert caught.value.code.number == "CF5006" and words in caught.value.message
        [row] = harness.rows("t")
        assert (row["b"], row["c"]) == ("x", "y") and len(row) == 4
    sink.close()


def test_tables_that_differ_only_in_case(harness: SpannerHarness) -> None:
    source = SourceDouble(
        table_of("t", key=("a",), a="int32"), table_of("T", key=("a",), a="int32")
    )
    source.commit(insert("t", a=1))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    source.commit(insert("T", a=2))
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006" and "only in case" in caught.value.message
    assert visible(harness.rows("t")) == [{"a": 1}]
    sink.close()


def test_long_texts_without_a_key(harness: SpannerHarness) -> None:
    """Its columns are no key of Spanner's, whose keys have 8 KiB."""
    source = SourceDouble(table_of("v", a="int32", b="text"))
    source.commit(insert("v", a=1, b="x" * 9_000), insert("v", a=1, b="x" * 9_000))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    source.commit(delete("v", a=1))
    feed.deliver(sink)
    assert visible(harness.rows("v")) == source.rows("v")
    sink.close()


@pytest.mark.parametrize("key", [("a",), ()], ids=["key", "none"])
def test_a_scan_does_not_wait_in_memory(harness: SpannerHarness, key: tuple[str, ...]) -> None:
    """Rows of a scan become part of the target piece by piece, and the next attempt starts over."""
    source = SourceDouble(table_of("t", key=key, a="int32", b="text"))
    source.load("t", [{"a": i // (1 if key else 2), "b": "x"} for i in range(30)])
    seen: list[int] = []
    last: list[Batch] = []

    def write(sink: Sink, batch: Batch) -> None:
        """All of a scan is one round."""
        last[:] = [batch]
        sink.write(batch)
        seen.append(len(harness.rows("t")))

    feed = RowFeed(source, write_scan=write)
    sink = feed.open(loading_often(harness))
    feed.scan(sink, "t", upto=20, end=False)
    assert seen == [0, 0, 0, 8, 8, 8, 8, 16, 16, 16]
    sink.abort(last[0].epoch, [])
    sink.close()
    sink = feed.open(loading_often(harness))
    at = feed.scan(sink, "t", end=False)
    feed.commit(sink, last[0].epoch, [])
    assert visible(harness.rows("t")) == source.rows("t")
    assert isinstance(sink, SpannerSink)
    sink.end_scan(feed.targets["t"], source.schemas["t"], at)
    assert visible(harness.rows("t")) == source.rows("t")
    sink.close()


def loading_often(harness: SpannerHarness) -> SpannerSink:
    made = harness.sink()
    assert isinstance(made, SpannerSink)
    made.load_rows = 8
    return made


def test_what_is_beside_the_tables(harness: SpannerHarness) -> None:
    source = SourceDouble(table_of("_t", key=("a",), a="int32"))
    source.commit(insert("_t", a=1))
    feed = RowFeed(source, lambda table: harness.sink().topic(table))
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    sink.resolved(Resolved(source.now()), b"")
    assert visible(harness.rows("table_t")) == [{"a": 1}]
    [row] = harness.rows("changefeed_applied")
    assert (row["table_name"], row["version"]) == ("table_t", source.now().version)
    assert row["resolved"] == str(source.now())
    sink.close()


# ---------------------------------------------------------------------- refusals


def _error(sink: Sink, source: SourceDouble) -> ChangefeedError:
    feed = RowFeed(source)
    with pytest.raises(ChangefeedError) as caught:
        feed.open(sink)
        feed.deliver(sink, 0)
    sink.close()
    assert "secret-value" not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"
    assert caught.value.__cause__ is None
    return caught.value


def test_refusals(harness: SpannerHarness) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="secret-value"))
    uri = harness.server.uri(harness.database)
    absent = _error(open_sink(uri.replace(harness.database, "absent")), source)
    assert absent.code.number == "CF5002" and "is not there" in absent.message
    nowhere = uri.replace(f":{harness.server.port}", ":1")
    assert _error(open_sink(nowhere), source).code.number == "CF5001"
    define = harness.server.define
    define(harness.database, "CREATE TABLE t (a INT64, b STRING(MAX)) PRIMARY KEY (a, b)")
    other = _error(harness.sink(), source)
    assert other.code.number == "CF5006" and "another primary key" in other.message
    define(harness.database, "DROP TABLE t")
    define(harness.database, "CREATE TABLE t (a INT64, b INT64) PRIMARY KEY (a)")
    refused = _error(harness.sink(), source)
    assert refused.code.number == "CF5006" and "table t" in refused.message
    with pytest.raises(ChangefeedError) as caught:
        harness.sink({"history": "scd2"})
    assert caught.value.code.number == "CF1206"
    keyless = SourceDouble(table_of("w", a="int32"))
    keyless.commit(insert("w", a=1))
    none = _error(harness.sink({"sequence_column": "none"}), keyless)
    assert none.code.number == "CF5006" and "needs a table with a key" in none.message


def test_a_database_of_another_dialect(harness: SpannerHarness) -> None:
    if not harness.server.real:
        pytest.skip("the fake has one dialect")
    name = f"{harness.database}-pg"
    harness.server.make(name, postgresql=True)
    source = SourceDouble(table_of("t", key=("a",), a="int32"))
    source.commit(insert("t", a=1))
    found = _error(open_sink(harness.server.uri(name)), source)
    assert found.code.number == "CF5002" and "PostgreSQL dialect" in found.message


def test_a_server_that_goes_away(spanner: SpannerServer) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    feed = RowFeed(source)
    with server_folder("spanner") as folder:
        server = SpannerServer(folder, real=spanner.real)
        server.start()
        server.make("shop")
        sink = feed.open(open_sink(server.uri("shop")))
        source.commit(insert("t", a=1, b="x"))
        feed.deliver(sink)
        source.commit(insert("t", a=2, b="y"), delete("t", a=1))
        epoch, receipts = feed.write(sink, 1, 3)
        server.kill()
        with pytest.raises(ChangefeedError) as caught:
            sink.commit(epoch, receipts)
        assert caught.value.code.number == "CF5001"
        sink.abort(epoch, receipts)
        with pytest.raises(ChangefeedError) as caught:
            feed.deliver(sink, 1)
        assert caught.value.action is Action.RETRY
        sink.abort(epoch, receipts)
        server.start()
        server.make("shop")
        feed.deliver(sink, 0)
        assert visible(server.rows("shop", "t")) == source.rows("t")
        sink.close()
        server.stop()
