"""What a target does with its tables, when :class:`~sinks.merged.sink.TableSink` says so."""

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
    """The tables of one feed at one place. It does what it is told and decides nothing.

    Each step is atomic, or harmless when it comes again, and records with the rows what it makes
    the table complete to. The first method that is called for a table refuses one that the feed
    may not have (CF5008) or that cannot be kept as the feed wants it.
    """

    @abstractmethod
    def applied(self, target: Target, schema: TableSchema) -> AppliedVersion:
        """Up to where the target has every change."""

    @abstractmethod
    def scanned(self, target: Target, schema: TableSchema) -> int | None:
        """The version of the last whole scan; 0: there was none, None: nobody recorded it."""

    @abstractmethod
    def stage(self, batch: Batch, rows: pa.Table) -> Receipt:
        """Rows of the batch become part of the target with the next commit.

        Args:
            batch: what they are of.
            rows: those of its rows that the target does not have; there may be none.
        """

    @abstractmethod
    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        """What was staged becomes part of the targets, durably. False: there was nothing."""

    @abstractmethod
    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        """A scan of that version begins. ``after``: what scans of later versions than that have
        left goes, for nothing else will tell it from rows of this one; None: it can be told."""

    @abstractmethod
    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        """Everything of a scan was committed."""

    @abstractmethod
    def empty(self, event: Truncate, target: Target) -> None:
        """All rows of the feed were removed at the source."""

    @abstractmethod
    def reshape(self, event: SchemaChange, target: Target) -> None:
        """The target gets the columns of another shape. Raises CF5006, it cannot."""
