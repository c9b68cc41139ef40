"""Rounds of few rows into a Delta table, which the node writes without Spark: read by Spark."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.durable import sync_path
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.spark.session import NodeSpark
from sinks.base import Batch, Epoch, Target
from sinks.lake.files import Files
from sinks.lake.place import place_of
from sinks.lake.small.commit_log import CommitLog
from sinks.lake.small.key_index import KeyIndex
from sinks.lake.small.rounds import SmallLimits
from sinks.lake.small.table_files import LocalTableFiles, TableFiles
from sinks.lake.small.vectors import VectorFile, read_vector
from tests.conformance.test_lake_tables import REFUSED, VALUES, Bench, schema_of
from tests.helpers.lake import in_a_store, place_in

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]
#: A key of three types, one of them text of any length.
KEYS = TableSchema(
    TableName("s", "public", "t"),
    (
        Column("name", "text", LogicalType.parse("text"), False, 1),
        Column("day", "date", LogicalType.parse("date"), False, 2),
        Column("id", "int4", LogicalType.parse("int32"), False, 3),
        Column("v", "text", LogicalType.parse("text"), True, 4),
    ),
    (0, 1, 2),
)
SCHEMA = schema_of(("text", "string"), ("decimal(12,2)", "string"))


#: For a test that runs on both kinds of places.
BOTH = pytest.mark.parametrize(
    "bench", ["disk", pytest.param("s3", marks=pytest.mark.extended)], indirect=True
)
#: The same for one that takes minutes of Spark's in S3.
BOTH_SLOW = pytest.mark.parametrize(
    "bench", ["disk", pytest.param("s3", marks=pytest.mark.everything)], indirect=True
)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, spark_engine: NodeSpark
) -> Iterator[Bench]:
    uri, kind = place_in("delta", tmp_path), getattr(request, "param", "disk")
    if kind == "s3":
        uri = in_a_store(request.getfixturevalue("s3"), f"few-{uuid.uuid4().hex}")
    options = {"partition_by": "day, v"} if kind == "partitions" else {}
    made = Bench(spark_engine, uri, tmp_path, options)
    yield made
    made.sink.close()


def table_files(bench: Bench, name: str = "t") -> TableFiles:
    assert bench.sink._files is not None
    return bench.sink._files(name)


def failing_log(step: Callable[..., Any], number: int, text: str) -> Callable[..., Any]:
    """``step`` of the operating system, which fails for files of a Delta log."""

    def fails(what: Any, *more: Any, **named: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        if "_delta_log" in path:
            raise OSError(number, text)
        return step(what, *more, **named)

    return fails


def engines(bench: Bench) -> list[str]:
    """Who made each commit, oldest first."""
    files, found = table_files(bench), []
    for name in commits(bench):
        for line in files.read(f"_delta_log/{name}").splitlines():
            if (info := json.loads(line).get("commitInfo")) is not None:
                ours = info["engineInfo"] == "changefeed"
                found.append("node" if ours else f"Spark {info['operation']}")
    return found


def commits(bench: Bench) -> list[str]:
    """The names of the commits in the log, in order."""
    return [its.name for its in table_files(bench).logged() if its.name.endswith(".json")]


def data_files(bench: Bench) -> list[str]:
    """The Parquet files of the table, also those of older versions."""
    place = place_of(bench.lake.uri)
    names = Files(dict(place.settings)).names(f"{place.root}/t")
    return [name for name in names if name.endswith(".parquet")]


def rows(bench: Bench, columns: str) -> set[Row]:
    found = bench.lake.query(f"select {columns} from {{t}}")
    assert len(found) == len(set(found))
    return set(found)


@BOTH
def test_rounds_after_the_first_need_no_spark(bench: Bench) -> None:
    bench.round(SCHEMA, 10, *(("c", (n, f"v{n}", "1.50")) for n in range(5)))
    bench.round(SCHEMA, 20, ("u", (1, "new", None)), ("d", (2, None, None)), ("c", (9, "x", "2")))
    bench.round(SCHEMA, 30, ("d", (9, None, None)), ("d", (77, None, None)))
    bench.round(SCHEMA, 40, ("u", (1, "é", "-0.01")))
    assert rows(bench, "id, v0, cast(v1 as string), _sequence_num") == {
        (0, "v0", "1.50", 10),
        (1, "é", "-0.01", 40),
        (3, "v3", "1.50", 10),
        (4, "v4", "1.50", 10),
    }
    assert engines(bench)[-3:] == ["node"] * 3
    history = bench.lake.query("describe history {t}")
    with bench.lake.engine.use(packs=("delta",)) as session:
        names = session.sql(f"describe history {bench.lake.table('t')}").columns
    metrics = history[2][names.index("operationMetrics")]
    picked = ("numSourceRows", "numTargetRowsInserted", "numTargetRowsUpdated",
              "numTargetRowsDeleted", "numOutputRows")  # fmt: skip
    assert [metrics[name] for name in picked] == ["3", "1", "1", "1", "2"]
    notes = json.loads(history[0][names.index("userMetadata")])
    assert notes["changefeed.resolved"] and notes["changefeed.applied"]


def test_a_table_that_the_node_makes_is_one_that_spark_makes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its features, properties and columns but for the names of columns in files; and Spark can
    alter it."""
    schema = schema_of(*((logical, physical) for logical, physical, _, _ in VALUES))
    root = Path(place_of(bench.lake.uri).root)
    seen = []
    for name in ("t", "u"):
        bench.target = Target(schema.table, name)
        if name == "u":
            monkeypatch.setattr("sinks.lake.delta.create_table", lambda *_: False)
        bench.round(schema, 1000, ("c", (1, *(v for _, _, v, _ in VALUES))))
        log = CommitLog(LocalTableFiles(root / name), 10)
        fields = [{**field, "metadata": sorted(field["metadata"])} for field in log.fields]
        protocol = {k: set(v) if isinstance(v, list) else v for k, v in log.protocol.items()}
        kept = ("format", "partitionColumns", "configuration")
        seen.append((fields, protocol, {k: log.metadata[k] for k in kept}))
        alter = f"ALTER TABLE {bench.lake.table(name)} "
        bench.lake.query(alter + "RENAME COLUMN v0 TO w0")
        bench.lake.query(alter + "ADD COLUMNS (more string)")
        bench.lake.query(alter + "DROP COLUMN v1")
        found = bench.lake.query(f"select id, w0, more from {{{name}}}")
        assert found == [(1, True, None)]
    (fields, protocol, metadata), by_spark = seen
    assert (fields, protocol) == by_spark[:2]
    assert metadata == by_spark[2]
    assert [
        json.loads((root / name / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[0])[
            "commitInfo"
        ]["engineInfo"]
        == "changefeed"
        for name in ("t", "u")
    ] == [True, False]


def test_values_are_those_that_spark_writes(bench: Bench) -> None:
    """The same row by Spark and by the node: each column, its statistics and what filters find."""
    schema = schema_of(*((logical, physical) for logical, physical, _, _ in VALUES))
    logged = [value for _, _, value, _ in VALUES]
    bench.round(schema, 1000, ("c", (1, *logged)))
    bench.round(schema, 2000, ("c", (2, *logged)), ("c", (3, *(None for _ in VALUES))))
    assert engines(bench)[-1] == "node"
    rows = bench.lake.query("select * from {t} order by id")
    [by_spark, by_node, nothing] = [row[1:-1] for row in rows]  # without key and version
    assert repr(by_node) == repr(by_spark)
    assert nothing == (None,) * len(VALUES)
    for n in range(len(VALUES)):
        same = f"select b.id from {{t}} a join {{t}} b on a.v{n} <=> b.v{n} where a.id = 1"
        assert set(bench.lake.query(same)) == {(1,), (2,)}
    assert bench.lake.query("select count(v0), max(v1), min(v2) from {t}") == [
        (2, -32768, 2**63 - 1)
    ]


@pytest.mark.extended
def test_an_array_of_arrays_is_sparks(bench: Bench) -> None:
    """Of text, and of numbers that are text: their elements are then text in JSON."""
    schema = schema_of(("array<text>", "string"), ("array<decimal>", "string"))
    bench.round(schema, 1000, ("c", (1, "[]", "[]")))
    numbers = '[[12345678901234567890.10,"NaN"],[null,-2]]'
    bench.round(
        schema,
        2000,
        ("c", (2, '[["a","b"],["c"]]', numbers)),
        ("u", (1, '["é\\"",null]', "[1.50]")),
    )
    assert engines(bench)[-1] == "Spark MERGE"
    bench.round(schema, 3000, ("c", (3, '["[[",""]', "[1.50]")), ("c", (4, None, None)))
    assert engines(bench)[-1] == "node"
    assert bench.lake.query("select id, v0, v1 from {t} order by id") == [
        (1, ['é"', None], ["1.50"]),
        (2, ['["a","b"]', '["c"]'], ['[12345678901234567890.10,"NaN"]', "[null,-2]"]),
        (3, ["[[", ""], ["1.50"]),
        (4, None, None),
    ]


@pytest.mark.extended
@pytest.mark.parametrize(("logical", "value"), REFUSED[:6])
def test_a_value_that_does_not_fit_is_refused(bench: Bench, logical: str, value: str) -> None:
    schema = schema_of((logical, "string"))
    bench.round(schema, 1000, ("c", (1, None)))
    with pytest.raises(ChangefeedError) as raised:
        bench.round(schema, 2000, ("c", (2, value)))
    assert raised.value.code.number in ("CF5003", "CF5006")
    bench.round(schema, 2000, ("c", (3, None)))
    assert rows(bench, "id") == {(1,), (3,)}


@BOTH
def test_what_a_table_has_newer_stays(bench: Bench) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "old", None)), ("c", (2, "old", None)))
    table = bench.lake.table("t")
    bench.lake.query(f"update {table} set v0 = 'theirs', _sequence_num = 99 where id = 1")
    late = ("u", (1, "late", None)), ("u", (2, "new", None)), ("c", (3, "c", None))
    bench.round(SCHEMA, 20, *late)
    bench.round(SCHEMA, 30, ("d", (1, None, None)))
    assert rows(bench, "id, v0, _sequence_num") == {(1, "theirs", 99), (2, "new", 20), (3, "c", 20)}
    assert engines(bench)[-2:] == ["node"] * 2


