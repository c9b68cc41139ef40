"""The replication stream of one database: a slot followed, decoded, acknowledged.

    for flush in stream:            # one thread
        log.append(flush)           # durable
        stream.acknowledge(flush.frontier.position)

Batches adapt: what is there is decoded at once, so a lone commit is out within a millisecond;
while a backlog is deep, up to :data:`BATCH_BYTES` are decoded together. A second thread reports
to the server while the consumer is busy, so a slow consumer never looks like a dead one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier, Position
from changefeed.core.sql import literal, quoted
from changefeed.sources.base import StreamFallback, StreamRequest
from changefeed.sources.postgres.assemble import SMALL, Assembler, LookupCall
from changefeed.sources.postgres.connect import LateSession, source_errors
from changefeed.sources.postgres.continuity import (
    Redelivery,
    ServerHistory,
    check_end,
    check_timeline,
)
from changefeed.sources.postgres.garbage import readable
from changefeed.sources.postgres.idle_changes import IdleChanges
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.logical_messages import FIRST_VERSION
from changefeed.sources.postgres.lsn import LOG_END, lsn_of, parse_lsn, position_of
from changefeed.sources.postgres.pgoutput import Inbox, ServerFailed
from changefeed.sources.postgres.relations import Describe, Relations
from changefeed.sources.postgres.server import current_position
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.storage import Fingerprints
from changefeed.sources.postgres.storage_changes import StorageWatch
from changefeed.sources.postgres.visibility import Unseen, Visibility
from changefeed.sources.postgres.wire import (
    ReplicationConnection,
    SystemIdentity,
)

#: Bytes received that are decoded together at most (a larger message still is).
BATCH_BYTES = 8 << 20
#: How long a commit may wait for more to decode it with, seconds.
BATCH_SECONDS = 0.05
#: From here on a backlog counts as deep: small pieces are waited for a little.
DEEP_BYTES = 1 << 20
SMALL_PIECE = 128 << 10
NAP_SECONDS = 0.001
#: Small flushes begin at least this far apart, seconds; one after a pause waits for nothing. Each
#: wakes two processes and costs about 4 ms of CPU time and an fsync, whether it holds one commit
#: or twenty (docs/decisions/small-flushes.md).
GATHER_SECONDS = 0.015
#: After :meth:`ReplicationStream.hasten` heartbeats follow each other so fast for so long, seconds.
HASTY_BEAT_SECONDS, HASTY_SECONDS = 0.01, 0.1
#: Between two looks at a slot that its last reader still holds, seconds.
SLOT_LOOK_SECONDS = 0.01
#: The name of a session ends with the number of its reader's lease, after this word. The server
#: keeps 63 bytes of a name, so few characters of the one in the URI remain.
_TERM = " lease "
_NAME_LENGTH = 12

#: How often it is seen whether another reader of the slot lives. It reports every ten seconds at
#: least.
RIVAL_LOOK_SECONDS = 0.25
#: The log may end, with nothing to follow, so many bytes behind the last record: where pages begin.
PAGE_HEADER = 40
#: Acknowledgements are sent at most this often, seconds; the last one always gets out.
STATUS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a session begins.

    Attributes:
        frontier: everything up to there was read.
        confirmed: the slot's confirmed position.
        begin: from here on the server is asked to send: what lies below the frontier shows
            whether its history is the one that was read.
        history: the server's as the next frontier will remember it.
    """

    frontier: Frontier
    confirmed: int
    begin: int
    history: ServerHistory


