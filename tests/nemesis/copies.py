"""Feeds into targets that keep tables of their own, compared with the source.

Whatever happens, a reader of such a target finds at every moment what the target promises: of a
warehouse all tables as they were at one instant, of an index each document as the row was at
its version, of a lake table in each of its versions what the source had at that timestamp.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote

import duckdb
import psycopg
import pymysql
from psycopg import sql
from pymysql.cursors import Cursor

from changefeed.core.clock import Timestamp
from changefeed.spark.session import NodeSpark
from tests.helpers.duckdb_file import opened
from tests.helpers.lake import Lake, unused_catalog
from tests.helpers.waiting import until
from tests.nemesis.ends import FOREIGN, End
from tests.nemesis.fingerprint import Document, Look, check_documents, check_end, check_instant
from tests.nemesis.ledger import Ledger, Row, Rows, by_key, exact_json, quoted
from tests.nemesis.reading import backticked
from tests.nemesis.tables import ODD
from tests.nemesis.trouble import Trouble
from tests.services.elasticsearch import Elasticsearch
from tests.services.mariadb import PASSWORD, USER
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database

#: Errors of MySQL: a table is not there, or has another shape than when the snapshot was taken.
_NO_TABLE, _OTHER_SHAPE = 1146, 1412
#: Versions of a lake table that are read.
VERSIONS = 8


class Copy(End):
    """Tables that are compared with the ledger's.

    Attributes:
        instants: those at which the copy was compared.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.instants: set[Timestamp] = set()
        self._found: list[str] = []

    def rows(self, name: str, found: Iterable[Mapping[str, Any]]) -> Rows:
        """Rows of the target by the source's keys, without columns that are the sink's."""
        columns = self.ledger.columns[name]
        return by_key(
            self.ledger.tables[name],
            ({c: _plain(c, row.get(c)) for c in columns} for row in found),
        )

    def note(self, at: Timestamp, failures: Sequence[str]) -> None:
        """A comparison at ``at`` was made."""
        self.instants.add(at)
        self._found += failures

    def judge(self) -> list[str]:
        """What was wrong at some instant, and what is wrong in the end."""
        unseen = [] if self.instants else ["the copy was seen at no instant"]
        return [*self._found, *unseen, *self.differences()]

    def behind(self) -> list[str]:
        """A copy that states how far it is states the last commit of its tables in the end."""
        newest = max(self.instants, default=Timestamp.ZERO)
        last = max(self.ledger.changed(name) for name in self.tables)
        if last < self.ledger.moments(newest).stop:
            return []
        return [f"its newest instant is {newest}, before the source's last commit"]

    def look_until_whole(self) -> None:
        """Look until the copy has been seen at the last commit of its tables."""

        def seen() -> bool:
            self.look()
            return not self.behind()

        until(seen, f"{self.name} is at the last commit")

    @abstractmethod
    def differences(self) -> list[str]:
        """The copy beside the source, now."""


#: What a value of a target becomes that has no type for it and keeps it as text.
_TEXTS: Mapping[str, Callable[[str], Any]] = {"n": Decimal, "doc": exact_json}


def _plain(column: str, value: Any) -> Any:
    return _TEXTS[column](value) if column in _TEXTS and isinstance(value, str) else value


# ------------------------------------------------------------------------------- warehouses


class Warehouse(Copy):
    """All tables of the feed move together, in one transaction with what they are complete to."""

    tables: tuple[str, ...] = (
        "orders", "plain", "lines", "parts", "bulk", "forms", "tally", ODD.name, "extra",
    )  # fmt: skip
    options = "resolved = '300ms'"
    schema = "copy"

    @abstractmethod
    def read(self, tables: Sequence[str]) -> Mapping[str, list[Row]] | None:
        """The tables in one transaction; None while the target cannot be read, or lacks one."""

    def _plant(self, execute: Callable[[LiteralString], object]) -> None:
        """A table of somebody else, before the feed is there."""
        execute("create schema copy")
        execute("create table copy.notes (id int, said text)")
        execute("insert into copy.notes values (1, 'not ours')")

    def look(self) -> None:
        seen = self._seen()
        if seen is not None:
            self.note(seen.at, check_instant(self.ledger, seen))

    def _seen(self) -> Look | None:
        """The tables, if nothing beyond their resolved timestamp is in them."""
        names = [name for name in self.tables if name not in self.gaps]
        found = self.read([*names, "_changefeed_applied"])
        if found is None:
            return None
        applied = [row for row in found["_changefeed_applied"] if row["table_name"] in names]
        stated = {row["resolved"] for row in applied}
        if len(applied) < len(names) or len(stated) != 1 or None in stated:
            return None
        at = Timestamp.parse(stated.pop())
        if any(row["version"] > at.version for row in applied):
            return None
        return Look(at, {name: self.rows(name, found[name]) for name in names})

    def differences(self) -> list[str]:
        found = self.read(self.tables)
        if found is None:
            return ["in the end a table is not there or cannot be read"]
        foreign = (self.read(["notes"]) or {}).get("notes")
        if foreign != [FOREIGN]:
            return [f"the table of somebody else has {foreign}"]
        return self.behind() + check_end(
            self.ledger, {name: self.rows(name, found[name]) for name in found}
        )


