"""``null://``: counts and forgets, for measuring everything before a sink."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from changefeed.core.events import Resolved, Truncate
from changefeed.core.formats import Format
from changefeed.core.settings import Settings
from changefeed.options import Feature
from sinks.base import Batch, Capabilities, Durability, Epoch, Receipt, Sink, SinkContext, Target


class NullSink(Sink):
    """Takes everything. ``rows``, ``bytes`` and ``marks`` count what came in this process."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        formats=tuple(map(str, Format)),
        executor=True,
        lanes=True,
        exactly_once=True,
        continues_scans=True,
        rewinds=True,
        features=frozenset(Feature) - {Feature.COMPARISON},
    )

    def __init__(self, uri: str = "null://", options: Mapping[str, object] | None = None) -> None:
        Settings.read(uri)
        self.rows = self.bytes = self.marks = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, int]:
        return {}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.rows = self.bytes = self.marks = 0
        self._lock = threading.Lock()

    def open(self, context: SinkContext) -> None:
        """Nothing to connect to."""

    def write(self, batch: Batch) -> Receipt:
        receipt = Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)
        with self._lock:
            self.rows += receipt.rows
            self.bytes += receipt.bytes
        return receipt

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing was kept."""

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self.marks += 1

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        self.marks += 1

    def close(self) -> None:
        """Nothing to release."""
