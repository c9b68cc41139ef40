"""Databases that Debezium reads pass the list of what every source must do, but for what Debezium
cannot: MariaDB, MySQL and PostgreSQL stand for those of which no server can be had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from changefeed.sources.base import Source
from changefeed.sources.debezium import DebeziumSource
from changefeed_testing.sources.conformance import CASES, Case, run_case
from changefeed_testing.sources.harness import Type
from tests.conformance.test_mysql_conformance import MySQLHarness
from tests.conformance.test_source_conformance import PostgresHarness
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer
from tests.services.postgres import DEFAULT_MAJOR, Database

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("debezium_jars")]

MYSQL_TYPES = (
    Type("TINYINT", "int16", [("-128", -128), ("NULL", None)]),
    Type("TINYINT UNSIGNED", "int16", [("255", 255)]),
    Type("SMALLINT UNSIGNED", "int32", [("65535", 65535)]),
    Type("MEDIUMINT", "int32", [("-8388608", -8388608)]),
    Type("INT", "int32", [("-2147483648", -2147483648)]),
    Type("INT UNSIGNED", "int64", [("4294967295", 4294967295)]),
    Type("BIGINT", "int64", [("-9223372036854775808", -9223372036854775808)]),
    Type("BIGINT UNSIGNED", "decimal(20,0)", [("18446744073709551615", "18446744073709551615")]),
    Type("DECIMAL(12,2)", "decimal(12,2)", [("1.5", "1.50"), ("-0.5", "-0.50"), ("0", "0.00")]),
    Type("DECIMAL(65,30)", "decimal(65,30)", [("-12345678901.5", "-12345678901.5" + 29 * "0")]),
    Type("FLOAT", "float32", [("0.5", "0.5"), ("-1024.25", "-1024.25")]),
    Type("DOUBLE", "float64", [("0.1", "0.1"), ("1e300", "1e+300"), ("-2.5", "-2.5")]),
    Type("BIT(1)", "bool", [("b'1'", True), ("b'0'", False)]),
    Type("BIT(9)", "bytes", [("b'100000001'", r"\x0101"), ("b'0'", r"\x0000")]),
    Type("BIT(64)", "bytes", [("255", r"\x00000000000000ff")]),
    Type("YEAR", "int32", [("2024", 2024)]),
    Type("DATE", "date", [("'2024-03-31'", "2024-03-31"), ("'1969-12-31'", "1969-12-31")]),
    Type("TIME", "interval", [("'-838:59:59'", "-838:59:59"), ("'01:02:03'", "01:02:03")]),
    Type("TIME(6)", "interval", [("'-01:02:03.5'", "-01:02:03.5")]),
    Type("DATETIME", "timestamp", [("'9999-12-31 23:59:59'", "9999-12-31T23:59:59")]),
    Type("DATETIME(3)", "timestamp", [("'2024-03-31 01:02:03.5'", "2024-03-31T01:02:03.5")]),
    Type("DATETIME(6)", "timestamp", [
        ("'1969-12-31 23:59:59.123456'", "1969-12-31T23:59:59.123456"),
        ("'2024-03-31 10:00:00'", "2024-03-31T10:00:00"),
    ]),
    Type("TIMESTAMP NULL", "timestamptz", [("'2024-03-31 01:02:03'", "2024-03-31T01:02:03Z")]),
    Type("TIMESTAMP(6) NULL", "timestamptz", [
        ("'1970-01-01 00:00:01.5'", "1970-01-01T00:00:01.5Z"),
        ("'2024-03-31 10:00:00'", "2024-03-31T10:00:00Z"),
        ("'2024-03-31 10:00:00.000120'", "2024-03-31T10:00:00.00012Z"),
        ("'2024-03-31 10:00:00.123456'", "2024-03-31T10:00:00.123456Z"),
    ]),
    Type("CHAR(5)", "text", [("'ab  '", "ab"), ("''", "")]),
    Type("VARCHAR(300) CHARACTER SET utf8mb4", "text", [
        ("'aä😀'", "aä😀"), (f"'{300 * 'x'}'", 300 * "x"),
    ]),
    Type("VARCHAR(20) CHARACTER SET latin1", "text", [("'é'", "é")]),
    Type("TINYTEXT CHARACTER SET utf8mb4", "text", [("'ß'", "ß")]),
    Type("LONGTEXT CHARACTER SET utf8mb4", "text", [("REPEAT('ab', 40000)", 40000 * "ab")]),
    Type("BINARY(4)", "bytes", [("X'61ff0001'", r"\x61ff0001")]),
    Type("VARBINARY(300)", "bytes", [("X'00FF'", r"\x00ff"), ("''", r"\x")]),
    Type("LONGBLOB", "bytes", [("REPEAT(X'00', 70000)", r"\x" + 140_000 * "0")]),
    Type("ENUM('x','y','ü') CHARACTER SET utf8mb4", "text", [("'y'", "y"), ("'ü'", "ü")]),
    Type("SET('a','b','c')", "text", [("'c,a'", "a,c")]),
    Type("POINT", "bytes", [
        ("ST_GeomFromText('POINT(1 2)')", r"\x000000000101000000000000000000f03f0000000000000040"),
    ]),
)  # fmt: skip


class DebeziumMySQLHarness(MySQLHarness):
    """One database of a server with a binlog, read by Debezium."""

    deadline = 120.0

    def _open(self, server: BinlogServer) -> Source:
        # Debezium wants the right RELOAD, too.
        uri = server.uri(self._database, USER, PASSWORD)
        source = DebeziumSource("shop", f"debezium-{uri}")
        self._opened.callback(source.close)
        return source

    def types(self) -> Sequence[Type]:
        return MYSQL_TYPES


@pytest.fixture
def binlog(
    binlog_server: BinlogServer, other_binlog_server: BinlogServer, tmp_path: Path
) -> Iterator[DebeziumMySQLHarness]:
    with DebeziumMySQLHarness.over(binlog_server, other_binlog_server, tmp_path) as made:
        yield made


#: MySQL's connector reads the same binlog as MariaDB's.
BINLOG_SERVERS = ["mariadb", pytest.param("mysql8", marks=pytest.mark.everything)]


@pytest.mark.parametrize("binlog_server", BINLOG_SERVERS, indirect=True)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_binlog(case: Case, binlog: DebeziumMySQLHarness) -> None:
    assert run_case(case, binlog) == ""


POSTGRES_TYPES = (
    Type("boolean", "bool", [("true", True), ("NULL", None)]),
    Type("smallint", "int16", [("-32768", -32768)]),
    Type("integer", "int32", [("2147483647", 2147483647)]),
    Type("bigint", "int64", [("-9223372036854775808", -9223372036854775808)]),
    Type("real", "float32", [("1.5", "1.5"), ("'NaN'", '"NaN"')]),
    Type("double precision", "float64", [("0.1", "0.1"), ("'-Infinity'", '"-Infinity"')]),
    Type("numeric(12,2)", "decimal(12,2)", [("1.5", "1.50")]),
    Type("numeric", "decimal", [("1e30", "1" + 30 * "0"), ("-0.001", "-0.001")]),
    Type("text", "text", [("'a\u00e4\U0001f600'", "aä😀"), ("''", "")]),
    Type("varchar(5)", "text", [("'abc'", "abc")]),
    Type("char(3)", "text", [("'a'", "a  ")]),
    Type("bytea", "bytes", [(r"'\xDEAD00'", r"\xdead00"), (r"'\x'", r"\x")]),
    Type("bit(12)", "bytes", [("B'010100000010'", r"\x0502")]),
    Type("date", "date", [("'2024-03-31'", "2024-03-31"), ("'1969-12-31'", "1969-12-31")]),
    Type("time", "time", [("'01:02:03.5'", "01:02:03.5")]),
    Type("timetz", "timetz", [("'01:02:03+02'", "23:02:03+00")]),
    Type("timestamp", "timestamp", [("'2024-03-31 01:02:03.25'", "2024-03-31T01:02:03.25")]),
    Type("timestamptz", "timestamptz", [("'2024-03-31 01:02:03+02'", "2024-03-30T23:02:03Z")]),
    Type("interval", "interval", [("'1 day 02:00'", "P0Y0M1DT2H0M0S")]),
    Type("uuid", "uuid", [
        ("'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ]),
    Type("jsonb", "json", [("""'{"a": [1, null]}'""", '{"a": [1, null]}')]),
    Type("integer[]", "array<int32>", [("'{1,NULL}'", "[1,null]"), ("'{}'", "[]")]),
    Type("text[]", "array<text>", [("""'{"a b",c}'""", '["a b","c"]')]),
    Type("date[]", "array<date>", [("'{2024-03-31}'", '["2024-03-31"]')]),
    Type("int4range", "text", [("'[1,5)'", "[1,5)")]),
    Type("inet", "text", [("'10.0.0.1/8'", "10.0.0.1/8")]),
)  # fmt: skip


class DebeziumPostgresHarness(PostgresHarness):
    """One database of a PostgreSQL, read by Debezium."""

    deadline = 120.0

    def _open(self, database: Database) -> Source:
        source = DebeziumSource("shop", f"debezium-{database.uri}")
        self._opened.callback(source.close)
        return source

    def types(self) -> Sequence[Type]:
        return POSTGRES_TYPES


@pytest.fixture
def postgresql(postgres: Database, tmp_path: Path) -> Iterator[DebeziumPostgresHarness]:
    with DebeziumPostgresHarness.over(postgres, tmp_path) as made:
        yield made


@pytest.mark.postgres
@pytest.mark.parametrize("postgres", [DEFAULT_MAJOR], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_postgresql(case: Case, postgresql: DebeziumPostgresHarness) -> None:
    assert run_case(case, postgresql) == ""
