"""The sink of EXPLAIN ANALYZE: counts messages and their sizes, and forgets them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

import pyarrow.compute as pc

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.events import Resolved, Truncate
from changefeed.core.formats import Format
from changefeed.core.work_stages import Flow
from changefeed.options import Feature
from sinks.base import Batch, Capabilities, Durability, Epoch, Receipt, Sink, SinkContext, Target


class MeasuredSink(Sink):
    """Takes messages in this process only. ``scan`` and ``changes`` are what came."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        formats=tuple(map(str, Format)),
        exactly_once=True,
        continues_scans=True,
        features=frozenset(Feature) - {Feature.COMPARISON},
    )

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._began = clock, 0.0
        self._lock = threading.Lock()
        self.scan, self.changes = Flow(), Flow()
        self.begin()

    def begin(self) -> None:
        """The feed begins now, from which the times count."""
        self._began = self._clock.monotonic()

    def open(self, context: SinkContext) -> None:
        """Nothing to connect to."""

    def write(self, batch: Batch) -> Receipt:
        """Count messages by what a consumer gets of them."""
        sizes = pc.add(*(_lengths(batch, name) for name in ("key", "value")))
        receipt = Receipt(batch.partition, batch.rows.num_rows, pc.sum(sizes).as_py() or 0)
        flow = self.scan if batch.scan else self.changes
        with self._lock:
            flow.rows += receipt.rows
            flow.bytes += receipt.bytes
            flow.largest = max(flow.largest, pc.max(sizes).as_py() or 0)
            flow.last = self._clock.monotonic() - self._began
            flow.first = flow.first or flow.last
        return receipt

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing was kept."""

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Nobody waits for it."""

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """There is no target."""

    def close(self) -> None:
        """Nothing to release."""


def _lengths(batch: Batch, name: str) -> object:
    return pc.fill_null(pc.binary_length(batch.rows[name]).cast("int64"), 0)
