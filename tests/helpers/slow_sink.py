"""A sink for Spark's workers that takes its time, and whose writes can be seen from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from changefeed.core.events import Resolved, Truncate
from sinks.base import Batch, Capabilities, Durability, Epoch, Receipt, Sink, SinkContext, Target


class SlowSink(Sink):
    """Adds a byte to a file of its process for every write, and is slow about it.

    What tells a worker to end does not reach it while it writes.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(executor=True)

    def __init__(self, folder: str, writes: int) -> None:
        self._folder = folder
        self._writes = writes

    def open(self, context: SinkContext) -> None:
        Path(self._folder, str(os.getpid())).touch()

    def write(self, batch: Batch) -> Receipt:
        for _ in range(self._writes):
            with open(Path(self._folder, str(os.getpid())), "ab", 0) as file:
                file.write(b"x")
            time.sleep(0.01)
        return Receipt(batch.partition, batch.rows.num_rows, 1)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing to take back."""

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """A scan has none."""

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """A scan has none."""

    def close(self) -> None:
        """Nothing is open."""
