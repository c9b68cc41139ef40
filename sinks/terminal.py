"""Sinkless feeds: rows handed to the client that asked for them, in the same process.

The queue between the feed and the client is bounded by rows. A client that reads slowly makes
``write`` wait, and with it the feed; a client that goes away ends the feed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow, Resolved, Truncate
from sinks.base import (
    Batch,
    Capabilities,
    ClientSink,
    Durability,
    Epoch,
    Receipt,
    SinkContext,
    Target,
)

ROWS = 10_000
"""Rows that may wait for the client."""


class TerminalSink(ClientSink):
    """A bounded queue: the feed writes on one side, the client iterates on the other."""

    capabilities: ClassVar[Capabilities] = Capabilities(formats=("json", "csv"))

    def __init__(
        self,
        uri: str = "sinkless://",
        options: Mapping[str, object] | None = None,
        *,
        capacity: int = ROWS,
    ) -> None:
        self._capacity = capacity
        self._rows: deque[ClientRow] = deque()
        self._in_hand = False
        self._changed = threading.Condition()
        self._finished = False
        self._gone = False
        self._error: BaseException | None = None

    # ------------------------------------------------------------ client side

    def rows(self) -> Iterator[ClientRow]:
        """Rows as they come, until the feed ends; waits for the next one.

        Raises:
            ChangefeedError: the error the feed ended with.
        """
        while (row := self.take(None)) is not None:
            yield row
        if self._error is not None:
            raise self._error

    def take(self, timeout: float | None) -> ClientRow | None:
        """The next row, or None when the feed has ended or ``timeout`` seconds passed.

        Coming back for the next row says that the one before is dealt with.
        """
        with self._changed:
            self._in_hand = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rows or self._finished or self._gone, timeout)
            if not self._rows:
                return None
            row = self._rows.popleft()
            self._in_hand = True
            self._changed.notify_all()
            return row

    @property
    def ended(self) -> bool:
        """The feed is over and every row was taken."""
        with self._changed:
            return (self._finished or self._gone) and not self._rows

    def leave(self) -> None:
        """The client goes away: what waits is dropped, the feed's next call fails."""
        with self._changed:
            self._gone = True
            self._rows.clear()
            self._changed.notify_all()

    # -------------------------------------------------------------- feed side

    def open(self, context: SinkContext) -> None:
        """The client is there already."""

    def write(self, batch: Batch) -> Receipt:
        table = batch.target.table.name
        rows = pa.Table.from_batches([batch.rows]) if _is_batch(batch.rows) else batch.rows
        columns = (rows.column(name).to_pylist() for name in ("key", "value", "op"))
        size = 0
        for key, value, op in zip(*columns, strict=True):
            size += len(key or b"") + len(value or b"")
            self._put(ClientRow(table, key, value, op))
        return Receipt(batch.partition, rows.num_rows, size)

    def _put(self, row: ClientRow) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._gone or len(self._rows) < self._capacity)
            self._check()
            self._rows.append(row)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._gone:
            raise ChangefeedError(Code.CLIENT_GONE, "the client of the changefeed went away")

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        """Durable is: the client has dealt with every row."""
        self._handed_over()
        return Durability.DURABLE

    def _handed_over(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._gone or not (self._rows or self._in_hand))
            self._check()

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Rows the client has not taken yet come again."""
        with self._changed:
            self._rows.clear()
            self._changed.notify_all()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self._put(ClientRow(None, None, payload, ""))
        self._handed_over()

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        self._put(ClientRow(target.table.name, None, payload, "t"))
        self._handed_over()

    def finish(self, error: BaseException | None = None) -> None:
        """The feed is over; ``error`` is why, when it did not end by itself."""
        with self._changed:
            self._finished = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        self.finish(self._error)


def _is_batch(rows: pa.Table | pa.RecordBatch) -> bool:
    return isinstance(rows, pa.RecordBatch)
