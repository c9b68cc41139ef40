"""MariaDB and MySQL pass the list of what every source must do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest

from changefeed.sources.base import Source
from changefeed.sources.mysql import MySQLSource
from changefeed_testing.sources.conformance import CASES, Case, run_case
from changefeed_testing.sources.harness import SourceHarness, Type, UserSession
from tests.services.mysql import BinlogServer

BOTH = (
    Type("TINYINT", "int16", [("-128", -128), ("NULL", None)]),
    Type("TINYINT UNSIGNED", "int16", [("255", 255)]),
    Type("BOOLEAN", "int16", [("TRUE", 1)]),
    Type("SMALLINT", "int16", [("-32768", -32768)]),
    Type("SMALLINT UNSIGNED", "int32", [("65535", 65535)]),
    Type("MEDIUMINT", "int32", [("-8388608", -8388608)]),
    Type("MEDIUMINT UNSIGNED", "int32", [("16777215", 16777215)]),
    Type("INT", "int32", [("-2147483648", -2147483648)]),
    Type("INT UNSIGNED", "int64", [("4294967295", 4294967295)]),
    Type("INT(6) ZEROFILL", "int64", [("42", 42)]),
    Type("BIGINT", "int64", [("-9223372036854775808", -9223372036854775808)]),
    Type("BIGINT UNSIGNED", "decimal(20,0)", [("18446744073709551615", "18446744073709551615")]),
    Type("DECIMAL(12,2)", "decimal(12,2)", [("1.5", "1.50"), ("-0.5", "-0.50"), ("0", "0.00")]),
    Type("DECIMAL(8,2) ZEROFILL", "decimal(8,2)", [("1.5", "1.50")]),
    Type("DECIMAL(65,30)", "decimal(65,30)", [("-12345678901.5", "-12345678901.5" + 29 * "0")]),
    Type("FLOAT", "float32", [("0.1", "0.1"), ("-16777216", "-16777216"), ("1e20", "1e+20")]),
    Type("DOUBLE", "float64", [("0.1", "0.1"), ("1e300", "1e+300"), ("-2.5", "-2.5")]),
    Type("BIT(1)", "bool", [("b'1'", True), ("b'0'", False)]),
    Type("BIT(9)", "bytes", [("b'100000001'", r"\x0101"), ("b'0'", r"\x0000")]),
    Type("BIT(64)", "bytes", [("255", r"\x00000000000000ff")]),
    Type("YEAR", "int16", [("2024", 2024), ("0", 0)]),
    Type("DATE", "date", [("'2024-03-31'", "2024-03-31"), ("'0000-00-00'", None)]),
    Type("TIME", "interval", [("'-838:59:59'", "-838:59:59"), ("'01:02:03'", "01:02:03")]),
    Type("TIME(6)", "interval", [("'-01:02:03.5'", "-01:02:03.500000")]),
    Type("TIME(1)", "interval", [("'100:02:03.5'", "100:02:03.5")]),
    Type("DATETIME", "timestamp", [("'9999-12-31 23:59:59'", "9999-12-31T23:59:59")]),
    Type("DATETIME(3)", "timestamp", [("'2024-03-31 01:02:03.5'", "2024-03-31T01:02:03.500")]),
    Type("DATETIME(6)", "timestamp", [("'2024-00-10 00:00:00'", None)]),
    Type("TIMESTAMP NULL", "timestamptz", [("'2024-03-31 01:02:03'", "2024-03-31T01:02:03Z")]),
    Type("TIMESTAMP(6) NULL", "timestamptz", [
        ("'1970-01-01 00:00:01.5'", "1970-01-01T00:00:01.500000Z"), ("'0000-00-00 00:00:00'", None),
    ]),
    Type("CHAR(5)", "text", [("'ab  '", "ab"), ("''", "")]),
    Type("VARCHAR(300) CHARACTER SET utf8mb4", "text", [
        ("'aä😀'", "aä😀"), (f"'{300 * 'x'}'", 300 * "x"),
    ]),
    Type("VARCHAR(20) CHARACTER SET latin1", "text", [("'é'", "é")]),
    Type("VARCHAR(20) CHARACTER SET ucs2", "text", [("'é'", "é")]),
    Type("TINYTEXT CHARACTER SET utf8mb4", "text", [("'ß'", "ß")]),
    Type("LONGTEXT CHARACTER SET utf8mb4", "text", [("REPEAT('ab', 40000)", 40000 * "ab")]),
    Type("BINARY(4)", "bytes", [("X'6100'", r"\x61000000")]),
    Type("VARBINARY(300)", "bytes", [("X'00FF'", r"\x00ff"), ("''", r"\x")]),
    Type("LONGBLOB", "bytes", [("REPEAT(X'00', 70000)", r"\x" + 140_000 * "0")]),
    Type("ENUM('x','y''z','ü') CHARACTER SET utf8mb4", "text", [("'y''z'", "y'z"), ("'ü'", "ü")]),
    Type("SET('a','b','c')", "text", [("'c,a'", "a,c"), ("''", "")]),
    Type("POINT", "bytes", [
        ("ST_GeomFromText('POINT(1 2)')", r"\x000000000101000000000000000000f03f0000000000000040"),
    ]),
)  # fmt: skip

OWN: Mapping[str, Sequence[Type]] = {
    "mysql": (
        Type(
            "JSON",
            "json",
            [
                (
                    """'{"b": 1.50, "a": [1, null, "x\\u00e4"]}'""",
                    '{"a": [1, null, "xä"], "b": 1.5}',
                ),
                ("'\"a\\nb\"'", r'"a\nb"'),
                ("CAST(1.25 AS JSON)", "1.25"),
            ],
        ),
    ),
    "mariadb": (
        Type("JSON", "json", [("""'{"b": 1.50,\n "a": []}'""", '{"b": 1.50,  "a": []}')]),
        Type(
            "UUID",
            "uuid",
            [("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")],
        ),
        Type("INET6", "other", [("'2001:db8::1'", "2001:db8::1")]),
        Type("INET4", "other", [("'10.0.0.1'", "10.0.0.1")]),
    ),
}


class _Session:
    """A connection of a user of the database; names are quoted as in standard SQL."""

    def __init__(self, server: BinlogServer, database: str) -> None:
        self._connection = server.connect("root", "", database)
        self._connection.autocommit(False)
        # As loose as a server can be: a source meets what it let in.
        self.execute("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+00:00'")

    def execute(self, sql: str) -> object:
        with self._connection.cursor() as cursor:
            return cursor.execute(sql)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


class MySQLHarness(SourceHarness):
    """One database of a server."""

    logs_renames = True
    #: The server's setting while a case runs.
    row_image = "FULL"

    def __init__(
        self, server: BinlogServer, other: BinlogServer, database: str, folder: Path
    ) -> None:
        self.folder = folder
        self._server = server
        self._other = other
        self._database = database
        self._opened = ExitStack()

    def source(self) -> Source:
        return self._open(self._server)

    def other(self) -> Source:
        return self._open(self._other)

    def _open(self, server: BinlogServer) -> Source:
        source = MySQLSource("shop", server.uri(self._database))
        self._opened.callback(source.close)
        return source

    def connect(self) -> UserSession:
        return _Session(self._server, self._database)

    def full_images(self, table: str) -> str:
        return "" if self.row_image == "FULL" else "SET GLOBAL binlog_row_image = 'FULL'"

    def types(self) -> Sequence[Type]:
        return (*BOTH, *OWN[self._server.flavor])

    def lose_log(self, memo: Mapping[str, object]) -> None:
        self._server.purge()

    def close(self) -> None:
        self._opened.close()

    @classmethod
    @contextmanager
    def over(cls, server: BinlogServer, other: BinlogServer, folder: Path) -> Iterator[Self]:
        """A harness for a database of its own on two servers."""
        with server.database() as name:
            other.run(f"CREATE DATABASE {name}")
            other.run("CREATE TABLE t (id INT NOT NULL PRIMARY KEY)", database=name)
            made = cls(server, other, name, folder)
            server.run(f"SET GLOBAL binlog_row_image = '{cls.row_image}'")
            try:
                yield made
            finally:
                server.run("SET GLOBAL binlog_row_image = 'FULL'")
                made.close()


class MinimalHarness(MySQLHarness):
    """The same where the binlog has only parts of rows."""

    row_image = "MINIMAL"


@pytest.fixture
def harness(
    binlog_server: BinlogServer, other_binlog_server: BinlogServer, tmp_path: Path
) -> Iterator[MySQLHarness]:
    with MySQLHarness.over(binlog_server, other_binlog_server, tmp_path) as made:
        yield made


@pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_mysql(case: Case, harness: MySQLHarness) -> None:
    assert run_case(case, harness) == ""


#: Cases that read changes of rows, and pass if values that an update did not set are null.
OF_PARTS = frozenset(
    {
        "every_type_there_and_back",
        "every_kind_of_change",
        "a_row_that_changes_twice_at_once",
        "a_table_without_a_key",
        "old_rows_are_whole_where_they_are_logged",
        "columns_come_and_go",
    }
)


@pytest.fixture
def minimal(
    binlog_server: BinlogServer, other_binlog_server: BinlogServer, tmp_path: Path
) -> Iterator[MinimalHarness]:
    with MinimalHarness.over(binlog_server, other_binlog_server, tmp_path) as made:
        yield made


@pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
@pytest.mark.parametrize("case", [case for case in CASES if case.name in OF_PARTS], ids=str)
def test_mysql_with_parts_of_rows(case: Case, minimal: MinimalHarness) -> None:
    assert run_case(case, minimal) == ""