@dataclass(frozen=True, slots=True)
class LogicalSlot:
    """The slot that a stream reads, and what the stream asks the database.

    Attributes:
        uri: of the database; a role with REPLICATION.
        source: the name that table names begin with.
        describe: the catalog's present knowledge of tables, by oid.
        upto: the stream ends with :class:`~changefeed.sources.base.StreamFallback` when its
            frontier is there: the log behind is read with another publication. Large transactions
            then come at their commit.
        before: how the tables were stored, by oid, before anybody read their rows.
        lookup: present values by key, for large values that the server did not send.
        primary: URI of the primary where ``uri`` leads to a standby. It is asked how far the log
            goes at what time: what a standby has not replayed yet may have committed before.
        unseen: which transactions other sessions do not see yet; what the catalog and ``lookup``
            say is waited for until they do.
        streaming: let the server send large transactions while they run (from version 14 on).
        logical: whether logical messages are wanted now. They are asked for from the beginning of a
            stream (from version 14 on), which ends with
            :class:`~changefeed.sources.base.StreamFallback` once they are and it has not.
        wanted: the tables of the publication that are wanted, by oid, where it is not ours; rows of
            others are dropped. None: it has no others.
        ddl: by which name our event triggers write statements of DDL into logical messages;
            empty: they do not.
        decoding_failed: called when the server could not decode its log while ``streaming`` was on,
            before :class:`~changefeed.sources.base.StreamFallback` is raised.
    """

    uri: str
    name: str
    publication: str
    source: str
    describe: Describe
    upto: Position | None = None
    before: Callable[[], Mapping[int, Fingerprints]] = dict
    lookup: LookupCall | None = None
    primary: str | None = None
    unseen: Unseen | None = None
    streaming: bool = True
    logical: Callable[[], bool] = lambda: False
    wanted: Callable[[], frozenset[int] | None] = lambda: None
    ddl: Callable[[], str] = lambda: ""
    decoding_failed: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How much and how long a stream gathers and waits.

    Attributes:
        heartbeat: an idle source's frontier moves about this often, seconds.
        batch_bytes, batch_seconds: see :data:`BATCH_BYTES` and :data:`BATCH_SECONDS`.
        small: see :data:`changefeed.sources.postgres.assemble.SMALL`.
        patience: seconds until a transaction must be visible to other sessions.
        look_again: see :class:`changefeed.sources.postgres.relations.Relations`.
        slot_patience, rival_patience: seconds to wait for a slot that another reader holds: before
            that is watched, and until it counts as alive.
    """

    heartbeat: float = 1.0
    batch_bytes: int = BATCH_BYTES
    batch_seconds: float = BATCH_SECONDS
    small: int = SMALL
    patience: float = 1.0
    look_again: float = 0.2
    slot_patience: float = 2.0
    rival_patience: float = 25.0


class ReplicationStream:
    """Flushes of everything that commits after ``request.start``, in commit order. An empty
    position there means the slot's own."""

    def __init__(
        self,
        slot: LogicalSlot,
        request: StreamRequest,
        limits: StreamLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._slot = slot
        self._request = request
        self._limits = limits or StreamLimits()
        self._clock = clock
        self._visibility = (
            None if slot.unseen is None else Visibility(slot.unseen, self._limits.patience, clock)
        )
        self._storage = StorageWatch(request.folder, clock, slot.before)
        self._relations = Relations(
            slot.source,
            slot.describe,
            request.intern,
            request.latest,
            request.names,
            self._visibility,
            look_again=self._limits.look_again,
            clock=clock,
            logged=request.logged,
            storage=self._storage,
        )
        self._streams = False
        #: None: the server has none to send.
        self._asks_logical: bool | None = False
        self._lock = threading.Lock()
        self._reporter: _Reporter | None = None
        self._connection: ReplicationConnection | None = None
        self._closed = False
        self._hasty_until = 0.0
        self._acknowledged = False

    def __iter__(self) -> Iterator[Flush]:
        return self.run()

    def run(self) -> Iterator[Flush]:
        """Connect and follow the slot until :meth:`close`.

        Raises:
            ChangefeedError: CF2001/CF2002 cannot connect, CF2101 the stream broke (try again
                from the last durable frontier), CF2102 the slot is gone, CF2103 it was made
                again, CF2104 another server or another history, CF2105 a message that cannot be.
        """
        try:
            with ReplicationConnection(self._slot.uri) as connection:
                self._attach(connection)
                self._say_term(connection)
                with readable("an answer about its slot and its log"):
                    start = self._check(connection)
                # Not the frontier: an acknowledgement would move the slot of a server that has
                # yet to show that its history is ours.
                with (
                    _Reporter(connection, start.confirmed) as reporter,
                    LateSession(self._slot.uri) as session,
                    LateSession(self._slot.primary or self._slot.uri) as timekeeper,
                ):
                    self._reporter = reporter
                    log_end = _LogEnd(session, timekeeper)
                    idle_changes = IdleChanges(
                        session,
                        self._slot.publication,
                        self._relations,
                        self._storage,
                        self._clock,
                        self._slot.wanted,
                    )
                    self._begin(connection, start)
                    for flush in self._follow(connection, reporter, log_end, idle_changes, start):
                        yield flush
                        self._check_end(flush.frontier)
        except ChangefeedError:
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._connection = self._reporter = None

    def acknowledge(self, position: Position) -> None:
        """Everything up to ``position`` is durable: the server may forget it."""
        self._acknowledged = True
        reporter = self._reporter
        if reporter is not None:
            reporter.acknowledge(lsn_of(position))

    def hasten(self) -> None:
        """A caller waits for the frontier: the heartbeats of the next moment come at once."""
        self._hasty_until = self._clock.monotonic() + HASTY_SECONDS
        reporter = self._reporter
        if reporter is not None:
            # The answer wakes the thread that reads. One that broke finds out by itself.
            with contextlib.suppress(ChangefeedError):
                reporter.report(reply=True)

    def close(self) -> None:
        """End :meth:`run` soon. Safe from any thread, idempotent."""
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def _check_end(self, frontier: Frontier | None) -> None:
        """After a flush is durable: the publication has served."""
        if (
            self._slot.upto is not None
            and frontier is not None
            and frontier.position >= self._slot.upto
        ):
            raise StreamFallback(
                Code.STREAM_BROKE,
                f"the log up to {self._slot.upto} is read with publication "
                f"{self._slot.publication!r}; reading on with our own",
            )

    def _wants_logical(self) -> bool:
        return self._slot.logical() or bool(self._slot.ddl())

    def _check_logical(self) -> None:
        """After a batch was received and before anything of it is given out: a message that was
        written after it was wanted is in none that came before."""
        if self._asks_logical is False and self._wants_logical():
            raise StreamFallback(
                Code.STREAM_BROKE, "logical messages are wanted now: reading on with them"
            )

    # ------------------------------------------------------------------------- start

    def _attach(self, connection: ReplicationConnection) -> None:
        with self._lock:
            if self._closed:
                raise ChangefeedError(Code.STREAM_BROKE, "the stream was closed")
            self._connection = connection

    def _check(self, connection: ReplicationConnection) -> _Start:
        """Is this the server and the slot we left?"""
        identity = connection.identify_system()
        system_id = self._request.identity.partition("/")[0]
        if system_id and identity.system_id != system_id:
            raise ChangefeedError(
                Code.SOURCE_IS_ANOTHER,
                "the source is another database server than before",
                detail=f"system identifier {identity.system_id}, was {system_id}",
            )
        # Before the slot: a server that was restored may be without it, and that is why.
        history = self._check_history(connection, identity)
        confirmed, database, status = self._slot_at_rest(connection)
        if status == "lost" or confirmed is None:
            raise ChangefeedError(
                Code.SOURCE_LOG_GONE, f"replication slot {self._slot.name!r} was invalidated"
            )
        if database != identity.database:
            raise ChangefeedError(
                Code.SOURCE_IS_ANOTHER,
                f"replication slot {self._slot.name!r} belongs to another database",
            )
        slot = parse_lsn(confirmed)
        frontier = self._from_slot(slot)
        if history.witness is None:
            begin = lsn_of(frontier.position)
        else:
            begin = max(slot, history.witness.lsn)
        return _Start(frontier, slot, begin, history)

    def _slot_at_rest(self, connection: ReplicationConnection) -> Sequence[str | None]:
        """The slot's place, database and state of its log, while nobody reads from it.

        The server may still be about to take the last acknowledgement of a reader that ended, and
        move the slot: what it sends to us would begin behind the place that was read.

        Raises:
            ChangefeedError: CF2101 another reader has it, CF2102 it is gone, CF2109 another reader
                has it and lives.
        """
        began, said = self._clock.monotonic(), ""
        while True:
            rows = connection.query(
                "select active_pid, confirmed_flush_lsn, database, to_jsonb(s)->>'wal_status'"
                f" from pg_replication_slots s where slot_name = {literal(self._slot.name)}"
            )
            if not rows:
                raise ChangefeedError(
                    Code.SOURCE_LOG_GONE, f"replication slot {self._slot.name!r} does not exist"
                )
            reader, *found = rows[0]
            if reader is None:
                return found
            self._end_earlier(connection, reader)
            waited = self._clock.monotonic() - began
            if waited <= self._limits.slot_patience:
                self._clock.sleep(SLOT_LOOK_SECONDS)
                continue
            said = self._check_rival(connection, reader, said, waited)
            self._clock.sleep(RIVAL_LOOK_SECONDS)

    def _say_term(self, connection: ReplicationConnection) -> None:
        """Put the number of this reader's lease into the name of its session."""
        if self._request.term:
            [(name,)] = connection.query("select current_setting('application_name')")
            shown = f"{name or ''}"[:_NAME_LENGTH] + f"{_TERM}{self._request.term}"
            connection.query(f"set application_name = {literal(shown)}")

    def _end_earlier(self, connection: ReplicationConnection, reader: str) -> None:
        """End the session of a reader with an earlier lease: its node lost the lease to this one
        and may not know it, because it is frozen or cut off from the state."""
        if self._request.term:
            connection.query(
                f"select pg_terminate_backend(pid) from pg_stat_replication where pid = {reader}"
                " and usename = current_user"
                f" and substring(application_name from '{_TERM}([0-9]+)$')::bigint"
                f" < {self._request.term}"
            )

    def _check_rival(
        self, connection: ReplicationConnection, reader: str, before: str, waited: float
    ) -> str:
        """When another reader of the slot last reported how far it is; ``before`` is the answer of
        the last look. One whose host was lost reports nothing more, and the server ends it.

        Raises:
            ChangefeedError: CF2109 it reports after we have waited long: it lives; CF2101 it does
                not, but the slot is still its own.
        """
        rows = connection.query(
            "select reply_time, coalesce(host(client_addr), 'a local socket'), backend_start"
            f" from pg_stat_replication where pid = {reader}"
        )
        said, place, since = rows[0] if rows else (None, None, None)
        if said and before and said != before and waited > self._limits.rival_patience / 2:
            raise ChangefeedError(
                Code.SOURCE_READ_BY_RIVAL,
                f"another node reads replication slot {self._slot.name!r}: it is connected from "
                f"{place} since {since}, and lives",
                detail=f"its server process is {reader}",
            )
        if waited > self._limits.rival_patience:
            raise ChangefeedError(
                Code.STREAM_BROKE,
                f"replication slot {self._slot.name!r} is read by another connection",
                detail=f"its server process is {reader}",
            )
        return said or ""

    def _check_history(
        self, connection: ReplicationConnection, identity: SystemIdentity
    ) -> ServerHistory:
        """Hold the server's log against what the frontier remembers, before it sends anything.

        What it remembers from here on: the server's present timeline. A standby may be promoted
        while we read, so its timeline says nothing.
        """
        start = self._request.start
        known, position = ServerHistory.parse(start.history), lsn_of(start.position)
        [(recovery,)] = connection.query("select pg_is_in_recovery()")
        in_recovery = recovery == "t"
        check_end(lsn_of(identity.position), position, in_recovery=in_recovery)
        if in_recovery:
            return known.on(0)
        check_timeline(known.timeline, identity.timeline, position, connection.timeline_history)
        return known.on(identity.timeline)

    def _from_slot(self, confirmed: int) -> Frontier:
        start = self._request.start
        if not lsn_of(start.position):
            return Frontier(start.at, position_of(confirmed), start.seq)
        if confirmed > lsn_of(start.position):
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED,
                f"replication slot {self._slot.name!r} starts after the last position that was "
                "read",
                detail=f"slot at {position_of(confirmed)}, change log at {start.position}",
            )
        return start

    def _begin(self, connection: ReplicationConnection, start: _Start) -> None:
        options = {"proto_version": "1", "publication_names": quoted(self._slot.publication)}
        streaming = self._slot.streaming and self._slot.upto is None
        self._streams = streaming and connection.server_version >= 140_000
        if self._streams:
            options |= {"proto_version": "2", "streaming": "on"}
        if connection.server_version < FIRST_VERSION:
            self._asks_logical = None
        else:
            self._asks_logical = self._wants_logical()
        if self._asks_logical:
            options["messages"] = "true"
        connection.start_replication(self._slot.name, start.begin, options)

    # ------------------------------------------------------------------------ following

    def _follow(
        self,
        connection: ReplicationConnection,
        reporter: _Reporter,
        log_end: _LogEnd,
        idle_changes: IdleChanges,
        start: _Start,
    ) -> Iterator[Flush]:
        logical = bool(self._asks_logical)
        spool = Spool(self._request.spool, self._limits.batch_bytes, logical=logical)
        position = lsn_of(start.frontier.position)
        assembler = Assembler(
            start.frontier,
            self._relations,
            spool,
            self._slot.lookup,
            visibility=self._visibility,
            small=self._limits.small,
            history=start.history,
            upto=self._slot.upto,
            messages=self._slot.logical,
            ddl=self._slot.ddl,
            wanted=self._slot.wanted,
            redelivery=Redelivery(
                start.history.witness,
                begin=start.begin,
                frontier=position,
                settled=lambda: reporter.acknowledge(position),
            ),
        )
        inbox = Inbox(self._limits.batch_bytes, logical=logical)
        given = beaten = start.frontier
        last_beat = self._clock.monotonic()
        gather_until = 0.0
        while True:
            if (pause := gather_until - self._clock.monotonic()) > 0:
                self._clock.sleep(pause)
            received = self._receive(connection, reporter, inbox)
            self._check_logical()
            cut = inbox.cut(everything=inbox.full)
            for flush in take(assembler, inbox, cut):
                if flush.frontier is not None:
                    given = flush.frontier
                yield flush
                if received < SMALL_PIECE:
                    gather_until = self._clock.monotonic() + GATHER_SECONDS
            inbox.drop(cut)
            now = self._clock.monotonic()
            if now >= last_beat + self._beat(now):
                last_beat = now
                if assembler.idle and assembler.settled:
                    hasty = now < self._hasty_until
                    if assembler.last == beaten.at:
                        # No commit showed what time it is, and a keepalive cannot.
                        end = log_end.read()
                        for lsn, at_ns in end.samples:
                            assembler.sample(lsn, at_ns)
                        if assembler.frontier == beaten and not end.on_disk and not hasty:
                            log_end.write()
                    # Before the frontier: who waits for it takes the shapes for read, too.
                    # A publication that is not ours may leave columns out.
                    ours = self._slot.upto is None
                    shapes = idle_changes.due(assembler.position, hasty=hasty) if ours else []
                    changed = assembler.change_shapes(shapes)
                    self._acknowledged = True
                    if changed:
                        given = assembler.frontier
                        self._acknowledged = False
                        yield from changed
                    if self._acknowledged:
                        idle_changes.delivered()
                        if ours:
                            idle_changes.look(assembler.position, hasty=hasty)
                    known = not ours or idle_changes.examined(assembler.position)
                    if assembler.frontier != given and known:
                        given = assembler.frontier
                        yield Flush((), given)
                beaten = assembler.frontier
                reporter.report(reply=True)
            if not inbox.filled or not inbox.full:
                now = self._clock.monotonic()
                connection.wait(max(0.0, last_beat + self._beat(now) - now))

    def _beat(self, now: float) -> float:
        """Seconds between two heartbeats."""
        hasty = now < self._hasty_until
        return min(self._limits.heartbeat, HASTY_BEAT_SECONDS) if hasty else self._limits.heartbeat

    def _receive(self, connection: ReplicationConnection, reporter: _Reporter, inbox: Inbox) -> int:
        """Read what is there, up to a batch; how many bytes."""
        deadline = self._clock.monotonic() + self._limits.batch_seconds
        received = 0
        while not inbox.full:
            count = inbox.fill(connection.receive_into)
            received += count
            if count:
                self._scan(inbox)
                if inbox.reply_wanted:
                    inbox.reply_wanted = False
                    reporter.report()
            deep = received >= DEEP_BYTES
            if (count == 0 and not deep) or self._clock.monotonic() >= deadline:
                break
            if deep and count < SMALL_PIECE and connection.may_nap:
                self._clock.sleep(NAP_SECONDS)
        return received

    def _scan(self, inbox: Inbox) -> None:
        try:
            inbox.scan()
        except ServerFailed as error:
            if not self._streams or not error.in_decoding:
                raise
            self._slot.decoding_failed()
            raise StreamFallback(
                Code.STREAM_BROKE,
                f"{error.message}; reading on without streaming of large transactions",
                detail=error.detail,
                hint="a larger logical_decoding_work_mem at the server avoids both.",
            ) from error


