"""Capture: the one process per source that reads its log and writes ours.

    source's log -> decoder -> change log (durable) -> acknowledge to the source

Only this process reads the log of the source, and it holds the writer lock of the change log. It
reports every step to its parent in one line of JSON on standard output (:class:`Notice`), and
ends when its standard input closes, so it never outlives the node that started it. Secrets reach
it through its environment and the state database, never through its arguments.

It must never acknowledge a position that is not durable in the change log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from changefeed.attachments import attachment
from changefeed.capture.feed_budgets import FeedBudgets, OverLimit
from changefeed.capture.standby import STATE_VARIABLE, CaptureTask, read_task
from changefeed.catalog import Catalog, SourceLease
from changefeed.catalog.database import CachedRead
from changefeed.core.arrow import keep_pandas_out
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.elapsed import ClockSample, read_clocks
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.events import ChangeBatch, Ddl, Flush, Frontier, SchemaChange, Truncate
from changefeed.core.faults import Point, fault_point
from changefeed.core.internal_errors import raised_at
from changefeed.core.loading import loading
from changefeed.core.references import refused_login
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.timings import Timings
from changefeed.images.shared import SharedImages
from changefeed.images.source_images import SourceImages
from changefeed.images.wanted import wanted_images
from changefeed.log import AppendedAhead, LogSettings, LogWriter
from changefeed.options import GC_SIZE, GC_TTL, Options
from changefeed.shared_logs import SharedSource
from changefeed.sources.base import Attachment, Stream, StreamFallback, StreamRequest
from changefeed.sources.registry import open_source

#: Exit status after an error that a person must fix: do not restart the capture.
EXIT_STOP = 3
#: Exit status after an error that may pass: restart the capture after a pause.
EXIT_RETRY = 4

#: The smallest jump of the machine's clock, between two upkeeps of the log, that is reported.
LEAP_SECONDS = 60.0


#: Errors of the log after which nothing was stored and the same call may be made again.
_MAY_PASS = frozenset({Code.LOG_FULL, Code.LOG_STORE_UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Notice:
    """One line from capture to its node.

    ``kind`` is ``frontier`` (the log reaches ``at``/``position``), ``stalled`` (the log has no
    room: reading stopped), ``flowing`` (it goes on), ``limits`` (``over`` are the feeds that are
    above a limit of disk space), ``moved`` (from ``at`` on the rows of
    ``table``, which has the id ``table_id``, come under the name ``now``), ``warning``
    (something for the node's log) or ``error``.
    """

    kind: str
    at: str = ""
    position: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""
    detail: str = ""
    table: tuple[str, ...] = ()
    now: tuple[str, ...] = ()
    table_id: int = 0
    over: tuple[OverLimit, ...] = ()

    def line(self) -> bytes:
        """The notice as one line of JSON."""
        said = {name: value for name in _FIELDS if (value := getattr(self, name))}
        return json.dumps(said).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Notice:
        """The inverse of :meth:`line`."""
        data: dict[str, Any] = json.loads(line)
        for name in ("table", "now"):
            if name in data:
                data[name] = tuple(data[name])
        data["over"] = tuple(OverLimit(*over) for over in data.get("over", ()))
        return cls(**data)


_FIELDS = tuple(field.name for field in fields(Notice))

Tell = Callable[[Notice], None]


class StreamRestart(Exception):
    """The next stream goes on from the end of the log, in other shapes: nothing is wrong."""


class Capture:
    """Moves flushes from a source's stream to the change log until it is stopped."""

    def __init__(
        self,
        stream: Stream,
        writer: LogWriter,
        tell: Tell,
        *,
        keep_from: Callable[[], Timestamp | None],
        held_up: Callable[[bool], str] = lambda full: "log is full" if full else "",
        settings: Callable[[], LogSettings] | None = None,
        announced: Callable[[Collection[int]], None] | None = None,
        renamed: Callable[[TableName, int], None] | None = None,
        images: SourceImages | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timings: Timings | None = None,
    ) -> None:
        """
        Args:
            tell: is called with a notice of every step.
            keep_from: returns the timestamp above which some feed still needs the log.
            held_up: returns why capture must not read, or an empty text; called with whether the
                log has no room.
            settings: returns how long and how much the log keeps; called repeatedly, because
                feeds come, go and are altered.
            announced: is called with schema versions once readers of the log can see their rows.
            renamed: is called with the name under which rows of a table come from now on and the
                table's id, before readers of the log can see that.
            images: the row images that complete what the source sends.
            timings: how often the upkeep of the log runs.
        """
        self._clock = clock
        self._timings = timings or Timings()
        self._announced = announced
        self._renamed = renamed
        self._images = images
        self._versions: set[int] = set()
        self._new_versions: set[int] = set()
        self._settings = settings
        self._stream = stream
        self._writer = writer
        self._tell = tell
        self._keep_from = keep_from
        self._held_up = held_up
        self._stop = threading.Event()
        self._read = read_clocks()
        self._broken: Exception | None = None
        #: Flushes that are not durable yet, None: no more come.
        self._ahead: Queue[tuple[Flush, AppendedAhead] | None] = Queue()

    def stop(self) -> None:
        """End :meth:`run` soon; safe from any thread."""
        self._stop.set()
        self._stream.close()

    def hasten(self) -> None:
        """Get the frontier of the log soon, because a caller waits for it; safe from any thread."""
        self._stream.hasten()

    def run(self) -> None:
        """Append every flush of the stream; return when stopped.

        Raises:
            ChangefeedError: the stream or the log failed.
        """
        upkeep = threading.Thread(target=self._upkeep, name="log-upkeep", daemon=True)
        upkeep.start()
        registrar = threading.Thread(target=self._register, name="log-register", daemon=True)
        registrar.start()
        flushes = iter(self._stream)
        try:
            for flush in flushes:
                self._wait_for_room()
                if self._stop.is_set():
                    break
                self._append(flush if self._images is None else self._images.complete(flush))
            self._ahead.join()
        finally:
            self._stop.set()
            upkeep.join()
            self._ahead.put(None)
            registrar.join()
            if isinstance(flushes, Generator):
                # One that was left in the middle still reads the source, and the next one cannot.
                flushes.close()
        if self._broken is not None:
            raise self._broken

    def _upkeep(self) -> None:
        """Merge and remove files of the log in a separate thread: to merge ten thousand commits of
        one row takes seconds, and appends must not wait for it.
        """
        while not self._clock.wait(self._stop, self._timings.upkeep):
            try:
                self._maintain()
            except Exception as error:  # raised again by run()
                self._broken = error
                self.stop()

    def _append(self, flush: Flush) -> None:
        renames = [
            event
            for event in flush.events
            if isinstance(event, SchemaChange) and event.old.table != event.new.table
        ]
        if self._renamed is not None:
            # Before: a crash may come between, and the next stream must know all names.
            for event in renames:
                self._renamed(event.new.table, event.new.table_id)
        ahead = self._may_go_ahead(flush)
        if not ahead:
            self._ahead.join()
            if self._broken is not None or self._stop.is_set():
                return
        fault_point(Point.CAPTURE_BEFORE_APPEND)
        appended: list[AppendedAhead | None] = []
        if not self._until_stored(lambda: appended.append(self._writer.append(flush, ahead=ahead))):
            return
        if appended[0] is not None:
            self._ahead.put((flush, appended[0]))
            return
        self._ahead.join()
        self._stored(flush, renames)
        if self._images is not None and flush.frontier is not None:
            self._images.committed(flush.frontier)
            if self._images.news:
                raise StreamRestart

    def _may_go_ahead(self, flush: Flush) -> bool:
        """Whether the next flush may be read before this one is durable: it is rows of a backlog,
        and nothing in this process waits for it."""
        if self._images is not None and self._images.present:
            return False
        batches = [event for event in flush.events if isinstance(event, ChangeBatch)]
        rows = sum(len(batch.rows) for batch in batches)
        return len(batches) == len(flush.events) and rows >= self._writer.settings.segment_rows

    def _until_stored(self, work: Callable[[], None]) -> bool:
        """Do ``work`` until there is room for it; False if capture was stopped meanwhile."""
        while True:
            try:
                work()
                return True
            except ChangefeedError as error:
                if error.code not in _MAY_PASS:
                    raise
                if not self._wait_stalled(error.message):
                    return False

    def _register(self) -> None:
        """Acknowledge what was appended ahead when it is durable, in its order."""
        while (taken := self._ahead.get()) is not None:
            flush, appended = taken
            try:
                if self._broken is None and self._until_stored(
                    partial(self._writer.register, appended)
                ):
                    self._stored(flush)
            except Exception as error:  # raised again by run()
                self._broken = error
                self.stop()
            finally:
                self._ahead.task_done()

    def _stored(self, flush: Flush, renames: Sequence[SchemaChange] = ()) -> None:
        """Report and acknowledge a flush that is durable."""
        fault_point(Point.CAPTURE_BEFORE_ACKNOWLEDGE)
        for event in renames:
            # Before the frontier: no feed may deliver beyond it without this knowledge.
            self._tell(_moved(event))
        self._announce(flush)
        if flush.frontier is not None:
            self._stream.acknowledge(flush.frontier.position)
            self._tell(
                Notice("frontier", at=str(flush.frontier.at), position=flush.frontier.position)
            )
        fault_point(Point.CAPTURE_AFTER_ACKNOWLEDGE)

    def _announce(self, flush: Flush) -> None:
        """Report which schema versions are new in the log.

        This happens after they are durable, so that a crash repeats a schema change and never
        loses it; and with the frontier, because everything after the last frontier is read again
        after a crash.
        """
        if self._announced is None:
            return
        versions = {_schema(e).version for e in flush.events if not isinstance(e, Ddl)}
        self._new_versions |= versions - self._versions
        if flush.frontier is not None and self._new_versions:
            self._announced(self._new_versions)
            self._versions |= self._new_versions
            self._new_versions = set()

    def _wait_for_room(self) -> None:
        if not self._writer.room():
            # What no feed needs may be all that fills it.
            self._maintain()
        reported, again = "", False
        while not self._stop.is_set() and (why := self._held_up(not self._writer.room())):
            # Not at first: the end of a feed's claim may have made room.
            if again and why != reported:
                self._tell(Notice("stalled", message=why))
                reported = why
            self._maintain()
            if again:
                self._clock.wait(self._stop, self._timings.stall)
            again = True
        if reported:
            self._tell(Notice("flowing"))

    def _wait_stalled(self, message: str) -> bool:
        """Pause after a write that found no space; False if capture was stopped meanwhile."""
        self._tell(Notice("stalled", message=message))
        self._clock.wait(self._stop, self._timings.stall * 4)
        if self._stop.is_set():
            return False
        self._maintain()
        return True

    def _maintain(self) -> None:
        try:
            if self._settings is not None:
                self._writer.settings = self._settings()
            read = read_clocks()
            self._tell_leap(read)
            self._writer.maintain(read, self._keep_from())
        except ChangefeedError as error:
            # A full disk prevents upkeep, too. Captured changes are safe, and upkeep is retried.
            if error.code not in _MAY_PASS:
                raise

    def _tell_leap(self, read: ClockSample) -> None:
        before, self._read = self._read, read
        leap = read.leap(before) / 1e9
        if abs(leap) >= LEAP_SECONDS:
            way = "forward" if leap > 0 else "back"
            self._tell(
                Notice(
                    "warning",
                    message=f"the clock of this machine was set {way} by {abs(leap):,.0f} s: the "
                    "change log measures ages itself, so it keeps what it kept before",
                )
            )


class CaptureLoop:
    """Runs one capture after another: if one fails and its source knows another way to read, the
    next one takes over.
    """

    def __init__(self, worker: Callable[[], Capture], writer: LogWriter, tell: Tell) -> None:
        """``worker`` creates a capture that continues from the end of the log."""
        self._make = worker
        self._writer = writer
        self._tell = tell
        self._lock = threading.Lock()
        self._worker: Capture | None = None
        self._stopped = False

    def stop(self) -> None:
        """End :meth:`run` soon; safe from any thread."""
        with self._lock:
            self._stopped = True
            worker = self._worker
        if worker is not None:
            worker.stop()

    def hasten(self) -> None:
        """See :meth:`Capture.hasten`."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.hasten()

    def run(self) -> None:
        """Work until stopped.

        Raises:
            ChangefeedError: the stream or the log failed, and the source knows no other way.
        """
        while (worker := self._next()) is not None:
            try:
                worker.run()
                return
            except StreamRestart:
                continue
            except StreamFallback as error:
                self._tell(Notice("warning", code=error.code.number, message=error.message))
                # The rows of an incomplete transaction will be read again.
                self._writer.abandon()

    def _next(self) -> Capture | None:
        worker = self._make()
        with self._lock:
            self._worker = None if self._stopped else worker
            return self._worker


def _schema(event: ChangeBatch | Truncate | SchemaChange) -> TableSchema:
    return event.new if isinstance(event, SchemaChange) else event.schema


def _moved(event: SchemaChange) -> Notice:
    old, new = event.old.table, event.new.table
    return Notice(
        "moved",
        at=str(event.at),
        table=(old.schema, old.name),
        now=(new.schema, new.name),
        table_id=event.old.table_id,
    )


def _listen_to_parent(hasten: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call ``hasten`` when the node writes to standard input, and ``stop`` when it has ended, which
    closes that.
    """

    def wait() -> None:
        while os.read(0, 4096):
            hasten()
        stop()
        # The stream may sit in a blocking call that close() cannot wake; the log is durable
        # at every instant, so leaving hard is safe.
        timer = threading.Timer(5.0, os._exit, args=(0,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def _start_frontier(
    writer: LogWriter,
    held: Attachment,
    clock: Clock,
    before: Timestamp | None = None,
) -> Frontier:
    """Where to continue: at the end of the log, or, for an empty log, at the attachment's start.

    An empty log gets that position as its first entry, with the present time: every later position
    then has a timestamp, and a ``cursor`` before the log can be recognised. ``before`` is where an
    earlier log of the source ended: this log begins above it, whatever the clock says.
    """
    if writer.frontier is None:
        now = clock.now()
        at = now if before is None else before.at_least(now.wall)
        position, history = held.start()
        begin = Frontier(at=at, position=position, history=history)
        writer.append(Flush((), begin))
        return begin
    return writer.frontier


def _settings(catalog: Catalog, task: CaptureTask) -> LogSettings:
    """The longest ``gc_ttl`` and the largest ``gc_size`` of the source's feeds."""
    wishes = [Options.from_dict(job.options) for job in catalog.source_jobs(task.source)]
    sizes = [options[GC_SIZE] for options in wishes]
    known = [size for size in sizes if size is not None]
    return LogSettings(
        gc_ttl=max((options[GC_TTL] for options in wishes), default=GC_TTL.default),
        keep_bytes=max(known) if known and len(known) == len(sizes) else None,
        disk_budget=task.disk,
        copy_budget=task.copies,
    )


def capture(state: str, task: CaptureTask, tell: Tell) -> None:
    """Run capture for one source of the state until the parent goes away.

    Raises:
        ChangefeedError: from the source or the log.
    """
    source_name = task.source
    catalog = Catalog.open(state)
    lease = SourceLease(source_name, task.node, task.token) if task.token else None
    connection = catalog.connection(source_name)
    source = open_source(source_name, connection.uri)
    known = catalog.source_state(source_name)
    layout = StateLayout(Path(catalog.directory))
    held = attachment(catalog, source)
    memo = CachedRead(catalog.version, lambda: catalog.source_state(source_name).memo)
    layout.beside_log(source_name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def settings() -> LogSettings:
        return _settings(catalog, task)

    shared = SharedSource.of(catalog, lease)
    writer = LogWriter(layout.log(source_name), settings(), shared.log() if shared else None)
    root = layout.images(source_name)
    images = SourceImages(
        root,
        layout.log(source_name),
        source,
        wanted_images(catalog, source_name),
        frontier=lambda: writer.frontier,
        captured=lambda: catalog.captured(source_name),
        shared=None
        if shared is None
        else SharedImages(shared.register, shared.store, root, shared.folder, shared.token),
    )

    def keep_from() -> Timestamp | None:
        needed = catalog.oldest_needed(source_name), images.needed_from
        return min((at for at in needed if at is not None), default=None)

    budgets = FeedBudgets(
        catalog,
        source_name,
        writer,
        layout.scratch,
        tell=lambda over: tell(Notice("limits", over=over)),
    )

    def worker() -> Capture:
        start = _start_frontier(writer, held, SYSTEM_CLOCK, known.frontier)
        images.start(start)
        stream = held.stream(
            StreamRequest(
                start=start,
                identity=known.identity,
                memo=memo,
                intern=catalog.intern_schema,
                latest=catalog.announced_schema,
                names=partial(catalog.names, source_name),
                logged=images.shape,
                spool=layout.spool(source_name),
                folder=layout.beside_log(source_name),
                term=task.token,
            )
        )
        tell(Notice("frontier", at=str(start.at), position=start.position))
        return Capture(
            stream,
            writer,
            tell,
            keep_from=keep_from,
            held_up=budgets.held_up,
            settings=settings,
            announced=catalog.announce_schemas,
            renamed=catalog.note_name,
            images=images,
        )

    try:
        life = CaptureLoop(worker, writer, tell)
        _listen_to_parent(life.hasten, life.stop)
        tend = threading.Thread(target=_tend, args=(images, tell), name="row-images", daemon=True)
        tend.start()
        life.run()
    except ChangefeedError as error:
        raise refused_login(error, lambda: [connection.uri]) from error
    finally:
        images.stop()
        writer.close()


def _tend(images: SourceImages, tell: Tell) -> None:
    while not images.wait():
        try:
            images.look()
        except ChangefeedError as error:
            tell(Notice("warning", code=error.code.number, message=error.message))
        except Exception as failure:
            what = f"row images: {_internal_error(failure)}"
            tell(Notice("warning", code=Code.INTERNAL_ERROR, message=what))


def _internal_error(failure: Exception) -> str:
    """The message of an unexpected exception. Its traceback goes to standard error, and so to the
    log of our parent, without the exception's text.
    """
    traceback.print_tb(failure.__traceback__)
    return f"internal error: {type(failure).__name__} at {raised_at(failure)}"


def load_sources(state: str) -> None:
    """Load the modules of the sources that have feeds, without connecting to them."""
    # The node reports problems with the state or a connection.
    with contextlib.suppress(ChangefeedError), closing(Catalog.open(state)) as catalog:
        for name in {job.source for job in catalog.jobs(include_finished=False)}:
            open_source(name, catalog.connection(name).uri)


def main(argv: list[str] | None = None) -> int:
    """Entry point of the capture process; see the module's text."""
    parser = argparse.ArgumentParser(prog="changefeed-capture")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--task", help="what CaptureTask.line writes")
    given.add_argument("--standby", action="store_true", help="the task comes by standard input")
    args = parser.parse_args(argv)
    # Not an argument: every user can read the arguments of a process, and the state may be a URL
    # with a password. No child of this process needs it.
    state = os.environ.pop(STATE_VARIABLE)
    os.umask(0o077)
    keep_pandas_out()
    # The upkeep thread computes; the reading thread must not wait long for the interpreter lock.
    sys.setswitchinterval(0.001)
    out = os.dup(1)
    os.dup2(2, 1)  # a stray print must not look like a notice

    def tell(notice: Notice) -> None:
        try:
            os.write(out, notice.line())
        except BrokenPipeError:
            os._exit(0)

    if args.standby:
        with loading():
            load_sources(state)
        task = read_task()
        if task is None:
            return 0
    else:
        task = CaptureTask(**json.loads(args.task))
    try:
        capture(state, task, tell)
    except ChangefeedError as error:
        if error.code is Code.STATE_HELD_BY_ANOTHER_NODE:
            # The capture of a node that was killed ends by itself within seconds.
            error = ChangefeedError(Code.STREAM_BROKE, "an earlier capture has not ended yet")
        tell(
            Notice(
                "error",
                code=error.code.number,
                message=error.message,
                hint=error.hint,
                detail=error.detail,
            )
        )
        return EXIT_RETRY if error.action is Action.RETRY else EXIT_STOP
    except Exception as failure:
        tell(Notice("error", code=Code.INTERNAL_ERROR, message=_internal_error(failure)))
        return EXIT_RETRY
    return 0
