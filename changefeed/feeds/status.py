"""What users see of a feed: its status and the reason."""

from __future__ import annotations

import logging
import threading

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import Status, TableState
from changefeed.catalog.sources import concerns
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.table_errors import TableError
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.feeds.feed import Feed
from changefeed.feeds.scan_coordinator import ScanCoordinator
from changefeed.options import ON_ERROR, OnError

#: What a feed does while nothing holds it up.
_AT_WORK = (Status.STARTING, Status.SCANNING, Status.RUNNING)


class FeedStatus:
    """Writes the status of one feed to the state and to the log of the node.

    A status is written only when it or its reason has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        source_runtime: SourceRuntime,
        scanning: ScanCoordinator,
        clock: Clock,
        timings: Timings,
    ) -> None:
        self._clock = clock
        self._timings = timings
        self._catalog = catalog
        self._source_runtime = source_runtime
        self._scanning = scanning
        #: The feed's thread shows what it does; the node's, what it waits for meanwhile.
        self._lock = threading.RLock()
        self._shown: tuple[Status, str] | None = None
        self._shown_at = 0.0
        #: The feed retries after an error, and nothing shows yet that this attempt succeeds.
        self._trying = False
        #: Something was delivered since the feed was taken up, or there was nothing to deliver.
        self._begun = False
        #: While it waits for the next attempt: what to write of it once it has begun.
        self._next: tuple[Timestamp, str] | None = None
        #: What the feed waits for, and why Spark, without which it delivers nothing, has ended: as
        #: of the last pulse.
        self._waits = ""
        self._lost: ChangefeedError | None = None

    def begin(self, feed: Feed) -> None:
        """Write that a node has taken the feed up."""
        self._show_work(feed)

    def pulse(self, feed: Feed, waits: str, lost: ChangefeedError | None) -> None:
        """Write what the feed's thread waits for, of which it cannot write itself.

        A thread that writes at this moment does not wait, so the next pulse is early enough.

        Args:
            waits: see :meth:`changefeed.feeds.sink_session.SinkSession.waits`.
            lost: why the feed has no Spark; None if it has, or needs none.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            back = self._lost is not None and lost is None and not self._trying
            self._waits, self._lost = waits or self._silent_log(), lost
            shown = self._shown[0] if self._shown is not None else None
            if back or shown in _AT_WORK:
                self._show_work(feed)
            elif self._trying:
                self._show_attempt(feed)
        finally:
            self._lock.release()

    def _silent_log(self) -> str:
        since = self._source_runtime.log.silent_since(self._timings.silent)
        if since is None:
            return ""
        name = self._source_runtime.name
        return f"the change log of {name} has not grown since {since.time_of_day()}"

    def _show_attempt(self, feed: Feed) -> None:
        """Write that the next attempt has begun: it may take as long as a call may wait."""
        if self._next is None or self._shown is None or self._clock.now() < self._next[0]:
            return
        (at, reason), self._next = self._next, None
        # Neither an event nor a line of the log: nothing is known yet.
        self._write(feed, Status.RETRYING, f"{reason} since {at.time_of_day()}", None)
        self._shown = Status.RETRYING, reason

    def forget(self) -> None:
        """Write the next status even if it has not changed."""
        self._shown = None

    def turn(self, feed: Feed) -> None:
        """Write the present status of the feed.

        Raises:
            TableError: changes of a table may be missing, or the source cannot send it.
            ChangefeedError: the source stopped with an error that is not retried.
        """
        self._check_tables(feed)
        error = self._source_runtime.log.error
        if error is not None and error.action is not Action.RETRY:
            raise error
        if error is not None:
            self._trying = False
            self.show(feed, Status.RETRYING, f"source: {error.explained}", error)
        elif why := self._source_runtime.held_up:
            self.show(feed, Status.STALLED, why)
        elif self._trying:
            return  # what was written when it failed is still true
        elif over := self._source_runtime.over_limit(feed.job.id):
            self.show(feed, Status.STALLED, over.why)
        else:
            self._show_work(feed)

    def _show_work(self, feed: Feed) -> None:
        with self._lock:
            scans = self._scanning.owes(feed)
            if self._lost is not None:
                self.show(feed, Status.RETRYING, f"{self._lost.message}; {self._waits}", self._lost)
            elif scans and (self._begun or self._scanning.reads):
                self.show(feed, Status.SCANNING, self._scanning.text())
            elif not self._begun:
                what = self._waits or (self._scanning.text() if scans else "the first round")
                self.show(feed, Status.STARTING, f"starting: {what}")
            else:
                waits = f": {self._waits}" * bool(self._waits)
                self.show(feed, Status.RUNNING, f"running{waits}")

    def check_limits(self, feed: Feed) -> None:
        """Raise CF3006 if the feed has been above a limit of disk space for too long."""
        over = self._source_runtime.over_limit(feed.job.id)
        if over is not None and over.ends:
            raise ChangefeedError(Code.CLAIM_ENDED, over.why)

    def _check_tables(self, feed: Feed) -> None:
        gaps = self._source_runtime.tables.gaps
        for table in feed.in_state(TableState.PENDING, TableState.SCANNING, TableState.RUNNING):
            if (problem := self._source_runtime.tables.problems.get(table.table)) is not None:
                raise TableError(table.table, problem)
            gap = gaps.get(table.table)
            if gap is not None and concerns(gap, table):
                feed.update(table.table, gap=gap.at)
                raise TableError(table.table, gap.error)

    def show(
        self, feed: Feed, status: Status, reason: str, error: ChangefeedError | None = None
    ) -> None:
        with self._lock:
            self._show(feed, status, reason, error)

    def _show(self, feed: Feed, status: Status, reason: str, error: ChangefeedError | None) -> None:
        if self._shown == (status, reason):
            return
        now = self._clock.monotonic()
        moved = self._shown is None or self._shown[0] is not status
        # The text has the progress of the scan: more frequent updates are not read.
        early = now - self._shown_at < self._timings.scan_status
        if not moved and status is Status.SCANNING and early:
            return
        self._shown_at = now
        if status is not Status.STARTING and (moved or status is Status.RETRYING):
            before = self._shown[0] if self._shown else None
            failed = len(feed.in_state(TableState.FAILED))
            log_move(feed.job.name, before, status, reason, error, failed)
        self._write(feed, status, reason, error)
        self._shown = (status, reason)

    def retrying(self, feed: Feed, error: ChangefeedError, attempt: int, at: Timestamp) -> None:
        """Write why the feed waits after attempt number ``attempt``, and that it retries ``at``.

        The status stays until :meth:`works`, because many sinks open without contacting their
        server.
        """
        shown = explained(error, feed.job)
        over = self._source_runtime.over_limit(feed.job.id)
        also = f"; {over.why}" if over is not None else ""
        again = f"attempt {attempt}, next try at {at.time_of_day()}"
        with self._lock:
            self._trying = True
            self.show(feed, Status.RETRYING, f"{shown.message}; {again}{also}", shown)
            self._next = at, f"{shown.message}{also}; attempt {attempt + 1} under way"

    def works(self, feed: Feed) -> None:
        """Record that the feed delivered, or found that it has nothing to deliver.

        Raises:
            TableError, ChangefeedError: as :meth:`turn`.
        """
        first, self._begun = not self._begun, True
        if self._trying:
            self._trying = False
            self.turn(feed)
        elif first and self._shown is not None and self._shown[0] is Status.STARTING:
            self._show_work(feed)

    def failed_table(self, feed: Feed, failed: TableError) -> None:
        """Mark a table of the feed as failed, with the reason."""
        error = explained(failed.error, feed.job)
        name, number = feed.job.name, error.code.number
        log.error("feed %s: table %s failed: %s %s", name, failed.table, number, error.message)
        feed.fail_table(failed.table, error, failed.at)

    def ended(self, feed: Feed, error: ChangefeedError, generation: int) -> bool:
        """Write that the feed ends with an error: failed, or paused if the feed's options say
        so. False, with nothing written, if an ALTER came after the one that made the feed's
        ``generation``: a RESCAN may be what lets the feed go on.
        """
        error = explained(error, feed.job)
        status, reason = Status.FAILED, error.message
        if feed.options[ON_ERROR] is OnError.PAUSE:
            # CockroachDB's words.
            status = Status.PAUSED
            reason = f"job failed ({error.message}) but is being paused because of on_error=pause"
            self._catalog.pause_wanted(feed.job.id)
            generation = self._catalog.job(feed.job.id).generation
        job = self._catalog.transition(
            feed.job.id,
            status,
            reason=reason,
            error=error,
            lease=feed.lease,
            generation=generation,
        )
        if job.status is not status:
            return False
        log_move(feed.job.name, None, status, reason, error)
        return True

    def _write(
        self, feed: Feed, status: Status, reason: str, error: ChangefeedError | None
    ) -> None:
        self._catalog.transition(feed.job.id, status, reason=reason, error=error, lease=feed.lease)