@BOTH
def test_a_commit_that_is_there_is_not_made_again(bench: Bench) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))
    before = engines(bench)
    table = bench.sink._targets["t"]
    table.floor = None
    table.table.applied = type(table.table.applied())  # type: ignore[method-assign]
    bench.round(SCHEMA, 20, ("u", (1, "again", None)))
    assert rows(bench, "id, v0") == {(1, "b")}
    assert engines(bench) == before


@BOTH
def test_another_writers_commit_in_between_comes_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)), ("c", (2, "a", None)))
    bench.round(SCHEMA, 20, ("u", (2, "b", None)))
    commit = CommitLog.commit

    def between(self: CommitLog, actions: Any) -> bool:
        monkeypatch.setattr(CommitLog, "commit", commit)
        bench.lake.query(f"update {bench.lake.table('t')} set v0 = 'theirs' where id = 1")
        return commit(self, actions)

    monkeypatch.setattr(CommitLog, "commit", between)
    bench.round(SCHEMA, 30, ("u", (1, "c", None)), ("c", (3, "c", None)))
    assert rows(bench, "id, v0") == {(1, "c"), (2, "b"), (3, "c")}
    assert engines(bench)[-2:] == ["Spark UPDATE", "node"]
    named = set(CommitLog(table_files(bench), 100).files)
    left = set(data_files(bench)) - named
    [other] = bench.lake.query("select count(distinct _metadata.file_path) from {t}")
    assert len(named) >= other[0] and len(left) <= 3  # of older versions, not of the lost attempt


