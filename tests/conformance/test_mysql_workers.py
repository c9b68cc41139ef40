"""Workers of Spark that hold a snapshot of MySQL or MariaDB read what the node would read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.encoding.plan import MessagePlan
from changefeed.scan.spark import run_scan, stored_frame
from changefeed.sources.base import ScanWorker
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.image import MySQLPart
from changefeed.sources.mysql.snapshot import MySQLSnapshot, SnapshotPatience
from changefeed.spark.session import NodeSpark
from changefeed.spark.standing import StandingWorkers
from tests.helpers.spark_parts import ToFiles, delivered
from tests.services.mysql import READER_PASSWORD, BinlogServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True),
]

T = TypeVar("T")
AT = Timestamp(1_700_000_000_000_000_000, 3)
ROWS = 400


@pytest.fixture
def database(binlog_server: BinlogServer) -> Iterator[str]:
    with binlog_server.database() as name:
        digits = "SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3"
        tens = " CROSS JOIN ".join(f"({digits}) n{i}" for i in range(5))
        number = " + ".join(f"n{i}.d * {4**i}" for i in range(5))
        binlog_server.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), f FLOAT, d DECIMAL(9,3),"
            " b VARBINARY(9), at DATETIME(3))",
            "INSERT INTO t SELECT n, IF(n % 7, CONCAT('é', n), NULL), n / 3, n / 7, CHAR(n % 256),"
            f" '2026-01-01' + INTERVAL n SECOND FROM (SELECT {number} AS n FROM {tens}) numbers"
            f" WHERE n < {ROWS}",
            "ANALYZE TABLE t",
            database=name,
        )
        yield name


@dataclass
class Scan:
    """A source, its table, and workers of Spark."""

    source: MySQLSource
    table: TableSchema
    spark: NodeSpark
    workers: StandingWorkers

    @contextmanager
    def snapshot(self) -> Iterator[MySQLSnapshot]:
        with self.source.snapshot_in([self.table], self.workers.gathered()) as snapshot:
            yield snapshot

    def parts(self, snapshot: MySQLSnapshot) -> list[MySQLPart]:
        parts = list(snapshot.parts(self.table, 1_000))
        assert len(parts) > 4
        return parts


@pytest.fixture
def scan(binlog_server: BinlogServer, database: str, spark_engine: NodeSpark) -> Iterator[Scan]:
    source = MySQLSource("shop", binlog_server.uri(database))
    spark_engine.session()
    with StandingWorkers(spark_engine, 2, f"standing-{database}") as workers:
        yield Scan(source, source.describe(None, "t"), spark_engine, workers)


@pytest.mark.parametrize("lock_free", [20, 0], ids=["without a lock", "with a lock"])
def test_the_messages_are_the_nodes_bytes(
    scan: Scan, binlog_server: BinlogServer, database: str, tmp_path: Path, lock_free: int
) -> None:
    scan.source.patience = SnapshotPatience(lock_free=lock_free)
    with scan.snapshot() as snapshot:
        binlog_server.run(
            "UPDATE t SET v = 'late'", "DELETE FROM t WHERE id < 9", database=database
        )
        parts = scan.parts(snapshot)
        by: dict[str, Path] = {}
        ways: dict[str, Sequence[ScanWorker]] = {"workers": snapshot.workers, "node": [Here()]}
        for name, workers in ways.items():
            by[name] = tmp_path / name
            by[name].mkdir()
            done = run_scan(
                scan.spark,
                parts,
                plan=MessagePlan(scan.table, "t", updated=True),
                at=AT,
                deliver=ToFiles(str(by[name])),
                workers=workers,
            )
            assert sum(part.rows for part in done) == ROWS
    assert len(snapshot.workers) == 2
    assert delivered(by["workers"]) == delivered(by["node"])
    assert "late" not in str(delivered(by["workers"]))


class Here:
    """Stands for a worker: this process."""

    lost = False

    def call(self, function: Callable[[ExitStack], T]) -> T:
        with ExitStack() as kept:
            return function(kept)


@dataclass
class Deadly:
    """Ends the process of the first so many workers that read it."""

    part: MySQLPart
    marks: Path
    deaths: int

    def read(self) -> Iterator[pa.RecordBatch]:
        yield from self.part.read()
        for number in range(self.deaths):
            try:
                (self.marks / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os._exit(9)


@pytest.mark.extended
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_part_of_a_lost_worker_goes_to_another(scan: Scan, tmp_path: Path, deaths: int) -> None:
    """With the last worker the image is gone; Spark's next attempts of the tasks hold another."""
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    out.mkdir()
    with scan.snapshot() as snapshot:
        parts = scan.parts(snapshot)
        deadly = [Deadly(part, marks, deaths) if n == 1 else part for n, part in enumerate(parts)]

        def read() -> int:
            done = run_scan(
                scan.spark,
                deadly,
                plan=MessagePlan(scan.table, "t", updated=True),
                at=AT,
                deliver=ToFiles(str(out)),
                workers=snapshot.workers,
            )
            return sum(part.rows for part in done)

        if deaths == 1:
            assert read() == ROWS
            assert sorted(delivered(out)) == list(range(len(parts)))
        else:
            with pytest.raises(ChangefeedError) as raised:
                read()
            assert raised.value.code == "CF2201"