class PostgreSQLCopy(Warehouse):
    """Another database of the source's server, which goes away when that one does."""

    name = "postgresql_copy"

    def __init__(self, ledger: Ledger, source: Database) -> None:
        super().__init__(ledger)
        self._uri = f"{source.uri}_copy"
        self._server = source.server
        source.execute(f"create database {source.name}_copy")
        with psycopg.connect(self._uri) as connection:
            self._plant(connection.execute)

    @property
    def uri(self) -> str:
        return f"{self._uri}?schema={self.schema}"

    def read(self, tables: Sequence[str]) -> Mapping[str, list[Row]] | None:
        try:
            with psycopg.connect(self._uri) as connection:
                return self._read(connection, tables)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.errors.DeadlockDetected:
            return None  # with a change of shape, which waits for readers of other tables

    def _read(
        self, connection: psycopg.Connection, tables: Sequence[str]
    ) -> Mapping[str, list[Row]]:
        connection.execute("set transaction isolation level repeatable read, read only")
        names = {name: sql.Identifier(self.schema, name) for name in tables}
        # Before the snapshot is taken: a table that is rewritten after it would seem empty.
        listed = sql.SQL(", ").join(names.values())
        connection.execute(sql.SQL("lock table {} in access share mode").format(listed))
        select = sql.SQL("select to_jsonb(t)::text from {} t")
        return {
            name: [exact_json(text) for (text,) in connection.execute(select.format(place))]
            for name, place in names.items()
        }

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def end_sessions() -> str:
            self._server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                [self._uri.rpartition("/")[2]],
            )
            return "sessions in the copy's database are terminated"

        return [(1.5, end_sessions)]