def test_a_disk_that_fails_leaves_all_or_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))

    folder = Path(place_of(bench.lake.uri).root) / "t"
    for number, step in ((30, "link"), (40, "fsync")):
        before = set(folder.glob("changefeed-*"))
        with monkeypatch.context() as broken:
            full = failing_log(getattr(os, step), 28, "No space left on device")
            broken.setattr(os, step, full)
            bench.round(SCHEMA, number, ("u", (1, f"v{number}", None)))
        assert not set(folder.glob("changefeed-*")) - before  # what the node made for its commit
        assert rows(bench, "id, v0") == {(1, f"v{number}")}
        assert engines(bench)[-1] == "Spark MERGE"
    bench.round(SCHEMA, 50, ("u", (1, "again", None)))
    assert rows(bench, "id, v0") == {(1, "again")}
    assert engines(bench)[-1] == "node"
    left = (folder / "_delta_log").glob(".*.json.*")
    assert not [path for path in left if path.suffix != ".crc"]  # these are Hadoop's


@pytest.mark.extended
def test_a_commit_that_is_made_and_then_fails_is_not_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails after the link: the round is there, and Spark sees that."""
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))

    with monkeypatch.context() as broken:
        fails = failing_log(sync_path, 5, "Input/output error")
        broken.setattr("sinks.lake.small.table_files.sync_path", fails)
        bench.round(SCHEMA, 30, ("u", (1, "c", None)), ("c", (2, "c", None)))
    assert rows(bench, "id, v0, _sequence_num") == {(1, "c", 30), (2, "c", 30)}
    made = engines(bench)
    assert made[-1] == "node"
    bench.round(SCHEMA, 40, ("u", (2, "d", None)))
    assert rows(bench, "id, v0") == {(1, "c"), (2, "d")}
    assert engines(bench) == [*made, "node"]


def test_an_index_that_lacks_a_commit_is_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens after the commit: the next round must not take old rows for missing."""
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    bench.round(SCHEMA, 20, ("u", (1, "b", None)))

    for number, failure in ((30, OSError(28, "No space left on device")), (40, MemoryError())):

        def fails(*_: object, failure: BaseException = failure) -> bool:
            raise failure

        with monkeypatch.context() as broken:
            broken.setattr(KeyIndex, "add", fails)
            with contextlib.suppress(MemoryError):
                bench.round(
                    SCHEMA, number, ("u", (1, f"v{number}", None)), ("c", (number, "n", None))
                )
        bench.round(SCHEMA, number + 1, ("u", (1, "again", None)), ("u", (number, "more", None)))
        assert {(1, "again"), (number, "more")} <= rows(bench, "id, v0")
    assert rows(bench, "id, v0") == {(1, "again"), (30, "more"), (40, "more")}