@pytest.mark.extended
@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_typed_rows_of_workers_are_the_nodes(scan: Scan, tmp_path: Path, deaths: int) -> None:
    """Also where a worker dies at the end of a part, whose file it has written in part."""
    marks, files = tmp_path / "marks", tmp_path / "files"
    marks.mkdir()
    shape = partial(scan_rows, scan.table, at=AT)
    with scan.snapshot() as snapshot:
        parts = scan.parts(snapshot)
        wanted = pa.concat_tables([shape(batch) for part in parts for batch in part.read()])
        deadly = [Deadly(part, marks, deaths) if n == 1 else part for n, part in enumerate(parts)]

        def read() -> list[dict[str, object]]:
            with stored_frame(
                scan.spark,
                deadly,
                schema=scan.table,
                shape=shape,
                workers=snapshot.workers,
                folder=files,
                # Of a small machine they have all cores.
                release=scan.workers.close,
            ) as frame:
                written = len(list(files.glob("*.parquet")))
                assert (written > len(parts)) == bool(deaths), "the dead worker's file is there"
                return sorted(frame.toArrow().to_pylist(), key=by_id)

        if deaths < 2:
            found = read()
            assert len(found) == ROWS
            assert found == sorted(wanted.to_pylist(), key=by_id)
        else:
            with pytest.raises(ChangefeedError) as raised:
                read()
            assert raised.value.code == "CF2201"
    assert not files.exists()


def by_id(row: dict[str, object]) -> str:
    return str(row["a0"])


@pytest.mark.extended
def test_an_error_of_a_worker_comes_back_as_itself(
    scan: Scan, binlog_server: BinlogServer, database: str, tmp_path: Path
) -> None:
    # MariaDB: DDL need not wait for the end of the scan of an account that has BINLOG ADMIN.
    scan.source = MySQLSource("shop", binlog_server.uri(database, "root", ""))
    with scan.snapshot() as snapshot:
        parts = scan.parts(snapshot)
        binlog_server.run("ALTER TABLE t ADD COLUMN late INT, ALGORITHM = COPY", database=database)
        with pytest.raises(ChangefeedError, match="changed during its initial scan") as raised:
            run_scan(
                scan.spark,
                parts,
                plan=MessagePlan(scan.table, "t"),
                at=AT,
                deliver=ToFiles(str(tmp_path)),
                workers=snapshot.workers,
            )
    assert raised.value.code == "CF2201"


@pytest.mark.extended
def test_where_only_one_session_can_read_workers_are_left_out(
    scan: Scan, binlog_server: BinlogServer, database: str
) -> None:
    binlog_server.run(
        f"CREATE USER modest IDENTIFIED BY '{READER_PASSWORD}'",
        f"GRANT SELECT ON `{database}`.* TO modest",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO modest",
    )
    try:
        scan.source = MySQLSource("shop", binlog_server.uri(database, "modest", READER_PASSWORD))
        scan.source.patience = SnapshotPatience(lock_free=0)
        if binlog_server.flavor == "mysql":
            with pytest.raises(ChangefeedError) as raised, scan.snapshot():
                pass
            assert raised.value.code == "CF2004"
            return
        with scan.snapshot() as snapshot:
            assert snapshot.workers == []
            rows = sum(b.num_rows for part in scan.parts(snapshot) for b in part.read())
        assert rows == ROWS
    finally:
        binlog_server.run("DROP USER modest")
