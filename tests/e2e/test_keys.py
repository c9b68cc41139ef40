"""One key has one text: whichever way a key came, each sink has one row for each row of the source.

The key of a table has a column of every type that the source allows there. Some of its rows are
scanned. Then rows are inserted, updated, deleted, and given another spelling of the same key, in
transactions of one statement (the stream decodes them row by row) and in a large one (column by
column). A key of two texts would leave a row behind, or delete none.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from changefeed.catalog.model import TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.session import NodeSpark
from tests.e2e.feeds import BRISK, Feeds, consumed, rebuilt, running
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.services.bigquery import BigQueryEmulator
from tests.services.clickhouse import ClickHouseServer
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database
from tests.services.snowflake import SnowflakeEmulator

pytestmark = [pytest.mark.e2e, pytest.mark.extended]

#: So often all rows are updated in one transaction: so many are decoded by columns.
TIMES = 12


@dataclass(frozen=True)
class Kind:
    """A type of a key's column.

    Attributes:
        sql: the type, as the source spells it.
        values: expressions; row ``i`` has the value ``i``, and begins again after the last one.
        alike: place of a value -> another spelling of what is the same key at the source.
    """

    sql: str
    values: Sequence[str]
    alike: Mapping[int, str] = field(default_factory=dict)


def texts(sql: str, *values: str, **alike: str) -> Kind:
    """Values that are written as texts; ``_3='x'``: the third is also spelled ``x``."""
    spelled = {int(place[1:]) - 1: quoted(value) for place, value in alike.items()}
    return Kind(sql, [quoted(value) for value in values], spelled)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Origin(ABC):
    """A database with tables ``NAME (k0, k1, .., id, v)``."""

    #: Name of a table -> the types of its key.
    tables: Mapping[str, Sequence[Kind]]
    #: Name of a table -> statements that give it another identity than a primary key.
    identities: Mapping[str, Sequence[str]] = {}

    @abstractmethod
    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """In one transaction; the rows of the last one."""

    def make(self) -> None:
        for name, kinds in self.tables.items():
            columns = [f"k{i} {kind.sql} NOT NULL" for i, kind in enumerate(kinds)]
            key = ", ".join(f"k{i}" for i in range(len(kinds)))
            listed = ", ".join([*columns, "id INT", "v INT"])
            identity = self.identities.get(name, ["ALTER TABLE {t} ADD PRIMARY KEY ({k})"])
            made = [sql.format(t=name, k=key) for sql in identity]
            self.run(f"CREATE TABLE {name} ({listed})", *made)

    def insert(self, step: int) -> None:
        """A third of the rows."""
        for name, kinds in self.tables.items():
            for row in range(step, max(len(kind.values) for kind in kinds), 3):
                values = ", ".join(kind.values[row % len(kind.values)] for kind in kinds)
                self.run(f"INSERT INTO {name} VALUES ({values}, {row}, 0)")

    def respelled(self, name: str, *, back: bool) -> list[str]:
        """Statements that give keys their other spelling, or the first one again."""
        return [
            f"UPDATE {name} SET k{i} = {kind.values[place] if back else other} "
            f"WHERE id % {len(kind.values)} = {place}"
            for i, kind in enumerate(self.tables[name])
            for place, other in kind.alike.items()
        ]

    def change(self) -> None:
        """Every change that a row can have."""
        self.insert(1)
        for name in self.tables:
            for sql in self.respelled(name, back=False):
                self.run(sql)
            self.run(f"UPDATE {name} SET v = v + 1 WHERE id % 2 = 0")
            self.run(f"DELETE FROM {name} WHERE id = 3")
        for name in self.tables:
            many = [f"UPDATE {name} SET v = v + 1"] * TIMES
            self.run(*self.respelled(name, back=True), *many, f"DELETE FROM {name} WHERE id = 4")
        self.insert(2)

    def ids(self, table: str) -> list[tuple[object, ...]]:
        return self.run(f"SELECT id, v FROM {table} ORDER BY id")


class FromPostgreSQL(Origin):
    """PostgreSQL."""

    PREPARE = """
        create extension citext;
        create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        create type mood as enum ('calm', 'angry', 'CALM', 'it''s');
        create type pair as (a int, b text);
        create domain amount as numeric check (value > 0);
        create domain listed as int[];
    """
    #: A change of these keys, too, has the old one in another way; and a lake has them.
    OTHERWISE = (
        texts("real", "0.1", "-0", "NaN", "1e-45", "Infinity", _2="0"),
        texts("float8[]", "{-0,-0.5}", "{-0}", "{NaN,1e23}", "{}", _1="{0,-0.5}", _2="{0}"),
        texts("numeric", "1.0", "-7.10", "0", "12345678901234567890", _1="1.000", _3="0.00"),
        texts("char(5)", "a", "A", "ab", "", "é"),
        texts("text collate ci", "a", "b", "c", "D", "é", _1="A", _3="C", _5="É"),
        texts("citext", "a", "b", "c", "D", _1="A", _3="C"),
        texts("jsonb", '{"a": 1}', "[1, null]", "1", '"x"', _1='{"a": 1.0}', _3="1.00"),
        texts("interval", "1 day", "1 mon", "-00:00:01", _1="24:00:00", _2="30 days"),
    )
    identities: Mapping[str, Sequence[str]] = {
        "whole": (
            "ALTER TABLE {t} ADD PRIMARY KEY ({k})",
            "ALTER TABLE {t} REPLICA IDENTITY FULL",
        ),
        "indexed": (
            "CREATE UNIQUE INDEX {t}_key ON {t} ({k})",
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_key",
        ),
    }
    tables: Mapping[str, Sequence[Kind]] = {
        "whole": OTHERWISE,
        "indexed": OTHERWISE,
        "usual": (
            Kind("bool", ("true", "false")),
            Kind("int2", ("-32768", "0", "32767")),
            Kind("int8", ("-9223372036854775808", "0", "9223372036854775807")),
            Kind("oid", ("0", "4294967295", "7")),
            texts("real", "0.1", "-0", "NaN", "Infinity", "1e-45", "16777216", "3.4e38", _2="0"),
            texts(
                "double precision",
                *("0.1", "-0", "NaN", "-Infinity", "5e-324", "1e23", "1.7189999999999999", "1.719"),
                _2="0",
            ),
            texts(
                "numeric",
                *("1.0", "2", "0.000000000000000001", "-7.10", "0", "12345678901234567890"),
                _1="1.000",
                _5="0.00",
            ),
            texts("numeric(12,2)", "1", "1.01", "-9999999999.99", "0"),
            texts("numeric(2,4)", "0.0099", "0", "-0.0001"),
            texts("text", "a", "A", "a ", "á", "", " ", "it's", 'tab\t\\N\n"q"'),
            texts("char(5)", "a", "A", "ab", "", "é"),
            texts("varchar(9)", "a", "A", "a ", "á", ""),
            texts("name", "a", "A", ""),
            texts('"char"', "a", "A", ""),
            texts("text collate ci", "a", "b", "c", "D", "é", _1="A", _3="C", _5="É"),
            texts("citext", "a", "b", "c", "D", _1="A", _3="C"),
            texts("bytea", r"\x", r"\x00", r"\xdeadbeef", r"\x5c78"),
            texts("uuid", *(f"{i}EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11" for i in range(10, 16))),
            texts("time", "24:00:00", "00:00:00", "00:00:00.000001", "12:00:00.5"),
            texts("timetz", "00:00:00+02", "02:00:00+04", "01:02:03.5+05:30"),
            texts("mood", "calm", "angry", "CALM", "it's"),
            texts("amount", "1.0", "2", "3", _1="1.00"),
        ),
        "moments": (
            texts("date", "2024-02-29", "0001-01-01", "infinity", "-infinity", "9999-12-31"),
            texts("timestamp", "2024-03-31 01:02:03.120", "infinity", "-infinity", "1970-01-01"),
            texts("timestamptz", "2024-03-31 01:02:03+05:30", "infinity", "9999-12-31"),
            texts(
                "interval",
                *("1 day", "1 mon", "-00:00:01", "1 year 2 mons -3 days 04:05:06.5", "00:00:00"),
                _1="24:00:00",
                _2="30 days",
            ),
            texts("tstzrange", "[2024-01-01,2024-02-01)", "empty", "(,infinity)"),
            texts("timestamptz[]", "{2024-01-01}", "{infinity}", "{}"),
        ),
        "others": (
            texts("jsonb", '{"a": 1}', "[1, null]", "1", '"x"', _1='{"a": 1.0}', _3="1.00"),
            texts("inet", "10.0.0.1", "10.0.0.1/8", "::1", "::ffff:1.2.3.4", "::1/64"),
            texts("cidr", "10.0.0.0/8", "10.0.0.0/16", "::/0"),
            texts("macaddr", "08:00:2b:01:02:03", "08-00-2b-01-02-04"),
            texts("int4range", "[1,5]", "empty", "(,)"),
            texts("numrange", "[1.0,2)", "empty", "(,3]", _1="[1.00,2)"),
            texts("int4multirange", "{}", "{[1,3),[7,9)}", "{(,)}"),
            texts("pair", "(1,a)", '(1,"a b")', "(,)", '(2,"")'),
            texts("bit(3)", "101", "000", "111"),
            texts("varbit", "101", "", "1010"),
            texts("money", "1", "-2.50", "1234567.89"),
            texts("pg_lsn", "0/0", "16/B374D848"),
            texts("xid8", "1", "18446744073709551615"),
            texts("tsvector", "a b", "a:1A b:2", ""),
            texts("text[]", '{"NULL",NULL,"","a,b"}', r'{"\"","\\"}', "{}"),
        ),
        # What a DuckDB file cannot hold.
        "beyond": (
            texts("numeric", "NaN", "Infinity", "-Infinity", "1e60", "1e-60", "0.0"),
            texts("date", "0044-03-15 BC", "5874897-12-31"),
            texts("timestamp", "0044-03-15 01:02:03 BC", "294276-12-31 23:59:59.999999"),
            texts("timestamptz", "4713-01-01 BC", "0001-01-01 00:00:00 BC"),
            texts("numeric[]", "{NaN}", "{1.0}", "{}", _2="{1.00}"),
            texts("listed", "[3:4]={1,2}", "{1,2}", "{{1},{2}}"),
        ),
        # Different keys that differ in their bounds alone.
        "ints": (texts("int[]", "[0:1]={1,2}", "{1,2}", "{}", "[2:2][0:1]={{1,2}}", "{{1,2}}"),),
        "words": (
            texts("text[]", "[5:5]={x}", "{x}", "{NULL}", "[-1:-1]={NULL}", '[2:2]={"a b"}'),
        ),
        "flags": (texts("bool[]", "[0:0]={t}", "{t}", "{f,NULL}", "[7:7]={t}", "{}"),),
    }

    def __init__(self, database: Database) -> None:
        self._database = database
        database.execute(self.PREPARE)

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        with self._database.connect(autocommit=False) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class FromMySQL(Origin):
    """MySQL or MariaDB."""

    #: Of MariaDB alone.
    MARIADB: Mapping[str, Sequence[Kind]] = {
        "own": (
            texts("VARCHAR(9) COLLATE utf8mb4_nopad_bin", "a", "A", "a ", ""),
            texts("INET6", "::1", "::ffff:1.2.3.4", "2001:db8::", "::1.2.3.4"),
            texts("INET4", "1.2.3.4", "0.0.0.0", "255.255.255.255"),
            texts("UUID", *(f"{i}EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11" for i in range(10, 14))),
        )
    }
    #: Of MySQL alone.
    MYSQL: Mapping[str, Sequence[Kind]] = {
        "own": (
            texts("VARCHAR(9) COLLATE utf8mb4_0900_bin", "a", "A", "a ", ""),
            texts("VARCHAR(9) COLLATE utf8mb4_0900_ai_ci", "a", "b", "a ", _1="á", _2="B"),
        ),
        "computed": (Kind("BIGINT AS (id * 7) STORED", ["DEFAULT"] * 6),),
    }
    tables: Mapping[str, Sequence[Kind]] = {
        "numbers": (
            Kind("DOUBLE(10,3)", ["1*1.003/7", "12*1.003/7", "-0e0", "400*1.003/7"], {2: "0"}),
            Kind("FLOAT(7,2)", ["1.005", "16777.217", "-0.001", "7"]),
            Kind("FLOAT", ["0.1", "16777217", "1e-45", "3.4e38", "-0e0"], {4: "0"}),
            Kind("DOUBLE", ["0.1", "1e23", "-0e0", "5e-324", "1.7189999999999999"], {2: "0"}),
            Kind("DECIMAL(10,3)", ["1.5", "-7", "0"]),
            Kind("DECIMAL(8,2) ZEROFILL", ["1.5", "7", "0"]),
            Kind("BIGINT UNSIGNED", ["18446744073709551615", "0", "7"]),
            Kind("BIGINT UNSIGNED ZEROFILL", ["18446744073709551615", "0", "7"]),
            Kind("INT(6) ZEROFILL", ["0", "7", "4294967295"]),
            Kind("TINYINT(1)", ["-128", "0", "127"]),
            Kind("MEDIUMINT", ["-8388608", "0", "8388607"]),
            Kind("BIT(1)", ["b'0'", "b'1'"]),
            Kind("BIT(20)", ["b'0'", "b'11'", "b'11111111111111111111'"]),
            Kind("YEAR", ["0", "1901", "2155"]),
        ),
        "words": (
            texts("CHAR(5)", "a", "b", "c", "é", _1="A", _4="E"),
            texts("VARCHAR(9)", "a", "b", "c", "D", _1="A", _2="b ", _4="d"),
            texts("VARCHAR(9) COLLATE utf8mb4_general_ci", "a", "b", "c", _1="A ", _2="B"),
            texts("CHAR(5) CHARACTER SET latin1", "é", "a", "b", "c", _2="A"),
            texts("VARCHAR(9) CHARACTER SET utf16", "é", "a", "", "c"),
            Kind("BINARY(4)", ["x'00'", "x'61'", "x'6100ff'", "x'61626364'"]),
            Kind("VARBINARY(9)", ["x''", "x'61'", "x'6100'", "x'00'"]),
            texts("ENUM('a', 'B', 'it''s')", "a", "B", "it's"),
            texts("SET('a', 'b', 'c')", "", "a,c", "b"),
        ),
        "moments": (
            texts("DATE", "2024-02-29", "1000-01-01", "9999-12-31"),
            texts("DATETIME(6)", "2024-03-31 01:02:03.120000", "1000-01-01", "9999-12-31 23:59:59"),
            texts("DATETIME", "2024-03-31 01:02:03", "1970-01-01", "9999-12-31 23:59:59"),
            texts("TIMESTAMP(3)", "2024-03-31 03:02:03.120", "1971-01-01", "2038-01-19 03:14:07"),
            texts("TIME(3)", "-00:00:00.001", "838:59:59", "00:00:00", "-838:59:59", "01:02:03.5"),
            texts("TIME", "-00:00:01", "100:00:00", "00:00:00"),
        ),
    }

    def __init__(self, server: BinlogServer, database: str) -> None:
        self._server, self._database = server, database
        own = self.MARIADB if server.flavor == "mariadb" else self.MYSQL
        self.tables = {**self.tables, **own}

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        return self._server.run("BEGIN", *statements, "COMMIT", database=self._database)

    def ids(self, table: str) -> list[tuple[object, ...]]:
        sql = f"SELECT id, v FROM {table} ORDER BY id"
        return self._server.run(sql, database=self._database)


Rows = list[tuple[object, ...]]


@dataclass(frozen=True)
class Copy:
    """The copies that one sink keeps.

    Attributes:
        sink: its URI.
        options: of its feed.
        read: ``id`` and ``v`` of each row of a copy, in any order.
        without: tables with keys that it does not hold.
    """

    sink: str
    options: str
    read: Callable[[str], Rows]
    without: Sequence[str] = ()


def as_messages(folder: Path, options: str = "updated") -> Copy:
    """In files, row by row."""

    def read(table: str) -> Rows:
        found = rebuilt(m for m in consumed(folder) if m.topic == table).values()
        return [(row["id"], row["v"]) for row in found if isinstance(row, dict)]

    return Copy(f"file://{folder}", f"key_in_value, {options}", read)


BARE = "sequence_column = 'none'"


def in_postgresql(uri: str) -> Copy:
    def read(table: str) -> Rows:
        with psycopg.connect(uri, options="-c search_path=shop") as connection:
            return connection.execute(f"select id, v from {table}".encode()).fetchall()

    return Copy(f"{uri}?schema=shop", BARE, read)


def in_duckdb(file: Path, without: Sequence[str]) -> Copy:
    def read(table: str) -> Rows:
        with opened(file) as connection:
            return connection.execute(f"select id, v from {table}").fetchall()

    return Copy(f"duckdb://{file}", BARE, read, without)


def in_lake(engine: NodeSpark, uri: str) -> Copy:
    lake = Lake(engine, uri)
    return Copy(uri, "resolved", lambda table: lake.query(f"select id, v from {{{table}}}"))


def in_kafka(request: pytest.FixtureRequest) -> Generator[Copy]:
    """In topics, as a consumer that keeps the last message of each key has them."""
    broker: KafkaBroker = request.getfixturevalue("kafka")
    prefix: str = request.getfixturevalue("topic")

    def read(table: str) -> Rows:
        last = {
            record.key: json.loads(record.value)["after"]
            for record in broker.messages(prefix + table)
            if record.key is not None and record.value is not None
        }
        return [(row["id"], row["v"]) for row in last.values() if row is not None]

    yield Copy(f"{broker.uri}?topic_prefix={prefix}", "updated", read)


def in_elasticsearch(request: pytest.FixtureRequest) -> Generator[Copy]:
    server: Elasticsearch = request.getfixturevalue("elasticsearch")
    prefix = f"keys_{request.getfixturevalue('topic')}_".lower()

    def read(table: str) -> Rows:
        found = server.documents(f"{prefix}{table}").values()
        return [(row["id"], row["v"]) for row in found]

    yield Copy(f"{server.uri}?index_prefix={prefix}", "resolved", read)


def in_clickhouse(request: pytest.FixtureRequest) -> Generator[Copy]:
    server: ClickHouseServer = request.getfixturevalue("clickhouse")
    with server.database() as name:
        yield Copy(
            server.uri(name),
            "resolved",
            lambda table: server.query(f"SELECT id, v FROM {name}.{table}"),
        )


def in_bigquery(request: pytest.FixtureRequest) -> Generator[Copy]:
    server: BigQueryEmulator = request.getfixturevalue("bigquery")
    with server.dataset() as name:
        yield Copy(
            server.uri(name, "load_interval=0"),
            BARE,
            lambda table: server.query(f"SELECT id, v FROM {name}.{table}"),
        )


def in_snowflake(request: pytest.FixtureRequest) -> Generator[Copy]:
    server: SnowflakeEmulator = request.getfixturevalue("snowflake")
    name = server.database()

    def read(table: str) -> Rows:
        return [tuple(row) for row in server.query(name, f"SELECT id, v FROM shop.{table}")]

    yield Copy(server.uri(name, "shop", "load_interval=0"), BARE, read)


#: The other sinks, with the tables that stop there, because a value of their key has no type: each
#: with the column and the value's type in its error (CF5006, CF5003).
ELSEWHERE: Mapping[str, tuple[Callable[[pytest.FixtureRequest], Generator[Copy]], set[str]]] = {
    "kafka": (in_kafka, set()),
    "elasticsearch": (in_elasticsearch, {"beyond", "flags", "indexed", "ints", "others", "whole"}),
    "clickhouse": (in_clickhouse, {"beyond", "moments"}),
    "bigquery": (in_bigquery, {"beyond", "moments", "usual"}),
    "snowflake": (in_snowflake, {"beyond", "moments", "usual"}),
}
#: The same of tables of MySQL and MariaDB.
MYSQL_ELSEWHERE: Mapping[str, set[str]] = {"clickhouse": {"moments"}}


class Sinks:
    """Feeds of an origin's tables into each kind of sink."""

    def __init__(self, feeds: Feeds, origin: Origin, copies: Mapping[str, Copy]) -> None:
        self.feeds, self.origin, self.copies = feeds, origin, copies
        self.tables = {
            name: [table for table in origin.tables if table not in copy.without]
            for name, copy in copies.items()
        }
        for name, copy in copies.items():
            listed = ", ".join(self.tables[name])
            feeds.execute(
                f"CREATE CHANGEFEED {name} FOR {listed} INTO '{copy.sink}' WITH {copy.options}"
            )

    def sync(self) -> None:
        for name in self.copies:
            self.feeds.sync(name)

    def judge(self, *, verify: bool) -> None:
        """Each sink has the rows of the source, and ``verify``: VERIFY says so."""
        wrong = {
            (sink, table): found
            for sink, tables in self.tables.items()
            for table in tables
            if (found := self.wrong(sink, table))
        }
        assert not wrong
        assert not verify or set(self.feeds.verified()) == set(self.tables)

    def wrong(self, sink: str, table: str) -> tuple[object, ...]:
        """Rows of the source that a sink lacks, and rows that it has instead."""
        truth, found = self.origin.ids(table), sorted(self.copies[sink].read(table))
        lacks, has = set(truth) - set(found), set(found) - set(truth)
        return () if truth == found else (lacks, has, len(found) - len(truth))