@pytest.mark.extended
@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMNS (theirs string)",
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
        "ADD CONSTRAINT named CHECK (v0 <> 'wrong')",
        "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    ],
)
def test_tables_that_need_more_are_sparks(bench: Bench, change: str) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)), ("c", (2, "a", None)))
    bench.lake.query(f"ALTER TABLE {bench.lake.table('t')} {change}")
    bench.round(SCHEMA, 20, ("u", (1, "b", None)), ("d", (2, None, None)), ("c", (3, "c", None)))
    assert rows(bench, "id, v0") == {(1, "b"), (3, "c")}
    assert engines(bench)[-1] == "Spark MERGE"


@pytest.mark.extended
def test_a_key_that_is_there_twice_is_sparks(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    table = bench.lake.table("t")
    bench.lake.query(f"insert into {table} select * from {table}")
    with caplog.at_level(logging.INFO):
        bench.round(SCHEMA, 20, ("u", (1, "b", None)))
    assert "the table has a key twice" in caplog.text
    assert engines(bench)[-1] == "Spark MERGE"
    assert {row[0] for row in bench.lake.query("select v0 from {t}")} == {"b"}


class Model:
    """What the table should have."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows: dict[tuple[str, str, int], tuple[str | None, int]] = {}

    def changes(self, number: int, most: int) -> list[tuple[str, Row]]:
        """A round of any changes."""
        found: dict[Row, tuple[str, Row]] = {}
        for _ in range(self.chance.randint(1, most)):
            day = f"2024-02-{self.chance.randint(1, 29):02d}"
            name = self.chance.choice(["", "a", "ä", "b" * 70])
            key = (name, day, self.chance.randint(-2, 3))
            gone = key in self.rows and self.chance.random() < 0.4
            value = None if gone else self.chance.choice([None, "x", "y" * 40, "é'\\"])
            found[key] = ("d" if gone else "u" if key in self.rows else "c", (*key, value))
            if gone:
                del self.rows[key]
            else:
                self.rows[key] = (value, number)
        return list(found.values())

    @property
    def content(self) -> set[Row]:
        return {(*key, *held) for key, held in self.rows.items()}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("bench", "seed"),
    [
        ("disk", 1),
        ("disk", 2),
        ("partitions", 5),
        pytest.param("disk", 3, marks=pytest.mark.everything),
        pytest.param("s3", 4, marks=pytest.mark.everything),
    ],
    indirect=["bench"],
)
def test_any_changes_by_both_give_the_same_as_a_dictionary(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds by the node and by Spark in any order, with compactions, foreign commits, checkpoints
    of both, a TRUNCATE, and a sink that forgets the table."""
    model = Model(seed)
    chance, table = model.chance, bench.lake.table("t")
    properties = "('delta.checkpointInterval' = '4')"
    read = "name, cast(day as string), id, v, _sequence_num"
    for number in range(10, 400, 10):
        bench.sink.small = SmallLimits(0 if chance.random() < 0.25 else 10_000, small_files=8)
        bench.round(KEYS, number, *model.changes(number, 60))
        match chance.randint(0, 12):
            case 0:
                bench.lake.query(f"OPTIMIZE {table}")
            case 1:
                bench.lake.query(f"UPDATE {table} SET v = 'theirs' WHERE id = 1")
                for key, (_, version) in model.rows.items():
                    if key[2] == 1:
                        model.rows[key] = ("theirs", version)
            case 2:
                bench.sink.close()
                bench.sink.open(bench._context)
            case 3:
                bench.lake.query(f"ALTER TABLE {table} SET TBLPROPERTIES {properties}")
            case 4 if chance.random() < 0.3:
                event = Truncate(KEYS, Timestamp(number + 5), number * 100)
                bench.sink.truncate(event, bench.target, b"")
                model.rows.clear()
            case 5:
                assert rows(bench, read) == model.content
    assert rows(bench, read) == model.content
    made = engines(bench)
    assert made.count("node") > 15 and made.count("Spark MERGE") > 2
    # As somebody reads it who has only the last checkpoint and what follows.
    with bench.lake.engine.use(packs=("delta",)) as session:
        java: Any = session.sparkContext._jvm
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert rows(bench, read) == model.content
    [detail] = bench.lake.query("describe detail {t}")
    with bench.lake.engine.use(packs=("delta",)) as session:
        names = session.sql(f"describe detail {table}").columns
    assert len(CommitLog(table_files(bench), 1000).files) == detail[names.index("numFiles")]


@pytest.mark.extended
@BOTH_SLOW
def test_a_checkpoint_of_the_node_is_enough_for_spark(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.round(SCHEMA, 10, *(("c", (n, "a", "1.5")) for n in range(100)))
    bench.lake.query(
        f"ALTER TABLE {bench.lake.table('t')} SET TBLPROPERTIES ('delta.checkpointInterval' = '5')"
    )
    for number in range(20, 320, 10):
        bench.round(
            SCHEMA, number, ("u", (number % 97, f"v{number}", None)), ("d", (99, None, None))
        )
    files = table_files(bench)
    last = json.loads(files.read("_delta_log/_last_checkpoint"))["version"]
    with files.parquet(f"_delta_log/{last:020d}.checkpoint.parquet") as checkpoint:
        ours = checkpoint.read()
    assert set(ours.column_names) == {
        "protocol",
        "metaData",
        "txn",
        "domainMetadata",
        "add",
        "remove",
    }
    assert ours["remove"].length() - ours["remove"].null_count >= 25
    old = [its.name for its in files.logged() if its.name < f"{last:020d}"]
    files.remove([f"_delta_log/{name}" for name in old])
    with bench.lake.engine.use(packs=("delta",)) as session:
        java: Any = session.sparkContext._jvm
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()
    want = {n: "a" for n in range(99)} | {n % 97: f"v{n}" for n in range(20, 320, 10)}
    assert rows(bench, "id, v0") == set(want.items())
    bench.lake.query(f"VACUUM {bench.lake.table('t')} DRY RUN")
    bench.sink.close()
    bench.sink.open(bench._context)
    assert bench.sink.applied(bench.target, SCHEMA).version == 310
    bench.sink.small = SmallLimits(rows=0)
    bench.round(SCHEMA, 400, ("u", (1, "by Spark", None)))
    bench.sink.small = SmallLimits()
    bench.round(SCHEMA, 410, ("u", (2, "by the node", None)))
    want |= {1: "by Spark", 2: "by the node"}
    assert rows(bench, "id, v0") == set(want.items())
    assert engines(bench)[-2:] == ["Spark MERGE", "node"]


@pytest.mark.extended
@BOTH
def test_spark_reads_vectors_of_every_size_and_the_node_sparks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 200,000 rows, of which more and more are gone: listed, as bitmaps, whole parts."""
    schema = schema_of(("text", "string"))
    count = 200_000

    def write(version: int, ids: Any, op: str) -> None:
        bench.epoch += 1
        n = len(ids)
        side = pa.array(ids, pa.int32())
        found = {
            name: pa.array([value] * n)
            for name, value in (("op", op), ("wall", version), ("logical", 0), ("ord", 0),
                                ("xid", 1), ("commit_us", 1), ("last", True))
        }  # fmt: skip
        found["seq"] = pa.array(np.arange(n))
        found["b0" if op == "d" else "a0"] = side
        wanted = schema.log_schema()
        columns = [
            found[f.name].cast(f.type) if f.name in found else pa.nulls(n, f.type) for f in wanted
        ]
        epoch = Epoch(bench.epoch, Timestamp(version))
        batch = Batch("feed", epoch, 0, bench.target, schema, pa.table(columns, schema=wanted))
        bench.sink.commit(epoch, [bench.sink.write(batch)])

    write(10, range(count), "c")
    write(20, range(0, 1000, 7), "d")
    write(30, range(70_000, 110_000), "d")
    gone = {*range(0, 1000, 7), *range(70_000, 110_000)}
    assert bench.lake.query("select count(*), sum(id) from {t}") == [
        (count - len(gone), sum(range(count)) - sum(gone))
    ]
    bench.sink.small = SmallLimits(rows=0)
    write(40, range(120_000, 190_000), "d")  # runs, as Spark writes them
    bench.sink.small = SmallLimits()
    gone |= set(range(120_000, 190_000))
    write(50, [5, 199_999], "d")
    gone |= {5, 199_999}
    assert engines(bench)[-4:] == ["node", "node", "Spark MERGE", "node"]
    assert bench.lake.query("select count(*), sum(id) from {t}") == [
        (count - len(gone), sum(range(count)) - sum(gone))
    ]
    [action] = [a for a in CommitLog(table_files(bench), 10).files.values()]
    vector = read_vector(action["deletionVector"], table_files(bench), count)
    assert vector.sum() == len(gone) and action["deletionVector"]["cardinality"] == len(gone)


@pytest.mark.extended
@BOTH
def test_old_versions_of_the_log_go_with_a_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.round(SCHEMA, 10, ("c", (1, "a", None)))
    table = bench.lake.table("t")
    bench.lake.query(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '2', "
        "'delta.logRetentionDuration' = 'interval 1 day', "
        "'delta.deletedFileRetentionDuration' = 'interval 1 day')"
    )
    for number in range(20, 80, 10):
        bench.round(SCHEMA, number, ("u", (1, f"v{number}", None)))
    before = set(commits(bench))
    later = ManualClock(time.time_ns() + 2 * 86_400 * 10**9)
    bench.sink._few["t"]._clock = later
    for number in range(80, 120, 10):
        bench.round(SCHEMA, number, ("u", (1, f"v{number}", None)))
    after = set(commits(bench))
    assert len(before & after) <= 2 < len(before)
    assert rows(bench, "id, v0") == {(1, "v110")}


def test_a_damaged_vector_is_not_believed(tmp_path: Path) -> None:
    made = VectorFile()
    gone = np.zeros(100, np.bool_)
    gone[[3, 50]] = True
    descriptor = made.add(gone)
    path = tmp_path / made.name
    path.write_bytes(made.content)
    assert read_vector(descriptor, LocalTableFiles(tmp_path), 100).tolist() == gone.tolist()
    content = bytearray(made.content)
    content[-6] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_vector(descriptor, LocalTableFiles(tmp_path), 100)


@pytest.mark.extended
@BOTH
def test_files_of_many_rounds_become_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see the same rows, also those of the versions before; the index knows the new
    places; and keys of deleted rows leave it."""
    bench.sink.small = SmallLimits(small_files=8, spare_entries=5)
    table = bench.lake.table("t")
    want: dict[int, str] = {}
    for number in range(10, 610, 10):
        key = number // 10
        changes: list[tuple[str, Row]] = [("c", (key, f"v{number}", None))]
        want[key] = f"v{number}"
        if key % 3 == 0:
            changes.append(("u", (key - 1, f"w{number}", "1.5")))
            want[key - 1] = f"w{number}"
        if key % 2 == 0 and key > 4:
            changes.append(("d", (key - 4, None, None)))
            want.pop(key - 4, None)
        bench.round(SCHEMA, number, *changes)
        if number == 300:
            half = set(want.items())
            version = len(engines(bench)) - 1
        if number == 400:
            bench.lake.query(
                f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval'='9')"
            )
    assert rows(bench, "id, v0") == set(want.items())
    found = bench.lake.query(f"select id, v0 from {{t}} version as of {version}")
    assert set(found) == half and len(found) == len(half)
    [detail] = bench.lake.query("describe detail {t}")
    with bench.lake.engine.use(packs=("delta",)) as session:
        files = session.sql(f"describe detail {table}").columns.index("numFiles")
        operations = [
            row["operation"] for row in session.sql(f"describe history {table}").collect()
        ]
    assert detail[files] < 10 and operations.count("OPTIMIZE") >= 3
    assert set(engines(bench)[3:]) <= {"node", "Spark SET TBLPROPERTIES"}
    known = bench.sink._few["t"]._known
    assert known is None or known.index.entries < 2 * len(want) + 60