#: After one of these statuses, running means that the feed has recovered.
_HELD_UP = (Status.RETRYING, Status.STALLED)


def log_start(job: Job) -> None:
    """Log that a node starts the feed."""
    if job.reason.startswith("resumed"):
        word = "resumed"
    else:
        word = "created" if job.started is None else "taken up"
    log.info("feed %s: %s, from %s to %s", job.name, word, job.source, _address(job) or "a session")


def log_move(
    name: str,
    before: Status | None,
    after: Status,
    reason: str,
    error: ChangefeedError | None,
    failed: int = 0,
) -> None:
    """Log a new status of the feed, or a new reason for a retry; ``failed`` tables have failed."""
    level, said = _said(before, after, reason)
    if failed and after is Status.RUNNING:
        said += f", but {failed} of its tables {'has' if failed == 1 else 'have'} failed"
    log.log(level, "feed %s: %s%s", name, f"{error.code.number} " if error else "", said)


def _said(before: Status | None, after: Status, reason: str) -> tuple[int, str]:
    if after is Status.RETRYING:
        return logging.WARNING, reason
    if after is Status.STALLED:
        return logging.WARNING, f"stalled: {reason}"
    if after is Status.FAILED:
        return logging.ERROR, f"failed: {reason}"
    if after in (Status.SCANNING, Status.RUNNING):
        back = "recovered, " if before in _HELD_UP else ""
        if after is Status.RUNNING and before is Status.SCANNING:
            return logging.INFO, "initial scan done, running"
        return logging.INFO, f"{back}{after}"
    return logging.INFO, f"{after}: {reason}"


def explained(error: ChangefeedError, job: Job) -> ChangefeedError:
    """The error as SHOW and the log display it: one line with the cause, and with the sink's
    address if the error is about the sink and does not name it.
    """
    text = error.explained
    place = _address(job)
    host = place.partition("://")[2].rpartition("@")[2].partition("/")[0]
    named = place in text or (host and host in text)
    if place and error.code.is_of_sink and not named:
        text = f"{text} ({place})"
    return ChangefeedError(error.code.number, text, hint=error.hint)


def _address(job: Job) -> str:
    return job.redacted_sink_uri.partition("?")[0]
