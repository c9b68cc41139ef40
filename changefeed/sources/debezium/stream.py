"""Debezium's engine, followed: flushes of everything that commits after a frontier.

The engine reads every table of the database that the connection names, because its own list of
tables cannot be changed while it runs; rows of tables that nobody watches are dropped here, by the
memo as it is after they were received.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.durable import PROOF, prove, verify_proven
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Position
from changefeed.core.proofs import AlteredBytes
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.base import StreamRequest
from changefeed.sources.debezium.assemble import Assembler, Shapes
from changefeed.sources.debezium.connectors.base import PREFIX, Connector
from changefeed.sources.debezium.door import Door
from changefeed.sources.debezium.frames import TableShape, read_batch

#: A stream looks this often whether it was closed, seconds.
LOOK = 0.2
#: Debezium reports an idle source's position this often, milliseconds.
BEAT_MS = 500
#: Seconds without a word, and the engine counts as lost: it beats twice a second.
SILENCE = 120.0
_HISTORY = "schema-history"

#: Settings of every engine.
COMMON: Mapping[str, str] = {
    "name": PREFIX,
    "topic.prefix": PREFIX,
    "offset.storage": "changefeed.DoorOffsets",
    "offset.flush.interval.ms": "0",
    "tombstones.on.delete": "false",
    "include.schema.changes": "false",
    "decimal.handling.mode": "precise",
    "bigint.unsigned.handling.mode": "precise",
    "time.precision.mode": "adaptive_time_microseconds",
    "interval.handling.mode": "string",
    "binary.handling.mode": "bytes",
    "skipped.operations": "none",
    "unavailable.value.placeholder": "__changefeed_unavailable__",
    "column.propagate.source.type": ".*",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "20",
    "errors.max.retries": "0",
    "guardrail.collections.max": "0",
}


def engine_properties(connector: Connector, folder: Path) -> dict[str, str]:
    """The properties of every engine of a connector; its history of schemas is in ``folder``."""
    properties = {
        **COMMON,
        "connector.class": connector.connector_class,
        **connector.login(),
        **dict(connector.address.properties),
    }
    if connector.keeps_history:
        properties["schema.history.internal"] = "io.debezium.storage.file.history.FileSchemaHistory"
        properties["schema.history.internal.file.filename"] = str(folder / _HISTORY)
    return properties


class DoorStream:
    """See :class:`changefeed.sources.base.Stream`."""

    def __init__(
        self,
        connector: Connector,
        source: str,
        request: StreamRequest,
        memo: Mapping[str, Any],
        describe: Callable[[TableName], TableSchema | None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connector = connector
        self._request = request
        self._memo = memo
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._door: Door | None = None
        self._acknowledged = ""
        #: Frames that end outside of a transaction, and the position behind each.
        self._frames: deque[tuple[Position, int]] = deque()
        self._history = request.folder / _HISTORY
        self._history_size = -1
        shapes = Shapes(describe, request.intern, request.latest, long_times=connector.long_times)
        self._assembler = Assembler(request.start, connector, source, shapes, request.spool)

    def __iter__(self) -> Iterator[Flush]:
        return self.run()

    def acknowledge(self, position: Position) -> None:
        """Everything up to ``position`` is durable: the engine may acknowledge it."""
        self._acknowledged = max(self._acknowledged, position)

    def hasten(self) -> None:
        """The frontier of an idle source comes with Debezium's next beat, twice a second."""

    def close(self) -> None:
        """End the iteration soon. Safe from any thread, idempotent."""
        with self._lock:
            self._closed = True
            door = self._door
        if door is not None:
            door.close()

    def run(self) -> Iterator[Flush]:
        """Start the engine and follow it until :meth:`close`.

        Raises:
            ChangefeedError: see :mod:`changefeed.sources.debezium.failures`.
        """
        try:
            door = Door(self._connector.packs, heap=self._connector.address.heap)
            with self._lock:
                self._door = door
                closed = self._closed
            try:
                if not closed:
                    self._start(door)
                    yield from self._follow(door)
            finally:
                door.close()
        except ChangefeedError:
            if not self._closed:
                raise

    def _start(self, door: Door) -> None:
        begun = has_history(self._history)
        by_offset = self._connector.resumes_by_offset
        history = self._request.start.history if by_offset else ""
        properties = {
            **engine_properties(self._connector, self._request.folder),
            **self._connector.streaming(self._memo),
            "heartbeat.interval.ms": str(BEAT_MS),
            "provide.transaction.metadata": "false" if self._connector.commit_fields else "true",
            # The definitions as they are now, where there is no history of them yet.
            "snapshot.mode": "no_data"
            if begun or not self._connector.keeps_history
            else "recovery",
        }
        offset = json.loads(history) if history else None
        door.start(properties, offset, self._connector.commit_fields)

    def _follow(self, door: Door) -> Iterator[Flush]:
        assembler = self._assembler
        heard = self._clock.monotonic()
        while not self._closed:
            frame = door.frame(LOOK)
            if frame is None:
                if self._clock.monotonic() - heard > SILENCE:
                    raise ChangefeedError(Code.STREAM_BROKE, "Debezium's engine is silent")
                continue
            heard = self._clock.monotonic()
            kind, content = frame
            if kind == "S":
                assembler.shape(TableShape.parse(content))
            elif kind == "B":
                yield from self._batch(door, content)
            elif kind == "X":
                raise ChangefeedError(Code.STREAM_BROKE, "Debezium's engine ended by itself")

    def _batch(self, door: Door, content: bytes) -> Iterator[Flush]:
        assembler = self._assembler
        # After what is decoded now was received: a table that is captured from some commit on is
        # in the memo by then.
        assembler.watch(self._tables())
        batch = read_batch(content, assembler.shapes)
        self._make_history_durable()
        given = None
        for flush in assembler.take(batch):
            given = flush.frontier or given
            yield flush
        if assembler.idle:
            if any(mark.kind == "beat" for mark in batch.marks):
                assembler.caught_up(self._clock.now().wall)
            if given != assembler.frontier:
                yield Flush((), assembler.frontier)
            self._frames.append((assembler.frontier.position, batch.frame))
        self._tell(door)

    def _tell(self, door: Door) -> None:
        """Acknowledge the frames of which everything is durable."""
        durable = -1
        while self._frames and self._frames[0][0] <= self._acknowledged:
            durable = self._frames.popleft()[1]
        if durable >= 0:
            door.acknowledge(durable)

    def _make_history_durable(self) -> None:
        """Debezium's history of schemas must be on disk before rows that it is needed for."""
        with contextlib.suppress(FileNotFoundError):
            size = self._history.stat().st_size
            if size != self._history_size:
                prove(self._history)
                self._history_size = size

    def _tables(self) -> frozenset[tuple[str, str]]:
        listed = self._request.memo().get("tables", ())
        return frozenset((str(schema), str(name)) for schema, name in listed)


def has_history(path: Path) -> bool:
    """Whether there is a history of schemas to go on with.

    Raises:
        ChangefeedError: CF3001, it is not what Debezium wrote.
    """
    try:
        verify_proven(path)
    except (OSError, AlteredBytes) as error:
        raise ChangefeedError(
            Code.LOG_DAMAGED,
            "Debezium's history of schemas is damaged",
            detail=f"file {path}, or {path.name}{PROOF} beside it: {error}",
        ) from error
    return path.exists() and path.stat().st_size > 0
