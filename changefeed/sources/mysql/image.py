"""An image of tables in sessions of this process, and its parts.

The node has sessions with the image, and so may Spark's workers have: each process reads parts in
its own (:mod:`changefeed.sources.mysql.snapshot` says how all come to see the same instant).
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.types import FLOATS
from changefeed.sources.base import DEFAULT_PART_BYTES, ScanWorker
from changefeed.sources.mysql import describe
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.result import ServerError, Values, read_rows
from changefeed.sources.mysql.session import MySQLSession, Row, connect, error_number
from changefeed.sources.mysql.values import log_column, unusable_key
from changefeed.sources.scans import snapshot_gone, table_changed

#: How long a reader waits for one of the sessions.
SESSION_SECONDS = 3600.0
#: The table was altered since the snapshot began; it, or a column, is not there.
_CHANGED = frozenset({1412, 1146, 1054, 1051})


class Image:
    """Sessions of this process that all see the same instant, until closed. Thread-safe.

    Attributes:
        sessions: those that are not lost.
    """

    def __init__(
        self, number: str, sessions: Sequence[MySQLSession], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``number``: the name of the image in all processes."""
        self.sessions = list(sessions)
        self._number = number
        self._clock = clock
        self._closed = threading.Event()
        self._idle: queue.Queue[MySQLSession] = queue.Queue()
        for session in sessions:
            self._idle.put(session)
        _OPEN[number] = self

    @contextlib.contextmanager
    def session(self, table: TableSchema) -> Iterator[MySQLSession]:
        """One of the sessions, inside a savepoint that ends with the use of it.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone, or the table changed.
        """
        session = self._take()
        try:
            session.run("SAVEPOINT part", doing="read a table")
            yield session
            session.run("ROLLBACK TO SAVEPOINT part", doing="read a table")
        except ChangefeedError as error:
            failed = _reading_failed(session, table, error)
            self._return(session, goes_on=failed.scope is Scope.TABLE)
            raise failed from error
        except GeneratorExit:
            # The reader wants no more of this table, because its sink refused it for example.
            self._return(session, goes_on=True)
            raise
        except BaseException:
            self._lose(session)
            raise
        self._idle.put(session)

    def _return(self, session: MySQLSession, *, goes_on: bool) -> None:
        """Keep a session for other tables (``goes_on``), if it still has its image."""
        if goes_on and not session.mid_answer and not self._closed.is_set():
            with contextlib.suppress(ChangefeedError):
                # A transaction that is not the snapshot's has no such savepoint.
                session.run("ROLLBACK TO SAVEPOINT part", doing="read a table")
                return self._idle.put(session)
        self._lose(session)

    def _take(self) -> MySQLSession:
        deadline = self._clock.monotonic() + SESSION_SECONDS
        while self._clock.monotonic() < deadline and not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                return self._idle.get(timeout=0.2)
        raise snapshot_gone("it was closed, or no session became free in time")

    def _lose(self, session: MySQLSession) -> None:
        """Close a session that broke: no other can have its image. The last one ends the snapshot.

        What broke it interrupts the scan, and the next scan has as many sessions as ever.
        """
        session.close()
        self.sessions.remove(session)
        if not self.sessions:
            self._closed.set()

    def close(self) -> None:
        """End the sessions. A part that is being read fails."""
        self._closed.set()
        _OPEN.pop(self._number, None)
        for session in list(self.sessions):
            session.close()


@dataclass(frozen=True, slots=True)
class MySQLPart:
    """A range of a table's rows. It can be read only in a process that holds its image.

    Attributes:
        snapshot: the image's number.
        columns: positions that are read; the others come out NULL.
        where: a condition, or empty.
        keys: the range of the key that it is.
    """

    snapshot: str
    table: TableSchema
    columns: tuple[int, ...]
    where: str
    rows_estimate: int
    bytes_estimate: int
    keys: KeyRange = field(default_factory=KeyRange)

    def read(self) -> Iterator[pa.RecordBatch]:
        snapshot = _OPEN.get(self.snapshot)
        if snapshot is None:
            raise snapshot_gone("it lives in sessions of another process, or was closed")
        with snapshot.session(self.table) as session:
            yield from read_table(session, self.table, self.columns, self.where)


#: The open images of this process. A part names its own, and is small.
_OPEN: weakref.WeakValueDictionary[str, Image] = weakref.WeakValueDictionary()


def open_reader(address: Address) -> MySQLSession:
    """A session that lets go of tables between parts, where the user may have one."""
    session = connect(address)
    if session.is_mariadb:
        try:
            session.run("SET SESSION sql_log_bin = 0")
        except ChangefeedError as error:
            if error.code is not Code.SOURCE_PERMISSION_MISSING:
                session.close()
                raise
    return session


# ------------------------------------------------------------------------- failures


def _reading_failed(
    session: MySQLSession, table: TableSchema, error: ChangefeedError
) -> ChangefeedError:
    if error_number(error) in _CHANGED:
        return table_changed(table.table, error.detail or "it was altered")
    if error.code is Code.SOURCE_PERMISSION_MISSING:
        hint = describe.grant_select(session, table.table.schema, table.table.name)
        return ChangefeedError(
            Code.TABLE_NOT_SCANNABLE, error.message, detail=error.detail, hint=hint
        )
    if error.code is Code.SOURCE_UNREACHABLE:
        return snapshot_gone(error.detail or error.message)
    if error.code is Code.SOURCE_NOT_SET_UP and error_number(error):
        # Such as a table whose tablespace or file is missing. Others can be read.
        return ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            f"table {table.table} cannot be scanned: the server cannot read it",
            detail=error.detail,
            hint="SELECT from it shows the same error; when it works again (after IMPORT "
            "TABLESPACE or REPAIR TABLE, for example), ALTER CHANGEFEED .. RESCAN the table.",
        )
    return error


