"""Lake tables outside of a local directory: in an object store, in a catalog that is a database or
a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.faults import armed
from changefeed.core.sizes import Sizes
from changefeed.spark.session import NodeSpark
from sinks.lake.place import place_of
from tests.e2e.feeds import running
from tests.e2e.test_lake import Bench
from tests.helpers.lake import Lake, by_hadoop, in_a_store, unused_catalog
from tests.helpers.waiting import until
from tests.services import iceberg_rest
from tests.services.cache import server_folder
from tests.services.hdfs import Hdfs
from tests.services.iceberg_rest import Door, IcebergRest
from tests.services.postgres import Database
from tests.services.s3 import KEY, SECRET, S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.extended]


def by_iceberg(s3: S3Server) -> dict[str, str]:
    """The store as Iceberg's own client is told of it."""
    return {
        "s3.endpoint": f"http://127.0.0.1:{s3.port}",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
    }


def in_a_database(database: Database, warehouse: Path) -> str:
    """Iceberg tables in a directory, their catalog in the database itself."""
    address = urlsplit(database.uri)
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{address.hostname}:{address.port}/{database.name}",
        "jdbc.user": address.username or "",
        "warehouse": str(warehouse),
    }
    return f"iceberg://{unused_catalog()}/shop?{urlencode(settings)}"


def on_hdfs(table_format: str, folder: str) -> str:
    """Tables in a directory of HDFS."""
    if table_format == "delta":
        return f"delta:///{folder}"
    return f"iceberg://{unused_catalog()}/shop?{urlencode({'type': 'hadoop', 'warehouse': folder})}"


@pytest.fixture(params=["delta on s3a", "delta on hdfs", "iceberg on hdfs", "iceberg in jdbc"])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
) -> Iterator[Bench]:
    sizes = Sizes()
    kind = request.param.split()
    if kind[-1] == "hdfs":
        sizes = Sizes(small_scan_rows=0)  # the scan goes through Spark
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        uri = on_hdfs(kind[0], f"{hdfs.directory(spark_engine.session(), postgres.name)}/lake")
    elif kind[-1] == "s3a":
        uri = in_a_store(request.getfixturevalue("s3"), f"lake-{postgres.name}".replace("_", "-"))
    else:
        uri = in_a_database(postgres, tmp_path / "lake")
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with running(tmp_path / "state", spark_engine, sizes=sizes) as feeds:
        yield Bench(feeds, postgres, Lake(spark_engine, uri))


def validated(bench: Bench, target: str, uri: str = "") -> list[tuple[str, str, str]]:
    """What VALIDATE finds at the target: severity, code and problem."""
    rows = bench.feeds.execute(_validate(bench, target, uri)).rows
    return [(str(r[0]), str(r[1]), str(r[4])) for r in rows if r[0] != "warning"]


def _validate(bench: Bench, target: str, uri: str = "") -> str:
    return f"VALIDATE CREATE CHANGEFEED v FOR {target} INTO '{uri or bench.lake.uri}'"


def fails(bench: Bench, name: str, uri: str) -> tuple[str, str]:
    """The error of a feed into that place: its code, and all that is told of it."""
    bench.feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO '{uri}'")
    until(lambda: bench.feeds.catalog.job(name).error_code)
    code = bench.feeds.catalog.job(name).error_code
    shown = bench.feeds.execute(f"SHOW CHANGEFEED {name}").rows
    bench.feeds.execute(f"DROP CHANGEFEED {name}")
    return code or "", "\n".join(map(str, shown))


def check_validate(bench: Bench) -> None:
    """VALIDATE sees a table of a feed, whatever it is in, or says that it does not."""
    if place_of(bench.lake.uri).root.startswith("hdfs:"):
        first, *others = bench.feeds.execute(_validate(bench, "t AS fresh")).rows
        assert first[0] == "ok"
        said = [str(row[4]) for row in others if row[0] == "warning"]
        assert any("only the NameNode's address was checked" in word for word in said)
        return
    bench.db.execute("create table other (a text primary key, b text, _sequence_num int)")
    assert {row[:2] for row in validated(bench, "t")} == {("error", "CF5008")}, "it is f's"
    assert [row[:2] for row in validated(bench, "other (a, b) AS u")] == [("ok", "")]
    found = {code: problem for _, code, problem in validated(bench, "other (a, b) AS t")}
    assert set(found) == {"CF5006", "CF5008"}
    problem = found["CF5006"]
    assert "column a is int in the target and cannot become string" in problem
    [(_, code, problem)] = validated(bench, "other AS u")
    assert code == "CF5006" and "_sequence_num" in problem


