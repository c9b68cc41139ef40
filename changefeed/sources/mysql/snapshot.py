"""The initial scan: tables as they were at one point of the binlog, read by several sessions.

A consistent snapshot of MySQL lives in a session and cannot be shared, so all sessions that read
must begin theirs at the same point of the binlog:

1. *Without a lock.* All sessions begin one after the other, and the end of the binlog is compared
   before and after: on MariaDB each session knows that of its own snapshot; on MySQL with GTIDs no
   transaction may have been committed, or been about to be, in between. It is tried a few times.
2. *With a lock on the tables that are read.* ``LOCK TABLES .. READ`` waits for the transactions
   that write to them, and keeps new ones out for the milliseconds in which the sessions begin. The
   server's other tables are not affected; there is no global lock.
3. *With one session alone*, on MariaDB, where the user may not lock tables.

A part is a range of the key's first column. A session rolls back to a savepoint after each part,
which lets go of the table: DDL waits for one part, not for the scan. (MariaDB does so only in a
session that writes no binlog itself, which takes the right BINLOG ADMIN.) A table that was altered
since the snapshot cannot be read in it any longer, and its scan starts again.

A table that cannot be read, or that its sink refuses, costs no session: the rest of its answer is
skipped. A lost connection interrupts the scan, because no other session can have its image.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.events import Position
from changefeed.core.partition import Partition
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.types import FLOATS
from changefeed.core.unread import PartRange
from changefeed.sources.base import DEFAULT_PART_BYTES, KeySet, ScanPart, Snapshot
from changefeed.sources.mysql import coordinates, describe
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.coordinates import BinlogCoordinates
from changefeed.sources.mysql.describe import ServerTable
from changefeed.sources.mysql.ranges import between, cut, in_range, one_of, split
from changefeed.sources.mysql.result import ServerError, Values, read_rows
from changefeed.sources.mysql.session import MySQLSession, connect, error_number
from changefeed.sources.mysql.values import log_column, unusable_key
from changefeed.sources.scans import chosen_columns, snapshot_gone, table_changed

#: Sessions that read at the same time.
READERS = 4
#: The pause between two looks for a common point without a lock.
PAUSE_SECONDS = 0.05
#: How long a reader waits for one of the sessions.
SESSION_SECONDS = 3600.0

_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
#: The table was altered since the snapshot began; it, or a column, is not there.
_CHANGED = frozenset({1412, 1146, 1054, 1051})


@dataclass
class SnapshotPatience:
    """How hard a common point is looked for.

    Attributes:
        lock_free: how often without a lock.
        lock: seconds to wait for the lock on the tables: those who want to write wait behind us.
    """

    lock_free: int = 20
    lock: int = 10


class MySQLSnapshot(Snapshot):
    """Sessions that all see the same instant, until closed. Thread-safe."""

    def __init__(
        self,
        address: Address,
        tables: Sequence[TableSchema],
        mode: str,
        patience: SnapshotPatience | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take the snapshot.

        Raises:
            ChangefeedError: CF2005 the tables could not be locked in time, CF2001, CF2002, CF2004.
        """
        self._address = address
        self._clock = clock
        self._closed = threading.Event()
        patience = patience or SnapshotPatience()
        sessions, begun = _common_snapshot(address, tables, mode, patience, clock)
        self._coordinates = begun
        self._sessions = sessions
        self._idle: queue.Queue[MySQLSession] = queue.Queue()
        for session in sessions:
            self._idle.put(session)
        self._number = secrets.token_hex(8)
        _OPEN[self._number] = self

    @property
    def position(self) -> Position:
        """The image shows what committed at or below this position."""
        return self._coordinates.position

    def parts(
        self,
        table: TableSchema,
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        columns: Sequence[int] | None = None,
        keys: KeyRange | KeySet | None = None,
        partition: Partition | None = None,
    ) -> Sequence[MySQLPart]:
        """Ranges of the first key column that together are the table; one part of a
        :class:`KeySet`.

        Raises:
            ChangefeedError: CF2201 the snapshot is gone, or the table is not what ``table`` says
                any longer.
        """
        chosen = chosen_columns(table, columns)
        with self.session(table) as session:
            now = self._present(session, table)
            if isinstance(keys, KeySet):
                return self._parts(table, chosen, one_of(table, keys), [KeyRange()], now, 1)
            bounds = split(session, table, now.rows, now.bytes, target_bytes)
        ranges = between(bounds)
        return self._parts(table, chosen, in_range(table, keys), ranges, now, len(ranges))

    def part_range(self, part: ScanPart) -> PartRange | None:
        """Keys, which every image has at the same place."""
        if not isinstance(part, MySQLPart) or part.table.keyless:
            return None
        return PartRange("", part.keys.low, part.keys.high)

    def rest(
        self,
        table: TableSchema,
        places: Collection[str],
        left: Sequence[PartRange],
        target_bytes: int = DEFAULT_PART_BYTES,
        *,
        keys: KeyRange | None = None,
        partition: Partition | None = None,
    ) -> Sequence[MySQLPart] | None:
        """See :meth:`changefeed.sources.base.Snapshot.rest`."""
        with self.session(table) as session:
            now = self._present(session, table)
            bounds = split(session, table, now.rows, now.bytes, target_bytes)
        ranges = [each for one in left for each in between(bounds, KeyRange(one.low, one.high))]
        chosen, where = chosen_columns(table, None), in_range(table, keys)
        return self._parts(table, chosen, where, ranges, now, len(bounds) + 1)

    def _present(self, session: MySQLSession, table: TableSchema) -> ServerTable:
        name = table.table
        found = describe.read_tables(session, [(name.schema, name.name)])
        now = found.get((name.schema, name.name))
        if now is None or not _read_alike(now.schema(name.source), table):
            raise table_changed(table.table, "its columns changed")
        return now

    def _parts(
        self,
        table: TableSchema,
        columns: tuple[int, ...],
        where: str,
        ranges: Sequence[KeyRange],
        now: ServerTable,
        of: int,
    ) -> list[MySQLPart]:
        """``of``: how many such ranges are the whole table."""
        return [
            MySQLPart(
                snapshot=self._number,
                table=table,
                columns=columns,
                where=" AND ".join(filter(None, (where, cut(table, keys)))),
                rows_estimate=max(1, now.rows // of),
                bytes_estimate=max(1, now.bytes // of),
                keys=keys,
            )
            for keys in ranges
        ]

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
        self._sessions.remove(session)
        if not self._sessions:
            self._closed.set()

    def close(self) -> None:
        """End the snapshot. A part that is being read fails."""
        self._closed.set()
        _OPEN.pop(self._number, None)
        for session in list(self._sessions):
            session.close()


def _read_alike(one: TableSchema, other: TableSchema) -> bool:
    """A scan of both gives the same; what the binlog has of old rows does not matter."""
    return replace(one, before_image=other.before_image).fingerprint() == other.fingerprint()


@dataclass(frozen=True, slots=True)
class MySQLPart:
    """A range of a table's rows. It can be read only in the process of its snapshot.

    Attributes:
        snapshot: the snapshot's number in this process.
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


#: The open snapshots of this process. A part names its own, and is small.
_OPEN: weakref.WeakValueDictionary[str, MySQLSnapshot] = weakref.WeakValueDictionary()


# ------------------------------------------------------------------------- one instant


def _common_snapshot(
    address: Address,
    tables: Sequence[TableSchema],
    mode: str,
    patience: SnapshotPatience,
    clock: Clock,
) -> tuple[list[MySQLSession], BinlogCoordinates]:
    sessions: list[MySQLSession] = []
    try:
        sessions += (_reader(address) for _ in range(READERS))
        begun = _lock_free(sessions, mode, patience.lock_free, clock)
        if begun is None:
            try:
                begun = _locked(address, sessions, tables, mode, patience.lock)
            except ChangefeedError as error:
                may_not = error.code is Code.SOURCE_PERMISSION_MISSING
                if not may_not or not sessions[0].is_mariadb:
                    raise
                for session in sessions[1:]:
                    session.close()
                del sessions[1:]
                sessions[0].run(_BEGIN, doing="begin the initial scan")
                begun = _own_coordinates(sessions[0])
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return sessions, begun


def _reader(address: Address) -> MySQLSession:
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


def _lock_free(
    sessions: Sequence[MySQLSession], mode: str, attempts: int, clock: Clock
) -> BinlogCoordinates | None:
    """Begin all snapshots at a moment in which nothing commits; None when there was none."""
    if not sessions[0].is_mariadb and mode != "gtid":
        return None
    attempt = _maria_attempt if sessions[0].is_mariadb else _mysql_attempt
    for _ in range(attempts):
        begun = attempt(sessions)
        if begun is not None:
            return begun
        for session in sessions:
            session.run("ROLLBACK", doing="begin the initial scan")
        clock.sleep(PAUSE_SECONDS)
    return None


def _begin(sessions: Sequence[MySQLSession]) -> None:
    for session in sessions:
        session.run(_BEGIN, doing="begin the initial scan")


def _maria_attempt(sessions: Sequence[MySQLSession]) -> BinlogCoordinates | None:
    _begin(sessions)
    files = [_snapshot_file(session) for session in sessions]
    return _own_coordinates(sessions[0]) if len(set(files)) == 1 else None


def _snapshot_file(session: MySQLSession) -> tuple[str, str]:
    """MariaDB: the binlog coordinates of the session's own snapshot."""
    status = session.rows("SHOW SESSION STATUS LIKE 'binlog_snapshot%'")
    known = {str(name).lower(): str(value) for name, value in status}
    return known.get("binlog_snapshot_file", ""), known.get("binlog_snapshot_position", "")


def _own_coordinates(session: MySQLSession) -> BinlogCoordinates:
    file, offset = _snapshot_file(session)
    if not file:
        raise ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the server writes no binlog",
            hint="set log_bin in the server's configuration, then restart it.",
        )
    executed = session.value(f"SELECT BINLOG_GTID_POS('{file}', {int(offset)})")
    return coordinates.of_gtids(session, str(executed or ""))


def _mysql_attempt(sessions: Sequence[MySQLSession]) -> BinlogCoordinates | None:
    """A transaction is owned from the time its GTID is given until it counts as executed, and the
    file grows before the transaction can be seen. So what a snapshot shows and ``executed`` does
    not hold has made the file longer than it was before ``executed`` was read.
    """
    watcher = sessions[0]
    end = coordinates.file_end(watcher)
    executed = _executed(watcher)
    if executed is None:
        return None
    _begin(sessions)
    if coordinates.file_end(watcher) != end:
        return None
    return coordinates.of_gtids(watcher, executed)


def _executed(session: MySQLSession) -> str | None:
    """The transactions that are committed; None while one is in between."""
    owned, executed = session.rows("SELECT @@global.gtid_owned, @@global.gtid_executed")[0]
    return None if owned else str(executed)


def _locked(
    address: Address,
    sessions: Sequence[MySQLSession],
    tables: Sequence[TableSchema],
    mode: str,
    seconds: int,
) -> BinlogCoordinates:
    if not tables:
        raise ChangefeedError(
            Code.SOURCE_BUSY, "the server was never without commits: no snapshot could begin"
        )
    holder = connect(address)
    names = ", ".join(f"{quoted(t.table.schema)}.{quoted(t.table.name)} READ" for t in tables)
    try:
        holder.run(
            f"SET SESSION lock_wait_timeout = {seconds}",
            f"LOCK TABLES {names}",
            doing=f"lock the tables of the initial scan for a moment ({names})",
        )
        _begin(sessions)
        # All that wrote to these tables is in the binlog, and nothing new can.
        begun = coordinates.present(holder, mode)
        holder.run("UNLOCK TABLES", doing="begin the initial scan")
        return begun
    except ChangefeedError as error:
        if error.code is Code.SOURCE_PERMISSION_MISSING:
            raise ChangefeedError(
                Code.SOURCE_PERMISSION_MISSING,
                "the initial scan could not begin without a lock, and the user may not lock tables",
                detail=error.detail,
                hint=" ".join(
                    f"GRANT LOCK TABLES ON `{database}`.* TO {holder.account()};"
                    for database in dict.fromkeys(t.table.schema for t in tables)
                ),
            ) from error
        if error.code is Code.SOURCE_BUSY:
            raise ChangefeedError(
                Code.SOURCE_BUSY,
                f"the initial scan could not begin within {seconds} s: a transaction that "
                "wrote to its tables does not end",
                hint="SELECT * FROM information_schema.innodb_trx ORDER BY trx_started; -- COMMIT"
                " it, or KILL its trx_mysql_thread_id",
            ) from error
        raise
    finally:
        holder.close()


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
