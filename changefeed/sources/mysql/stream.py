"""The binlog of one server: followed, decoded, in flushes.

    for flush in stream:            # one thread
        log.append(flush)           # durable
        stream.acknowledge(flush.frontier.position)

One connection serves all feeds of a source. What is there is decoded at once, so a lone commit is
out within milliseconds; a deep backlog is decoded in batches of some megabytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import StreamRequest
from changefeed.sources.mysql.continuity import Continuity, EndOfLog
from changefeed.sources.mysql.coordinates import end_query, end_right, server_time
from changefeed.sources.mysql.ddl import Named
from changefeed.sources.mysql.defaults import Ask, LeftOut, nothing
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid
from changefeed.sources.mysql.position import BinlogPosition as BinlogPosition
from changefeed.sources.mysql.position import FilePosition, GtidPosition
from changefeed.sources.mysql.session import MySQLSession
from changefeed.sources.mysql.shapes import Problem, Shapes, no_problem
from changefeed.sources.mysql.tablemap import Charset, Charsets
from changefeed.sources.mysql.transactions import BATCH_BYTES, Assembler
from changefeed.sources.mysql.wire import BinlogConnection, Inbox

#: An idle server says so this often, seconds.
HEARTBEAT = 0.5
#: An idle source's frontier moves this often, seconds.
BEAT = 1.0
#: An idle stream looks this often whether its frontier is waited for, seconds.
LOOK = 0.1
#: So long without a byte, and the connection counts as lost: sixty heartbeats.
SILENCE = 30.0
#: How long a commit may wait for more to decode it with, seconds.
GATHER_SECONDS = 0.05
#: Delay after a small flush, seconds: each costs an fsync and wakes two processes, whether it holds
#: one commit or twenty (docs/decisions/small-flushes.md).
PAUSE_SECONDS = 0.015
_SMALL_PIECE = 128 << 10


@dataclass(frozen=True, slots=True)
class BinlogAccess:
    """How a stream reads the binlog, and what it asks the server.

    Attributes:
        connect: makes a logged-in session of our own.
        source: the name that table names begin with.
        flavor: ``mysql`` or ``mariadb``.
        mode: ``gtid`` or ``file``: how positions are written.
        server_id: as which replica we appear; no other reader may have it.
        describe: the server's present description of a table.
        problem: why the server's table cannot be watched as it is now.
        left_out: what an INSERT into a table leaves out, by the server's catalog.
        end: where the server's log ends now.
    """

    connect: Callable[[], MySQLSession]
    source: str
    flavor: str
    mode: str
    server_id: int
    describe: Callable[[TableName], TableSchema | None]
    problem: Problem = no_problem
    left_out: Ask = nothing
    end: Callable[[], Position] = str


class BinlogStream:
    """Flushes of everything that commits after ``request.start``, in commit order."""

    def __init__(
        self, access: BinlogAccess, request: StreamRequest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._access = access
        self._request = request
        self._clock = clock
        #: Of the memo: what was read of tables when they joined.
        self._joined: dict[Named, LeftOut] = {}
        self._joined_memo: object = None
        self._lock = threading.Lock()
        self._closed = False
        self._connection: BinlogConnection | None = None
        self._acknowledged = ""
        self._hasty = False
        self._continuity: Continuity | None = None
        self._version: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Flush]:
        return self.run()

    def acknowledge(self, position: Position) -> None:
        """Everything up to ``position`` is durable."""
        self._acknowledged = max(self._acknowledged, position)

    def hasten(self) -> None:
        """A caller waits for the frontier of an idle source: it comes with the next look."""
        self._hasty = True

    def close(self) -> None:
        """End the iteration soon. Safe from any thread, idempotent."""
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def run(self) -> Iterator[Flush]:
        """Connect and follow the log until :meth:`close`.

        Raises:
            ChangefeedError: CF2001/CF2002 cannot connect, CF2003 the log is not written as it
                must be, CF2101 the stream broke, CF2102 the log was purged, CF2103 it is not the
                log that was read, CF2105 bytes that cannot be.
        """
        try:
            try:
                yield from self._run()
            except ChangefeedError as error:
                continuity = self._continuity
                purged = error.code is Code.SOURCE_LOG_GONE
                if continuity is None or not (continuity.unmet and purged):
                    raise
                # The witness may be gone from a log that has all that was not read.
                continuity.give_up()
                yield from self._run()
        except ChangefeedError as error:
            if error.code is Code.SOURCE_PERMISSION_MISSING and not error.hint:
                rights = f"REPLICATION SLAVE, {end_right(self._access.flavor, self._version)}"
                error.hint = f"GRANT {rights} ON *.* TO the user of the source."
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._connection = None
            if self._continuity is not None:
                self._continuity.close()

    def _run(self) -> Iterator[Flush]:
        session = self._access.connect()
        self._version = session.version
        try:
            read_upto = self._begin_position()
            self._check(session, read_upto)
            shapes = self._shapes(session)
            skew = _clock_skew(session, self._clock)
            if self._continuity is None:
                self._continuity = Continuity(self._request.folder, _server_of(session))
            connection = self._begin(session, read_upto, self._continuity)
        except BaseException:
            session.close()
            raise
        end = _EndSession(self._access.connect, end_query(session.version))
        try:
            yield from self._follow(connection, read_upto, shapes, skew, self._continuity, end)
        finally:
            connection.close()
            end.close()

    # ------------------------------------------------------------------------- start

    def _begin_position(self) -> BinlogPosition:
        history = self._request.start.history
        if self._access.mode == "file":
            return FilePosition.parse(history)
        mariadb = self._access.flavor == "mariadb"
        return GtidPosition(MariaGtid.parse(history) if mariadb else GtidSet.parse(history))

    def _check(self, session: MySQLSession, read_upto: BinlogPosition) -> None:
        """Does this server's log go on from what was read?"""
        if isinstance(read_upto, FilePosition):
            if self._access.flavor == "mysql":
                [(server,)] = session.rows("SELECT @@GLOBAL.server_uuid")
                if server != read_upto.server:
                    raise ChangefeedError(
                        Code.SOURCE_IS_ANOTHER,
                        "the source is another MySQL server than before",
                        detail=f"server_uuid {server}, was {read_upto.server}",
                    )
            return
        if self._access.flavor == "mysql" and read_upto.history:
            [(contained, purged)] = session.rows(
                f"SELECT GTID_SUBSET('{read_upto.history}', @@GLOBAL.gtid_executed),"
                f" GTID_SUBTRACT(@@GLOBAL.gtid_purged, '{read_upto.history}')"
            )
            if not int(contained):
                raise ChangefeedError(
                    Code.SOURCE_LOG_REPLACED,
                    "the MySQL server does not have all transactions that were read",
                    detail="its log was reset, or another server took its place that was behind",
                )
            if purged:
                raise ChangefeedError(
                    Code.SOURCE_LOG_GONE,
                    "the MySQL server has purged the binlog that was not read yet",
                    detail=f"missing transactions: {str(purged)[:500]}",
                )

    def _shapes(self, session: MySQLSession) -> Shapes:
        return Shapes(
            self._access.source,
            read_charsets(session),
            self._access.describe,
            self._request.intern,
            self._request.latest,
            self._request.logged,
            self._access.problem,
        )

    def _begin(
        self, session: MySQLSession, read_upto: BinlogPosition, continuity: Continuity
    ) -> BinlogConnection:
        beat = int(HEARTBEAT * 1e9)
        session.run(
            "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'",
            f"SET @master_heartbeat_period = {beat}, @source_heartbeat_period = {beat}",
        )
        gtids = continuity.begin(read_upto.gtids) if isinstance(read_upto, GtidPosition) else None
        if self._access.flavor == "mariadb":
            session.run("SET @mariadb_slave_capability = 4")
            if gtids is not None:
                session.run(f"SET @slave_connect_state = '{gtids.text()}'")
        connection = BinlogConnection(session.raw)
        with self._lock:
            if self._closed:
                raise ChangefeedError(Code.STREAM_BROKE, "the stream was closed")
            self._connection = connection
        connection.register(self._access.server_id)
        if isinstance(read_upto, FilePosition):
            connection.dump(self._access.server_id, read_upto.file, read_upto.offset)
        elif isinstance(gtids, GtidSet):
            connection.dump_gtid(self._access.server_id, gtids)
        else:
            connection.dump(self._access.server_id, "", 4)
        return connection

    # ------------------------------------------------------------------------ following

    def _follow(
        self,
        connection: BinlogConnection,
        read_upto: BinlogPosition,
        shapes: Shapes,
        skew: int,
        continuity: Continuity,
        end: _EndSession,
    ) -> Iterator[Flush]:
        start = self._request.start
        assembler = Assembler(
            Frontier(start.at, read_upto.position, start.seq, read_upto.history),
            read_upto,
            shapes,
            self._request.spool,
            self._request.folder,
            met=continuity.met,
            end=self._access.end,
            joined=lambda named: self._joined.get(named),
            left_out=self._access.left_out,
        )
        inbox = Inbox()
        given = start

        def save() -> None:
            continuity.save(idle=assembler.idle)
            assembler.save()

        heard = self._clock.monotonic()
        next_beat = heard + BEAT
        while True:
            received, gather_until = 0, self._clock.monotonic() + GATHER_SECONDS
            while count := inbox.fill(connection.receive_into):
                received += count
                # After what is decoded now was received: a table that is captured from some
                # commit on is in the memo by then.
                assembler.watch(self._tables())
                while packets := inbox.packets():
                    for flush in assembler.take_all(packets):
                        save()
                        given = flush.frontier or given
                        yield flush
                if received >= BATCH_BYTES or self._clock.monotonic() >= gather_until:
                    break
            now = self._clock.monotonic()
            if received:
                heard = now
                for flush in assembler.flush():
                    save()
                    given = flush.frontier or given
                    yield flush
                    if received < _SMALL_PIECE:
                        self._clock.sleep(PAUSE_SECONDS)
            elif now - heard > SILENCE:
                raise ChangefeedError(
                    Code.STREAM_BROKE, "the MySQL server is silent: no heartbeat came"
                )
            if now >= next_beat or self._hasty:
                next_beat, self._hasty = now + BEAT, False
                assembler.acknowledged(self._acknowledged)
                if assembler.idle:
                    # First: what the log does not have when it is asked commits after that time.
                    now_ns = self._clock.now().wall + skew
                    if assembler.heartbeats > 1 and end.reached(read_upto):
                        assembler.caught_up(now_ns)
                    if assembler.frontier != given:
                        given = assembler.frontier
                        flushes = tuple(assembler.flush()) or (Flush((), given),)
                        save()
                        yield from flushes
            if not received:
                connection.wait(min(LOOK, max(0.0, next_beat - self._clock.monotonic())))

    def _tables(self) -> frozenset[tuple[str, str]]:
        memo = self._request.memo()
        listed, joined = memo.get("tables", ()), memo.get("left_out", ())
        if joined != self._joined_memo:
            self._joined_memo = joined
            self._joined = {(d, t): LeftOut.of(left_out) for d, t, left_out in joined}
        return frozenset((str(database), str(name)) for database, name in listed)


