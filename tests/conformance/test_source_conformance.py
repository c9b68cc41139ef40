"""PostgreSQL passes the list of what every source must do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from changefeed.sources.base import Source
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.testing.conformance import CASES, Case, run_case
from changefeed.sources.testing.harness import SourceHarness, Type
from tests.helpers.postgres_slots import drop_slot
from tests.services.postgres import MAJORS, Database

pytestmark = pytest.mark.postgres

TYPES = (
    Type("boolean", "bool", [("true", True), ("NULL", None)]),
    Type("smallint", "int16", [("-32768", -32768)]),
    Type("integer", "int32", [("2147483647", 2147483647)]),
    Type("bigint", "int64", [("-9223372036854775808", -9223372036854775808)]),
    Type("real", "float32", [("1.5", "1.5"), ("'NaN'", '"NaN"')]),
    Type("double precision", "float64", [("0.1", "0.1"), ("'-Infinity'", '"-Infinity"')]),
    Type("numeric(12,2)", "decimal(12,2)", [("1.5", "1.50"), ("'NaN'", '"NaN"')]),
    Type("numeric", "decimal", [("1e30", "1" + 30 * "0"), ("-0.0010", "-0.0010")]),
    Type("text", "text", [("'a\u00e4\U0001f600'", "aä😀"), ("''", "")]),
    Type("varchar(5)", "text", [("'abc'", "abc")]),
    Type("char(3)", "text", [("'a'", "a  ")]),
    Type("bytea", "bytes", [(r"'\xDEAD00'", r"\xdead00"), (r"'\x'", r"\x")]),
    Type("date", "date", [("'2024-03-31'", "2024-03-31"), ("'0044-03-15 BC'", "0044-03-15 BC")]),
    Type("time", "time", [("'01:02:03.5'", "01:02:03.5"), ("'24:00'", "24:00:00")]),
    Type("timetz", "timetz", [("'01:02:03+02'", "01:02:03+02")]),
    Type("timestamp", "timestamp", [("'2024-03-31 01:02:03.25'", "2024-03-31T01:02:03.25")]),
    Type(
        "timestamptz",
        "timestamptz",
        [("'2024-03-31 01:02:03+02'", "2024-03-30T23:02:03Z"), ("'infinity'", "infinity")],
    ),
    Type("interval", "interval", [("'1 day 02:00'", "1 day 02:00:00")]),
    Type(
        "uuid",
        "uuid",
        [("'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")],
    ),
    Type("jsonb", "json", [("""'{"a": [1, null]}'""", '{"a": [1, null]}')]),
    Type("integer[]", "array<int32>", [("'{1,NULL}'", "[1,null]"), ("'{}'", "[]")]),
    Type("text[]", "array<text>", [("""'{"a b",c}'""", '["a b","c"]')]),
    Type("int4range", "other", [("'[1,5)'", "[1,5)")]),
    Type("inet", "other", [("'10.0.0.1/8'", "10.0.0.1/8")]),
)


class PostgresHarness(SourceHarness):
    """One database of a server."""

    def __init__(self, database: Database, other: Database, folder: Path) -> None:
        self.folder = folder
        self._database = database
        self._other = other
        self._opened = ExitStack()

    def source(self) -> Source:
        return self._open(self._database)

    def other(self) -> Source:
        return self._open(self._other)

    def _open(self, database: Database) -> Source:
        source = PostgresSource("shop", database.uri)
        self._opened.callback(source.close)
        return source

    def connect(self) -> psycopg.Connection[Any]:
        return self._database.connect(autocommit=False)

    def types(self) -> Sequence[Type]:
        return TYPES

    def full_images(self, table: str) -> str:
        return f"ALTER TABLE {self.quote(table)} REPLICA IDENTITY FULL"

    def lose_log(self, memo: Any) -> None:
        drop_slot(self._database, memo["slot"])

    def close(self) -> None:
        self._opened.close()

    @classmethod
    @contextmanager
    def over(cls, database: Database, folder: Path) -> Iterator[Self]:
        """A harness for a database, and one beside it on the same server."""
        with database.server.database() as other:
            made = cls(database, other, folder)
            try:
                yield made
            finally:
                made.close()


@pytest.fixture
def harness(postgres: Database, tmp_path: Path) -> Iterator[PostgresHarness]:
    with PostgresHarness.over(postgres, tmp_path) as made:
        yield made


#: The oldest and newest ones and one between; ``CHANGEFEED_TESTS=all`` has each.
VERSIONS = [
    major if major in (14, 16, 18) else pytest.param(major, marks=pytest.mark.everything)
    for major in MAJORS
]


@pytest.mark.parametrize("postgres", VERSIONS, indirect=True)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_postgresql(case: Case, harness: PostgresHarness) -> None:
    assert run_case(case, harness) == ""
