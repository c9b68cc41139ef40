"""A node dies, or ends, in the middle of a scan: the next one reads only what is left."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from changefeed.catalog.model import TableProgress, TableState
from changefeed.core.engines import EngineOption
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import consumed, rebuilt
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.nemesis.service import Service
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e]

ROWS = 24_000
#: A row has some 500 bytes, so the table has five parts of which one is read at a time.
SLOWLY = "initial_scan_concurrency = '1', initial_scan_max_rate = '1200kB'"

Truth = dict[int, tuple[int, str]]
Execute = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state")
    try:
        yield service
    finally:
        print(service.last_words())
        service.close()


def progress(service: Service, feed: str) -> TableProgress:
    """How far the feed's table is."""
    (table,) = service.catalog.tables(service.job(feed).id)
    return table


def half_read(service: Service, *feeds: str) -> None:
    """Wait until some parts of each feed's scan are delivered, and others are not."""

    def some(feed: str) -> bool:
        unread = progress(service, feed).unread
        return unread is not None and unread.left[0].low is not None

    until(lambda: all(some(feed) for feed in feeds), "the scans are at their half")
    assert all(progress(service, feed).state is TableState.SCANNING for feed in feeds)


def change(execute: Execute) -> None:
    """Changes of rows that were delivered and of rows that were not, and rows that move."""
    rows = random.Random(7)
    some = ", ".join(map(str, rows.sample(range(1, ROWS + 1), 400)))
    gone = ", ".join(map(str, rows.sample(range(1, ROWS + 1), 300)))
    execute(f"update t set v = v + 1000000 where id in ({some})")
    execute(f"delete from t where id in ({gone})")
    # From the end to the begin of the keys, and the other way round.
    execute(f"update t set id = id - 1000000 where id > {ROWS - 50}")
    execute("update t set id = id + 1000000 where id between 1 and 50")
    execute("insert into t values (-5, -5, 'new'), (5000000, 5, 'new')")
    execute("delete from t where id = 5000000")


def reads_little_more(service: Service, feed: str) -> None:
    """The scan of the feed's table has read each row once, and few twice."""
    table = progress(service, feed)
    assert table.state is TableState.RUNNING and table.unread is None
    assert ROWS * 0.98 <= table.scan_rows <= ROWS * 1.3, table.scan_rows


def of_files(folder: Path) -> Truth:
    """The table as a consumer of files rebuilds it; their order is checked."""
    rows = rebuilt(consumed(folder, "t")).values()
    return {r["id"]: (r["v"], r["b"]) for r in rows if isinstance(r, dict)}


def of_messages(file: Path) -> Truth:
    """The table as the messages in SQLite say, in their order."""
    found: Truth = {}
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("select key, value from changefeed_messages order by message_id")
        for key, value in rows:
            after = None if key is None else json.loads(value)["after"]
            if key is not None:
                found.pop(json.loads(key)[0], None)
            if after is not None:
                found[after["id"]] = (after["v"], after["b"])
    return found


def truth_of(rows: list[tuple[object, ...]]) -> Truth:
    """Rows ``id, v, b`` of a database by key."""
    return {int(str(key)): (int(str(v)), str(b)) for key, v, b in rows}


@pytest.mark.postgres
@pytest.mark.parametrize("ends", ["kill", pytest.param("stop", marks=pytest.mark.extended)])
def test_a_scan_of_postgresql_goes_on(
    service: Service, postgres: Database, tmp_path: Path, ends: str
) -> None:
    postgres.execute(
        "create table t (id int primary key, v int, b text); insert into t"
        f" select i, i, repeat(md5(i::text), 15) from generate_series(1, {ROWS}) i;"
        "create schema copy; analyze t"
    )
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    targets = {
        "files": f"file://{tmp_path / 'files'}",
        "messages": f"experimental-sql:///sqlite:///{tmp_path / 'messages.sqlite'}",
        "rows": f"{postgres.uri}?schema=copy",
    }
    for name, uri in targets.items():
        service.execute(
            f"CREATE CHANGEFEED {name} FOR shop.public.t INTO '{uri}' WITH "
            + ("" if name == "rows" else "updated, resolved = '200ms', ")
            + SLOWLY
        )
    service.start()
    half_read(service, *targets)
    if ends == "kill":
        service.kill()
    else:
        service.stop()
    read = {name: progress(service, name).scan_rows for name in targets}
    change(postgres.execute)
    for name in targets:
        service.execute(f"ALTER CHANGEFEED {name} SET initial_scan_max_rate = '100MiB'")
    service.start()
    for name in targets:
        service.sync(name)
        assert 0 < read[name] < ROWS
        reads_little_more(service, name)
    truth = truth_of(postgres.execute("select id, v, b from t"))
    assert of_files(tmp_path / "files") == truth
    assert of_messages(tmp_path / "messages.sqlite") == truth
    assert truth_of(postgres.execute("select id, v, b from copy.t")) == truth