class _EndSession:
    """Asks where the server's log ends, on a session of its own that begins when it is needed."""

    def __init__(self, connect: Callable[[], MySQLSession], query: str) -> None:
        """``query`` asks for the present binlog file and its length."""
        self._connect = connect
        self._session: MySQLSession | None = None
        self._end = EndOfLog(self._ask, query)

    def reached(self, read_upto: BinlogPosition) -> bool:
        return self._end.reached(read_upto)

    def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        if self._session is not None:
            try:
                return self._session.rows(sql)
            except ChangefeedError:
                self.close()  # the server ends sessions that were still for long: begin another
        self._session = self._connect()
        return self._session.rows(sql)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _server_of(session: MySQLSession) -> str:
    """The server's own id; empty where it has none."""
    found: dict[str, Any] = dict(session.rows("SHOW GLOBAL VARIABLES LIKE 'server_u%id'"))
    return str(found.get("server_uuid") or found.get("server_uid") or "")


def read_charsets(session: MySQLSession) -> Charsets:
    """What collation numbers stand for at this server."""
    widths = {
        str(name): int(width)
        for name, width in session.rows(
            "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
        )
    }
    columns = {
        str(name).upper()
        for (name,) in session.rows(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS"
            " WHERE TABLE_SCHEMA = 'information_schema'"
            " AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY'"
        )
    }
    # MariaDB's newer collations have a number only together with a character set.
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if "ID" in columns else "COLLATIONS"
    return {
        int(number): Charset(str(name), widths.get(str(name), 1))
        for number, name in session.rows(
            f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table}"
            " WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL"
        )
    }


def _clock_skew(session: MySQLSession, clock: Clock) -> int:
    """How far the server's clock is ahead of this machine's, ns (less the way of the answer)."""
    return server_time(session) - clock.now().wall
