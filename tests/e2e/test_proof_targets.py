"""Option verify between each kind of source and of target: a planted difference is found, named and
mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from changefeed.core.sizes import Sizes
from changefeed.sources.registry import open_source
from changefeed.spark.session import NodeSpark
from changefeed.verify.table import TableVerifier
from sinks.warehouse.clickhouse.keeping import ROWS
from tests.e2e.feeds import BRISK, Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.services.mariadb import PASSWORD, USER
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

TEN_ROWS = ", ".join(f"({i}, 'row {i}')" for i in range(1, 11))
#: The first and the last half each in another order.
UUIDS = ", ".join(
    f"('{a}0000000-0000-4000-{b}000-000000000000', {i})"
    for i, (a, b) in enumerate(zip("f0a917c3", "8ba9b8a9", strict=True))
)
WRONG = "UPDATE {} SET b = 'wrong' WHERE a = 2"


#: URI of a place for a copy, and what makes row 2 of its table t wrong.
Target = tuple[str, Callable[[], object]]


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[str]:
    """URI of a database with a table t of ten rows, and tables with other keys."""
    uuid = "CHAR(36)" if request.param == "mysql8" else "UUID"
    make = (
        "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(100))",
        "CREATE TABLE k (code VARCHAR(9), day DATE, n INT, PRIMARY KEY (code, day))",
        f"CREATE TABLE u (id {uuid} PRIMARY KEY, n INT)",
        "CREATE TABLE c (n NUMERIC(20, 0), code VARCHAR(9), PRIMARY KEY (n, code))",
        f"INSERT INTO t VALUES {TEN_ROWS}",
        "INSERT INTO k VALUES ('', '2024-02-29', 1), ('a b', '1999-12-31', 2),"
        "('a', '2024-02-29', 3), ('B', '2024-02-29', 4), ('a', '2024-03-01', 5),"
        "('Z', '2024-02-29', 6), ('é', '2024-02-29', 7), ('o''x', '2024-02-29', 8)",
        f"INSERT INTO u VALUES {UUIDS}",
        "INSERT INTO c VALUES (18446744073709551615, 'x'), (1, 'a'), (1, 'b'), (20, 'a'),"
        "(1, 'c'), (3, ''), (10, 'x')",
    )
    if request.param == "postgres":
        database: Database = request.getfixturevalue("postgres")
        for statement in make:
            database.execute(statement)
        yield database.uri
        return
    server = request.getfixturevalue("binlog_servers")(request.param)
    with server.database() as name:
        server.run(*make, database=name)
        yield server.uri(name)


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        yield _target(request.param, request.getfixturevalue, stack, tmp_path)


def _target(kind: str, get: Callable[[str], Any], stack: ExitStack, folder: Path) -> Target:
    match kind:
        case "duckdb":
            path = folder / "copy.duckdb"

            def in_file() -> None:
                with opened(path) as connection:
                    connection.execute(WRONG.format("t"))

            return f"duckdb://{path}", in_file
        case "postgresql":
            copy = stack.enter_context(get("postgres_server")().database())
            # A target may have an order of its own.
            other = 'ALTER TABLE k ALTER code TYPE text COLLATE "und-x-icu"'
            return copy.uri, partial(copy.execute, f"{WRONG.format('t')}; {other}")
        case "mysql":
            server = get("binlog_servers")("mariadb")
            name = stack.enter_context(server.database())
            uri = f"mysql://{USER}:{PASSWORD}@127.0.0.1:{server.port}/{name}"
            other = "ALTER TABLE k MODIFY code VARCHAR(255) COLLATE utf8mb4_general_ci"
            return uri, partial(server.run, WRONG.format("t"), other, database=name)
        case "delta" | "iceberg":
            uri = f"delta://{folder}/lake"
            if kind == "iceberg":
                uri = f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={folder}/lake"
            return uri, partial(Lake(get("spark_engine"), uri).query, WRONG.format("{t}"))
        case "bigquery":
            name = stack.enter_context(get(kind).dataset())
            uri = get(kind).uri(name, "load_interval=0")
            return uri, partial(get(kind).query, WRONG.format(f"{name}.t"))
        case "clickhouse":
            name = stack.enter_context(get(kind).database())
            sql = f"ALTER TABLE {name}.{ROWS}t UPDATE b = 'wrong' WHERE a = 2"
            wrong = partial(get(kind).query, f"{sql} SETTINGS mutations_sync = 2")
            return get(kind).uri(name), wrong
        case "snowflake":
            name = get(kind).database()
            uri = get(kind).uri(name, "shop", "load_interval=0")
            return uri, partial(get(kind).query, name, WRONG.format("shop.t"))
        case "elasticsearch":
            prefix, change = f"{folder.name}_".lower(), {"doc": {"b": "wrong"}}
            wrong = partial(get(kind).call, "POST", f"/{prefix}t/_update/2", change)
            return f"{get(kind).uri}/?index_prefix={prefix}", wrong
        case "kafka":
            topic = get("topic")
            producer = Producer({"bootstrap.servers": get(kind).bootstrap})

            def produce() -> None:
                producer.produce(f"{topic}t", '{"after": {"a": 2, "b": "wrong"}}', "[2]")
                producer.flush()

            return f"{get(kind).uri}?topic_prefix={topic}", produce
        case _:

            def in_lines() -> None:
                for path in (folder / "out").rglob("*.ndjson"):
                    path.write_text(path.read_text().replace('"row 2"', '"wrong"'))

            return f"file://{folder}/out", in_lines


def mends(feeds: Feeds) -> None:
    """The feed f finds that row 2 of t differs, says so, and makes it equal again."""
    feeds.execute("ALTER CHANGEFEED f SET verify = '100ms', verify_repair")
    job = feeds.catalog.job("f").id

    def said() -> list[str]:
        return [event.text for event in reversed(feeds.catalog.events(job, kinds=["verify"]))]

    until(lambda: len(said()) > 1)
    assert said()[0] == "1 row differs: changed [2]"
    assert said()[1].endswith(": equal now")
    feeds.execute("ALTER CHANGEFEED f UNSET verify, verify_repair")
    assert feeds.verified() == ["f"]
    # The comparison reports what it reads on both sides, so that neither is hurried.
    read: list[int] = []
    found, node = feeds.catalog.job("f"), feeds.node
    source = open_source("shop", feeds.catalog.connection("shop").uri)
    verifier = TableVerifier(
        feeds.catalog, found, source, int, node.spark_with, node.query_sessions, read.append
    )
    for table in feeds.catalog.tables(job):
        read.clear()
        part = verifier.part_after(table, None, 5)
        outcomes = [verifier.verify(table, part)]
        while part is not None and part.high is not None:
            part = verifier.part_after(table, part.high, 5)
            outcomes.append(verifier.verify(table, part))
        assert not any(outcome.differences for outcome in outcomes), table.table
        assert len(outcomes) > 1 or part is None
        assert outcomes[0].target_bytes or len(read) > 1


def of_own_server(source: str, target: str, *marks: pytest.MarkDecorator) -> Any:
    """A pair whose target is a server that few tests start."""
    return pytest.param(source, target, marks=[getattr(pytest.mark, target), *marks])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("mariadb", "duckdb"),
        ("mysql8", "postgresql"),
        ("mysql8", "mysql"),
        pytest.param("postgres", "delta", marks=pytest.mark.extended),
        ("mariadb", "iceberg"),
        of_own_server("postgres", "bigquery", pytest.mark.extended),
        of_own_server("postgres", "clickhouse"),
        of_own_server("postgres", "snowflake", pytest.mark.extended),
        of_own_server("postgres", "elasticsearch"),
        of_own_server("mariadb", "kafka"),
        ("postgres", "files"),
    ],
    indirect=True,
)
def test_a_planted_difference_is_named_and_mended(
    source: str, target: Target, tmp_path: Path, spark_engine: NodeSpark
) -> None:
    uri, plant = target
    sizes = Sizes(proof_rows=6)
    with running(tmp_path / "state", spark_engine, timings=BRISK, sizes=sizes) as feeds:
        feeds.connect(shop=source)
        feeds.execute(f"CREATE CHANGEFEED f FOR t, k, u, c INTO '{uri}'")
        feeds.sync("f")
        plant()
        mends(feeds)