@dataclass(frozen=True, slots=True)
class _End:
    """Where the server's log ended.

    Attributes:
        samples: pairs of an LSN and a time in nanoseconds: what had committed then lies before it.
            The first is exact, but is not sent before it is on disk, or at all where a page begins
            there. The second lags, and is on disk: perhaps up to the middle of a record.
        on_disk: nothing stops the server from sending all of it.
    """

    samples: Sequence[tuple[int, int]]
    on_disk: bool


class _LogEnd:
    # The clock first: what commits behind the positions then committed after that time. A commit
    # with synchronous_commit = off is on disk three times wal_writer_delay later.
    _SQL = f"""
        select pg_is_in_recovery(),
               (extract(epoch from clock_timestamp()) * 1000000)::int8,
               {LOG_END},
               case when not pg_is_in_recovery() then pg_current_wal_flush_lsn() end::text,
               (extract(epoch from current_setting('wal_writer_delay')::interval) * 3000000)::int8
    """

    def __init__(self, session: LateSession, primary: LateSession) -> None:
        """``primary`` is asked while the server of ``session`` is a standby: what that has not
        replayed may have committed."""
        self._session = session
        self._primary = primary
        self._writes = session

    def read(self) -> _End:
        """Ask the server that commits are made at."""
        self._writes = self._session
        recovering, micros, end, flushed, delay = self._ask()
        if recovering:
            self._writes = self._primary
            _, micros, end, flushed, delay = self._ask()
        exact = parse_lsn(end), micros * 1000
        if flushed is None:
            return _End((exact,), on_disk=True)
        lagging = parse_lsn(flushed), (micros - delay) * 1000
        return _End((exact, lagging), on_disk=exact[0] - lagging[0] <= PAGE_HEADER)

    def _ask(self) -> tuple[Any, ...]:
        session = self._writes.get()
        with source_errors("ask for the current position"):
            row = session.execute(self._SQL).fetchone()
        if row is None:
            raise ChangefeedError(Code.STREAM_BROKE, "the source did not say where its log ends")
        return row

    def write(self) -> None:
        """Bring to disk what an open transaction wrote last, by a commit of our own: the server by
        itself may take half a minute."""
        session = self._writes.get()
        with source_errors("write the log up to the current position"):
            current_position(session)


