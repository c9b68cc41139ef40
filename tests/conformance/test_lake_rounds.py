"""Rounds of whole rows into a Delta table: what they leave, and when they are ordinary MERGEs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.options import History
from changefeed.spark.internals.delta import DeltaTransaction
from changefeed.spark.session import NodeSpark
from sinks.base import Batch, Epoch, Target
from sinks.lake import delta_round
from sinks.lake.place import place_of
from sinks.lake.small.rounds import SmallLimits
from sinks.lake.staging import read, stage
from tests.conformance.test_lake_tables import Bench, schema_of
from tests.helpers.lake import place_in
from tests.helpers.waiting import until

pytestmark = pytest.mark.spark

SCHEMA = schema_of(("text", "string"), ("decimal(12,2)", "string"))
#: A key of a text and a number, so that neither has bounds on its own that say enough.
TWO_KEYS = TableSchema(
    TableName("s", "public", "t"),
    (
        Column("name", "text", LogicalType.parse("text"), False, 1),
        Column("id", "int4", LogicalType.parse("int32"), False, 2),
        Column("v", "text", LogicalType.parse("text"), True, 3),
    ),
    (0, 1),
)

Row = tuple[Any, ...]


@pytest.fixture
def options() -> dict[str, object]:
    return {}


@pytest.fixture
def bench(tmp_path: Path, spark_engine: NodeSpark, options: dict[str, object]) -> Iterator[Bench]:
    """All rounds are Spark's, also the small ones that the node could write itself
    (``test_lake_few.py``)."""
    made = Bench(spark_engine, place_in("delta", tmp_path), tmp_path, options)
    made.sink.small = SmallLimits(rows=0)
    yield made
    made.sink.close()


def ways(bench: Bench) -> list[str]:
    """For each round, oldest first, the way it went: only a MERGE's condition is in the log."""
    found = bench.lake.query("describe history {t}")
    names = ["operation", "operationParameters"]
    with bench.lake.engine.use(packs=("delta",)) as session:
        columns = session.sql(f"describe history {bench.lake.table('t')}").columns
    places = [columns.index(name) for name in names]
    rounds = [[row[n] for n in places] for row in reversed(found)]
    return [
        "merge" if "id" in parameters.get("predicate", "") else "round"
        for operation, parameters in rounds
        if operation == "MERGE"
    ]


def alter(bench: Bench, statement: str) -> None:
    bench.lake.query(f"ALTER TABLE {bench.lake.table('t')} {statement}")


def rows(bench: Bench, columns: str = "id, v0, cast(v1 as string)") -> set[Row]:
    found = bench.lake.query(f"select {columns} from {{t}}")
    assert len(found) == len(set(found))
    return set(found)


def test_rounds_are_commits_without_a_merge(bench: Bench) -> None:
    bench.round(SCHEMA, 10, *(("c", (n, f"v{n}", "1.50")) for n in range(5)))
    bench.round(SCHEMA, 20, ("u", (1, "new", None)), ("d", (2, None, None)), ("c", (9, "x", "2")))
    bench.round(SCHEMA, 30, ("d", (9, None, None)), ("d", (77, None, None)))
    assert rows(bench) == {
        (0, "v0", "1.50"),
        (1, "new", None),
        (3, "v3", "1.50"),
        (4, "v4", "1.50"),
    }
    assert ways(bench) == ["round"] * 3
    metrics = bench.lake.query("describe history {t}")[1]
    counts = next(
        value for value in metrics if isinstance(value, dict) and "numOutputRows" in value
    )
    picked = ("numSourceRows", "numTargetRowsInserted", "numTargetRowsUpdated",
              "numTargetRowsDeleted", "numOutputRows")  # fmt: skip
    assert [counts[name] for name in picked] == ["3", "1", "1", "1", "2"]


