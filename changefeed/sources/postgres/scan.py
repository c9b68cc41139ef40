"""Reading one part of an initial scan, in any process.

A part is read by ``COPY ... TO STDOUT`` inside a savepoint that is rolled back afterwards, which
lets go of the table's lock: DDL waits for one part, not for the scan. Some DDL is not
transactional for a snapshot (a rewrite by ``ALTER TABLE`` makes the table look empty in it, a
``VACUUM FULL`` moves rows between blocks), so every part proves under its lock that the table
still has the file and the columns it had when the parts were made.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.sql import readable
from changefeed.sources import scans
from changefeed.sources.postgres.connect import PsycopgConnection, connect, is_quiet, translate
from changefeed.sources.postgres.copyout import CopyBlock, copy_out, parse_csv
from changefeed.sources.postgres.values import text_column
from changefeed.sources.scans import table_changed

#: Number, type and modifier of each column.
Shape = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PostgresPart:
    """Blocks ``[low, high)`` of one heap; ``high`` None: to its end, wherever that is by then.

    Attributes:
        relation: schema and name of the heap: the table itself or a leaf partition.
        oid, file, shape: what the heap was when the parts were made.
        columns: positions in ``table.columns`` that are read; the others come out null.
        where: condition on the key, finished SQL, or empty.
        whole: the heap is read without a range.
    """

    uri: str = field(repr=False)
    snapshot: str
    table: TableSchema
    relation: tuple[str, str]
    oid: int
    file: int
    shape: Shape
    columns: tuple[int, ...]
    where: str
    low: int
    high: int | None
    whole: bool
    rows_estimate: int
    bytes_estimate: int

    def read(self) -> Iterator[pa.RecordBatch]:
        return read_part(self)

    def query(self) -> sql.Composed:
        columns = self.table.columns
        conditions: list[sql.Composable] = [sql.SQL(self.where)] if self.where else []
        if not self.whole:
            conditions.append(sql.SQL("ctid >= '({},0)'::pg_catalog.tid").format(self.low))
            if self.high is not None:
                conditions.append(sql.SQL("ctid < '({},0)'::pg_catalog.tid").format(self.high))
        return sql.SQL("COPY (SELECT {} FROM ONLY {}{}) TO STDOUT (FORMAT csv)").format(
            sql.SQL(", ").join(sql.Identifier(columns[i].name) for i in self.columns),
            sql.Identifier(*self.relation),
            sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL(""),
        )


# ------------------------------------------------------------------------- connections


class Readers:
    """Idle connections of this process that have imported a snapshot.

    A scan of 500 small tables reads its parts one after another on the same few connections.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[PsycopgConnection]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        #: The server ends one that was left idle this long: a process that took part in a scan must
        #: not hold back VACUUM after it.
        self.idle_timeout = "15s"

    def take(self, uri: str, snapshot: str) -> PsycopgConnection:
        """A connection inside a transaction with the snapshot.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone; CF2001, CF2002 no connection.
        """
        while (connection := self._pop(uri, snapshot)) is not None:
            if is_quiet(connection) and _set_idle(connection, "0"):
                return connection
            connection.close()
        connection = connect(uri)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            import_snapshot(connection, snapshot)
        except psycopg.Error as error:
            connection.close()
            raise snapshot_gone(error) from error
        return connection

    def give_back(self, uri: str, snapshot: str, connection: PsycopgConnection) -> None:
        """Keep the connection for the next part; at most one idle for each snapshot.

        The server ends it when nobody takes it for a while. A reader at work has no such limit:
        what reads from it may wait for Spark or for a slow sink.
        """
        if not _set_idle(connection, self.idle_timeout):
            connection.close()
            return
        with self._lock:
            kept = self._idle.setdefault((uri, snapshot), [])
            surplus = [connection] if kept else []
            if not kept:
                kept.append(connection)
            # What the server ended meanwhile, of scans long over.
            for key, idle in list(self._idle.items()):
                surplus += [c for c in idle if not is_quiet(c)]
                self._idle[key] = [c for c in idle if c not in surplus]
                if not self._idle[key]:
                    del self._idle[key]
        for unused in surplus:
            unused.close()

    def forget(self, uri: str, snapshot: str) -> None:
        """Close what is idle for the snapshot."""
        with self._lock:
            idle = self._idle.pop((uri, snapshot), [])
        for connection in idle:
            connection.close()

    def _pop(self, uri: str, snapshot: str) -> PsycopgConnection | None:
        with self._lock:
            if self._pid != os.getpid():
                # Forked: the sockets are the parent's. Drop them without a goodbye.
                self._idle, self._pid = {}, os.getpid()
            idle = self._idle.get((uri, snapshot))
            return idle.pop() if idle else None


def _set_idle(connection: PsycopgConnection, limit: str) -> bool:
    """Let the server end the session after ``limit`` of idling; False when it is gone."""
    try:
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{limit}'")
    except psycopg.Error:
        return False
    return True


READERS = Readers()


def import_snapshot(connection: PsycopgConnection, exported: str) -> None:
    """Let the transaction that was just begun see the exported snapshot."""
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))


