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
from changefeed_testing.sources.conformance import CASES, Case, run_case
from changefeed_testing.sources.harness import SourceHarness, Type
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


class GivenHarness(PostgresHarness):
    """A publication and a slot that an administrator made, and a role that only reads."""

    def __init__(self, database: Database, other: Database, folder: Path) -> None:
        super().__init__(database, other, folder)
        self._name = f"given_{database.name}"
        for each in (database, other):
            each.execute(
                f"create publication {self._name} for all tables"
                " with (publish_via_partition_root = true)"
            )
        database.execute(
            f"create role {self._name} login replication;"
            f"alter default privileges grant select on tables to {self._name}"
        )
        self._make_slot()

    def _make_slot(self) -> None:
        make = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
        self._database.execute(make, [self._name])

    def _open(self, database: Database) -> Source:
        uri = database.uri.replace("postgres@", f"{self._name}@")
        uri += f"?publication={self._name}&slot={self._name}"
        source = PostgresSource("shop", uri)
        self._opened.callback(source.close)
        return source

    def lose_log(self, memo: Any) -> None:
        super().lose_log(memo)
        self._make_slot()

    def close(self) -> None:
        super().close()
        drop_slot(self._database, self._name)
        self._database.execute(f"drop owned by {self._name}; drop role {self._name}")


@pytest.fixture
def given(postgres: Database, tmp_path: Path) -> Iterator[GivenHarness]:
    with GivenHarness.over(postgres, tmp_path) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_an_administrator_made(case: Case, given: GivenHarness) -> None:
    """The same list with the least rights."""
    assert run_case(case, given) == ""
