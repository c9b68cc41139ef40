"""The initial scan: tables as they were at one point of the binlog, read by several sessions.

A consistent snapshot of MySQL lives in a session and cannot be shared, so all sessions that read
must begin theirs at the same point of the binlog:

1. *Without a lock.* All sessions begin, and the end of the binlog is compared before and after: on
   MariaDB each session knows that of its own snapshot; on MySQL with GTIDs no transaction may have
   been committed, or been about to be, in between. It is tried a few times.
2. *With a lock on the tables that are read.* ``LOCK TABLES .. READ`` waits for the transactions
   that write to them, and keeps new ones out for the milliseconds in which the sessions begin. The
   server's other tables are not affected; there is no global lock.
3. *With one session alone*, on MariaDB, where the user may not lock tables.

Some of the sessions may belong to workers of Spark, which hold them until the scan has ended
(:class:`.image.WorkerSession`). The node plans parts, and reads small tables, in sessions of its
own.

A part is a range of the key's first column. A session rolls back to a savepoint after each part,
which lets go of the table: DDL waits for one part, not for the scan. (MariaDB does so only in a
session that writes no binlog itself, which takes the right BINLOG ADMIN.) A table that was altered
since the snapshot cannot be read in it any longer, and its scan starts again.

A table that cannot be read, or that its sink refuses, costs no session: the rest of its answer is
skipped. A lost connection interrupts the scan, because no other session can have its image.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.partition import Partition
from changefeed.core.schema import KeyRange, TableSchema
from changefeed.core.sql import quoted
from changefeed.core.unread import PartRange
from changefeed.sources.base import DEFAULT_PART_BYTES, KeySet, ScanPart, ScanWorker, Snapshot
from changefeed.sources.mysql import coordinates, describe
from changefeed.sources.mysql.address import Address
from changefeed.sources.mysql.coordinates import BinlogCoordinates
from changefeed.sources.mysql.describe import ServerTable
from changefeed.sources.mysql.image import Image, MySQLPart, WorkerSession, open_reader
from changefeed.sources.mysql.ranges import between, cut, in_range, one_of, split
from changefeed.sources.mysql.session import MySQLSession, connect
from changefeed.sources.scans import chosen_columns, table_changed

#: Sessions that read at the same time.
READERS = 4
#: The pause between two looks for a common point without a lock.
PAUSE_SECONDS = 0.05

_BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


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
        workers: Sequence[ScanWorker] = (),
    ) -> None:
        """Take the snapshot; ``workers`` are to hold it, too.

        Raises:
            ChangefeedError: CF2005 the tables could not be locked in time, CF2001, CF2002, CF2004;
                CF2201 a worker was lost.
        """
        self._number = secrets.token_hex(8)
        patience = patience or SnapshotPatience()
        held = [(worker, WorkerSession(worker, address, self._number)) for worker in workers]
        sessions, shared, self._coordinates = _common_snapshot(
            address, [session for _, session in held], tables, mode, patience, clock
        )
        self._image = Image(self._number, sessions, clock)
        #: See :attr:`changefeed.sources.base.Snapshot.workers`.
        self.workers = [worker for worker, _ in held] if shared else []

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
        with self._image.session(table) as session:
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
        with self._image.session(table) as session:
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

    def close(self) -> None:
        """End the snapshot in this process. A part that is being read here fails."""
        self._image.close()


def _read_alike(one: TableSchema, other: TableSchema) -> bool:
    """A scan of both gives the same; what the binlog has of old rows does not matter."""
    return replace(one, before_image=other.before_image).fingerprint() == other.fingerprint()


# ------------------------------------------------------------------------- one instant


_Session = MySQLSession | WorkerSession


def _common_snapshot(
    address: Address,
    others: Sequence[WorkerSession],
    tables: Sequence[TableSchema],
    mode: str,
    patience: SnapshotPatience,
    clock: Clock,
) -> tuple[list[MySQLSession], bool, BinlogCoordinates]:
    """Sessions of this process, whether the ``others`` see the same, and the place of the image."""
    sessions: list[MySQLSession] = []
    try:
        sessions += (open_reader(address) for _ in range(READERS))
        readers: list[_Session] = [*sessions, *others]
        begun = _lock_free(sessions[0], readers, mode, patience.lock_free, clock)
        if begun is None:
            try:
                begun = _locked(address, readers, tables, mode, patience.lock)
            except ChangefeedError as error:
                may_not = error.code is Code.SOURCE_PERMISSION_MISSING
                if not may_not or not sessions[0].is_mariadb:
                    raise
                for session in sessions[1:]:
                    session.close()
                del sessions[1:]
                sessions[0].run(_BEGIN, doing="begin the initial scan")
                return sessions, False, _own_coordinates(sessions[0])
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return sessions, True, begun


def _lock_free(
    own: MySQLSession, sessions: Sequence[_Session], mode: str, attempts: int, clock: Clock
) -> BinlogCoordinates | None:
    """Begin all snapshots at a moment in which nothing commits; None when there was none.

    Args:
        own: the one of the sessions that watches the binlog.
    """
    if not own.is_mariadb and mode != "gtid":
        return None
    attempt = _maria_attempt if own.is_mariadb else _mysql_attempt
    for _ in range(attempts):
        begun = attempt(own, sessions)
        if begun is not None:
            return begun
        for session in sessions:
            session.run("ROLLBACK", doing="begin the initial scan")
        clock.sleep(PAUSE_SECONDS)
    return None


def _begin(sessions: Sequence[_Session]) -> None:
    def begin(session: _Session) -> None:
        session.run(_BEGIN, doing="begin the initial scan")

    with ThreadPoolExecutor(len(sessions), thread_name_prefix="scan-begin") as pool:
        list(pool.map(begin, sessions))


def _maria_attempt(own: MySQLSession, sessions: Sequence[_Session]) -> BinlogCoordinates | None:
    _begin(sessions)
    files = [_snapshot_file(session) for session in sessions]
    return _own_coordinates(own) if len(set(files)) == 1 else None


def _snapshot_file(session: _Session) -> tuple[str, str]:
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


def _mysql_attempt(watcher: MySQLSession, sessions: Sequence[_Session]) -> BinlogCoordinates | None:
    """A transaction is owned from the time its GTID is given until it counts as executed, and the
    file grows before the transaction can be seen. So what a snapshot shows and ``executed`` does
    not hold has made the file longer than it was before ``executed`` was read.
    """
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
    sessions: Sequence[_Session],
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