def test_a_table_elsewhere_equals_the_source(bench: Bench) -> None:
    assert [row[:2] for row in validated(bench, "t")] == [("ok", "")]
    bench.create()
    check_validate(bench)
    bench.check()
    db = bench.db
    db.execute("update t set b = 'new' where a <= 3; delete from t where a = 4")
    db.execute("update t set a = 100 where a = 5; insert into t values (200, 'x')")
    bench.check()
    bench.feeds.close()
    db.execute("delete from t where a = 200; insert into t values (201, 'while it was down')")
    bench.feeds.open()
    bench.check()
    shown = "\n".join(str(row) for row in bench.feeds.execute("SHOW CHANGEFEED f").rows)
    assert SECRET not in shown
    if place_of(bench.lake.uri).root.startswith("s3a:"):
        history = bench.lake.query("describe history {t}")
        assert sum("changefeed" in row for row in history) >= 3, "the node's own commits"


# -------------------------------------------------------------------------------- HDFS


@pytest.fixture
def on_own_hdfs(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark, own_hdfs: Hdfs
) -> Iterator[Bench]:
    """Delta tables on a server of their own."""
    folder = own_hdfs.directory(spark_engine.session(), "lake")
    postgres.execute("create table t (a int primary key, b text); insert into t values (1, 'x')")
    with running(tmp_path / "state", spark_engine) as feeds:
        yield Bench(feeds, postgres, Lake(spark_engine, on_hdfs("delta", folder)))


def test_hdfs_that_goes_away_and_comes_back(on_own_hdfs: Bench, own_hdfs: Hdfs) -> None:
    bench, feeds = on_own_hdfs, on_own_hdfs.feeds
    bench.create()
    session = bench.lake.engine.session()
    own_hdfs.read_only(session, enter=True)
    bench.db.execute("insert into t values (2, 'y')")
    until(lambda: feeds.catalog.job("f").error_code == "CF5004")
    assert "safe mode" in str(feeds.execute("SHOW CHANGEFEED f").rows)
    own_hdfs.read_only(session, enter=False)
    bench.check()
    own_hdfs.stop()
    bench.db.execute("insert into t values (3, 'z'); delete from t where a = 1")
    until(lambda: feeds.catalog.job("f").error_code == "CF5001")
    assert f"cannot reach {own_hdfs.uri}/lake" in str(feeds.execute("SHOW CHANGEFEED f").rows)
    own_hdfs.start()
    bench.check()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_hdfs_that_refuses_or_does_not_answer(
    table_format: str,
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    hdfs: Hdfs,
) -> None:
    postgres.execute("create table t (a int primary key, b text)")
    with ExitStack() as stack:
        feeds = stack.enter_context(running(tmp_path / "state", spark_engine))
        bench = Bench(feeds, postgres, Lake(spark_engine, ""))
        # The root belongs to somebody else.
        code, shown = fails(bench, "refused", on_hdfs(table_format, f"{hdfs.uri}/not_ours"))
        assert code == "CF5002"
        assert f"{hdfs.uri}/not_ours refuses access" in shown
        # Iceberg would wait as long for the silent one.
        absent = silent() if table_format == "delta" else closed()
        place = f"hdfs://127.0.0.1:{stack.enter_context(absent)}/lake"
        [(_, code, problem)] = validated(bench, "t", on_hdfs(table_format, place))
        assert (code, f"cannot reach {place}" in problem) == ("CF5001", True)
        code, shown = fails(bench, "absent", on_hdfs(table_format, place))
        assert code == "CF5001"
        assert f"cannot reach {place}" in shown


