"""The change log of a source while it grows: one capture process writes it, many feeds read it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol

from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import LOG_LOST, Action, ChangefeedError, Code
from changefeed.core.events import Frontier, Position
from changefeed.core.schema import TableName
from changefeed.core.telemetry import log
from changefeed.log import LogReader, Slice
from changefeed.log.follower import RETRY_SECONDS, LogFollower
from changefeed.shared_logs import followed_logs


class LogAccess(Protocol):
    """A change log that grows meanwhile, as a feed reads it. Thread-safe: callers hold no lock."""

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        ...

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Slice:
        """The changes of tables above their ``bounds``, up to ``upto``.

        Raises:
            ChangefeedError: CF3002 the log no longer goes back to a bound, CF3001 it is damaged.
        """
        ...


#: Seconds between two looks at a log that another process writes.
POLL_SECONDS = 0.05


class LogWaiter:
    """One thread that waits for a log to grow; made by :meth:`GrowingLog.waiter`."""

    def __init__(self, log: GrowingLog, lock: threading.RLock, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._called = threading.Condition(lock)
        self._at = Timestamp.MAX
        self._tables: AbstractSet[TableName] | None = None
        self._woken = False

    def wait_beyond(
        self, at: Timestamp, timeout: float, tables: AbstractSet[TableName] | None = None
    ) -> None:
        """Wait until the log reaches above ``at``, for :meth:`wake`, or for ``timeout`` seconds.

        ``tables``: only changes of these tables end the wait. A log grows each second though
        nothing happens at the source, and many times a second by one busy table; so of hundreds
        of feeds only those run that have something to do. A call of :meth:`wake` before the wait
        ends it at once.
        """
        deadline = self._clock.monotonic() + timeout
        with self._called:
            frontier = self._log.frontier
            self._woken |= frontier is not None and frontier.at > at
            self._at, self._tables = at, tables
            while not (self._woken or self._log.closed):
                if (left := deadline - self._clock.monotonic()) <= 0:
                    break
                self._clock.wait(self._called, left)
            self._woken, self._at = False, Timestamp.MAX

    def wake(self) -> None:
        """Let the thread go on; safe from any thread."""
        with self._called:
            self._woken = True
            self._called.notify()

    def grown(self, at: Timestamp, tables: AbstractSet[TableName] | None) -> None:
        """End the wait if it is for this: the log has grown to ``at`` by changes of ``tables``
        (None: of any)."""
        if at <= self._at:
            return
        if self._tables is None or tables is None or not self._tables.isdisjoint(tables):
            self.wake()


class GrowingLog:
    """One reader of the log, and the threads that wait for it to grow. Thread-safe.

    It also knows why the log does not grow: :attr:`error` (capture stopped) or :attr:`stalled`
    (capture waits).
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        clock: Clock | None = None,
        follow: Callable[[], LogFollower] | None = None,
    ) -> None:
        """``follow``: makes a copy of the log of another node, which is read in place of
        ``folder``; it is given back with :meth:`release`."""
        self._clock = clock or SystemClock()
        self._name = name
        self._folder = folder
        self._follow = follow
        self._copy: LogFollower | None = None
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._waiters: weakref.WeakSet[LogWaiter] = weakref.WeakSet()
        self._reader: LogReader | None = None
        self._error: ChangefeedError | None = None
        #: The error of the capture of another node.
        self._reported: ChangefeedError | None = None
        self._closed = threading.Event()
        self._looking: threading.Thread | None = None
        #: When the frontier last rose here, by two clocks.
        self._grew = self._clock.monotonic(), self._clock.now()
        #: Why capture does not write to the log for now, or an empty string.
        self.stalled = ""

    @property
    def folder(self) -> Path:
        """The log's directory, for code that opens its own reader.

        Raises:
            ChangefeedError: as :meth:`changefeed.shared_logs.FollowedLogs.open`.
        """
        with self._lock:
            if self._follow is not None and self._copy is None:
                self._copy = self._follow()
                self._folder = self._copy.root
            return self._folder

    def _log(self) -> LogReader:
        """The reader; hold :attr:`_lock` for several looks at one state of the log."""
        with self._lock:
            if self._reader is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._reader = LogReader(self.folder)
                self._reader.refresh()
            return self._reader

    # -- what is in it --------------------------------------------------------------------

    @property
    def frontier(self) -> Frontier | None:
        """How far the log reaches; None while it is empty."""
        with self._lock:
            return self._log().frontier

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        with self._lock:
            return self._log().oldest

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Slice:
        """See :meth:`LogAccess.slice`."""
        # Without the lock: it may have to fetch files.
        return self._log().slice(bounds, upto, max_rows=max_rows, max_bytes=max_bytes)

    def has_nothing(self, bounds: Mapping[TableName, Timestamp], upto: Timestamp) -> bool:
        """See :meth:`changefeed.log.LogReader.has_nothing`."""
        return self._log().has_nothing(bounds, upto)

    def timestamp_of(self, position: Position) -> Timestamp | None:
        """The log timestamp of a position in the source's log; None until the log has reached
        it. A position before the beginning of the log has the timestamp of the beginning.
        """
        with self._lock:
            frontier = self._log().frontier
            if frontier is None or frontier.position < position:
                return None
            return self._log().timestamp_at(position) or self._log().oldest

    def silent_since(self, seconds: float) -> Timestamp | None:
        """Since when the log has not grown, if that is for longer than ``seconds``.

        The log of an idle source grows every second. It does not grow while one large transaction
        is being read and nothing else is committed.
        """
        monotonic, at = self._grew
        return at if self._clock.monotonic() - monotonic > seconds else None

    def has(self, position: Position) -> bool:
        """Whether the log has every change after a position that its frontier has reached."""
        with self._lock:
            return self._log().timestamp_at(position) is not None

    # -- what became known ----------------------------------------------------------------

    @property
    def error(self) -> ChangefeedError | None:
        """Why the log does not grow, if it does not."""
        return self._error or self._reported

    def fail(self, error: ChangefeedError) -> None:
        """Record that the log does not grow because of ``error``, and wake all waiting threads."""
        with self._grown:
            self._error = error
            self.wake()

    def report(self, error: ChangefeedError | None, stalled: str) -> None:
        """Take over what the node that captures the source says of a log that is followed here."""
        with self._grown:
            changed = (self._reported, self.stalled) != (error, stalled)
            self._reported, self.stalled = error, stalled
            if changed:
                self.wake()

    def stall(self, why: str) -> None:
        """Record why capture waits for now; an empty text ends the wait."""
        with self._grown:
            self.stalled = why
            self.wake()

    def retry(self) -> None:
        """Forget the error, and open a damaged log again."""
        with self._lock:
            if self._error is not None and self._error.code is Code.LOG_DAMAGED:
                # Not closed: slices that were returned earlier may still be read through it.
                self._reader = None
            self._error = None

    def refresh(self) -> None:
        """Read how far the log reaches; a problem with it is logged once."""
        with self._grown:
            if self.stalled:
                self.stall("")
            self._refresh()

    def _refresh(self) -> None:
        """Read how far the log reaches, and wake those who wait for what is new; call with the
        lock held."""
        before, reached = self._error, self._seen()
        try:
            self._log().refresh()
            if self._seen() != reached:
                self._grew = self._clock.monotonic(), self._clock.now()
                self._announce(reached)
        except ChangefeedError as error:
            if before is None or before.message != error.message:
                log.error("log of %s: %s %s", self._name, error.code.number, error.message)
            self._error = error
        else:
            self._error = None if self._copy is None else self._copy.error
        if self._error is not before:
            self.wake()

    def _announce(self, before: Frontier | None) -> None:
        reader = self._log()
        if (frontier := reader.frontier) is None:
            return
        self._grown.notify_all()
        tables = reader.tables_beyond(before.at) if before is not None else None
        for waiter in self._waiters:
            waiter.grown(frontier.at, tables)

    def follow(self) -> None:
        """Refresh periodically, for a log that another process writes."""
        if self._looking is None:
            self._looking = threading.Thread(target=self._look, name="log-refresh", daemon=True)
            self._looking.start()

    @property
    def opened(self) -> bool:
        """Whether the copy of another node's log is there; :meth:`follow` makes it."""
        return self._copy is not None

    def _look(self) -> None:
        pause = POLL_SECONDS
        while not self._clock.wait(self._closed, pause):
            with self._grown:
                if self._closed.is_set():
                    return
                self._refresh()
                pause = RETRY_SECONDS if self._error is not None else POLL_SECONDS

    def _seen(self) -> Frontier | None:
        return None if self._reader is None else self._reader.frontier

    def wake(self) -> None:
        """Wake every thread that waits for the log."""
        with self._grown:
            self._grown.notify_all()
            for waiter in self._waiters:
                waiter.wake()

    # -- waiting --------------------------------------------------------------------------

    def waiter(self) -> LogWaiter:
        """What one thread waits with."""
        with self._lock:
            made = LogWaiter(self, self._lock, self._clock)
            self._waiters.add(made)
            return made

    def wait_position(
        self, position: Position, stop: threading.Event, timeout: float = 300.0
    ) -> Timestamp:
        """The log timestamp of ``position``, once the log has reached it.

        A position before the beginning of the log has the timestamp of the beginning.

        Raises:
            ChangefeedError: capture stopped with an error, or the wait was too long.
        """
        with self._grown:
            self._wait_until(lambda f: f.position >= position, position, stop, timeout)
            at = self._log().timestamp_at(position)
            return at if at is not None else self._log().oldest

    def wait_above(self, at: Timestamp, stop: threading.Event, timeout: float = 300.0) -> None:
        """Wait until the log reaches beyond ``at`` (that of an idle source advances every
        second).

        Raises:
            ChangefeedError: capture stopped with an error, or the wait was too long.
        """
        with self._grown:
            self._wait_until(lambda f: f.at > at, str(at), stop, timeout)

    def _wait_until(
        self,
        reached: Callable[[Frontier], bool],
        goal: str,
        stop: threading.Event,
        timeout: float,
    ) -> None:
        deadline = self._clock.monotonic() + timeout
        while not stop.is_set():
            frontier = self._log().frontier
            if frontier is not None and reached(frontier):
                return
            if (error := self.error) is not None:
                raise error
            if self._clock.monotonic() > deadline:
                raise ChangefeedError(
                    Code.STREAM_BROKE, f"the change log of {self._name!r} did not reach {goal}"
                )
            self._clock.wait(self._grown, 0.2)
        raise ChangefeedError(Code.SCAN_INTERRUPTED, "stopped")

    def why_lost(self, stop: threading.Event, timeout: float = 60.0) -> ChangefeedError | None:
        """Why the change log cannot be continued, once capture has contacted the source, or
        None.

        Raises:
            ChangefeedError: another error keeps capture from finding out.
        """
        deadline = self._clock.monotonic() + timeout
        with self._grown:
            # Entries of an earlier capture do not show that the log can be continued.
            self._log().refresh()
            before = self.frontier
            while not stop.is_set() and self._clock.monotonic() < deadline:
                error = self._error
                if error is not None and error.code in LOG_LOST:
                    return error
                if error is not None and error.action is not Action.RETRY:
                    raise error
                frontier = self.frontier
                if frontier is not None and (before is None or frontier.at > before.at):
                    return None
                self._clock.wait(self._grown, 0.2)
            raise self._error or ChangefeedError(
                Code.STREAM_BROKE, f"capture from {self._name!r} did not begin"
            )

    # -- the end --------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """End all waits; :meth:`release` closes the files."""
        self._closed.set()
        self.wake()

    def release(self) -> None:
        """Close the log's files."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            copy, self._copy = self._copy, None
        if copy is not None:
            followed_logs().close(copy)
