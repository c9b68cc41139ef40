"""ClickHouse's engine against the list of what a merging sink must do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Resolved
from changefeed_testing.sinks.merge_harness import MergeHarness
from changefeed_testing.sinks.merge_steps import visible
from changefeed_testing.sinks.merging import MERGE_CASES, MergeCase, run_merge_case
from changefeed_testing.sinks.rounds import live, run_random_rounds
from changefeed_testing.sinks.rows import (
    RowFeed,
    SourceDouble,
    column_of,
    delete,
    insert,
    table_of,
    truncate,
    update,
)
from sinks.base import Sink
from sinks.registry import open_sink
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.dialect import SqlStatement
from tests.conformance.test_warehouse import late_run
from tests.services.cache import server_folder
from tests.services.clickhouse import PASSWORD, ClickHouseServer

pytestmark = pytest.mark.clickhouse


class ClickHouseHarness(MergeHarness):
    never: Mapping[str, str] = {
        "keeps_foreign_rows": "the target is a view: a table of its name is left alone",
        "replaces_foreign_rows": "the target is a view: a table of its name is left alone",
    }
    secret = PASSWORD
    #: ClickHouse makes something of every text; what it refuses alone is a constraint, below.
    unfit: Mapping[str, str] = {"decimal(9,2)": '"NaN"'}

    def __init__(self, server: ClickHouseServer, database: str) -> None:
        self.server = server
        self.database = database

    def sink(self, options: Mapping[str, object] | None = None) -> Sink:
        return open_sink(self.server.uri(self.database), options)

    def rows(self, topic: str) -> Sequence[Mapping[str, object]]:
        with self.server.client() as client:
            if not int(str(client.command(f"EXISTS {self.database}.`{topic}`"))):
                return []
            found = client.query(f"SELECT * FROM {self.database}.`{topic}`")
            return [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]

    def raw(self) -> bytes:
        return repr([self.rows(table) for table in ("_rows_t", "_changefeed_applied")]).encode()

    def make_foreign(self, name: str) -> None:
        with self.server.client() as client:
            client.command(f"CREATE DATABASE IF NOT EXISTS {self.database}")
            place = f"{self.database}.`{name}`"
            client.command(
                f"CREATE TABLE {place} (a Int32, b String) ENGINE = MergeTree ORDER BY a"
            )
            client.command(f"INSERT INTO {place} VALUES (9, 'theirs')")


@pytest.fixture
def harness(clickhouse: ClickHouseServer) -> Iterator[ClickHouseHarness]:
    with clickhouse.database() as name:
        yield ClickHouseHarness(clickhouse, name)


@pytest.mark.parametrize("case", MERGE_CASES, ids=str)
def test_merges(case: MergeCase, harness: ClickHouseHarness) -> None:
    reason = run_merge_case(case, harness)
    if reason:
        pytest.skip(f"never: {reason}")


def test_a_constraint_of_the_table_is_about_a_row(harness: ClickHouseHarness) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="x"))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    feed.deliver(sink)
    with harness.server.client() as client:
        place = f"{harness.database}.`_rows_t`"
        client.command(f"ALTER TABLE {place} ADD CONSTRAINT word CHECK b != 'secret-value'")
    source.commit(insert("t", a=2, b="y"), insert("t", a=3, b="secret-value"))
    with pytest.raises(ChangefeedError) as caught:
        feed.deliver(sink)
    assert caught.value.about_row and caught.value.target == "t"
    assert "secret-value" not in str(caught.value.fields())
    sink.close()


def test_late_run(harness: ClickHouseHarness) -> None:
    late_run(harness)


# ---------------------------------------------------------------------- no transactions


class _Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("options", [{}, {"deletes": "soft"}, {"history": "scd2"}], ids=str)
def test_a_round_cut_anywhere_comes_again(
    harness: ClickHouseHarness, options: Mapping[str, object]
) -> None:
    """A run that ends between any two statements of a round, and the whole log once more."""
    keyless = [] if options else [table_of("v", a="int32", b="text")]
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"), *keyless)
    feed = RowFeed(source, options=options)
    steps = 0
    for step in range(2):
        source.commit(insert("t", a=step, b="x"), insert("t", a=100 + step, b="y"))
        source.commit(update("t", {"a": step}, b="z"), delete("t", a=100 + step))
        source.commit(update("t", {"a": step}, a=200 + step))
        if keyless:
            source.commit(insert("v", a=1, b="same"), insert("v", a=1, b="same"))
            source.commit(delete("v", a=1), insert("v", a=step, b=None))
        begin = feed.place
        for cut in range(10):
            sink = feed.open(harness.sink(options))
            if not _deliver_until(feed, sink, begin, cut):
                break
            steps += 1
        feed.deliver(sink, begin)
        sink.close()
    assert steps >= 6, "no round was cut"
    sink = feed.open(harness.sink(options))
    feed.deliver(sink, 0)
    sink.close()
    for table in source.schemas:
        assert visible(live(harness.rows(table))) == source.rows(table)
    if "history" in options:
        assert len(harness.rows("t")) == 2 * 4, "new, changed, moved, and the one that went"


def _deliver_until(feed: RowFeed, sink: Sink, begin: int, cut: int) -> bool:
    """Deliver a round whose process ends after ``cut`` statements of its commit; False when it
    had not so many."""
    epoch, receipts = feed.write(sink, begin, len(feed.source.log))
    server = sink.server  # type: ignore[attr-defined]
    run = server.run

    def partly(statements: Sequence[SqlStatement]) -> None:
        run(statements[:cut])
        if cut < len(statements):
            raise _Cut

    server.run = partly
    try:
        feed.commit(sink, epoch, receipts)
    except _Cut:
        server.close()
        return True
    finally:
        server.run = run
    return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [{}, {"deletes": "soft"}, {"history": "scd2"}], ids=str)
def test_random_rounds_replays_cuts_and_scans(
    harness: ClickHouseHarness, options: Mapping[str, object], seed: int
) -> None:
    """A round may be cut after each of its statements."""
    run_random_rounds(harness, seed, options, _deliver_until, rounds=6)


def test_every_change_of_scans_that_break_and_of_truncations(harness: ClickHouseHarness) -> None:
    options = {"history": "append"}
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.load("t", [{"a": i, "b": "old"} for i in range(4)])
    feed = RowFeed(source, options=options)
    feed.scan(feed.open(harness.sink(options)), "t", upto=2, end=False)
    source.commit(update("t", {"a": 0}, b="new"))
    sink = feed.open(harness.sink(options))
    feed.scan(sink, "t")
    feed.open(sink)
    feed.scan(sink, "t")
    source.commit(insert("t", a=9, b="brief"), truncate("t"), insert("t", a=1, b="after"))
    feed.place = 1
    for start in (1, 0):
        feed.deliver(sink, start)
    sink.close()
    found = [(r["_operation"], r["a"], r["b"]) for r in harness.rows("t")]
    assert sorted(map(repr, found)) == sorted(
        map(
            repr,
            [
                *(("READ", i, "new" if i == 0 else "old") for i in range(4)),
                *(("INSERT", 9, "brief"), ("TRUNCATE", None, None), ("INSERT", 1, "after")),
            ],
        )
    )


def test_versions_end_with_a_truncation_and_with_a_scan(harness: ClickHouseHarness) -> None:
    options = {"history": "scd2"}
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    feed = RowFeed(source, options=options)
    sink = feed.open(harness.sink(options))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"))
    source.commit(truncate("t"))
    source.commit(insert("t", a=1, b="again"), insert("t", a=3, b="missed"))
    feed.deliver(sink)
    source.commit(delete("t", a=3), insert("t", a=4, b="scanned"))
    feed.open(sink)
    feed.scan(sink, "t")
    feed.open(sink)
    feed.scan(sink, "t")
    sink.close()
    rows = harness.rows("t")
    assert visible([row for row in rows if row["_is_current"]]) == source.rows("t")
    assert sorted((row["a"], row["b"], row["_valid_to"] is None) for row in rows) == [
        (1, "again", True), (1, "x", False), (2, "y", False), (3, "missed", False),
        (4, "scanned", True),
    ]  # fmt: skip


def test_old_versions_are_behind_the_view(harness: ClickHouseHarness) -> None:
    """What a reader of the table itself finds, with FINAL and without."""
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"))
    feed.deliver(sink)
    source.commit(update("t", {"a": 1}, b="z"), delete("t", a=2))
    feed.deliver(sink)
    assert visible(harness.rows("t")) == [{"a": 1, "b": "z"}]
    table = f"{harness.database}._rows_t"
    assert harness.server.query(f"SELECT a, b FROM {table} FINAL") == [(1, "z")]
    harness.server.query(f"OPTIMIZE TABLE {table} FINAL")
    assert visible(harness.rows("t")) == [{"a": 1, "b": "z"}]
    sink.resolved(Resolved(source.now()), b"")
    [row] = harness.rows("_changefeed_applied")
    assert (row["table_name"], row["version"]) == ("t", source.now().version)
    assert row["resolved"] == str(source.now())
    sink.close()


def test_a_server_that_goes_away() -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    feed = RowFeed(source)
    with server_folder("clickhouse") as folder:
        server = ClickHouseServer(folder)
        server.start()
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
        feed.deliver(sink, 0)
        assert server.query("SELECT a, b FROM shop.t") == [(2, "y")]
        sink.close()
        server.stop()


# ---------------------------------------------------------------------- refusals


def _code(sink: Sink, source: SourceDouble) -> ChangefeedError:
    feed = RowFeed(source)
    with pytest.raises(ChangefeedError) as caught:
        feed.open(sink)
        feed.deliver(sink, 0)
    sink.close()
    assert "secret-value" not in f"{caught.value.message} {caught.value.detail} {caught.value.hint}"
    assert PASSWORD not in f"{caught.value.message} {caught.value.detail}"
    assert caught.value.__cause__ is None
    return caught.value


def test_refusals(harness: ClickHouseHarness) -> None:
    source = SourceDouble(table_of("t", key=("a",), a="int32", b="text"))
    source.commit(insert("t", a=1, b="secret-value"))
    uri = harness.server.uri(harness.database)
    assert _code(open_sink(uri.replace(PASSWORD, "wrong")), source).code.number == "CF5002"
    nowhere = uri.replace(f":{harness.server.port}/", ":1/")
    assert _code(open_sink(nowhere), source).code.number == "CF5001"
    harness.server.query(f"CREATE DATABASE {harness.database}")
    harness.server.query(
        f"CREATE TABLE {harness.database}.t (a Int32) ENGINE = MergeTree ORDER BY a"
    )
    taken = _code(harness.sink(), source)
    assert taken.code.number == "CF5008" and "is a table already" in taken.message
    assert harness.server.query(f"SELECT count() FROM {harness.database}.t") == [(0,)]
    harness.server.query(f"DROP TABLE {harness.database}.t")
    harness.server.query(
        f"CREATE TABLE {harness.database}._rows_t (a Int32, b UUID, _sequence_num Int64, "
        "_is_deleted UInt8) ENGINE = ReplacingMergeTree(_sequence_num, _is_deleted) ORDER BY a"
    )
    refused = _code(harness.sink(), source)
    assert refused.code.number == "CF5006" and "table t" in refused.message
    other = _code(harness.sink({"history": "scd2"}), source)
    assert other.code.number == "CF5006" and "another key" in other.message


@pytest.mark.parametrize("change", ["rename", "widen"])
def test_a_key_cannot_be_altered(harness: ClickHouseHarness, change: str) -> None:
    old = table_of("t", key=("a",), a="int32", b="text")
    to = column_of("k", "int32", 1) if change == "rename" else column_of("a", "int64", 1)
    source = SourceDouble(old)
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    source.commit(insert("t", a=1, b="x"))
    feed.deliver(sink)
    source.alter("t", replace(old, columns=(to, old.columns[1])))
    with pytest.raises(ChangefeedError, match="part of the key") as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006"
    assert visible(harness.rows("t")) == [{"a": 1, "b": "x"}]
    sink.close()


def test_a_table_without_a_key_keeps_its_columns(harness: ClickHouseHarness) -> None:
    old = table_of("v", a="int32")
    source = SourceDouble(old)
    feed = RowFeed(source)
    sink = feed.open(harness.sink())
    source.commit(insert("v", a=1), insert("v", a=1))
    feed.deliver(sink)
    source.alter("v", replace(old, columns=(*old.columns, column_of("b", "text", 2)), key=(0, 1)))
    with pytest.raises(ChangefeedError, match="cannot change its columns") as caught:
        feed.deliver(sink)
    assert caught.value.code.number == "CF5006"
    assert visible(harness.rows("v")) == [{"a": 1}, {"a": 1}]
    sink.close()


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("logical", "text", "shown"),
    [
        ("decimal", "-1234567890123456789012345.00000000000000000000000000000000000001",
         "-1234567890123456789012345.00000000000000000000000000000000000001"),
        ("decimal(12,2)", "-12.30", "-12.3"),
        ("decimal(12,2)", "9999999999.990", "9999999999.99"),
        ("decimal(76,0)", "9" * 76, "9" * 76),
        ("float64", "Infinity", "inf"),
        ("float64", "-Infinity", "-inf"),
        ("float32", "NaN", "nan"),
        ("float64", "1e+300", "1e300"),
        ("bytes", "\\xdeadBEEF", "hex:DEADBEEF"),
        ("bytes", "\\x", ""),
        ("date", "1900-01-01", "1900-01-01"),
        ("date", "2299-12-31", "2299-12-31"),
        ("timestamp", "1900-01-01T00:00:00", "1900-01-01 00:00:00.000000"),
        ("timestamp", "1969-12-31T23:59:59.999999", "1969-12-31 23:59:59.999999"),
        ("timestamp", "2024-03-31T01:02:03.5", "2024-03-31 01:02:03.500000"),
        ("timestamptz", "2299-12-31T23:59:59.999999Z", "2299-12-31 23:59:59.999999"),
        ("time", "24:00:00", "24:00:00"),
        ("json", '{"b": 1.50, "a": [null]}', '{"b": 1.50, "a": [null]}'),
        ("array<text>", '["a,b",null,"c\\"d"]', '["a,b",null,"c\\"d"]'),
        ("uuid", "EEB6EEFE-f688-46d8-952a-9f1101369c1b", "eeb6eefe-f688-46d8-952a-9f1101369c1b"),
    ],
)  # fmt: skip
def test_each_type_is_made_of_its_log_form(
    clickhouse: ClickHouseServer, logical: str, text: str, shown: str
) -> None:
    d = ClickHouseDialect()
    rule = d.rule(column_of("c", logical, 1))
    value = rule.of(f"CAST({d.literal(text)} AS Nullable(String))")
    printed = "concat('hex:', hex(v))" if shown.startswith("hex:") else "toString(v)"
    sql = f"SELECT {printed}, toTypeName(v) FROM (SELECT {value} AS v)"
    [(found, kind)] = clickhouse.query(sql)
    assert found == shown
    assert kind == f"Nullable({rule.sql})"