# ------------------------------------------------------------------------- reading


def read_part(part: PostgresPart) -> Iterator[pa.RecordBatch]:
    """The rows of a part; see :meth:`changefeed.sources.base.ScanPart.read`.

    Holds one block of text and its batch at a time. Leaving the iteration early closes the
    connection, which ends the COPY at the server.
    """
    connection = READERS.take(part.uri, part.snapshot)
    role = connection.info.user  # a closed connection does not say it
    try:
        connection.execute("SAVEPOINT part")
        _prove_unchanged(connection, part)
        yield from _batches(connection, part)
        connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
    except psycopg.Error as error:
        connection.close()
        raise reading_failed(part.table, error, role) from error
    except BaseException:
        connection.close()
        raise
    READERS.give_back(part.uri, part.snapshot, connection)


def shape_now(
    connection: PsycopgConnection, relation: tuple[str, str], names: Sequence[str]
) -> Shape:
    """Number, type and modifier of each column as it is *now*; takes the table's lock.

    A query of the catalog would not do: inside the snapshot's transaction it shows the
    catalog of the snapshot, while COPY goes by the present one. So does a row description.
    """
    answer = connection.execute(
        sql.SQL("SELECT {} FROM ONLY {} LIMIT 0").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(*relation)
        )
    ).pgresult
    if answer is None:
        raise ChangefeedError(Code.SCAN_INTERRUPTED, "the server gave an empty answer")
    return tuple(
        (answer.ftablecol(i), answer.ftype(i), answer.fmod(i)) for i in range(answer.nfields)
    )


def _prove_unchanged(connection: PsycopgConnection, part: PostgresPart) -> None:
    """Take the lock that keeps the table as it is, and compare it with what the part knows."""
    shape = shape_now(connection, part.relation, [c.name for c in part.table.columns])
    (file,) = only_row(
        connection.execute(
            "SELECT coalesce(pg_catalog.pg_relation_filenode(%s::oid), 0)::int8", [part.oid]
        )
    )
    if file != part.file:
        raise table_changed(part.table.table, "it was truncated or rewritten")
    if shape != part.shape:
        raise table_changed(part.table.table, "its columns changed")


def _batches(connection: PsycopgConnection, part: PostgresPart) -> Iterator[pa.RecordBatch]:
    for block in copy_out(connection, part.query()):
        yield _batch(part, block)


def _batch(part: PostgresPart, block: CopyBlock) -> pa.RecordBatch:
    table = part.table
    texts = parse_csv(block, len(part.columns))
    by_place = dict(zip(part.columns, texts, strict=True))
    count = len(texts[0])
    try:
        arrays = [
            text_column(column, by_place[i]) if i in by_place else pa.nulls(count, column.arrow)
            for i, column in enumerate(table.columns)
        ]
    except (pa.ArrowInvalid, ValueError) as error:
        raise ChangefeedError(
            Code.TABLE_NOT_SCANNABLE,
            f"table {table.table} cannot be scanned: a value does not fit the type of its column",
            hint="ALTER TABLE during the scan can do this: the scan starts again on RESUME.",
        ) from error
    names = [f"a{i}" for i in range(len(table.columns))]
    return pa.record_batch(arrays, names=names)


# ------------------------------------------------------------------------- failures


def snapshot_gone(error: psycopg.Error) -> ChangefeedError:
    """The exporting session ended, or the server cannot be reached."""
    lost = translate(error, "go on with the initial scan")
    if lost.code in (Code.SOURCE_REFUSED_LOGIN, Code.SOURCE_PERMISSION_MISSING):
        return lost
    return scans.snapshot_gone(lost.message)


#: SQLSTATEs that speak of the table, not of the connection: it, or a column, is not there
#: under that name any more.
_CHANGED_STATES = frozenset({"42P01", "42703"})


def reading_failed(table: TableSchema, error: psycopg.Error, role: str) -> ChangefeedError:
    """An error of the server while a table was planned or read by a role."""
    if error.sqlstate in _CHANGED_STATES:
        return table_changed(table.table, error.diag.message_primary or "it was altered")
    known = translate(error, f"read table {table.table}")
    if known.code is Code.SOURCE_PERMISSION_MISSING:
        name = f"{readable(table.table.schema)}.{readable(table.table.name)}"
        hint = f"GRANT SELECT ON {name} TO {readable(role)};"
        return ChangefeedError(
            Code.TABLE_NOT_SCANNABLE, known.message, detail=known.detail, hint=hint
        )
    if known.code is Code.SOURCE_NOT_SET_UP:
        return ChangefeedError(Code.TABLE_NOT_SCANNABLE, known.message, detail=known.detail)
    if known.code is Code.SOURCE_REFUSED_LOGIN:
        return known
    return ChangefeedError(
        Code.SCAN_INTERRUPTED, known.message, detail=known.detail, hint=known.hint
    )


def only_row(cursor: psycopg.Cursor[Any]) -> Any:
    """The first row of an answer that always has one."""
    row = cursor.fetchone()
    if row is None:
        raise ChangefeedError(Code.SCAN_INTERRUPTED, "the server gave an empty answer")
    return row