#: How much of an answer is read to no purpose so that its session can go on: more than a part has,
#: unless the table could not be divided.
SKIPPED_BYTES = 4 * DEFAULT_PART_BYTES


def expression(column: Column) -> str:
    """What to select so that the server prints the column without loss."""
    name = quoted(column.name)
    if column.kind in FLOATS:
        # A FLOAT would be printed with six digits, a DOUBLE(p,s) with s of them: a product is a
        # plain DOUBLE, with all that it needs. (A sum would lose the sign of -0.)
        return f"{name} * 1e0"
    if "zerofill" in column.type_name.lower() and column.logical.precision:
        return f"CAST({name} AS {str(column.logical).upper()})"
    return name


def query(table: TableSchema, columns: Sequence[int], where: str) -> str:
    listed = ", ".join(expression(table.columns[i]) for i in columns)
    name = f"{quoted(table.table.schema)}.{quoted(table.table.name)}"
    return f"SELECT {listed} FROM {name}" + (f" WHERE {where}" if where else "")


def read_table(
    session: MySQLSession, table: TableSchema, columns: Sequence[int], where: str
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of ``a0..an``; columns that are not asked for are NULL.

    Close the session if it is ``mid_answer`` afterwards: the connection failed, or much was left
    when the iteration ended early.

    Raises:
        ChangefeedError: CF2202 a value does not fit its column or its key; else the server's own
            error.
    """
    answer = session.packets(query(table, columns, where), len(columns))
    blocks = read_rows(answer, len(columns))
    while (block := _next(session, blocks)) is not None:
        try:
            yield _batch(table, columns, block)
        except BaseException:
            _skip(session, blocks)
            raise


def _skip(session: MySQLSession, blocks: Iterator[list[Values]]) -> None:
    """Read what is left of an answer, up to :data:`SKIPPED_BYTES`."""
    left = SKIPPED_BYTES
    while session.mid_answer and left > 0:
        try:
            block = _next(session, blocks)
        except ChangefeedError:
            return  # the reason why the iteration ended is on its way up
        left -= len(block[0].data) if block else left


def _next(session: MySQLSession, blocks: Iterator[list[Values]]) -> list[Values] | None:
    with session.explained("read a table"):
        try:
            block = next(blocks, None)
            session.mid_answer = block is not None
            return block
        except ServerError as error:
            session.mid_answer = False
            raise session.server_error(error, "read a table") from None


def _batch(table: TableSchema, columns: Sequence[int], block: list[Values]) -> pa.RecordBatch:
    count = len(block[0].starts)
    by_place = dict(zip(columns, block, strict=True))
    arrays = []
    for i, column in enumerate(table.columns):
        if i not in by_place:
            arrays.append(pa.nulls(count, column.arrow))
            continue
        try:
            arrays.append(log_column(column, by_place[i]))
        except (pa.ArrowInvalid, ValueError) as error:
            raise ChangefeedError(
                Code.TABLE_NOT_SCANNABLE,
                f"table {table.table} cannot be scanned: a value of column {column.name} is no "
                f"{column.type_name}",
                hint="ALTER TABLE during the scan can do this: the scan starts again on RESUME.",
            ) from error
    if problem := unusable_key(table, arrays):
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            f"table {table.table} cannot be scanned: {problem}",
            hint="Then ALTER CHANGEFEED .. RESCAN the table.",
        )
    return pa.record_batch(arrays, names=[f"a{i}" for i in range(len(arrays))])


# ------------------------------------------------------------------------- workers


class WorkerSession:
    """A session in a worker, through which the node begins its snapshot. The worker keeps it, and
    reads parts in it.

    Raises:
        ChangefeedError: as of :func:`.session.connect`; CF2201 the worker was lost.
    """

    def __init__(self, worker: ScanWorker, address: Address, image: str) -> None:
        self._worker = worker
        self._image = image
        worker.call(functools.partial(_open, address, image))

    def run(self, *statements: str, doing: str = "ask the server") -> None:
        """As :meth:`.session.MySQLSession.run`."""
        self._worker.call(functools.partial(_run, self._image, statements, doing))

    def rows(self, sql: str, doing: str = "ask the server") -> list[Row]:
        """As :meth:`.session.MySQLSession.rows`."""
        return self._worker.call(functools.partial(_rows, self._image, sql, doing))


def _open(address: Address, image: str, kept: ExitStack) -> None:
    session = open_reader(address)
    kept.callback(Image(image, [session]).close)


def _held(image: str) -> MySQLSession:
    found = _OPEN.get(image)
    if found is None or not found.sessions:
        raise snapshot_gone("the session of a worker is lost")
    return found.sessions[0]


def _run(image: str, statements: Sequence[str], doing: str, kept: ExitStack) -> None:
    _held(image).run(*statements, doing=doing)


def _rows(image: str, sql: str, doing: str, kept: ExitStack) -> list[Row]:
    return _held(image).rows(sql, doing)