def fill_mysql(execute: Execute) -> None:
    """Make the table."""
    execute("create table t (id int primary key, v int, b varchar(500))")
    for first in range(1, ROWS, 4_000):
        rows = (f"({i}, {i}, repeat('{i:032}', 15))" for i in range(first, first + 4_000))
        execute(f"insert into t values {', '.join(rows)}")
    execute("analyze table t")


@pytest.mark.parametrize(
    "binlog_server", ["mariadb", pytest.param("mysql8", marks=pytest.mark.extended)], indirect=True
)
def test_a_scan_of_mysql_goes_on(
    service: Service, binlog_server: BinlogServer, tmp_path: Path
) -> None:
    with binlog_server.database() as database:

        def execute(sql: str) -> list[tuple[object, ...]]:
            return binlog_server.run(sql, database=database)

        fill_mysql(execute)
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{binlog_server.uri(database)}'")
        service.execute(
            f"CREATE CHANGEFEED files FOR t INTO 'file://{tmp_path / 'files'}'"
            f" WITH updated, resolved = '200ms', {SLOWLY}"
        )
        target = tmp_path / "copy.duckdb"
        service.execute(f"CREATE CHANGEFEED rows FOR t INTO 'duckdb://{target}' WITH {SLOWLY}")
        service.start()
        half_read(service, "files", "rows")
        service.kill()
        change(execute)
        service.start()
        for name in ("files", "rows"):
            service.sync(name)
            reads_little_more(service, name)
        service.stop()
        truth = truth_of(execute("select id, v, b from t"))
    assert of_files(tmp_path / "files") == truth
    with opened(target, read_only=True) as connection:
        copy = connection.execute("select id, v, b from t").fetchall()
    assert truth_of(copy) == truth


@pytest.mark.postgres
@pytest.mark.parametrize(
    "trouble", ["vacuum full t", pytest.param("drop table copy.t", marks=pytest.mark.extended)]
)
def test_a_scan_begins_again_where_changes_do_not_tell_all(
    service: Service, postgres: Database, trouble: str
) -> None:
    """A table that was rewritten has its rows at other places, and a target that is gone has
    nothing of what was delivered."""
    postgres.execute(
        "create table t (id int primary key, v int, b text); insert into t"
        f" select i, i, repeat(md5(i::text), 15) from generate_series(1, {ROWS}) i;"
        "create schema copy; analyze t"
    )
    service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
    service.execute(
        f"CREATE CHANGEFEED rows FOR shop.public.t INTO '{postgres.uri}?schema=copy' WITH {SLOWLY}"
    )
    service.start()
    half_read(service, "rows")
    service.kill()
    postgres.execute(trouble)
    change(postgres.execute)
    service.execute("ALTER CHANGEFEED rows SET initial_scan_max_rate = '100MiB'")
    service.start()
    service.sync("rows")
    assert progress(service, "rows").scan_rows <= ROWS, "the last scan read everything"
    truth = truth_of(postgres.execute("select id, v, b from t"))
    assert truth_of(postgres.execute("select id, v, b from copy.t")) == truth


# ------------------------------------------------------------------------------- lakes

#: The table has some 100 parts, and a commit of its first scan 5 of them.
BY_SPARK = ("--master", "local[1]", "--scan-part-bytes", "131072")
#: Rows that are written during the scans of a lake's table.
WRITTEN = 2_000


