"""The sink of tables that are kept equal to the source's: decides which step is next.

A target's sink is a :class:`TableSink` and implements :class:`TableStore`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from sinks.base import (
    Batch,
    CommitPace,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.merged.applied import AppliedVersion
from sinks.merged.pace import Pace
from sinks.merged.policy import Removal, ScanEnd, TablePolicy
from sinks.merged.rows import require_key_values, table_of, unapplied


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
    def require_values(self, batch: Batch, rows: pa.Table) -> None:
        """Check that the target can hold each value of these rows, some of those of the batch.

        Raises:
            ChangefeedError: CF5006, it cannot hold one.
        """

    @abstractmethod
    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        """Apply what was staged to the targets, durably. Return False if nothing was staged."""

    @abstractmethod
    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        """Begin a scan of that version. Remove what scans of versions later than ``after`` left,
        which could not be distinguished from rows of this scan later; None: remove nothing."""

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


class TableSink(Sink, TableStore):
    """Decides which step is next; the store does it. Only one thread at a time uses an object."""

    #: Measures how long rounds take.
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, policy: TablePolicy, pace: Pace) -> None:
        self._policy = policy
        self._context: SinkContext | None = None
        self.pace = pace
        #: The scan of each topic that has begun since ``open``: after ``open``, a scan that broke
        #: off begins again.
        self._begun: dict[str, _Scan] = {}

    def pacing(self) -> CommitPace:
        """The pace that follows from the duration of the last rounds."""
        return CommitPace(self.pace.seconds, self.capabilities.pacing.rows)

    def write(self, batch: Batch) -> Receipt:
        """Stage the changes that the target does not have, or the rows of a scan; no rows if the
        target has the whole scan already."""
        self._policy.require_key(batch.schema)
        rows = self._unapplied(batch)
        if (
            batch.scan
            and rows.num_rows
            and not self._begin(batch.target, batch.schema, batch.epoch.upto)
        ):
            rows = rows.slice(0, 0)
        self._require_keys(batch, rows)
        return self.stage(batch, rows)

    def examine(self, batch: Batch) -> None:
        """See :meth:`sinks.base.Sink.examine`: values, and keys without one."""
        rows = self._unapplied(batch)
        self._require_keys(batch, rows)
        self.require_values(batch, rows)

    def _unapplied(self, batch: Batch) -> pa.Table:
        rows = table_of(batch.rows)
        if batch.scan:
            return rows
        return unapplied(rows, self.applied(batch.target, batch.schema))

    def _require_keys(self, batch: Batch, rows: pa.Table) -> None:
        if self._policy.removal is not Removal.RECORD:
            require_key_values(rows, batch.schema, batch.target.topic)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        """Apply what was staged. The duration of that determines when the next round begins."""
        began = self.clock.monotonic()
        if self.apply(epoch, receipts):
            self.pace.after(self.clock.monotonic() - began)
        return Durability.DURABLE

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Remove all rows of the feed, mark them, or end their versions; a replay does nothing."""
        self._policy.require_key(event.schema)
        place = AppliedVersion(event.at.version, event.seq)
        if not self.applied(target, event.schema).covers(place):
            self.empty(event, target)

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """See :meth:`sinks.base.Sink.evolve`; a replay does nothing."""
        self._policy.require_key(event.new)
        place = AppliedVersion(event.at.version, event.seq)
        if not self.applied(target, event.old).covers(place):
            self.reshape(event, target)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """See :meth:`sinks.base.Sink.end_scan`."""
        self._policy.require_key(schema)
        if self.scanned(target, schema) >= at.version:
            return
        self._begin(target, schema, at)  # the scan may have had no row
        self.finish_scan(target, schema, at, self._policy.scan_end(schema))

    @property
    def _opened(self) -> SinkContext:
        if self._context is None:
            raise RuntimeError("the sink is not open")
        return self._context

    def _begin(self, target: Target, schema: TableSchema, at: Timestamp) -> bool:
        """Begin a scan, once since ``open``. Return whether its rows are wanted; not if they are
        all in the target already and would be added twice.

        The run may die after the end of a scan, before it has saved that. The scan then begins
        again, usually at a later instant (see ``SinkContext.unfinished``), else at the same one.
        """
        self._policy.require_key(schema)
        scan = self._begun.get(target.topic)
        if scan is None or scan.version != at.version:
            whole = self.scanned(target, schema)
            kept = self._policy.removal is Removal.RECORD
            unfinished = self._opened.unfinished.get(target.table)
            if unfinished is not None and unfinished.version <= whole:
                whole = unfinished.version - 1
            self.begin_scan(target, schema, at.version, after=whole if kept else None)
            # ``scanned`` is called again: ``begin_scan`` creates a lost target, without rows.
            again = kept and min(whole, self.scanned(target, schema)) >= at.version
            scan = self._begun[target.topic] = _Scan(at.version, wanted=not again)
        return scan.wanted


@dataclass(frozen=True, slots=True)
class _Scan:
    """A scan that has begun; ``wanted``: its rows are not in the target yet."""

    version: int
    wanted: bool