@contextmanager
def silent() -> Iterator[int]:
    """A port that answers no more than a firewall does: its queue of connections is full."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def closed() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    yield port


# ------------------------------------------------------------------------ a REST catalog


@dataclass(frozen=True)
class RestBench:
    """A source, and a REST catalog behind a door."""

    bench: Bench
    catalog: IcebergRest
    door: Door
    settings: dict[str, str]

    def uri(self, **more: str) -> str:
        """A place in the catalog; ``more`` goes before what the bench says."""
        settings = {"type": "rest", "uri": self.door.url, **self.settings, **more}
        return f"iceberg://{unused_catalog()}/shop/eu?{urlencode(settings)}"

    def fails(self, name: str, uri: str) -> tuple[str, str]:
        """The error of a feed into that place: its code, and all that is told of it."""
        [(_, seen, problem)] = validated(self.bench, "t", uri)
        code, shown = fails(self.bench, name, uri)
        assert seen == code, "VALIDATE tells the same"
        return code, f"{problem}\n{shown}"


@pytest.fixture
def rest(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> Iterator[RestBench]:
    store, hadoop = {}, {}
    warehouse = f"{tmp_path}/lake"
    if request.param != "disk":
        s3: S3Server = request.getfixturevalue("s3")
        warehouse = f"s3a://{s3.bucket(f'rest-{postgres.name}'.replace('_', '-'))}/lake"
        hadoop = by_hadoop(s3)
        store = hadoop if request.param == "s3 by hadoop" else by_iceberg(s3)
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, 'row ' || i from generate_series(1, 10) i"
    )
    with ExitStack() as stack:
        folder = stack.enter_context(server_folder("iceberg-rest"))
        catalog = stack.enter_context(IcebergRest(folder, postgres.uri, warehouse, hadoop))
        door = stack.enter_context(Door(catalog))
        feeds = stack.enter_context(running(tmp_path / "state", spark_engine))
        login = {"credential": f"{iceberg_rest.CLIENT}:{iceberg_rest.SECRET}", "scope": "catalog"}
        made = RestBench(Bench(feeds, postgres, Lake(spark_engine, "")), catalog, door, store)
        made.bench.lake = Lake(spark_engine, made.uri(**login))
        yield made


#: Iceberg's own client of S3 is proved here alone; Delta has files by Hadoop's, and on a disk.
STORES = [
    pytest.param("disk", marks=pytest.mark.everything),
    "s3 by iceberg",
    pytest.param("s3 by hadoop", marks=pytest.mark.everything),
]


@pytest.mark.parametrize("rest", STORES, indirect=True)
def test_a_table_in_a_rest_catalog_equals_the_source(rest: RestBench) -> None:
    bench, db, feeds = rest.bench, rest.bench.db, rest.bench.feeds
    assert [row[:2] for row in validated(bench, "t")] == [("ok", "")]
    assert rest.catalog.get("namespaces/shop%2Eeu") is None
    bench.create()
    bench.check()
    check_validate(bench)
    assert rest.catalog.get("namespaces/shop%2Eeu") is not None
    with armed("runner.after_commit@1:error"):
        db.execute("update t set b = 'new' where a <= 3; delete from t where a = 4")
        until(lambda: feeds.catalog.job("f").error_code)
    db.execute("update t set a = 100 where a = 5; insert into t values (200, 'x')")
    bench.check()
    db.execute("alter table t add column c bigint; update t set c = a where a > 8")
    bench.check("a, b, c")
    feeds.close()
    db.execute("delete from t where a = 200; insert into t values (201, 'while it was down', 1)")
    feeds.open()
    bench.check("a, b, c")
    notes = bench.lake.notes("t")
    applied = [int(note["changefeed.applied"]) for note in notes if "changefeed.applied" in note]
    assert applied == sorted(set(applied)), "each commit says more than the one before"
    assert [Timestamp.parse(n["changefeed.resolved"]).version for n in notes][-1] == applied[-1]
    # The client asked for a token with its secret, and used that for everything.
    token = f"client-credentials-token:sub={iceberg_rest.CLIENT}"
    assert (rest.door.refused, rest.door.admitted) == (0, {token})
    shown = "\n".join(str(row) for row in feeds.execute("SHOW CHANGEFEED f").rows)
    assert iceberg_rest.SECRET not in shown and SECRET not in shown


@pytest.mark.parametrize("rest", ["disk"], indirect=True)
def test_a_rest_catalog_that_refuses_or_is_not_there(rest: RestBench) -> None:
    code, shown = rest.fails("refused", rest.uri(token="wr0ng"))
    assert code == "CF5002"
    assert f"{rest.door.url} refuses access" in shown and "wr0ng" not in shown
    code, shown = rest.fails("no_secret", rest.uri(credential=f"{iceberg_rest.CLIENT}:wr0ng"))
    assert code == "CF5002" and "wr0ng" not in shown
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    code, shown = rest.fails("nobody", rest.uri(uri=f"http://u:wr0ng@127.0.0.1:{port}"))
    assert code == "CF5001"
    assert f"cannot reach http://127.0.0.1:{port}" in shown and "wr0ng" not in shown
    # A token of the URI goes as it is.
    rest.bench.lake = Lake(rest.bench.lake.engine, rest.uri(token=iceberg_rest.TOKEN))
    rest.bench.create()
    rest.bench.check()
    assert rest.door.admitted == {iceberg_rest.TOKEN}
