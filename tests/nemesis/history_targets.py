"""The targets of a history, and a judge that compares them with the source by itself.

At every look the judge reads all rows of the source by SELECT and all rows of each copy with a
client of the target, nothing of the product in between. A table whose rows differ must be one that
its feed has reported as failed before. Of messages the last one of each key counts: one that has
the columns of now must have the values of now, and keys may be left over only if the feed gave
notice of rows that left without a word.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import psycopg

from changefeed.catalog.model import TableState
from changefeed.core.errors import ChangefeedError, Code
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.messages import Message, parse_message
from tests.helpers.lake import Lake
from tests.nemesis.histories import Row, Server
from tests.nemesis.service import Service
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

#: Seconds within which rows that moved without row events must have been noticed.
NOTICE_SECONDS = 25.0
#: Seconds after which a feed that gets no further hangs, on a busy machine.
STILL_SECONDS = 300.0
#: Rows of a difference that are shown.
_SHOWN = 3
#: What the hint about a table without transactions asks for.
_ENGINE = re.compile(r"ALTER TABLE \S+ ENGINE = InnoDB")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?")


class Copy(ABC):
    """What one feed keeps.

    Attributes:
        feed: its name.
        uri: of the sink.
    """

    def __init__(self, feed: str, uri: str) -> None:
        self.feed, self.uri = feed, uri

    @abstractmethod
    def difference(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
        """How the copy of a table differs from these rows; empty if it does not."""

    @abstractmethod
    def remove(self, table: str) -> None:
        """Drop the target of a table, as hints ask for."""

    def excuse(self, table: str, notices: int) -> None:
        """The feed gave so many notices of rows that left this table without events; a copy that
        is a table has no such rows all the same."""
        return

    def begin_again(self, table: str) -> None:
        """The table had stopped and is read again: what was sent before may have other keys."""
        return


class TableCopy(Copy):
    """Tables that are read by SQL."""

    @abstractmethod
    def query(self, sql: str) -> list[Row]:
        """The rows of a SELECT.

        Raises:
            Exception: there is no such table, or no such column.
        """

    def place(self, table: str) -> str:
        """The copy of a table in SQL."""
        return table

    def difference(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
        """All rows of both."""
        names, wanted = ", ".join(columns), {plain(row) for row in rows}
        try:
            found = {plain(row) for row in self.query(f"SELECT {names} FROM {self.place(table)}")}
        except (duckdb.Error, psycopg.Error, ChangefeedError) as error:
            return str(error.__cause__ or error).splitlines()[0]  # our Spark names a class only
        return _shown(names, wanted - found, found - wanted)


class DuckDBCopy(TableCopy):
    """A DuckDB file."""

    def __init__(self, feed: str, path: Path) -> None:
        super().__init__(feed, f"duckdb://{path}")
        self._path = path

    def query(self, sql: str) -> list[Row]:
        return self._run(sql, read_only=True)

    def remove(self, table: str) -> None:
        self._run(f"DROP TABLE IF EXISTS {table}", read_only=False)

    def _run(self, sql: str, *, read_only: bool) -> list[Row]:
        deadline = time.monotonic() + 60
        while True:
            try:
                with duckdb.connect(str(self._path), read_only=read_only) as opened:
                    return opened.execute(sql).fetchall()
            except duckdb.IOException:  # the node has it open, for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


class PostgreSQLCopy(TableCopy):
    """Tables of a database."""

    def __init__(self, feed: str, database: Database) -> None:
        super().__init__(feed, database.uri)
        self._database = database

    def query(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self._database.execute(sql)]

    def remove(self, table: str) -> None:
        self._database.execute(f"DROP TABLE IF EXISTS {table}")


class DeltaCopy(TableCopy):
    """Delta tables, read by another Spark than the node's."""

    def __init__(self, feed: str, folder: Path, spark: NodeSpark) -> None:
        super().__init__(feed, f"delta://{folder}")
        self._folder, self._lake = folder, Lake(spark, self.uri)

    def place(self, table: str) -> str:
        return self._lake.table(table)

    def query(self, sql: str) -> list[Row]:
        return self._lake.query(sql)

    def remove(self, table: str) -> None:
        with suppress(FileNotFoundError):  # a table may fail before it is made
            shutil.rmtree(self._folder / table)