class MySQLCopy(Warehouse):
    """Another database of the source's server."""

    name = "mysql_copy"

    def __init__(self, ledger: Ledger, server: BinlogServer) -> None:
        super().__init__(ledger)
        self._server = server
        with server.connect("root", "") as connection, connection.cursor() as cursor:
            self._plant(cursor.execute)

    @property
    def uri(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@127.0.0.1:{self._server.port}/{self.schema}"

    def read(self, tables: Sequence[str]) -> Mapping[str, list[Row]] | None:
        try:
            with (
                self._server.connect("root", "", self.schema) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("start transaction with consistent snapshot, read only")
                return {name: self._rows_of(cursor, name) for name in tables}
        except pymysql.MySQLError as error:
            if error.args[0] in (_NO_TABLE, _OTHER_SHAPE):
                return None
            raise

    @staticmethod
    def _rows_of(cursor: Cursor, name: str) -> list[Row]:
        cursor.execute(f"select * from {backticked(name)}")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def end_sessions() -> str:
            for (session,) in self._server.run(
                f"select ID from information_schema.PROCESSLIST where DB = '{self.schema}'"
            ):
                with suppress(pymysql.MySQLError):
                    self._server.run(f"kill {session}")
            return "sessions in the copy's database are ended"

        return [(1.5, end_sessions)]


class DuckDBCopy(Warehouse):
    """A file that one program at a time has open."""

    name = "duckdb_copy"

    def __init__(self, ledger: Ledger, path: Path) -> None:
        super().__init__(ledger)
        self._path = path
        with opened(path) as connection:
            self._plant(connection.execute)

    @property
    def uri(self) -> str:
        return f"duckdb://{self._path}?schema={self.schema}"

    def read(self, tables: Sequence[str]) -> Mapping[str, list[Row]] | None:
        try:
            with opened(self._path, read_only=True) as connection:
                connection.execute("begin transaction")
                return {name: self._rows_of(connection, name) for name in tables}
        except (duckdb.IOException, duckdb.CatalogException):
            return None  # the feed has it open, or it is not there yet

    def _rows_of(self, connection: duckdb.DuckDBPyConnection, name: str) -> list[Row]:
        found = connection.execute(f"select * from {self.schema}.{quoted(name)}")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def occupy() -> str:
            try:
                with opened(self._path, read_only=True):
                    meanwhile()
            except duckdb.IOException:
                return "somebody would open the DuckDB file, and the feed has it"
            return "somebody had the DuckDB file open"

        return [(1, occupy)]


# -------------------------------------------------------------------------------- documents


class IndexCopy(Copy):
    """Documents with versions: an index is no instant, but each document is."""

    name = "index_copy"
    tables = ("orders", "plain", "parts", "forms", ODD.name, "extra")
    renames_leave = ("forms",)
    options = "resolved = '300ms'"

    def __init__(self, ledger: Ledger, server: Elasticsearch, prefix: str) -> None:
        super().__init__(ledger)
        self._server = server
        self._prefix = prefix
        server.call("PUT", f"/{prefix}notes/_doc/1?refresh=true", FOREIGN)

    @property
    def uri(self) -> str:
        # Scalars are among the values of `doc`, so the field cannot be one of objects.
        return f"{self._server.uri}/?index_prefix={self._prefix}&json=stored"

    def look(self) -> None:
        # The marks first: a search that comes later sees all that they cover.
        marks = {
            row["index"].removeprefix(self._prefix): Timestamp.parse(row["resolved"])
            for _, row in self._server.exact_documents(f"{self._prefix}changefeed_resolved")
        }
        for name in set(self.tables) - self.gaps:
            at = marks.get(self.ledger.tables[name].index)
            if at is not None:
                self.note(at, check_documents(self.ledger, name, at, self._documents(name)))

    def differences(self) -> list[str]:
        # Nobody rewrites the documents that a renamed column is in.
        found = self.behind()
        if (notes := self._server.documents(f"{self._prefix}notes")) != {"1": FOREIGN}:
            found.append(f"the index of somebody else has {notes}")
        for name in self.tables:
            rows = {document.key: document.row for document in self._documents(name)}
            whole = not self.ledger.tables[name].steady
            found += check_end(self.ledger, {name: rows}, whole=whole)
        return found

    def _index(self, name: str) -> str:
        return quote(self._prefix + self.ledger.tables[name].index)

    def _documents(self, name: str) -> list[Document]:
        found = self._server.exact_documents(self._index(name))
        versions = [version for version, _ in found]
        rows = self.rows(name, (row for _, row in found))
        return [Document(k, v, row) for v, (k, row) in zip(versions, rows.items(), strict=True)]

    def troubles(self, meanwhile: Callable[[], None]) -> list[Trouble]:
        def freeze() -> str:
            self._server.pause()
            try:
                meanwhile()
                time.sleep(0.5)  # nothing to wait for: that nobody answers is the trouble
            finally:
                self._server.unpause()
            return "Elasticsearch did not answer for a while"

        return [(1, freeze)]


# ------------------------------------------------------------------------------------- lake


class LakeCopy(Copy):
    """Tables of a lake: every version of each is there to be read when all is over."""

    tables = ("orders", "tally")

    def __init__(self, ledger: Ledger, uri: str, spark: Callable[[], NodeSpark]) -> None:
        """``spark`` reads the tables, when all is over."""
        super().__init__(ledger)
        self._uri = uri
        self._spark = spark

    @property
    def uri(self) -> str:
        return self._uri

    @cached_property
    def _lake(self) -> Lake:
        return Lake(self._spark(), self.uri)

    def judge(self) -> list[str]:
        for name in self.tables:
            self._compare_versions(name)
        return super().judge()

    def differences(self) -> list[str]:
        found = {name: self.rows(name, self._lake.rows(name)) for name in self.tables}
        return check_end(self.ledger, found)

    def _compare_versions(self, name: str) -> None:
        """Each version as the source was at the timestamp that its commit states."""
        table = self.ledger.tables[name]
        columns = table.steady or self.ledger.columns[name]
        listed, stated = ", ".join(columns), self._stated(name)
        place = self._lake.table(name)
        reads = " union all ".join(
            f"select {number} as version, {listed} from {place} version as of {number}"
            for number in stated
        )
        rows: dict[int, list[Row]] = {number: [] for number in stated}
        for number, *values in self._lake.query(reads):
            rows[number].append(dict(zip(columns, values, strict=True)))
        for number, at in stated.items():
            look = Look(at, {name: self.rows(name, rows[number])})
            told = check_instant(self.ledger, look)
            self.note(at, [f"version {number} {text}" for text in told])

    def _stated(self, name: str) -> dict[int, Timestamp]:
        """Some of the table's versions, the newest too; the last one of each timestamp, since
        a scan comes in several commits."""
        newest: dict[Timestamp, int] = {}
        for number, said in self._lake.commits(name):
            if "changefeed.resolved" in said:
                newest[Timestamp.parse(said["changefeed.resolved"])] = number
        stated = [(newest[at], at) for at in sorted(newest, reverse=True)]
        return dict(stated[:: -(-len(stated) // VERSIONS)]) if stated else {}


class IcebergCopy(LakeCopy):
    """Iceberg tables."""

    name = "iceberg_copy"

    def __init__(self, ledger: Ledger, folder: Path, spark: Callable[[], NodeSpark]) -> None:
        uri = f"iceberg://{unused_catalog()}/copy?type=hadoop&warehouse={folder}"
        super().__init__(ledger, uri, spark)


class DeltaCopy(LakeCopy):
    """Delta tables."""

    name = "delta_copy"

    def __init__(self, ledger: Ledger, folder: Path, spark: Callable[[], NodeSpark]) -> None:
        super().__init__(ledger, f"delta://{folder}", spark)