def check(feeds: Feeds, origin: Origin, copies: Mapping[str, Copy]) -> None:
    """Scans, then changes of every kind, and after both each copy is equal to the source."""
    sinks = Sinks(feeds, origin, copies)
    sinks.sync()
    sinks.judge(verify=False)
    origin.change()
    sinks.sync()
    sinks.judge(verify=True)


def check_mysql(
    server: BinlogServer,
    folder: Path,
    copies: Mapping[str, Copy],
    spark: NodeSpark | None = None,
) -> None:
    """As :func:`check`, of a new database of MySQL or MariaDB."""
    with (
        server.database() as database,
        running(folder / "state", spark, timings=BRISK) as feeds,
    ):
        origin = FromMySQL(server, database)
        origin.make()
        origin.insert(0)
        feeds.connect(shop=server.uri(database))
        check(feeds, origin, copies)


def plain(folder: Path, target: str, no_duckdb: Sequence[str] = ()) -> dict[str, Copy]:
    """Copies that need no Spark."""
    return {
        "files": as_messages(folder / "files"),
        "store": as_messages(folder / "store", "updated, diff, row_images = 'store'"),
        "postgresql": in_postgresql(target),
        "duckdb": in_duckdb(folder / "t.duckdb", no_duckdb),
    }


@pytest.mark.postgres
def test_keys_of_postgresql(tmp_path: Path, postgres: Database) -> None:
    origin = FromPostgreSQL(postgres)
    origin.make()
    origin.insert(0)
    postgres.execute(f"create database {postgres.name}_copy")
    with running(tmp_path / "state", timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        no_duckdb = ("beyond", "ints", "words", "flags")
        check(feeds, origin, plain(tmp_path, f"{postgres.uri}_copy", no_duckdb))


def lake_uri(kind: str, folder: Path) -> str:
    """A lake of either format in a folder."""
    if kind == "delta":
        return f"delta://{folder}/lake"
    return f"iceberg://{unused_catalog()}/shop?type=hadoop&warehouse={folder}/lake"


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_keys_in_a_lake(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark, lake: str
) -> None:
    """-0 and 0 are two texts and one value there."""
    origin = FromPostgreSQL(postgres)
    origin.tables = {name: origin.tables[name] for name in ("whole",)}
    origin.make()
    origin.insert(0)
    with running(tmp_path / "state", spark_engine, timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        check(feeds, origin, {"lake": in_lake(spark_engine, lake_uri(lake, tmp_path))})


@pytest.mark.spark
@pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_keys_of_mysql_in_a_lake(
    tmp_path: Path, binlog_server: BinlogServer, spark_engine: NodeSpark, lake: str
) -> None:
    copies = {"lake": in_lake(spark_engine, lake_uri(lake, tmp_path))}
    check_mysql(binlog_server, tmp_path, copies, spark_engine)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "sink", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ELSEWHERE]
)
def test_keys_of_postgresql_elsewhere(
    tmp_path: Path, postgres: Database, request: pytest.FixtureRequest, sink: str
) -> None:
    """Topics, an index, and warehouses with types of their own."""
    make, without = ELSEWHERE[sink]
    origin = FromPostgreSQL(postgres)
    origin.make()
    origin.insert(0)
    with (
        contextmanager(make)(request) as copy,
        running(tmp_path / "state", timings=BRISK) as feeds,
    ):
        feeds.connect(shop=postgres.uri)
        check(feeds, origin, {"copy": replace(copy, without=sorted(without))})


