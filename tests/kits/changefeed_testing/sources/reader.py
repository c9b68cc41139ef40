"""Reads a source as capture does: with a saved memo, a durable log, and one stream."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Event, Flush, Frontier, Position
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import (
    Attachment,
    CaptureResult,
    Memo,
    Source,
    Stream,
    StreamFallback,
    StreamRequest,
)
from changefeed_testing.sources.harness import SourceHarness

#: The owner of what the cases create at a source; as long as a state's id.
OWNER = "testme"
#: Between an error and the next try of a patient reader, seconds.
RETRY_SECONDS = 0.1


class SchemaVersions:
    """Gives schemas their versions, as the state does."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._latest: dict[TableName, TableSchema] = {}
        self._lock = threading.Lock()

    def intern(self, schema: TableSchema) -> TableSchema:
        """The shape with its version: a new version if it differs from the table's last shape."""
        with self._lock:
            latest = self._latest.get(schema.table)
            if latest is None or latest.fingerprint() != schema.fingerprint():
                latest = schema.with_version(next(self._numbers))
                self._latest[schema.table] = latest
            return latest

    def latest(self, table: TableName) -> TableSchema | None:
        """The table's last shape."""
        return self._latest.get(table)

    def names(self, table_id: int) -> list[TableName]:
        """The names under which a table was read."""
        with self._lock:
            return [name for name, shape in self._latest.items() if shape.table_id == table_id]


@dataclass
class State:
    """What survives a restart: the memo, the schemas, and the change log.

    ``deadline`` is how long its readers wait for the stream, in seconds. ``row`` is the harness's.
    """

    folder: Path
    memo: Memo | None = None
    identity: str = ""
    schemas: SchemaVersions = field(default_factory=SchemaVersions)
    flushes: list[Flush] = field(default_factory=list)
    frontier: Frontier | None = None
    deadline: float = 60.0
    clock: Clock = SYSTEM_CLOCK
    row: Callable[[dict[str, Any]], dict[str, Any]] = dict

    @classmethod
    def of(cls, harness: SourceHarness, name: str = "", before: State | None = None) -> State:
        """A state in the harness's folder, or in its subfolder ``name``, with the attachment of a
        state ``before``."""
        made = cls(harness.folder / name, deadline=harness.deadline, row=harness.row)
        if before is not None:
            made.memo, made.identity, made.schemas = before.memo, before.identity, before.schemas
        return made

    def attach(self, source: Source) -> Attachment:
        """The attachment of the saved memo."""
        return source.attach(OWNER, self.memo)

    def capture(self, source: Source, *tables: str, schema: str | None = None) -> CaptureResult:
        """Capture exactly these tables, and save what is held.

        Raises:
            AssertionError: the memo is not JSON.
        """
        names = [source.describe(schema, table).table for table in tables]
        held = self.attach(source)
        captured = held.capture(names, resume=bool(self.identity))
        self.memo = json.loads(json.dumps(dict(held.memo)))
        self.identity = self.identity or source.identity()
        return captured

    def begin(self, held: Attachment) -> Frontier:
        """The frontier from which the stream continues; a new log gets its first entry."""
        if self.frontier is None:
            position, history = held.start()
            self.frontier = Frontier(self.clock.now(), position, history=history)
            self.flushes.append(Flush((), self.frontier))
        return self.frontier

    @property
    def events(self) -> list[Event]:
        """All events of the log, in order."""
        return [event for flush in self.flushes for event in flush.events]

    def changes(self, table: str | None = None) -> list[Change]:
        """The changes in the log by sequence number, of all tables or of one, with the columns
        that the SQL of a case has."""

        def row(of: dict[str, Any] | None) -> dict[str, Any] | None:
            return None if of is None else self.row(of)

        return [
            replace(change, before=row(change.before), after=row(change.after))
            for change in self.logged(table)
        ]

    def logged(self, table: str | None = None) -> list[Change]:
        """The changes with the columns of the source."""
        found = [
            change
            for event in self.events
            if isinstance(event, ChangeBatch) and table in (None, event.schema.table.name)
            for change in event.changes()
        ]
        return sorted(found, key=lambda change: change.seq)

    def positions(self) -> dict[Timestamp, Position]:
        """The position of each transaction in the source's log."""
        return {
            Timestamp(wall, logical): position
            for flush in self.flushes
            for wall, logical, position in zip(
                flush.commits.wall, flush.commits.logical, flush.commits.position, strict=True
            )
        }