def test_the_jobs_of_a_round_are_described_by_feed_table_and_step(
    bench: Bench, spark_engine: NodeSpark
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", "1")))
    alter(bench, "ADD COLUMNS (theirs string)")  # or the round would need no job
    bench.round(SCHEMA, 20, ("u", (1, "b", "1")))
    with spark_engine.use() as session:
        store: Any = session.sparkContext._jsc.sc().statusStore()

    def described(doing: str) -> bool:
        jobs = store.jobsList(None)
        return any(jobs.apply(n).description().contains(doing) for n in range(jobs.size()))

    until(lambda: described("changefeed feed t round"), "a job of a round")


def test_what_a_table_has_newer_stays(bench: Bench) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "old", None)), ("c", (2, "old", None)))
    table = bench.lake.table("t")
    bench.lake.query(f"update {table} set v0 = 'theirs', _sequence_num = 99 where id = 1")
    bench.round(
        SCHEMA, 20, ("u", (1, "late", None)), ("u", (2, "new", None)), ("c", (3, "c", None))
    )
    bench.round(SCHEMA, 30, ("d", (1, None, None)))
    assert rows(bench, "id, v0, _sequence_num") == {(1, "theirs", 99), (2, "new", 20), (3, "c", 20)}
    assert ways(bench) == ["round"] * 3


JOINS = ("broadcast", "shuffle_hash", "merge")


@pytest.mark.extended
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("new", [(), (("c", (3, "c", None)),)])
def test_a_round_in_which_nothing_is_newer_leaves_no_second_row(
    bench: Bench, new: tuple[Any, ...], join: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sees that no row is to be marked, and may then not count the rows that came late."""
    bench.round(SCHEMA, 10, ("c", (1, "old", None)), ("c", (2, "old", None)))
    table = bench.lake.table("t")
    bench.lake.query(f"update {table} set v0 = 'theirs', _sequence_num = 99 where id = 1")
    monkeypatch.setattr(delta_round, "_join", lambda *_: join)
    bench.round(SCHEMA, 20, ("u", (1, "late", None)), *new)
    here = {(1, "theirs", 99), (2, "old", 10)} | ({(3, "c", 20)} if new else set())
    assert rows(bench, "id, v0, _sequence_num") == here


def test_bounds_of_decimals_stay_exact(bench: Bench) -> None:
    """A reader skips a file by them: a rounded bound would hide the row."""
    schema = schema_of(("decimal(38,10)", "string"))
    values = ("12345678901234567.1234567891", "98765432109876543.9876543219", "50000000000000000.5")
    bench.round(schema, 10, *(("c", (n, value)) for n, value in enumerate(values)))
    bench.round(schema, 20, ("d", (2, None)))
    assert ways(bench) == ["round"] * 2
    for number, value in enumerate(values[:2]):
        sql = f"select id from {{t}} where v0 = cast('{value}' as decimal(38,10))"
        assert bench.lake.query(sql) == [(number,)]


def test_two_texts_of_one_number_are_one_key(bench: Bench) -> None:
    """-0 and 0 are different texts in the log, and one number, of which MERGE takes one row."""
    schema = TableSchema(
        TableName("s", "public", "t"),
        (
            Column("id", "float8", LogicalType.parse("float64"), False, 1),
            Column("v", "text", LogicalType.parse("text"), True, 2),
        ),
        (0,),
    )
    bench.round(schema, 10, ("c", ("0", "a")))
    bench.round(schema, 20, ("u", ("0", "b")), ("u", ("-0", "c")))
    assert bench.lake.query("select v from {t}") == [("c",)]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("seed", "options"),
    [
        pytest.param(1, {}, marks=pytest.mark.everything),  # partitions add to the same rounds
        (2, {"partition_by": "v"}),
    ],
)
def test_any_changes_give_the_same_as_a_dictionary(
    bench: Bench, seed: int, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other version's list of files is lost, so Delta's log is read; and each way to join
    has its turn."""
    chance = random.Random(seed)
    model: dict[tuple[str, int], tuple[str | None, int]] = {}
    folder = Path(place_of(bench.lake.uri).root) / "t" / "_delta_log"
    for number in range(1, 7):
        changes: list[tuple[str, Row]] = []
        for _ in range(chance.randint(1, 30)):
            key = (chance.choice("abcé"), chance.randint(-3, 8))
            gone = key in model and chance.random() < 0.3
            value = None if gone else chance.choice([None, "x", "y", "é'\\"])
            changes.append(("d" if gone else "u" if key in model else "c", (*key, value)))
            if gone:
                del model[key]
            else:
                model[key] = (value, number * 10)
        monkeypatch.setattr(delta_round, "_join", lambda *_, way=JOINS[number % 3]: way)
        bench.round(TWO_KEYS, number * 10, *changes)
        if number % 2:
            for file in folder.glob("*.crc"):
                file.unlink()
            bench.sink.close()  # forgets what it knew of the table
            with bench.lake.engine.use(packs=("delta",)) as session:
                java: Any = session.sparkContext._jvm
                java.org.apache.spark.sql.delta.DeltaLog.clearCache()
            bench.sink.open(bench._context)
        got = rows(bench, "name, id, v, _sequence_num")
        assert got == {(*key, *held) for key, held in model.items()}
    assert set(ways(bench)) == {"round"}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("change", "way"),
    [
        ("ADD COLUMNS (theirs string)", "merge"),
        ("SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", "merge"),
        ("SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')", "merge"),
        ("ADD CONSTRAINT named CHECK (v0 <> 'wrong')", "round"),
    ],
)
def test_tables_that_need_more_are_merged(bench: Bench, change: str, way: str) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)), ("c", (2, "a", None)))
    alter(bench, change)
    bench.round(SCHEMA, 20, ("u", (1, "b", None)), ("d", (2, None, None)), ("c", (3, "c", None)))
    assert rows(bench, "id, v0") == {(1, "b"), (3, "c")}
    assert ways(bench) == ["round", way]


