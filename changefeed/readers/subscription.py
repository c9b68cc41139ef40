"""``changefeed.subscribe``: the changes of a table in plain Python, as Arrow, from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.readers.own_node import OwnNode
from changefeed.readers.own_state import ReaderSource
from changefeed.readers.reader import Reader, Start
from changefeed.readers.table_log import OnTruncate, Range

#: How often a subscription looks whether the log has grown, seconds.
POLL_SECONDS = 0.05
MAX_ROWS = 200_000
#: A table without changes says this often that the log need not be kept for it, seconds.
IDLE_SECONDS = 1.0


@dataclass(frozen=True)
class Changes:
    """A part of a table's changes: whole transactions, in commit order.

    Attributes:
        upto: every change at or below this timestamp is in this part, or was in one before.
        scan: the part begins with the initial scan.
    """

    upto: Timestamp
    scan: bool
    _ranges: tuple[Range, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, read from disk as they are asked for: the table's columns, then
        ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.

        A batch has the columns that the table had then: they change where the table's did.

        Raises:
            ChangefeedError: CF3002 the log has let the rows go; CF1303 the table was truncated, and
                ``truncate`` does not say what to do; CF4001 a value does not fit its type.
        """
        for part in self._ranges:
            yield from part.read()

    def table(self) -> pa.Table:
        """All rows in one table. Columns that came or went meanwhile are NULL elsewhere."""
        return pa.concat_tables(
            [pa.Table.from_batches([batch]) for batch in self.batches()],
            promote_options="permissive",
        )


class Subscription:
    """The changes of one table, one part after another; use it as a context manager.

    Iterating waits for changes and does not end. :meth:`commit` says that everything up to the
    last part is done with: a subscription of the same name goes on after it, in this process or the
    next, and the change log lets go of what every feed and reader has done with. What was not
    committed comes again.
    """

    def __init__(
        self,
        reader: Reader,
        max_rows: int = MAX_ROWS,
        *,
        node: OwnNode | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Subscribe with an open reader and its node, which are closed with the subscription."""
        self._node = node
        self._reader = reader
        self._max_rows = max_rows
        self._clock = clock
        self._at = reader.consumer_progress().committed
        self._committed = self._at
        self._idle_at = 0.0

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Changes]:
        while True:
            part = self.next()
            if part is not None:
                yield part

    @property
    def schema(self) -> TableSchema:
        """The newest shape of the table that the log knows."""
        return self._reader.schema()

    @property
    def position(self) -> Timestamp | None:
        """Everything at or below it was handed out; None before the first part."""
        return self._at

    def next(self, timeout: float | None = None) -> Changes | None:
        """The next part that has rows; None when there is none within ``timeout`` seconds.

        Raises:
            ChangefeedError: the reader has failed or was dropped, or the log does not go back to
                where it stands (CF3002).
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            part = self._look()
            if part is not None:
                return part
            if deadline is not None and self._clock.monotonic() >= deadline:
                return None
            self._clock.sleep(POLL_SECONDS)

    def _look(self) -> Changes | None:
        reader = self._reader
        if self._node is not None:
            self._node.check()
        reader.check()
        if reader.paused:
            return None
        begun = reader.begun() if self._at is None else self._at
        frontier = reader.log().frontier()
        if begun is None or frontier is None:
            if self._node is not None:
                self._node.check_begin(reader)
            return None
        if self._at is None:
            span = reader.work(None, begun)
            self._at = begun
            if span.ranges:
                return Changes(begun, True, span.ranges)
        upto = reader.log().reach(reader.resting(self._at), frontier, self._max_rows)
        span = reader.work(self._at, upto)
        if span.ranges:
            self._at = span.upto
            return Changes(self._at, False, span.ranges)
        self._rest(span.upto)
        return None

    def _rest(self, upto: Timestamp) -> None:
        """Release the log up to ``upto``, where it had nothing for the reader."""
        now = self._clock.monotonic()
        if self._at == self._committed and now - self._idle_at >= IDLE_SECONDS:
            self._idle_at = now
            self._reader.idle(upto)

    def commit(self) -> None:
        """Everything that was handed out is done with; durable on return."""
        if self._at is not None:
            self._reader.commit(self._at)
            self._committed = self._at

    def close(self) -> None:
        """Close state and log; what was not committed comes again next time."""
        self._reader.close()
        if self._node is not None:
            self._node.close()


def subscribe(
    state: str = "",
    table: str = "",
    *,
    reader: str,
    source: str = "",
    initial_scan: bool = True,
    after: Timestamp | None = None,
    truncate: str = "error",
    max_rows: int = MAX_ROWS,
) -> Subscription:
    """Subscribe to the changes of one table.

    ::

        with changefeed.subscribe("state", "shop.public.orders", reader="audit") as changes:
            for part in changes:
                for batch in part.batches():
                    ...
                changes.commit()

    A node has to run the state's feeds: the one of the shell, or ``changefeed start``. With
    ``source`` the subscription starts one where none runs, which ends with it::

        changefeed.subscribe(source="postgresql://..", table="public.orders", reader="audit")

    Args:
        state: directory or ``postgresql://`` URL of the state; with ``source``, by default a
            directory for this database in the user's data folder.
        table: ``connection.schema.table``, with ``source`` also ``schema.table``; not needed where
            the reader exists.
        reader: the subscription's name: a changefeed that keeps the log for it, made at first use.
        source: URL of the source.
        initial_scan: a reader that is made begins with the rows that are there.
        after: without a scan, a reader that is made begins above this; with the next change when
            not given.
        truncate: what a TRUNCATE becomes: ``error``, ``skip``, or ``row``, a row whose
            ``_change_type`` is ``truncate``.
        max_rows: about how many rows a part has at most. A transaction is never cut.

    Raises:
        ChangefeedError: the state cannot be opened, the table cannot be watched, or a changefeed of
            that name is no reader.
        ValueError: ``truncate`` is none of the three.
    """
    on_truncate, start = OnTruncate(truncate), Start(initial_scan, after)
    if not source:
        if not state:
            raise ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "neither source nor state is given",
                hint="source is the URL of a database; state is the directory or URL of a state "
                "that a node runs.",
            )
        opened, node = Reader.open(state, reader, table, start, on_truncate), None
    else:
        place = ReaderSource.of(source, state)
        full = place.table(table, place.connect())
        place.retry(reader)
        opened = Reader.open(place.state, reader, full, start, on_truncate)
        node = OwnNode(place.state, Path(opened.catalog.directory))
    try:
        if node is not None:
            node.start()
        opened.occupy()
    except BaseException:
        opened.close()
        if node is not None:
            node.close()
        raise
    return Subscription(opened, max_rows, node=node)