class KafkaCopy(Copy):
    """What the messages of topics add up to."""

    def __init__(self, feed: str, broker: KafkaBroker, prefix: str) -> None:
        super().__init__(feed, f"{broker.uri}?topic_prefix={prefix}")
        self._broker, self._prefix = broker, prefix
        self._notices: dict[str, int] = {}
        #: By table: so many messages do not count.
        self._passed: dict[str, int] = {}
        self._left: dict[str, set[object]] = {}
        self._forgive: set[str] = set()

    def remove(self, table: str) -> None:
        """A topic stays: its messages are what was."""

    def excuse(self, table: str, notices: int) -> None:
        if notices > self._notices.get(table, 0):
            self._notices[table] = notices
            self._forgive.add(table)

    def begin_again(self, table: str) -> None:
        self._passed[table] = len(self._broker.messages(f"{self._prefix}{table}"))

    def difference(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
        """Keys, and the values of rows in the present shape."""
        shown = [dict(zip(columns, plain(row), strict=True)) for row in rows]
        wanted = {row["id"]: row for row in shown}
        last: dict[str, Mapping[str, object]] = {}
        records = self._broker.messages(f"{self._prefix}{table}")
        for record in records[self._passed.get(table, 0) :]:
            _take(last, parse_message(table, record.partition, record.key, record.value))
        found = {one(row["id"]): row for row in last.values()}
        extra = found.keys() - wanted.keys()
        if table in self._forgive:
            self._left[table] = extra
        extra = extra - self._left.get(table, set())
        lacks = {str(key) for key in wanted.keys() - found.keys()}
        for key in wanted.keys() & found.keys():
            if found[key].keys() == wanted[key].keys():
                said = {name: one(value) for name, value in found[key].items()}
                if said != wanted[key]:
                    lacks.add(f"{wanted[key]}, but {said}")
        text = _shown("keys", lacks, set(map(str, extra)))
        if not text:
            self._forgive.discard(table)
        return text


def _take(last: dict[str, Mapping[str, object]], message: Message) -> None:
    if message.truncated is not None:
        last.clear()
    elif message.is_row and message.key is not None:
        if message.after is None:
            last.pop(message.key, None)
        else:
            last[message.key] = message.after


class Judge:
    """Compares the tables of a server with the copies that feeds keep of them.

    Args:
        server, service, copies: whose tables, by which node, to where.
        still: seconds after which a feed that gets no further hangs.
    """

    def __init__(
        self,
        server: Server,
        service: Service,
        copies: Sequence[Copy],
        still: float = STILL_SECONDS,
    ) -> None:
        self._server, self._service, self._copies = server, service, copies
        self._still = still
        #: What the feeds reported of tables that failed, in order.
        self.failures: list[str] = []
        self._last: dict[tuple[str, str], str] = {}

    def look(self) -> None:
        """Every table is equal, or its feed has reported it as failed; those are read again."""
        for copy in self._copies:
            for attempt in range(3):
                self._sync(copy)
                failed = self._failed(copy)
                for table, error in failed.items():
                    self.help(copy, table, error, again=attempt > 0)
                if not failed:
                    break
        deadline = time.monotonic() + NOTICE_SECONDS
        while True:
            late = time.monotonic() > deadline
            for copy in self._copies:
                self._sync(copy)
            if not (unequal := self._unequal()):
                return
            if late:  # and what was read was read after that
                history = ";\n".join(self._server.done[-60:])
                said = "\n".join(self._said(copy) for copy in self._copies)
                raise AssertionError(f"unequal: {unequal}\n{history}\n{said}")
            time.sleep(0.5)

    def _unequal(self) -> dict[str, str]:
        found = {}
        failed = {copy.feed: self._failed(copy) for copy in self._copies}
        for table in self._server.tables:
            columns = list(self._server.columns(table))
            rows = self._server.query(f"SELECT {', '.join(columns)} FROM {self._server.of(table)}")
            for copy in self._copies:
                if table in failed[copy.feed]:
                    continue
                copy.excuse(table, self._notices(copy, table))
                if text := copy.difference(table, columns, rows):
                    found[f"{copy.feed} {table}"] = text
        return found

    def help(self, copy: Copy, table: str, reported: str, *, again: bool) -> None:
        """What the hints ask for: the table is read again; if that was in vain, made again."""
        self.failures.append(f"{copy.feed} {table}: {reported}")
        name = f"{self._server.schema}.{table}"
        again = again or self._last.get((copy.feed, table)) == reported
        self._last[copy.feed, table] = reported
        copy.begin_again(table)
        if not again:
            self._service.execute(f"ALTER CHANGEFEED {copy.feed} RESCAN {name}")
            return
        self._service.execute(f"ALTER CHANGEFEED {copy.feed} DROP {name}")
        copy.remove(table)
        self._add(copy, table)
        del self._last[copy.feed, table]

    def _add(self, copy: Copy, table: str) -> None:
        """Add a table to a feed, from whose key or engine the history may have made another."""
        mended: set[str] = set()
        while True:
            try:
                self._service.execute(
                    f"ALTER CHANGEFEED {copy.feed} ADD {self._server.schema}.{table}"
                )
                return
            except ChangefeedError as error:
                hinted = _ENGINE.search(error.hint)
                mend = hinted[0] if hinted else f"ALTER TABLE {table} ADD PRIMARY KEY (id)"
                if error.code is not Code.SOURCE_NOT_SET_UP or mend in mended:
                    raise
                self._server.run(mend)
                mended.add(mend)

    def _sync(self, copy: Copy) -> None:
        """Wait while the feed gets on, however slow the machine is."""
        before = self._progress(copy)
        while True:
            try:
                self._service.sync(copy.feed, self._still)
                return
            except ChangefeedError as error:
                if self._failed(copy):
                    return
                now = self._progress(copy)
                if error.code is Code.TIMED_OUT and now != before:
                    before = now
                    continue
                if self._service.running and not self._service.catalog.live_nodes():
                    continue  # the machine is slow; the next SYNC waits until it is heard of
                history = ";\n".join(self._server.done[-40:])
                raise AssertionError(
                    f"{error}\n{now}\n{self._service.last_words()}\n{history}\n"
                    f"{self._said(copy)}\n{self._service.stacks()}"
                ) from error

    def _progress(self, copy: Copy) -> object:
        """What changes while a feed gets on."""
        job = self._service.job(copy.feed)
        tables = self._service.catalog.tables(job.id)
        return job.high_water, [
            (t.table.name, t.state, t.done_upto, t.scan_rows, t.emitted_rows) for t in tables
        ]

    def _failed(self, copy: Copy) -> dict[str, str]:
        job = self._service.job(copy.feed)
        return {
            t.table.name: t.error or ""
            for t in self._service.catalog.tables(job.id)
            if t.state is TableState.FAILED
        }

    def _notices(self, copy: Copy, table: str) -> int:
        job = self._service.job(copy.feed)
        events = self._service.catalog.events(job.id, kinds=("notice",), limit=10_000)
        return sum(e.times for e in events if (e.table or "").endswith(f".{table}"))

    def _said(self, copy: Copy) -> str:
        rows = self._service.execute(f"SHOW CHANGEFEED {copy.feed} EVENTS LIMIT 40").rows
        return "\n".join(f"{copy.feed}: {[str(x)[:160] for x in row[:4]]}" for row in rows)


def _shown(what: str, lacks: Collection[object], extra: Collection[object]) -> str:
    if not lacks and not extra:
        return ""
    parts = [sorted(map(str, rows))[:_SHOWN] for rows in (lacks, extra)]
    return f"{what}: lacks {parts[0]}, has {parts[1]}"


def plain(row: Sequence[object]) -> Row:
    """Values of two clients in one form."""
    return tuple(one(value) for value in row)


def one(value: object) -> object:
    """One of them."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, str):
        if value.startswith("0000-00-00"):
            return None  # a zero date is no date: copies have NULL
        if _INSTANT.fullmatch(value):
            return datetime.fromisoformat(value).isoformat()
        return value
    if isinstance(value, bool):
        return value
    if isinstance(value, Decimal | float | int):
        return format(Decimal(str(value)).normalize(), "f")
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value