class _Reporter:
    """Tells the server how far we are: when something changed, when asked, and every so often
    from a thread of its own, because the consumer may take its time."""

    def __init__(self, connection: ReplicationConnection, lsn: int) -> None:
        self._connection = connection
        self._lsn = lsn
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stop = threading.Event()
        self._interval = _interval(connection)
        self._thread = threading.Thread(target=self._run, name="pg-status", daemon=True)

    def __enter__(self) -> _Reporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what was acknowledged last, then stop."""
        self._stop.set()
        self._news.set()
        self._thread.join()

    def acknowledge(self, lsn: int) -> None:
        with self._lock:
            if lsn > self._lsn:
                self._lsn = lsn
                self._news.set()

    def report(self, *, reply: bool = False) -> None:
        """Send the present state; ``reply`` asks for a keepalive.

        Raises:
            ChangefeedError: CF2101 the connection broke.
        """
        with self._lock:
            lsn = self._lsn
        self._connection.send_status(lsn, reply=reply)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._news.wait(self._interval)
            self._news.clear()
            try:
                self.report()
            except ChangefeedError:
                return  # the reading thread meets the same error and says so
            self._stop.wait(STATUS_SECONDS)


def _interval(connection: ReplicationConnection) -> float:
    """Seconds between reports: well below the server's patience."""
    with readable("an answer about its settings"):
        [(patience,)] = connection.query(
            "select setting from pg_settings where name = 'wal_sender_timeout'"
        )
        seconds = int(patience or 0) / 1000
    return min(10.0, seconds / 3) if seconds else 10.0
