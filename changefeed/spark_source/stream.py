"""A streaming query over the changes of a table.

An offset is a resolved timestamp: ``{"at": "1536242855577149065.0000000000"}``; ``{"at": ""}`` is
the begin, before the initial scan. What Spark commits is committed as the reader's progress, so the
change log keeps what a query needs that is restarted from its checkpoint.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from changefeed.core.clock import Clock, SystemClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.readers.own_node import OwnNode, until_logged
from changefeed.readers.range_copies import RangeCopies
from changefeed.readers.reader import Reader
from changefeed.readers.table_log import Range
from changefeed.spark_source.batch import ChangePartition, check_shapes, open_reader, read_partition
from changefeed.spark_source.settings import SparkSourceSettings

#: How often a query without changes moves the reader's progress, to free the log, seconds.
IDLE_SECONDS = 1.0
#: How often the state is asked whether the reader may still read, seconds.
CHECK_SECONDS = 0.5

#: How long one call waits for the initial scan, and how often it looks, seconds.
BEGIN_SECONDS = 3600.0
POLL_SECONDS = 0.1

BEGIN = {"at": ""}


class RefusedStreamReader(DataSourceStreamReader):
    """A query with wrong options: the error is raised when Spark asks where it begins.

    If the source raised it instead of returning a reader, PySpark would end with another error.
    """

    def __init__(self, error: ChangefeedError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, str]:
        raise self._error

    def latestOffset(self) -> dict[str, str]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class ChangeStreamReader(DataSourceStreamReader):
    """Plans batches in a Python process of the driver, and reads ranges in executors."""

    def __init__(
        self, settings: SparkSourceSettings, shape: TableSchema, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._settings: SparkSourceSettings | None = settings
        self._shape = shape
        self._opened: Reader | None = None
        self._node: OwnNode | None = None
        #: Spark's process, which this one must not outlive.
        self._parent = os.getppid()
        self._planned: Timestamp | None = None
        #: The end of the batch that was planned last; None once it is committed.
        self._ran: Timestamp | None = None
        self._idle_at = self._checked_at = 0.0
        self._paused = False
        #: The log has what was committed at the source when the query began.
        self._caught_up = False
        self._copies: RangeCopies | None = None
        #: By the begin and end of a batch.
        self._staged: dict[
            tuple[Timestamp | None, Timestamp], tuple[tuple[Range, ...], tuple[str, ...]]
        ] = {}

    def __getstate__(self) -> dict[str, object]:
        # Executors get no more than they need: the settings may hold a password.
        return {
            "_settings": None,
            "_shape": self._shape,
            "_opened": None,
            "_node": None,
            "_copies": None,
        }

    # -- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, str]:
        """The begin, of a query without a checkpoint.

        Raises:
            ChangefeedError: CF1301, the reader has been read from: its begin is no longer there.
        """
        progress = self._reader.consumer_progress()
        if progress.committed is not None:
            raise ChangefeedError(
                Code.WRONG_JOB_STATE,
                f'reader "{self._reader.name}" was read up to {progress.committed}, and this query '
                "has no checkpoint that says so",
                hint="start it with the checkpoint it had, or give it another reader.",
            )
        return dict(BEGIN)

    def latestOffset(self) -> dict[str, str]:
        """How far the next batch goes; the previous answer while there is nothing new."""
        reader = self._reader
        if self._ran is not None:
            # Spark asks for the next batch once the previous one is in its commit log, but commits
            # it only with the next batch, which may come much later.
            self._done(reader, self._ran)
            self._ran = None
        planned = self._planned = self._planned or reader.consumer_progress().planned
        if not self._allowed(reader):
            return _offset(planned)
        begun = self._begun(reader) if planned is None else planned
        if begun is not None:
            self._catch_up(reader)
        frontier = reader.log().frontier()
        if begun is None or frontier is None:
            return dict(BEGIN)
        upto = self._beyond(reader, begun, frontier)
        if planned is None or upto > planned:
            # Saved before Spark gets it: a restarted query must not get a lower offset.
            reader.plan(upto)
            self._planned = upto
        return _offset(self._planned)

    def _catch_up(self, reader: Reader) -> None:
        """Once, wait until a node that began with the query has read what was committed before: a
        query that ends when it has read everything would end without it."""
        if self._node is not None and not self._caught_up:
            self._caught_up = until_logged(
                reader.catalog,
                reader.job().source,
                self._node,
                self._clock,
                wanted=lambda: not self._ended and self._allowed(reader),
            )

    @property
    def _ended(self) -> bool:
        return self._stopped.is_set() or os.getppid() != self._parent

    def _begun(self, reader: Reader) -> Timestamp | None:
        """Where the reader begins. Waits for the initial scan, because a query that ends when it
        has read everything would end before it has begun. A query that is stopped ends this
        process."""
        deadline = self._clock.monotonic() + BEGIN_SECONDS
        while (begun := reader.begun()) is None or reader.log().frontier() is None:
            if self._node is not None:
                self._node.check_begin(reader)
            late = self._clock.monotonic() >= deadline
            if self._ended or late or not self._allowed(reader):
                break
            self._clock.wait(self._stopped, POLL_SECONDS)
        return begun

    def _beyond(self, reader: Reader, planned: Timestamp, frontier: Timestamp) -> Timestamp:
        """The end of a batch after ``planned``; ``planned`` itself while there are no changes."""
        log, after = reader.log(), reader.resting(planned)
        rows = self._settings.max_rows if self._settings else None
        upto = frontier if rows is None else log.reach(after, frontier, rows)
        if log.span(after, upto).ranges:
            return upto
        now = self._clock.monotonic()
        if now - self._idle_at >= IDLE_SECONDS and planned == reader.consumer_progress().committed:
            self._idle_at = now
            reader.idle(upto)
        return planned

    def _allowed(self, reader: Reader) -> bool:
        """Whether the reader is not paused.

        Raises:
            ChangefeedError: it has failed or was dropped.
        """
        now = self._clock.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            if self._node is not None:
                self._node.check()
            reader.check()
            self._paused = reader.paused
        return not self._paused

    def commit(self, end: dict[str, str]) -> None:
        """Spark has processed everything up to ``end``."""
        at = _place(end)
        if at is not None:
            self._done(self._reader, at)

    def _done(self, reader: Reader, at: Timestamp) -> None:
        reader.commit(at)
        if self._copies is not None:
            for batch in [batch for batch in self._staged if batch[1] <= at]:
                self._copies.remove(self._staged.pop(batch)[1])

    # -- work -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """The ranges of a batch; reads only the log's index."""
        after, upto = _place(start), _place(end)
        if upto is None:
            return []
        self._ran = upto
        if after == upto:
            return []
        span = self._reader.work(after, upto, self._shape)
        if self._settings is not None:
            check_shapes(span, self._shape, self._settings.on_schema_change)
        return [ChangePartition(part) for part in self._reachable(after, upto, span.ranges)]

    def _reachable(
        self, after: Timestamp | None, upto: Timestamp, ranges: tuple[Range, ...]
    ) -> tuple[Range, ...]:
        """The ranges in a form that executors can read; Spark may ask for a batch twice."""
        if self._settings is None or not self._settings.staging:
            return ranges
        if self._copies is None:
            self._copies = RangeCopies(self._settings.staging)
        batch = after, upto
        if batch not in self._staged:
            self._staged[batch] = self._copies.stage(ranges)
        return self._staged[batch][0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a range; runs in an executor."""
        return read_partition(partition)

    def stop(self) -> None:
        """The query has ended: close everything."""
        self._stopped.set()
        if self._copies is not None:
            self._copies.close()
            self._copies = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        if self._node is not None:
            self._node.close()
            self._node = None

    @property
    def _reader(self) -> Reader:
        if self._opened is None:
            if self._settings is None:
                raise AssertionError("planned in the driver")
            reader = open_reader(self._settings)
            try:
                if self._settings.source is not None and self._node is None:
                    self._node = OwnNode(self._settings.state, Path(reader.catalog.directory))
                    self._node.start()
                reader.occupy()
            except BaseException:
                reader.close()
                raise
            self._opened = reader
        return self._opened


def _offset(at: Timestamp | None) -> dict[str, str]:
    return dict(BEGIN) if at is None else {"at": str(at)}


def _place(offset: dict[str, str]) -> Timestamp | None:
    return Timestamp.parse(offset["at"]) if offset["at"] else None
