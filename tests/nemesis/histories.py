"""Random histories of DDL and rows, and a judge that compares copies with the source by itself.

A history mixes statements that define tables with ordinary changes, in and out of transactions. The
server may refuse a statement; the history goes on. At every look the judge reads all rows of the
source by SELECT and all rows of the copy with DuckDB, nothing of the product in between. A table
whose rows differ must be one that the feed has reported as failed before.
"""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import psycopg
import pymysql

from changefeed.catalog.model import TableState
from changefeed.core.errors import ChangefeedError
from tests.nemesis.service import Service
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

#: Statements of a history, and between two looks of the judge.
STATEMENTS = int(os.environ.get("CHANGEFEED_HISTORY_STATEMENTS", "60"))
LOOK_EVERY = 12
#: Seconds within which rows that moved without row events must have been noticed.
NOTICE_SECONDS = 20.0

Row = tuple[object, ...]


class Server(ABC):
    """A source with the tables of one history.

    Attributes:
        tables: their names; all have the key ``id``.
        refused: statements that the server did not take.
    """

    tables: tuple[str, ...]

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused = 0

    @property
    @abstractmethod
    def uri(self) -> str:
        """For CREATE EXTERNAL CONNECTION."""

    @property
    @abstractmethod
    def schema(self) -> str:
        """What table names are qualified with."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, str]:
        """The columns of a table in their order, with their types."""

    @abstractmethod
    def query(self, sql: str) -> list[Row]:
        """The rows of a SELECT."""

    @abstractmethod
    def _run(self, statements: Sequence[str]) -> None:
        """Run statements in one session.

        Raises:
            Exception: the server refused one.
        """

    def run(self, *statements: str) -> None:
        """Run statements in one session; what the server refuses is counted."""
        self.done += statements
        try:
            self._run(statements)
        except (psycopg.Error, pymysql.MySQLError) as error:
            self.refused += 1
            self.done.append(f"-- refused: {str(error).splitlines()[0]}")


class MySQLServer(Server):
    """MariaDB or MySQL."""

    tables = ("plain", "parts", "words")

    def __init__(self, server: BinlogServer, database: str) -> None:
        super().__init__()
        self._server, self._database = server, database
        server.run(f"CREATE DATABASE {database}")
        self.run(
            "CREATE TABLE plain (id INT PRIMARY KEY, a INT, b VARCHAR(20), c DECIMAL(10,2),"
            " d DATETIME(6))",
            "CREATE TABLE parts (id INT PRIMARY KEY, a INT, b VARCHAR(20)) PARTITION BY RANGE (id)"
            " (PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (100),"
            " PARTITION p2 VALUES LESS THAN MAXVALUE)",
            "CREATE TABLE words (id INT PRIMARY KEY, a ENUM('x','y','z'), b TEXT, c BIGINT)",
        )

    @property
    def uri(self) -> str:
        return self._server.uri(self._database)

    @property
    def schema(self) -> str:
        return self._database

    def columns(self, table: str) -> dict[str, str]:
        rows = self._server.run(
            "SELECT column_name, column_type FROM information_schema.columns"
            f" WHERE table_schema = '{self._database}' AND table_name = '{table}'"
            " ORDER BY ordinal_position"
        )
        return {_text(name): _text(kind) for name, kind in rows}

    def query(self, sql: str) -> list[Row]:
        return list(self._server.run(sql, database=self._database))

    def _run(self, statements: Sequence[str]) -> None:
        self._server.run(*statements, database=self._database)


class PostgreSQLServer(Server):
    """PostgreSQL."""

    tables = ("plain", "parts", "words")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.run(
            "create type mood as enum ('x', 'y', 'z')",
            "create table plain (id int primary key, a int, b varchar(20), c numeric(10,2),"
            " d timestamp)",
            "create table parts (id int primary key, a int, b varchar(20)) partition by range (id)",
            "create table parts_0 partition of parts for values from (minvalue) to (50)",
            "create table parts_1 partition of parts for values from (50) to (100)",
            "create table parts_2 partition of parts for values from (100) to (maxvalue)",
            "create table words (id int primary key, a mood, b text, c bigint)",
        )

    @property
    def uri(self) -> str:
        return self._database.uri

    @property
    def schema(self) -> str:
        return "public"

    def columns(self, table: str) -> dict[str, str]:
        return dict(
            self._database.execute(
                "select attname, format_type(atttypid, atttypmod) from pg_attribute where"
                f" attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
                " order by attnum"
            )
        )

    def query(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self._database.execute(sql)]

    def _run(self, statements: Sequence[str]) -> None:
        with self._database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass
class History:
    """Makes the statements of one seed."""

    server: Server
    chance: random.Random
    _names: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))
    _ids: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))

    def rows(self, table: str) -> list[str]:
        """An INSERT, UPDATE or DELETE of a few rows."""
        chance, columns = self.chance, self.server.columns(table)
        others = [c for c in columns if c != "id"]
        kind = chance.choice(("insert", "insert", "update", "update", "delete"))
        low = chance.randrange(150)
        if kind == "delete":
            return [f"DELETE FROM {table} WHERE id BETWEEN {low} AND {low + 3}"]
        if kind == "update" and others:
            column = chance.choice(others)
            value = self._value(columns[column])
            return [f"UPDATE {table} SET {column} = {value} WHERE id BETWEEN {low} AND {low + 9}"]
        made = []
        for _ in range(chance.randint(1, 6)):
            values = [str(next(self._ids) * 7 % 150)]
            values += [self._value(columns[c]) for c in others]
            names = ", ".join(["id", *others])
            made.append(f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)})")
        return made

    def _value(self, kind: str) -> str:
        chance, kind = self.chance, kind.lower()
        if chance.random() < 0.15:
            return "NULL"
        if kind.startswith(("enum", "mood")):
            return f"'{chance.choice('xyz')}'"
        if kind.startswith(("datetime", "timestamp", "date")):
            day, part = chance.randint(10, 28), chance.randint(0, 999_999)
            return f"'2026-0{chance.randint(1, 9)}-{day} 10:11:12.{part:06d}'"
        if kind.startswith(("decimal", "numeric", "double", "float")):
            return f"{chance.randint(-9999, 9999)}.{chance.randint(0, 99):02d}"
        if "int" in kind:
            return str(chance.randint(-99, 99))
        return f"'{chance.choice(('1', '22', 'a ', 'Ab', 'word'))}'"

    def ddl(self, table: str) -> list[str]:
        """A statement that defines a table, or a few of one session."""
        makers: Sequence[Callable[[str], list[str]]] = (
            self._rename_column,
            self._swap_columns,
            self._drop_column,
            self._add_column,
            self._replace_column,
            self._retype,
            self._partition,
            self._labels,
            self._quiet,
            self._truncate,
        )
        return self.chance.choice(makers)(table)

    def _column(self, table: str) -> str:
        return self.chance.choice([c for c in self.server.columns(table) if c != "id"] or ["id"])

    def _new(self) -> str:
        return f"n{next(self._names)}"

    @property
    def _mysql(self) -> bool:
        return isinstance(self.server, MySQLServer)

    def _rename_column(self, table: str) -> list[str]:
        column, kinds = self._column(table), self.server.columns(table)
        if self._mysql and self.chance.random() < 0.4:
            return [f"ALTER TABLE {table} CHANGE {column} {self._new()} {kinds[column]}"]
        return [f"ALTER TABLE {table} RENAME COLUMN {column} TO {self._new()}"]

    def _swap_columns(self, table: str) -> list[str]:
        one, other = self._column(table), self._column(table)
        if self._mysql:
            return [
                f"ALTER TABLE {table} RENAME COLUMN {one} TO {other},"
                f" RENAME COLUMN {other} TO {one}"
            ]
        between = self._new()
        return [
            "BEGIN",
            f"ALTER TABLE {table} RENAME COLUMN {one} TO {between}",
            f"ALTER TABLE {table} RENAME COLUMN {other} TO {one}",
            f"ALTER TABLE {table} RENAME COLUMN {between} TO {other}",
            "COMMIT",
        ]

    def _drop_column(self, table: str) -> list[str]:
        if len(self.server.columns(table)) < 4:
            return self._add_column(table)
        return [f"ALTER TABLE {table} DROP COLUMN {self._column(table)}"]

    def _add_column(self, table: str) -> list[str]:
        kind, default = self.chance.choice((("INT", "7"), ("VARCHAR(9)", "'d'"), ("BIGINT", "5")))
        what = self.chance.choice(("", f" DEFAULT {default}", f" NOT NULL DEFAULT {default}"))
        return [f"ALTER TABLE {table} ADD COLUMN {self._new()} {kind}{what}"]

    def _replace_column(self, table: str) -> list[str]:
        column = self._column(table)
        kind, default = self.chance.choice((("INT", "7"), ("VARCHAR(9)", "'d'")))
        drop, add = f"DROP COLUMN {column}", f"ADD COLUMN {column} {kind} DEFAULT {default}"
        if self.chance.random() < 0.5:
            return (
                [f"ALTER TABLE {table} {drop}, {add}"]
                if self._mysql
                else [
                    "BEGIN",
                    f"ALTER TABLE {table} {drop}",
                    f"ALTER TABLE {table} {add}",
                    "COMMIT",
                ]
            )
        return [f"ALTER TABLE {table} {drop}", f"ALTER TABLE {table} {add}"]

    def _retype(self, table: str) -> list[str]:
        column, chance = self._column(table), self.chance
        kind = self.server.columns(table)[column].lower()
        if "int" in kind:
            to = chance.choice(("BIGINT", "INT", "VARCHAR(20)", "DECIMAL(12,2)"))
        elif kind.startswith(("decimal", "numeric")):
            to = chance.choice(("DECIMAL(10,1)", "DECIMAL(12,2)", "DECIMAL(12,4)"))
        elif kind.startswith(("datetime", "timestamp")):
            to = chance.choice(("DATETIME", "DATETIME(3)") if self._mysql else ("timestamp(0)",))
        else:
            to = chance.choice(("VARCHAR(30)", "VARCHAR(3)", "TEXT"))
        if self._mysql:
            null = chance.choice(("", " NOT NULL", " NULL"))
            return ["SET SESSION sql_mode = ''", f"ALTER TABLE {table} MODIFY {column} {to}{null}"]
        using = f"({column}::text)::{to}"
        if "int" in kind and chance.random() < 0.5:
            using = f"(({column} + 1)::text)::{to}"
        elif to.startswith("VARCHAR") and "int" not in kind:
            using = f"upper(left({column}::text, 3))::{to}"
        return [f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {to} USING {using}"]

    def _partition(self, table: str) -> list[str]:
        chance, new = self.chance, self._new()
        number = chance.randrange(3)
        if self._mysql:
            return chance.choice(
                (
                    [f"ALTER TABLE parts TRUNCATE PARTITION p{number}"],
                    [
                        f"CREATE TABLE {new} LIKE parts",
                        f"ALTER TABLE {new} REMOVE PARTITIONING",
                        f"INSERT INTO {new} (id) VALUES ({number * 50 + 1}), ({number * 50 + 2})",
                        f"ALTER TABLE parts EXCHANGE PARTITION p{number} WITH TABLE {new}",
                    ],
                    ["ALTER TABLE parts REBUILD PARTITION ALL"],
                    [
                        "ALTER TABLE parts DROP PARTITION p1",
                        "ALTER TABLE parts REORGANIZE PARTITION p2 INTO (PARTITION p1 VALUES LESS"
                        " THAN (100), PARTITION p2 VALUES LESS THAN MAXVALUE)",
                    ],
                )
            )
        bounds = ("(minvalue) to (50)", "(50) to (100)", "(100) to (maxvalue)")[number]
        again = f"CREATE TABLE parts_{number} PARTITION OF parts FOR VALUES FROM {bounds}"
        fill = f"INSERT INTO {new} (id) VALUES ({number * 50 + 1}), ({number * 50 + 2})"
        return chance.choice(
            (
                [f"TRUNCATE parts_{number}"],
                ["BEGIN", f"DROP TABLE parts_{number}", again, "COMMIT"],
                [
                    f"ALTER TABLE parts DETACH PARTITION parts_{number}",
                    f"DROP TABLE parts_{number}",
                    f"CREATE TABLE {new} (LIKE parts INCLUDING ALL)",
                    fill,
                    f"ALTER TABLE {new} RENAME TO parts_{number}",
                    f"ALTER TABLE parts ATTACH PARTITION parts_{number} FOR VALUES FROM {bounds}",
                ],
                [f"VACUUM FULL parts_{number}"],
            )
        )

    def _labels(self, table: str) -> list[str]:
        chance, kinds = self.chance, self.server.columns("words")
        labelled = [c for c, kind in kinds.items() if kind.lower().startswith(("enum", "mood"))]
        if not labelled:
            return self._add_column(table)
        if self._mysql:
            members = chance.choice(("'x','y','z'", "'z','y','x'", "'x','y','z','w'"))
            return [f"ALTER TABLE words MODIFY {labelled[0]} ENUM({members})"]
        return chance.choice(
            (
                [
                    "ALTER TYPE mood RENAME VALUE 'x' TO 'v'",
                    "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'x' BEFORE 'y'",
                ],
                [f"ALTER TYPE mood ADD VALUE IF NOT EXISTS '{self._new()}' BEFORE 'y'"],
            )
        )

    def _quiet(self, table: str) -> list[str]:
        if self._mysql:
            return [
                self.chance.choice(
                    (
                        f"ALTER TABLE {table} ENGINE = InnoDB",
                        f"OPTIMIZE TABLE {table}",
                        f"ALTER TABLE {table} COMMENT = 'c'",
                        f"ALTER TABLE {table} ADD INDEX {self._new()} (id)",
                    )
                )
            ]
        return [
            self.chance.choice(
                (f"VACUUM FULL {table}", f"ANALYZE {table}", f"CREATE INDEX ON {table} (id)")
            )
        ]

    def _truncate(self, table: str) -> list[str]:
        return [f"TRUNCATE TABLE {table}"] if self.chance.random() < 0.3 else self.rows(table)

    def step(self) -> None:
        """Run the next statements."""
        table = self.chance.choice(self.server.tables)
        if self.chance.random() < 0.35:
            self.server.run(*self.ddl(table))
        elif self.chance.random() < 0.5:
            work = [s for _ in range(self.chance.randint(1, 3)) for s in self.rows(table)]
            end = self.chance.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))
            self.server.run("BEGIN", *work, end)
        else:
            for statement in self.rows(table):
                self.server.run(statement)


class Judge:
    """Compares the tables of a server with their copies in a DuckDB file."""

    def __init__(self, server: Server, service: Service, file: Path) -> None:
        self._server, self._service, self._file = server, service, file
        #: What the feed reported of tables that failed, in order.
        self.failures: list[str] = []

    def look(self) -> None:
        """Every table is equal, or the feed has reported it as failed; those are read again."""
        for _ in range(3):
            self._sync()
            failed = self._failed()
            if not failed:
                break
            for table, error in failed.items():
                self.failures.append(f"{table}: {error}")
                self._service.execute(f"ALTER CHANGEFEED f RESCAN {self._server.schema}.{table}")
        failed = self._failed()
        deadline = time.monotonic() + NOTICE_SECONDS
        while True:
            unequal = {
                table: difference
                for table in self._server.tables
                if table not in failed and (difference := self._difference(table))
            }
            if not unequal:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
            self._sync()
            failed = self._failed()
        history = ";\n".join(self._server.done[-60:])
        raise AssertionError(f"unequal: {unequal}\nfailed: {failed}\n{history}")

    def _sync(self) -> None:
        try:
            self._service.sync("f")
        except ChangefeedError as error:
            if not self._failed():
                raise AssertionError(
                    f"{error}\n{self._service.last_words()}\n" + ";\n".join(self._server.done[-40:])
                ) from error

    def _failed(self) -> dict[str, str]:
        job = self._service.job("f")
        return {
            t.table.name: t.error or ""
            for t in self._service.catalog.tables(job.id)
            if t.state is TableState.FAILED
        }

    def _difference(self, table: str) -> str:
        columns = list(self._server.columns(table))
        names = ", ".join(columns)
        wanted = {_plain(row) for row in self._server.query(f"SELECT {names} FROM {table}")}
        try:
            found = self._copied(f"SELECT {names} FROM {table}")
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        lacks, extra = sorted(map(str, wanted - found))[:3], sorted(map(str, found - wanted))[:3]
        return f"{names}: lacks {lacks}, has {extra}" if lacks or extra else ""

    def _copied(self, sql: str) -> set[Row]:
        deadline = time.monotonic() + 30
        while True:
            try:
                with duckdb.connect(str(self._file), read_only=True) as opened:
                    return {_plain(row) for row in opened.execute(sql).fetchall()}
            except duckdb.IOException:  # the node has it open, for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _plain(row: Sequence[object]) -> Row:
    """Values of two clients in one form."""
    return tuple(_one(value) for value in row)


def _one(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str) and value.startswith("0000-00-00"):
        return None  # a zero date is no date: copies have NULL
    if isinstance(value, Decimal | float | int) and not isinstance(value, bool):
        return format(Decimal(str(value)).normalize(), "f")
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return value