@pytest.mark.postgres
@pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
def test_keys_of_mysql(tmp_path: Path, postgres: Database, binlog_server: BinlogServer) -> None:
    check_mysql(binlog_server, tmp_path, plain(tmp_path, postgres.uri))


@pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
@pytest.mark.parametrize(
    "sink", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ELSEWHERE]
)
def test_keys_of_mysql_elsewhere(
    tmp_path: Path, binlog_server: BinlogServer, request: pytest.FixtureRequest, sink: str
) -> None:
    make, _ = ELSEWHERE[sink]
    without = sorted(MYSQL_ELSEWHERE.get(sink, ()))
    with contextmanager(make)(request) as copy:
        check_mysql(binlog_server, tmp_path, {"copy": replace(copy, without=without)})


@pytest.mark.postgres
def test_a_key_that_the_target_would_fold_is_refused_before_there_is_a_feed(
    tmp_path: Path, postgres: Database
) -> None:
    """CREATE and VALIDATE say so; with another target the same keys are two rows."""
    postgres.execute("create table words (k text primary key, v int, id bigserial)")
    postgres.execute("insert into words values ('a', 1), ('A', 2)")
    file = tmp_path / "t.duckdb"
    with opened(file, read_only=False) as connection:
        connection.execute("create table words (k varchar collate nocase primary key)")
    with running(tmp_path / "state", timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        create = f"CREATE CHANGEFEED f FOR words INTO 'duckdb://{file}' WITH {BARE}"
        said = "different texts may be equal: two keys would become one row"
        with pytest.raises(ChangefeedError, match=said) as caught:
            feeds.execute(create)
        assert caught.value.code is Code.SINK_CANNOT_TAKE_TABLE
        assert said in str(feeds.execute(f"VALIDATE {create}").rows)
        feeds.execute(f"{create.replace('words INTO', 'words AS others INTO')}")
        postgres.execute("insert into words values ('á', 3); update words set v = 9 where k = 'A'")
        feeds.sync("f")
        with opened(file) as connection:
            found = connection.execute("select k, v, id from others order by id").fetchall()
        assert found == [("a", 1, 1), ("A", 9, 2), ("á", 3, 3)]
        assert feeds.verified() == ["f"]


def test_a_date_that_is_none_is_no_key(tmp_path: Path, binlog_server: BinlogServer) -> None:
    """It would be NULL, and two such rows would be one: the table stops, and no other does."""
    lax = "SET sql_mode = ''"
    tables = {"scanned": "DATE", "small": "DATETIME(3)", "large": "TIMESTAMP", "good": "DATE"}
    with binlog_server.database() as database, running(tmp_path / "state", timings=BRISK) as feeds:

        def run(*statements: str) -> None:
            binlog_server.run(lax, *statements, database=database)

        def rows(table: str, count: int) -> str:
            values = (f"('0000-00-00', {i})" for i in range(count))
            return f"INSERT INTO {table} VALUES {', '.join(values)}"

        def reasons() -> dict[str, str]:
            found = feeds.catalog.tables(feeds.catalog.job("f").id)
            return {t.table.name: str(t.error) for t in found if t.state is TableState.FAILED}

        run(
            *(
                f"CREATE TABLE {t} (d {sql}, n INT, PRIMARY KEY (d, n))"
                for t, sql in tables.items()
            ),
            "INSERT INTO scanned VALUES ('2024-00-10', 1)",
            "INSERT INTO good VALUES ('2024-02-29', 1)",
        )
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute(
            f"CREATE CHANGEFEED f FOR {', '.join(tables)} INTO 'duckdb://{tmp_path}/t.duckdb'"
        )
        until(lambda: "scanned" in reasons(), "the scan stops the table")
        run(rows("small", 2), rows("large", 600), "INSERT INTO good VALUES ('2024-03-01', 2)")
        until(lambda: len(reasons()) == 3, "the stream stops two others")
        assert all("column 'd' of the key" in reason for reason in reasons().values())
        assert "good" not in reasons()

        zero = ("scanned", "small", "large")
        run(*(f"UPDATE {table} SET d = '2024-05-01'" for table in zero))
        for table in zero:
            feeds.execute(f"ALTER CHANGEFEED f RESCAN shop.{database}.{table}")
        feeds.sync("f")
        assert not reasons()
        assert feeds.verified() == ["f"]
