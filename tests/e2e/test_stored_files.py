"""Files of a state that are read and damaged while a node runs and rows flow."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from changefeed.app import Application
from changefeed.catalog.model import Status
from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from sinks.lake.staging import _write
from tests.e2e.feeds import Feeds, consumed, rebuilt, running
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = pytest.mark.e2e

PREPARE = ("XA START 'a'", "INSERT INTO t VALUES (500, 'kept')", "XA END 'a'", "XA PREPARE 'a'")


def verified(state: Path) -> dict[str, int]:
    """What ``log verify`` of another process reads: how many files of each kind, none damaged."""
    with Application(str(state), must_exist=True) as application:
        result = application.verify_files()
    damaged = [row for row in result.rows if row[4] is not None]
    assert result.failure is None and not damaged, damaged
    return {str(row[1]): int(str(row[2])) for row in result.rows}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def read_back(folder: Path) -> dict[str, object]:
    return rebuilt(consumed(folder, "t"))


@pytest.mark.postgres
def test_a_living_node_has_no_damaged_files(tmp_path: Path, postgres: Database) -> None:
    """While rows come, segments are written and merged, and history is dropped."""
    postgres.execute("create table t (a int primary key, b text)")
    done = threading.Event()

    def write() -> None:
        number = 0
        with postgres.connect(autocommit=True) as session:
            while not done.is_set():
                number += 1
                session.execute(
                    "insert into t select i, md5(i::text) from generate_series(%s::int, %s) i",
                    (number * 100_000, number * 100_000 + (5 if number % 3 else 20_000)),
                )

    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(
            f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out' WITH updated, gc_ttl = '1s'"
        )
        feeds.execute(f"CREATE CHANGEFEED r FOR t INTO 'reader://{tmp_path}/r'")
        feeds.sync("f")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            log = tmp_path / "state" / "log" / "shop"
            until(lambda: len(list(log.glob("segment-*"))) > 1)
            counts = [verified(tmp_path / "state") for _ in range(15)]
        finally:
            done.set()
            writer.join()
        assert {"state", "indexes", "journals", "segments", "notes", "readers"} <= counts[-1].keys()
        feeds.sync("f")
        assert len(read_back(tmp_path / "out")) == postgres.execute("select count(*) from t")[0][0]


@pytest.mark.postgres
def test_a_damaged_large_transaction_is_read_again(tmp_path: Path, postgres: Database) -> None:
    postgres.execute("create table t (a int primary key, b text)")
    postgres.execute(f'alter database "{postgres.name}" set logical_decoding_work_mem = 64')
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri)
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out' WITH updated")
        feeds.sync("f")
        spool = tmp_path / "state" / "spool" / "shop"
        with postgres.connect(autocommit=False) as session:
            session.execute("insert into t select i, md5(i::text) from generate_series(1, 20000) i")
            session.execute("update t set b = b || 'x' where a % 2 = 0")
            until(lambda: sum(path.stat().st_size for path in spool.glob("*.frames")) > 1_000_000)
            [frames] = spool.glob("*.frames")
            flip(frames)
            session.commit()
        feeds.sync("f")
        expected = {f"[{a}]": {"a": a, "b": b} for a, b in postgres.execute("select a, b from t")}
        assert read_back(tmp_path / "out") == expected
        texts = [event.text for event in feeds.catalog.events(feeds.catalog.job("f").id)]
        assert any("damaged on disk" in text for text in texts), texts


@pytest.mark.parametrize("binlog_server", ["mysql8"], indirect=True)
def test_a_damaged_prepared_transaction_stops_its_feeds(
    tmp_path: Path, binlog_server: BinlogServer
) -> None:
    with binlog_server.database() as database, running(tmp_path / "state") as feeds:
        binlog_server.run("CREATE TABLE t (a INT PRIMARY KEY, b TEXT)", database=database)
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out' WITH updated")
        binlog_server.run("INSERT INTO t VALUES (1, 'one'), (2, 'two')", database=database)
        feeds.sync("f")
        binlog_server.run(*PREPARE, database=database)
        feeds.sync("f")
        [rows] = (tmp_path / "state" / "source" / "shop").glob("xa/*/*.arrow")
        found = verified(tmp_path / "state")
        assert found["prepared transactions"] == 2 and found["notes"] > 1
        flip(rows)
        binlog_server.run("XA COMMIT 'a'", database=database)
        until(lambda: _failed(feeds))
        assert feeds.catalog.job("f").error_code == "CF3001"
        assert rows.name in " ".join(str(cell) for cell in feeds.execute("SHOW CHANGEFEED f").rows)
        assert set(read_back(tmp_path / "out")) == {"[1]", "[2]"}
        feeds.execute("ALTER CHANGEFEED f RESCAN")
        feeds.sync("f")
        assert set(read_back(tmp_path / "out")) == {"[1]", "[2]", "[500]"}


def _failed(feeds: Feeds) -> bool:
    return feeds.catalog.job("f").status is Status.FAILED


@pytest.mark.spark
def test_spark_compares_the_pages_of_staged_rows(tmp_path: Path, spark_engine: NodeSpark) -> None:
    draw = random.Random(3)
    rows = pa.table({"k": range(400), "v": [f"{draw.getrandbits(200):050x}" for _ in range(400)]})
    path = tmp_path / "rows.parquet"
    _write(rows, path)
    whole, failed = path.read_bytes(), 0
    places = [draw.randrange(4, len(whole) // 10 * 9) for _ in range(12)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            with spark_engine.use("pages") as session:
                found = session.read.parquet(str(path)).toArrow()
        except ChangefeedError as error:
            assert error.code.number == "CF4002"
            failed += 1
        else:
            assert found == rows, place
    assert failed > len(places) // 2
