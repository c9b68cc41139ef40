"""Rows of a round, written to Spanner commit by commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.history import ORDER
from sinks.merged.rows import last_of
from sinks.warehouse.pending import PendingRows
from sinks.warehouse.spanner import keeping
from sinks.warehouse.spanner.keeping import TransactionRows
from sinks.warehouse.spanner.rows import RowStretch, RowWire, TooLarge, cut
from sinks.warehouse.spanner.tables import SpannerTables
from sinks.warehouse.staging import SEQUENCE

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import SpannerTransaction


class CommitWriter:
    """Writes rows in as many commits as Spanner's limits ask for.

    Attributes:
        most_cells: mutations of a commit; where Spanner takes fewer, it gets fewer from then on.
    """

    #: Of a commit's 80,000 mutations and 100 MB: what is left is for the target's indexes.
    #: Where that is not enough it gets less, down to the fewest.
    most_bytes: ClassVar[int] = 32 << 20

    def __init__(self, tables: SpannerTables) -> None:
        self._tables = tables
        self.most_cells, self.fewest_cells = 40_000, 100

    def write(self, pending: Sequence[PendingRows]) -> None:
        """What was gathered becomes part of the targets."""
        self._apply_cut([(p, p.gathered()) for p in pending])
        for each in pending:
            each.clear()

    def _apply_cut(self, gathered: Sequence[tuple[PendingRows, pa.Table]]) -> None:
        """Rows, commit by commit; one that has too many mutations is cut again."""
        limit = self.most_cells
        for parts in self._commits(gathered):
            fewer: list[tuple[PendingRows, pa.Table]] = []
            try:
                self._apply_all(parts)
            except TooLarge as error:
                self.be_smaller(limit, error)
                fewer = [(pending, part.rows) for pending, part in parts]
            if fewer:
                self._apply_cut(fewer)

    def be_smaller(self, limit: int, error: ChangefeedError) -> None:
        """Half of a limit that was too much.

        Raises:
            ChangefeedError: that one, the limit cannot be smaller.
        """
        if limit <= self.fewest_cells:
            raise error
        self.most_cells = min(self.most_cells, max(limit // 2, self.fewest_cells))

    def _commits(
        self, gathered: Sequence[tuple[PendingRows, pa.Table]]
    ) -> Iterator[list[tuple[PendingRows, TransactionRows]]]:
        pending, staged = [p for p, _ in gathered], [rows for _, rows in gathered]
        most = [keeping.most_cells(p.table, p.shape.schema) for p in pending]
        wires = [RowWire.of(p.shape, self._tables.server.dialect) for p in pending]

        def rows(stretch: RowStretch) -> tuple[PendingRows, TransactionRows]:
            i, places = stretch.part, stretch.rows
            if places[-1] - places[0] + 1 == len(places):
                taken = staged[i].slice(places[0], len(places))
            else:
                taken = staged[i].take(pa.array(places))
            return pending[i], TransactionRows(pending[i].table, wires[i], taken, pending[i].scan)

        parts = list(zip(staged, most, strict=True))
        for stretches in cut(parts, self.most_cells, self.most_bytes):
            yield [rows(stretch) for stretch in stretches]

    def _apply_all(self, parts: Sequence[tuple[PendingRows, TransactionRows]]) -> None:
        """One commit. Refused, it is one for each table, so that the error names the one that
        stops: it no longer keeps up with the others."""
        topics = {pending.table.topic: None for pending, _ in parts}
        try:
            self._apply_one(parts)
            return
        except TooLarge:
            raise
        except ChangefeedError as error:
            if error.code is not Code.SINK_REFUSED_DATA or len(topics) == 1:
                raise
        for topic in topics:
            self._apply_one([part for part in parts if part[0].table.topic == topic])

    def _apply_one(self, parts: Sequence[tuple[PendingRows, TransactionRows]]) -> None:
        tops: dict[str, AppliedVersion] = {}
        for pending, part in parts:
            if not pending.scan:
                before = tops.get(pending.table.topic, NOTHING_APPLIED)
                last = last_of(part.rows[SEQUENCE], part.rows[ORDER])
                tops[pending.table.topic] = before.latest(last)

        def work(transaction: SpannerTransaction) -> None:
            found: dict[str, AppliedVersion] = {}
            for pending, part in parts:
                topic = pending.table.topic
                if topic not in found:
                    found[topic] = self._tables.progress(transaction, pending.table)
                keeping.apply(transaction, part.unapplied(found[topic]))
            for topic, top in tops.items():
                if not found[topic].covers(top):
                    table = next(p.table for p, _ in parts if p.table.topic == topic)
                    keeping.advance(transaction, table.applied.id, self._tables.context.node, top)

        topics = {pending.table.topic: None for pending, _ in parts}
        self._tables.transact(work, *topics)
        for topic, top in tops.items():
            known = self._tables.known(topic)
            if known is not None:
                known.applied = known.applied.latest(top)
