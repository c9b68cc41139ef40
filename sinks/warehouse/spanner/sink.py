"""``spanner://project/instance/database``: tables of a Spanner database, kept by mutations.

How rows are kept is :mod:`.keeping`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.parameters import Kind, Parameter
from changefeed.core.schema import Column, TableSchema
from changefeed.core.uri import SinkURL
from changefeed.options import Feature, History
from sinks.base import Capabilities, CommitPace, Epoch, Receipt, Target
from sinks.merged.applied import NOTHING_APPLIED, AppliedVersion
from sinks.merged.history import ORDER
from sinks.merged.policy import ScanEnd
from sinks.merged.rows import last_of
from sinks.ownership import Claim
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse import evolution
from sinks.warehouse.bigquery.sink import CREDENTIALS, service_account_key
from sinks.warehouse.dialect import Statement
from sinks.warehouse.owning import TargetContent
from sinks.warehouse.sink import (
    PACE,
    WarehouseSink,
    _new_batch,
    _PendingRows,
    _TableKnowledge,
)
from sinks.warehouse.spanner import keeping
from sinks.warehouse.spanner.keeping import FACTS, SpannerStrategy, TransactionRows
from sinks.warehouse.spanner.rows import Stretch, TooLarge, Wire, cut
from sinks.warehouse.staging import SEQUENCE, TargetShape
from sinks.warehouse.tables import Table

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import Transaction


class SpannerSink(WarehouseSink):
    """``spanner://project/instance/database?credentials=&endpoint=``."""

    #: Changes of a round are in memory until it is committed: nothing is staged.
    capabilities: ClassVar[Capabilities] = replace(
        WarehouseSink.capabilities,
        pacing=CommitPace(PACE, 50_000),
        compares=False,
        features=WarehouseSink.capabilities.features - {Feature.HISTORY},
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        CREDENTIALS,
        Parameter("endpoint", "An emulator on this machine, host:port.", Kind.URL),
    )
    #: Of a commit's 80,000 mutations and 100 MB: what is left is for the target's indexes.
    #: Where that is not enough it gets less, down to the fewest.
    most_cells: int = 40_000
    most_bytes: ClassVar[int] = 32 << 20
    fewest_cells: ClassVar[int] = 100

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Read the URI.

        Raises:
            ChangefeedError: it is malformed, or the options ask for what Spanner is not kept with.
        """
        url = SinkURL(uri, self.parameters)
        path = url.path.strip("/").split("/")
        if not url.host or len(path) != 2 or not all(path):
            raise ChangefeedError(
                "CF1201",
                "a Spanner sink is a project, an instance and a database",
                hint="write it as spanner://project/instance/database",
            )
        endpoint = url.take_str("endpoint", "") or ""
        credentials = service_account_key(url.take_str("credentials"))
        url.finish("spanner")
        if endpoint and (credentials or not _is_local(endpoint)):
            raise ChangefeedError(
                "CF1207",
                "param endpoint is for an emulator on this machine: host:port, without credentials",
                hint="write endpoint=127.0.0.1:9010, or leave it out for Google's service.",
            )
        # Google's libraries take a second to import: not before somebody wants this sink.
        from sinks.warehouse.spanner.client import Spanner

        self._server = Spanner(url.host, *path, endpoint=endpoint, credentials=credentials)
        super().__init__(self._server, options, SpannerStrategy())
        if self._policy.history is not History.OFF:
            raise ChangefeedError(
                "CF1206",
                "a Spanner sink keeps no history",
                hint="leave out the option history, or take deletes = 'soft'.",
            )

    def topic(self, name: str) -> str:
        """As elsewhere, but a table's name cannot begin with an underscore or a digit."""
        found = name.replace(".", "_")
        return super().topic(f"table{found}" if found[:1] in "_0123456789" else found)

    # ------------------------------------------------------------------ rounds

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        if not self._pending:
            return False
        self._connect()
        for scan in (True, False):
            self._apply_gathered([p for p in self._pending if p.scan is scan and p.buffer])
        self._pending.clear()
        return True

    def _apply_gathered(self, pending: Sequence[_PendingRows]) -> None:
        self._apply_cut([(p, pa.concat_tables(p.buffer).combine_chunks()) for p in pending])
        for each in pending:
            each.buffer, each.buffered = [], 0

    def _apply_cut(self, gathered: Sequence[tuple[_PendingRows, pa.Table]]) -> None:
        """Rows, commit by commit; one that has too many mutations is cut again."""
        limit = self.most_cells
        for parts in self._commits(gathered):
            fewer: list[tuple[_PendingRows, pa.Table]] = []
            try:
                self._apply_all(parts)
            except TooLarge as error:
                self._be_smaller(limit, error)
                fewer = [(pending, part.rows) for pending, part in parts]
            if fewer:
                self._apply_cut(fewer)

    def _be_smaller(self, limit: int, error: ChangefeedError) -> None:
        """Half of a limit that was too much.

        Raises:
            ChangefeedError: that one, the limit cannot be smaller.
        """
        if limit <= self.fewest_cells:
            raise error
        self.most_cells = min(self.most_cells, max(limit // 2, self.fewest_cells))

    def _commits(
        self, gathered: Sequence[tuple[_PendingRows, pa.Table]]
    ) -> Iterator[list[tuple[_PendingRows, TransactionRows]]]:
        """Rows of a round, commit by commit."""
        pending, staged = [p for p, _ in gathered], [rows for _, rows in gathered]
        most = [keeping.most_cells(p.table, p.shape.schema) for p in pending]
        wires = [Wire.of(p.shape, self._server.dialect) for p in pending]

        def rows(stretch: Stretch) -> tuple[_PendingRows, TransactionRows]:
            i, places = stretch.part, stretch.rows
            if places[-1] - places[0] + 1 == len(places):
                taken = staged[i].slice(places[0], len(places))
            else:
                taken = staged[i].take(pa.array(places))
            return pending[i], TransactionRows(pending[i].table, wires[i], taken, pending[i].scan)

        parts = list(zip(staged, most, strict=True))
        for stretches in cut(parts, self.most_cells, self.most_bytes):
            yield [rows(stretch) for stretch in stretches]

    def _apply_all(self, parts: Sequence[tuple[_PendingRows, TransactionRows]]) -> None:
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

    def _apply_one(self, parts: Sequence[tuple[_PendingRows, TransactionRows]]) -> None:
        """One commit: rows of all its tables, and how far they are."""
        tops: dict[str, AppliedVersion] = {}
        for pending, part in parts:
            if not pending.scan:
                before = tops.get(pending.table.topic, NOTHING_APPLIED)
                last = last_of(part.rows[SEQUENCE], part.rows[ORDER])
                tops[pending.table.topic] = before.latest(last)

        def work(transaction: Transaction) -> None:
            found: dict[str, AppliedVersion] = {}
            for pending, part in parts:
                topic = pending.table.topic
                if topic not in found:
                    found[topic] = self._progress(transaction, pending.table)
                keeping.apply(transaction, part.unapplied(found[topic]))
            for topic, top in tops.items():
                if not found[topic].covers(top):
                    table = next(p.table for p, _ in parts if p.table.topic == topic)
                    keeping.advance(transaction, table.applied.id, self._node, top)

        topics = {pending.table.topic: None for pending, _ in parts}
        with self._errors():
            self._server.transact(work, *topics)
        for topic, top in tops.items():
            known = self._known.get(topic)
            if known is not None:
                known.applied = known.applied.latest(top)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing of the round is in Spanner but whole commits, which are not repeated."""
        self._pending = []
        self._forget()

    def _load(self, pending: _PendingRows) -> None:
        """Many rows of a scan become part of the target at once: they are seen piece by piece
        anyway, and are not to fill the memory. Changes wait for those of the other tables."""
        if pending.scan and pending.buffer:
            self._apply_gathered([pending])

    # ------------------------------------------------------------------ marks

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        self._connect()
        ids = [self._names(target).applied.id for target in self._opened.targets]

        def work(transaction: Transaction) -> None:
            there = list(transaction.read(FACTS, ("id",), [(each,) for each in ids]))
            transaction.update(FACTS, ("id", "resolved"), [(row[0], str(mark.at)) for row in there])

        if ids:
            with self._errors():
                self._server.transact(work)

    def _truncate(self, known: _TableKnowledge, shape: TargetShape, event: Truncate) -> None:
        table, place = known.table, AppliedVersion(event.at.version, event.seq)
        if self._policy.soft:
            if self._is_done(known, place):
                return
            self._end_all(table, shape, event.at.version, "<=")

        def work(transaction: Transaction) -> None:
            if self._progress(transaction, table).covers(place):
                return
            if not self._policy.soft:
                transaction.delete_all(table.topic)
                if table.has_side(event.schema):
                    transaction.delete_all(keeping.side_of(table.topic))
            keeping.advance(transaction, table.applied.id, self._node, place)

        with self._errors():
            self._server.transact(work, table.topic)

    def _end_all(self, table: Table, shape: TargetShape, version: int, older: str) -> None:
        """Rows older than a version go, or are marked; cut short, it may come again."""
        if not table.has_side(shape.schema):
            with self._errors():
                self._server.change_all(keeping.end_all(table, version, older), table.topic)
            return
        wire = Wire.of(shape, self._server.dialect)
        below = version + 1 if older == "<=" else version

        def work(transaction: Transaction) -> int:
            # Keys of 8 kB each in an answer of 10 MB at most.
            most = max(1, min(1_000, self.most_cells // (len(shape.key) + 1) // 2))
            sql = keeping.not_scanned(table, shape.key, below, most)
            keys = [wire.canonical(row) for row in transaction.query(sql, long=True)]
            keeping.end_rows(transaction, table, shape.key, keys, version)
            return len(keys)

        ended = 1
        while ended:
            limit = self.most_cells
            try:
                with self._errors():
                    ended = self._server.transact(work, table.topic)
            except TooLarge as error:
                self._be_smaller(limit, error)

    def _is_done(self, known: _TableKnowledge, place: AppliedVersion) -> bool:
        """Another run has followed an event since this one looked: what no transaction guards
        must not be done again."""
        table = known.table
        with self._errors():
            now = self._server.transact(lambda tx: self._progress(tx, table), table.topic)
        if now.covers(place):
            self._known.pop(table.topic, None)
            return True
        return False

    # ------------------------------------------------------------------ optional protocols

    def _evolve(self, known: _TableKnowledge, event: SchemaChange) -> None:
        """A renamed column is a new one that gets the values of the old one: Spanner renames
        none."""
        table, server = known.table, self._server
        place = AppliedVersion(event.at.version, event.seq)
        # A change that another run has made must not be made again: what it added would be taken
        # for a column that the source has dropped.
        if self._is_done(known, place):
            return
        present = server.columns(table.topic)
        if present:
            keeping.refuse_exchange(table, event)
            present = keeping.to_follow(table, event, present)
            changes = [
                change
                for change in evolution.changes(table, event, present)
                if change.column.casefold() != change.old.casefold()  # one name in Spanner
            ]
            for change in changes:
                keeping.refuse_change(table, event.old, change)
            if event.old.keyless:
                self._keeps_digests(table, event)
            self._change(table, changes, present)

        def work(transaction: Transaction) -> None:
            if not self._progress(transaction, table).covers(place):
                keeping.advance(transaction, table.applied.id, self._node, place)

        with self._errors():
            server.transact(work, table.topic)

    def _change(
        self, table: Table, changes: Sequence[evolution.Change], types: dict[str, str]
    ) -> None:
        d = self._server.dialect
        waiting: list[str] = []
        for change in changes:
            if change.kind not in ("rename", "aside"):
                waiting.append(change.sql)
                continue
            types[change.column] = types.pop(change.old)
            waiting.append(d.add_column(table.name, change.column, types[change.column]))
            self._define(waiting, table.topic)
            with self._errors():
                self._server.change_all(
                    keeping.copy_column(table, change.old, change.column), table.topic
                )
            waiting = [d.drop_column(table.name, change.old)]
        self._define(waiting, table.topic)

    def _keeps_digests(self, table: Table, event: SchemaChange) -> None:
        """A row without a key is found by its values: those that it has may not change."""
        new = {c.ref: c for c in event.new.columns}
        for column in event.old.columns:
            found = new.get(column.ref)
            if found is None or _written(found) != _written(column):
                why = f"a table without a key cannot lose or change column {column.name} in Spanner"
                raise evolution.refused(table, event.new, why)

    def finish_scan(
        self, target: Target, schema: TableSchema, at: Timestamp, ends: ScanEnd
    ) -> None:
        table, shape = self._table(target, schema).table, TargetShape(schema, target.topic)
        if ends is not ScanEnd.NOTHING:
            self._end_all(table, shape, at.version, "<")
        whole = AppliedVersion(at.version, bookkeeping.LAST)

        def work(transaction: Transaction) -> None:
            row = table.applied.id
            if not self._progress(transaction, table).covers(whole):
                keeping.advance(transaction, row, self._node, whole)
            transaction.update(FACTS, ("id", "scanned"), [(row, str(at.version))])

        with self._errors():
            self._server.transact(work, table.topic)
        self._known.pop(target.topic, None)

    def dropped(self, target: Target) -> None:
        if not self._policy.drop:
            self._known.pop(target.topic, None)
            return
        self._connect()
        table = self._names(target)
        if not self._query(table.applied.read()):
            return  # nothing there carries the feed's mark
        self._define(self._strategy.drop(table), target.topic)
        with self._errors():
            self._server.transact(
                lambda transaction: transaction.delete(FACTS, [(table.applied.id,)]), target.topic
            )
        self._known.pop(target.topic, None)

    # ------------------------------------------------------------------ tables

    def _connect(self) -> None:
        try:
            self._server.connect()
            if not self._prepared:
                if not self._look_at_bookkeeping():
                    self._server.check_dialect()
                    self._define(self._strategy.bookkeeping(self._server), "")
                self._targets.booked = self._prepared = True
        except ChangefeedError:
            self._forget()
            raise

    def _progress(self, transaction: Transaction, table: Table) -> AppliedVersion:
        found = keeping.read_progress(transaction, table.applied.id)
        if found is None:
            raise ChangefeedError(
                "CF5001",
                f"{self._server.place} lost what it knew of table {table.topic}",
            )
        return found

    def _take(
        self, table: Table, target: Target, schema: TableSchema, holding: TargetContent
    ) -> None:
        row, feed = table.applied.id, self._opened.feed
        if holding.claim is Claim.REPLACE:
            with self._errors():
                self._server.change_all(f"DELETE FROM {table.name} WHERE TRUE", target.topic)

        def work(transaction: Transaction) -> None:
            stale = [(each,) for each in holding.stale if each != row]
            if stale:
                transaction.delete(FACTS, stale)
            columns = ("id", "feed", "table_name", "version", "seq", "scanned")
            transaction.upsert(FACTS, columns, [(row, feed, target.topic, "0", "0", "0")])

        with self._errors():
            self._server.transact(work, target.topic)

    def _make(self, known: _TableKnowledge, shape: TargetShape) -> None:
        table = known.table
        self._define(self._strategy.create(table, shape.schema), shape.topic)
        with self._errors():
            self._server.transact(
                lambda transaction: keeping.reset(transaction, table.applied.id), shape.topic
            )

    def _look(self, table: Table, shape: TargetShape) -> None:
        """A table of that name has the key that rows are found by."""
        found, wanted = self._server.key(shape.topic), keeping.key_of(shape.schema)
        if not found:
            return
        if [name.casefold() for name in found] != [name.casefold() for name in wanted]:
            raise ChangefeedError(
                "CF5006",
                f"{shape.schema.table}: the target table {shape.topic} has another primary key "
                "than this feed needs",
                detail=f"{self._server.place}: wanted ({', '.join(wanted)})",
                hint="drop or rename the target table, or give the feed another database.",
            )
        if table.has_side(shape.schema) and not self._server.columns(keeping.side_of(shape.topic)):
            self._define([keeping.create_side(table, shape.schema)], shape.topic)

    def _complete(
        self, known: _TableKnowledge, shape: TargetShape, present: Mapping[str, str]
    ) -> None:
        names = self._strategy.columns(known.table, shape.schema)
        super()._complete(known, shape, keeping.spelled(names, present))

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        known, shape = self._table(target, schema), TargetShape(schema, target.topic)
        self._prepare(known, shape, scan=True)
        if shape.keyless:
            with self._errors():
                self._server.change_all(keeping.not_of_this_scan(known.table, version), shape.topic)

    def _gather(self, known: _TableKnowledge, shape: TargetShape, scan: bool) -> _PendingRows:
        for pending in self._pending:
            same = pending.table.topic == shape.topic and pending.scan == scan
            if same and pending.shape.schema == shape.schema:
                return pending
        pending = _PendingRows(known.table, shape, scan, _new_batch(self.clock), "")
        self._pending.append(pending)
        return pending

    def _define(self, statements: Sequence[str], topic: str) -> None:
        with self._errors():
            self._server.run([Statement(sql, topic) for sql in statements])


def _written(column: Column) -> str:
    """What values of a column are written like: whole numbers of any size alike, and decimals."""
    if column.logical in ("int16", "int32", "int64"):
        return "int"
    return column.logical.partition("(")[0]


def _is_local(endpoint: str) -> bool:
    """``host:port`` of this machine."""
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