@pytest.mark.extended
def test_another_writers_commit_in_between_is_a_conflict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)), ("c", (2, "a", None)))
    look = DeltaTransaction.mark

    def between(self: Any, *arguments: Any) -> Any:
        found = look(self, *arguments)
        monkeypatch.setattr(DeltaTransaction, "mark", look)
        bench.lake.query(f"update {bench.lake.table('t')} set v0 = 'theirs' where id = 1")
        return found

    monkeypatch.setattr(DeltaTransaction, "mark", between)
    with pytest.raises(ChangefeedError) as raised:
        bench.round(SCHEMA, 20, ("u", (1, "b", None)), ("c", (3, "c", None)))
    assert raised.value.code.number == "CF5004"
    assert rows(bench, "id, v0") == {(1, "theirs"), (2, "a")}
    bench.round(SCHEMA, 20, ("u", (1, "b", None)), ("c", (3, "c", None)))
    assert rows(bench, "id, v0") == {(1, "b"), (2, "a"), (3, "c")}


@pytest.mark.extended
def test_a_commit_that_is_there_is_not_made_again(bench: Bench) -> None:
    """The same round by a writer that thinks it has not been: a node that came back late."""
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))
    versions = len(bench.lake.query("describe history {t}"))
    bench.sink._targets["t"].floor = None
    table = bench.sink._targets["t"].table
    table.applied = type(table.applied())  # type: ignore[method-assign]
    bench.round(SCHEMA, 20, ("u", (1, "again", None)))
    assert rows(bench, "id, v0") == {(1, "b")}
    assert len(bench.lake.query("describe history {t}")) == versions


@pytest.mark.extended
def test_another_delta_takes_merges(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    monkeypatch.setattr(DeltaTransaction, "helper", "NoSuchHelper$")
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))
    assert rows(bench, "id, v0") == {(1, "b")}
    assert ways(bench) == ["round", "merge"]
    assert "takes ordinary MERGEs only" in caplog.text


def test_a_filter_may_look_into_staged_files(spark_engine: NodeSpark, tmp_path: Path) -> None:
    """Spark derives bounds for the rows from those of the table, and Parquet's reader looks for
    them in the dictionary of a column."""
    rows: list[dict[str, Any]] = [
        {"op": "c", "wall": 9, "logical": 0, "seq": n, "ord": n, "xid": 1, "commit_us": 1,
         "last": True, "missing": None, "a0": n * 7919 % 100_000, "a1": f"v{n % 50}", "a2": None}
        for n in range(20_000)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=SCHEMA.log_schema())
    target = Target(SCHEMA.table, "t")
    batch = Batch("feed", Epoch(1, Timestamp(9)), 0, target, SCHEMA, table)
    file = stage(batch, tmp_path / "a.parquet", history=History.OFF)
    assert file is not None
    with spark_engine.use(packs=("delta",)) as session:
        found = read(session, [file]).where("c0 >= 40 and c0 <= 99000")
        assert found.count() == sum(40 <= row["a0"] <= 99_000 for row in rows)