@contextmanager
def written_to(database: Database) -> Iterator[None]:
    """Transactions that update, delete, move and insert rows all over the table, one after the
    other."""
    ended = threading.Event()
    failed: list[Exception] = []

    def write() -> None:
        rows = random.Random(11)
        try:
            for number in range(WRITTEN // 5):
                if ended.wait(0.2):
                    break
                some = [rows.randrange(1, ROWS + 1) for _ in range(4)]
                database.execute(
                    f"update t set v = v + 1 where id in ({some[0]}, {some[1]});"
                    f"delete from t where id = {some[2]};"
                    f"update t set id = -id where id = {some[3]};"
                    f"insert into t values ({1_000_000 + number}, 0, 'new')"
                )
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failed, failed


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.parametrize(("kind", "part"), [("delta", ""), ("delta", "jvm"), ("iceberg", "")])
def test_a_scan_into_a_lake_goes_on(
    postgres: Database, tmp_path: Path, spark_engine: NodeSpark, kind: str, part: str
) -> None:
    """A scan by Spark whose node, or JVM, dies at its half reads at most 55 % more, and the rows
    that were written meanwhile."""
    postgres.execute(
        "create table t (id int primary key, v int, b text); insert into t"
        f" select i, i, repeat(md5(i::text), 15) from generate_series(1, {ROWS}) i; analyze t"
    )
    uri = {
        "delta": f"delta://{tmp_path}/lake",
        "iceberg": f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={tmp_path}/lake",
    }[kind]
    with closing(Service(tmp_path / "state", BY_SPARK, EngineOption.SPARK)) as service:
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{postgres.uri}'")
        service.execute(f"CREATE CHANGEFEED f FOR shop.public.t INTO '{uri}'")
        service.start()
        with written_to(postgres):
            until(lambda: progress(service, "f").scan_rows >= ROWS / 2, "half of it is read")
            if part:
                assert service.kill_child(part)
            else:
                service.kill()
            left = progress(service, "f")
            if not part:
                service.start()
            until(lambda: not progress(service, "f").scan_wanted, "the scan ends")
        table = progress(service, "f")
        assert left.state is TableState.SCANNING and left.unread is not None and left.unread.rows
        more = table.scan_rows - left.unread.rows
        print(f"of {ROWS} rows {left.scan_rows} were read, {left.unread.rows} durable; then {more}")
        assert more <= ROWS * 0.55 + WRITTEN
        service.sync("f")
    truth = truth_of(postgres.execute("select id, v, b from t"))
    copy = Lake(spark_engine, uri).query("select id, v, b from {t}")
    assert len(copy) == len(truth), "no row is there twice"
    assert truth_of(copy) == truth


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("binlog_server", ["mariadb"], indirect=True)
def test_a_scan_of_mysql_into_a_lake_goes_on(
    binlog_server: BinlogServer, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    """A worker of Spark holds the snapshot, and reads for one commit after the other."""
    uri = f"delta://{tmp_path}/lake"
    flags = ("--master", "local[2]", *BY_SPARK[2:])
    with (
        binlog_server.database() as database,
        closing(Service(tmp_path / "state", flags, EngineOption.SPARK)) as service,
    ):

        def execute(sql: str) -> list[tuple[object, ...]]:
            return binlog_server.run(sql, database=database)

        fill_mysql(execute)
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{binlog_server.uri(database)}'")
        service.execute(f"CREATE CHANGEFEED f FOR t INTO '{uri}'")
        service.start()
        until(lambda: progress(service, "f").scan_rows >= ROWS / 2, "half of it is read")
        service.kill()
        left = progress(service, "f")
        change(execute)
        service.start()
        service.sync("f")
        said = service.layout.node_log.read_text()
        assert said.count(".t as a Spark job") == 2, service.last_words()
        assert left.state is TableState.SCANNING and left.unread is not None
        more = progress(service, "f").scan_rows - left.unread.rows
        print(f"of {ROWS} rows {left.scan_rows} were read, {left.unread.rows} durable; then {more}")
        assert more <= ROWS * 0.55
        truth = truth_of(execute("select id, v, b from t"))
    copy = Lake(spark_engine, uri).query("select id, v, b from {t}")
    assert len(copy) == len(truth), "no row is there twice"
    assert truth_of(copy) == truth