class CaptureDouble:
    """One stream, read by a thread into the state, as the capture process does.

    A ``patient`` one also does what capture does after an error that is tried again: it keeps the
    error in ``retried`` and reads on from the frontier. Others end with it.
    """

    def __init__(
        self, state: State, source: Source, *, acknowledge: bool = True, patient: bool = False
    ) -> None:
        self.source = source
        self.retried: list[ChangefeedError] = []
        self.held = state.attach(source)
        self._state = state
        self._acknowledge = acknowledge
        self._patient = patient
        self._changed = threading.Condition()
        self._error: ChangefeedError | None = None
        self._ended = False
        self._stopped = False
        self._stream = self._open()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _open(self) -> Stream:
        state = self._state
        spool, folder = state.folder / "spool", state.folder / "source"
        folder.mkdir(parents=True, exist_ok=True)
        return self.held.stream(
            StreamRequest(
                start=state.begin(self.held),
                identity=state.identity,
                memo=lambda: state.memo or {},
                intern=state.schemas.intern,
                latest=state.schemas.latest,
                names=state.schemas.names,
                spool=spool,
                folder=folder,
            )
        )

    def _run(self) -> None:
        try:
            while not self._read():
                with self._changed:
                    if self._stopped:
                        break
                    self._stream = self._open()
        except ChangefeedError as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read(self) -> bool:
        """Read one stream. Return whether reading has ended; otherwise the source has another way
        to read the changes, or is tried again."""
        open_flushes: list[Flush] = []
        try:
            for flush in self._stream:
                open_flushes.append(flush)
                if flush.frontier is None:
                    continue
                with self._changed:
                    self._state.flushes += open_flushes
                    self._state.frontier = flush.frontier
                    self._changed.notify_all()
                open_flushes = []
                if self._acknowledge:
                    self._stream.acknowledge(flush.frontier.position)
        except StreamFallback:
            return self._stopped
        except ChangefeedError as error:
            if not self._patient or error.action is not Action.RETRY:
                raise
            with self._changed:
                self.retried.append(error)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._stopped, RETRY_SECONDS)
            return self._stopped
        return True

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true.

        Raises:
            ChangefeedError: what the stream raised.
            AssertionError: the condition was not true in time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: condition() or self._ended, self._state.deadline)
        if self._error is not None:
            raise self._error
        assert done and condition(), "the stream did not get there in time"

    def catch_up(self, position: Position | None = None) -> None:
        """Wait until everything that had committed before the call is in the log."""
        upto = position or self.source.current_position()
        self.wait(lambda: self._state.frontier and self._state.frontier.position >= upto)

    def failed(self) -> ChangefeedError:
        """Wait until the stream ends with an error."""
        self._thread.join(self._state.deadline)
        assert self._error is not None, "the stream did not end with an error"
        return self._error

    def close(self) -> None:
        """End the stream.

        Raises:
            AssertionError: it does not end.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            stream = self._stream
        stream.close()
        self._thread.join(self._state.deadline)
        assert not self._thread.is_alive(), "close() does not end the stream"


@contextmanager
def reading(
    state: State, source: Source, *, acknowledge: bool = True, patient: bool = False
) -> Iterator[CaptureDouble]:
    """A reader of the source, which ends with the block."""
    reader = CaptureDouble(state, source, acknowledge=acknowledge, patient=patient)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def capturing(harness: SourceHarness, *tables: str) -> Iterator[tuple[State, CaptureDouble]]:
    """A new state that captures these tables, and its reader. Nothing is left at the source after
    the block."""
    state, source = State.of(harness), harness.source()
    captured = state.capture(source, *tables)
    try:
        assert captured.problems == {}, captured.problems
        with reading(state, source) as reader:
            yield state, reader
    finally:
        state.attach(source).release()


def all_names(source: Source, tables: Sequence[str]) -> list[TableName]:
    """The full names of tables."""
    return [source.describe(None, table).table for table in tables]
