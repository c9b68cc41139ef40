"""Random histories of DDL and rows.

A history mixes statements that define tables with ordinary changes, in and out of transactions. The
server may refuse a statement; the history goes on. What its copies must be is the matter of
:mod:`.history_targets`.
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
import pymysql

from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

#: Statements of a history, and steps of it between two looks of the judge.
STATEMENTS = int(os.environ.get("CHANGEFEED_HISTORY_STATEMENTS", "100"))
LOOK_EVERY = int(os.environ.get("CHANGEFEED_HISTORY_LOOK_EVERY", "12"))

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
    def count(self) -> int:
        """Statements that ran or were refused."""
        return len(self.done) - self.refused

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

    def of(self, table: str) -> str:
        """A table in a FROM, with the rows that are its own."""
        return table

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

    tables = ("plain", "parts", "words", "notes")

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
            "CREATE TABLE notes (id INT PRIMARY KEY, a INT, b CHAR(9), s SET('x','y','z'),"
            " e VARCHAR(9) CHARACTER SET latin1)",
            "CREATE TABLE scratch (id INT) ENGINE = MyISAM",
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
    """PostgreSQL. ``parts`` has partitions of partitions, and ``plain`` a child by inheritance,
    whose rows are not its own."""

    tables = ("plain", "parts", "words", "notes")

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
            "create table parts_2 partition of parts for values from (100) to (maxvalue)"
            " partition by range (id)",
            "create table parts_2a partition of parts_2 for values from (100) to (125)",
            "create table parts_2b partition of parts_2 for values from (125) to (maxvalue)",
            "create table words (id int primary key, a mood, b text, c bigint)",
            "create table plain_child () inherits (plain)",
            "create schema aside",
            "create domain small as int",
            "create type pair as (x int, y mood)",
            "create table notes (id int primary key, a int references words on delete cascade,"
            " b small, p pair)",
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
                " and attgenerated = ''"
                " order by attnum"
            )
        )

    def of(self, table: str) -> str:
        return f"ONLY {table}" if table == "plain" else table

    def query(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self._database.execute(sql)]

    def _run(self, statements: Sequence[str]) -> None:
        with self._database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())


#: MySQL's partitions of ``parts``.
_PARTED = (
    "ALTER TABLE parts PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (50),"
    " PARTITION p1 VALUES LESS THAN (100), PARTITION p2 VALUES LESS THAN MAXVALUE)"
)


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
        if kind.startswith(("enum", "mood", "set")):
            return f"'{chance.choice('xyz')}'"
        if kind == "pair":
            return f"({chance.randint(0, 9)}, '{chance.choice('xyz')}')"
        if kind.startswith(("datetime", "timestamp", "date")):
            day, part = chance.randint(10, 28), chance.randint(0, 999_999)
            return f"'2026-0{chance.randint(1, 9)}-{day} 10:11:12.{part:06d}'"
        if kind.startswith(("decimal", "numeric", "double", "float")):
            return f"{chance.randint(-9999, 9999)}.{chance.randint(0, 99):02d}"
        if "int" in kind or kind == "small":
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
            self._key,
            self._swap_tables,
            *(
                (self._engine, self._charset, self._statement)
                if self._mysql
                else (self._types, self._family, self._identity)
            ),
        )
        made = self.chance.choice(makers)(table)
        plain = not self._mysql and made[0].startswith(("ALTER TABLE", "TRUNCATE"))
        if plain and "CONCURRENTLY" not in made[0] and self.chance.random() < 0.3:
            # With rows before and behind it; what the server does not take ends the transaction.
            end = self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK", "ROLLBACK TO s; COMMIT"))
            before = ["SAVEPOINT s"] if end.startswith("ROLLBACK TO") else []
            rows = [*self.rows(table)[:2], *before]
            made = ["BEGIN", *rows, *made, *self._later(table), *end.split("; ")]
        return made

    def _later(self, table: str) -> list[str]:
        return [f"INSERT INTO {table} (id) VALUES ({next(self._ids) * 7 % 150})"]

    def _column(self, table: str) -> str:
        return self.chance.choice([c for c in self.server.columns(table) if c != "id"] or ["id"])

    def _new(self) -> str:
        return f"n{next(self._names)}"

    @property
    def _mysql(self) -> bool:
        return isinstance(self.server, MySQLServer)

    def _rename_column(self, table: str) -> list[str]:
        column, kinds = self._column(table), self.server.columns(table)
        if column == "id":
            return self._add_column(table)  # statements and the judge know rows by it
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
        given = ["", f" DEFAULT {default}", f" NOT NULL DEFAULT {default}"]
        if self._mysql:
            given += [" FIRST", " AFTER id", f" DEFAULT {default} AFTER id"]
            given += [" AS (id + 1) STORED", " AS (id * 2) VIRTUAL"]
        else:
            given += [" GENERATED ALWAYS AS (id + 1) STORED", " GENERATED BY DEFAULT AS IDENTITY"]
        what = self.chance.choice(given)
        if " AS " in what:
            kind = "INT"
        more = f", ADD COLUMN {self._new()} INT" if self.chance.random() < 0.2 else ""
        return [f"ALTER TABLE {table} ADD COLUMN {self._new()} {kind}{what}{more}"]

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
        if kind.startswith(("enum", "mood", "set", "pair")):
            return self._labels(table)
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
                    ["ALTER TABLE parts REMOVE PARTITIONING", *self.rows("parts"), _PARTED],
                    [f"ALTER TABLE parts ANALYZE PARTITION p{number}"],
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
                *self._deep_partitions(number, bounds, new),
            )
        )

    def _deep_partitions(self, number: int, bounds: str, new: str) -> list[list[str]]:
        """Partitions of partitions, and those that go and come back as they are."""
        part = self.chance.choice((f"parts_{number}", "parts_2", "parts_2a"))
        above, bounds = ("parts_2", "(100) to (125)") if part == "parts_2a" else ("parts", bounds)
        bounds = "(100) to (maxvalue)" if part == "parts_2" else bounds
        attach = f"ALTER TABLE {above} ATTACH PARTITION {part} FOR VALUES FROM {bounds}"
        detach = f"ALTER TABLE {above} DETACH PARTITION {part}"
        return [
            ["TRUNCATE parts_2a"],
            ["TRUNCATE parts_2"],
            [detach, f"DELETE FROM {part} WHERE id % 3 = 0", attach],
            ["BEGIN", detach, f"DELETE FROM {part} WHERE id % 3 = 0", attach, "COMMIT"],
            [f"{detach} CONCURRENTLY", attach],
            [f"ALTER TABLE {part} SET SCHEMA aside", f"ALTER TABLE aside.{part} SET SCHEMA public"],
            [f"ALTER TABLE {part} RENAME TO {new}", f"ALTER TABLE {new} RENAME TO {part}"],
            [
                "BEGIN",
                "ALTER TABLE parts_2 DETACH PARTITION parts_2a",
                "DROP TABLE parts_2a",
                "CREATE TABLE parts_2a PARTITION OF parts_2 FOR VALUES FROM (100) TO (125)",
                "INSERT INTO parts (id) VALUES (101)",
                "COMMIT",
            ],
        ]

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

    def _types(self, table: str) -> list[str]:
        """Composites and domains of PostgreSQL."""
        new = self._new()
        return self.chance.choice(
            (
                [f"ALTER TYPE pair ADD ATTRIBUTE {new} int CASCADE"],
                [f"ALTER TYPE pair ADD ATTRIBUTE {new} int",
                 f"ALTER TYPE pair DROP ATTRIBUTE {new}"],
                [f"ALTER TYPE pair RENAME ATTRIBUTE x TO {new}",
                 f"ALTER TYPE pair RENAME ATTRIBUTE {new} TO x"],
                ["ALTER DOMAIN small SET DEFAULT 3", "INSERT INTO notes (id) VALUES (151)"],
                ["ALTER DOMAIN small RENAME TO tiny", "ALTER DOMAIN tiny RENAME TO small"],
                ["ALTER TABLE notes ALTER b TYPE int", "ALTER TABLE notes ALTER b TYPE small"],
                [f"ALTER TABLE notes ADD COLUMN {new} small DEFAULT 4"],
                [f"ALTER TABLE notes ADD COLUMN {new} pair DEFAULT (1, 'y')"],
                [f"ALTER TABLE notes ADD COLUMN {new} int GENERATED ALWAYS AS (id + 1) STORED",
                 f"ALTER TABLE notes ALTER COLUMN {new} DROP EXPRESSION"],
            )
        )  # fmt: skip

    def _family(self, table: str) -> list[str]:
        """Inheritance, other storage, and TRUNCATE that takes other tables along."""
        return self.chance.choice(
            (
                ["INSERT INTO plain_child (id) VALUES (1), (200)"],
                ["ALTER TABLE plain_child NO INHERIT plain",
                 "ALTER TABLE plain_child INHERIT plain"],
                ["DROP TABLE plain_child", "CREATE TABLE plain_child () INHERITS (plain)"],
                ["TRUNCATE words CASCADE"],
                ["BEGIN", "TRUNCATE words, notes", "INSERT INTO words (id) VALUES (7)", "COMMIT"],
                ["BEGIN", "TRUNCATE words CASCADE", "ROLLBACK"],
                ["DELETE FROM words WHERE id % 2 = 0"],
                [f"ALTER TABLE {table} SET UNLOGGED", f"ALTER TABLE {table} SET LOGGED"],
                [f"ALTER TABLE {table} SET (fillfactor = 70)"],
            )
        )  # fmt: skip

    def _identity(self, table: str) -> list[str]:
        """What identifies a row in PostgreSQL's stream."""
        identity = f"ALTER TABLE {table} REPLICA IDENTITY"
        index = self._new()
        return self.chance.choice(
            (
                [f"{identity} FULL"],
                [f"{identity} DEFAULT"],
                [f"{identity} FULL", *self.rows(table), f"{identity} DEFAULT"],
                [f"CREATE UNIQUE INDEX {index} ON {table} (id)", f"{identity} USING INDEX {index}"],
            )
        )

    def _engine(self, table: str) -> list[str]:
        """Engines of MySQL and MariaDB without transactions, and rows of theirs beside others."""
        scratch = f"INSERT INTO scratch VALUES ({next(self._ids)})"
        some = self.rows(table)
        return self.chance.choice(
            (
                [f"ALTER TABLE {table} ENGINE = MyISAM", *self.rows(table)],
                [f"ALTER TABLE {table} ENGINE = MyISAM", *self.rows(table),
                 f"ALTER TABLE {table} ENGINE = InnoDB"],
                [f"ALTER TABLE {table} ENGINE = InnoDB"],
                ["BEGIN", *some, "SAVEPOINT s", *self.rows(table), scratch,
                 "ROLLBACK TO SAVEPOINT s", *self.rows(table), "COMMIT"],
                ["BEGIN", *some, scratch, "ROLLBACK"],
                ["BEGIN", *some, scratch, "COMMIT"],
            )
        )  # fmt: skip

    def _charset(self, table: str) -> list[str]:
        """Character sets, lengths, padding and members of columns."""
        column = self._column(table)
        kind = self.server.columns(table)[column].lower()
        loose = "SET SESSION sql_mode = ''"
        text = self.chance.choice(("VARCHAR(30)", "VARCHAR(4)", "CHAR(9)"))
        if not kind.startswith(("varchar", "char", "text")):
            return ["ALTER TABLE notes MODIFY s SET('x','y','z','w')", *self.rows("notes")]
        return self.chance.choice(
            (
                [loose, f"ALTER TABLE {table} MODIFY {column} {text} CHARACTER SET latin1"],
                [loose, f"ALTER TABLE {table} MODIFY {column} {text} CHARACTER SET utf8mb4"
                 " COLLATE utf8mb4_bin"],
                [loose, f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4"],
                [f"INSERT INTO {table} (id, {column}) VALUES ({next(self._ids) * 7 % 150}, 'é')",
                 loose, f"ALTER TABLE {table} MODIFY {column} {text} CHARACTER SET ascii"],
            )
        )  # fmt: skip

    def _statement(self, table: str) -> list[str]:
        """A session that writes statements in place of rows."""
        return ["SET SESSION binlog_format = 'STATEMENT'", *self.rows(table)[:1]]

    def _key(self, table: str) -> list[str]:
        """Other keys of the same name or type, and of more columns."""
        new, chance = self._new(), self.chance
        if table == "parts":
            return self.rows(table)
        if self._mysql:
            return chance.choice(
                (
                    ["SET SESSION sql_mode = ''", f"ALTER TABLE {table} MODIFY id BIGINT"],
                    [f"ALTER TABLE {table} DROP PRIMARY KEY, ADD PRIMARY KEY (id)"],
                    [f"ALTER TABLE {table} ADD COLUMN {new} INT NOT NULL DEFAULT 0,"
                     f" DROP PRIMARY KEY, ADD PRIMARY KEY (id, {new})"],
                    [f"UPDATE {table} SET id = id + 1000 WHERE id BETWEEN 10 AND 20"],
                )
            )  # fmt: skip
        return chance.choice(
            (
                [f"ALTER TABLE {table} ALTER id TYPE bigint USING id + 0"],
                [f"ALTER TABLE {table} ALTER id TYPE int USING -id"],
                [f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey CASCADE, ADD PRIMARY KEY (id)"],
                [f"ALTER TABLE {table} ADD COLUMN {new} int NOT NULL DEFAULT 0,"
                 f" DROP CONSTRAINT {table}_pkey CASCADE, ADD PRIMARY KEY (id, {new})"],
                [f"UPDATE {table} SET id = id + 1000 WHERE id BETWEEN 10 AND 20"],
            )
        )  # fmt: skip

    def _swap_tables(self, table: str) -> list[str]:
        """What tools do that alter a table beside its users: another table gets its name."""
        if not self._mysql:
            return self._partition(table)
        new, old, added, chance = self._new(), self._new(), self._new(), self.chance
        columns = ", ".join(self.server.columns(table))
        make = [f"CREATE TABLE {new} LIKE {table}", f"ALTER TABLE {new} ADD COLUMN {added} INT"]
        copy = f"INSERT IGNORE INTO {new} ({columns}) SELECT {columns} FROM {table}"
        swap = f"RENAME TABLE {table} TO {old}, {new} TO {table}"
        select = f"CREATE TABLE {new} (PRIMARY KEY (id)) AS SELECT id FROM {table} WHERE id % 2 = 0"
        return chance.choice(
            (
                [*make, copy, *self.rows(table), copy, swap, f"DROP TABLE {old}"],
                [*make[:1], copy, f"DELETE FROM {new} WHERE id % 3 = 0", swap],
                [select, f"DROP TABLE {table}", f"RENAME TABLE {new} TO {table}"],
                [f"CREATE TABLE {new} LIKE {table}", copy, f"DROP TABLE {table}",
                 f"ALTER TABLE {new} RENAME TO {table}"],
                [f"RENAME TABLE {table} TO {old}", f"RENAME TABLE {old} TO {table}"],
            )
        )  # fmt: skip

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
