"""The steps that a target does with its tables when :class:`~sinks.merged.sink.TableSink` asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from sinks.base import Batch, Epoch, Receipt, Target
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import ScanEnd


class TableStore(ABC):
    """The target tables of one feed. It carries out steps and decides nothing.

    Each step is atomic or can be repeated without harm, and records with the rows how far the table
    is complete. The first method that is called for a table refuses a target that the feed may not
    use (CF5008) or that cannot be kept as the feed wants it.
    """

    @abstractmethod
    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        """How far the target has every change."""

    @abstractmethod
    def scanned(self, target: Target, schema: TableSchema) -> int:
        """The version of the last whole scan; 0: there was none."""

    @abstractmethod
    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        """Stage rows, which the next commit applies to the target.

        Args:
            batch: the batch of the rows.
            rows: the rows of the batch that the target does not have; may be empty.
        """

    @abstractmethod
    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        """Apply what was staged to the targets, durably. Return False if nothing was staged."""

    @abstractmethod
    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        """Begin a scan of that version. Remove what scans of versions later than ``after`` left,
        which could not be told from rows of this scan later; None: remove nothing."""

    @abstractmethod
    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        """End a scan, all of whose rows were committed."""

    @abstractmethod
    def empty(self, event: Truncate, target: Target) -> None:
        """Apply a TRUNCATE at the source to all rows of the feed."""

    @abstractmethod
    def reshape(self, event: SchemaChange, target: Target) -> None:
        """Give the target the columns of another shape. Raises CF5006 if it cannot take them."""
