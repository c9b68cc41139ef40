"""``spanner://project/instance/database``: tables of a Spanner database, kept by mutations.

How rows are kept is :mod:`.keeping`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import Column, TableSchema
from changefeed.core.settings import Parameter, ParameterKind, Settings, invalid, setting
from changefeed.core.types import INTEGERS
from changefeed.core.uri import invalid_uri
from changefeed.options import Feature, History
from sinks.base import (
    Capabilities,
    CommitPace,
    Difference,
    Epoch,
    Receipt,
    SinkContext,
    Target,
)
from sinks.merged.applied import AppliedVersion
from sinks.merged.policy import ScanEnd, TablePolicy
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse import evolution
from sinks.warehouse.bigquery.sink import credentials
from sinks.warehouse.database_sink import PACE, DatabaseSink
from sinks.warehouse.feed_tables import KnownTable
from sinks.warehouse.pending import PendingRows
from sinks.warehouse.spanner import keeping
from sinks.warehouse.spanner.commits import CommitWriter
from sinks.warehouse.spanner.compare import SpannerComparison
from sinks.warehouse.spanner.keeping import FACTS, SpannerStrategy
from sinks.warehouse.spanner.rows import RowWire, TooLarge
from sinks.warehouse.spanner.tables import SpannerTables
from sinks.warehouse.staging import TargetShape
from sinks.warehouse.tables import TargetTable

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import Spanner, SpannerTransaction


@dataclass(frozen=True, kw_only=True)
class SpannerSettings(Settings):
    """``spanner://project/instance/database``."""

    credentials: str | None = credentials()
    endpoint: str = setting("", "An emulator on this machine, host:port.", ParameterKind.URL)

    def check(self) -> Iterator[ChangefeedError]:
        path = self.uri.database.split("/")
        if not self.uri.host or len(path) != 2 or not all(path):
            yield invalid_uri(
                "a Spanner sink is a project, an instance and a database",
                "write it as spanner://project/instance/database",
            )
        if self.endpoint and (self.credentials or not _is_local(self.endpoint)):
            yield invalid(
                "param endpoint is for an emulator on this machine: host:port, without credentials",
                "write endpoint=127.0.0.1:9010, or leave it out for Google's service.",
            )


class SpannerSink(DatabaseSink):
    """Tables of a Spanner database."""

    #: Changes of a round are in memory until it is committed: nothing is staged.
    capabilities: ClassVar[Capabilities] = replace(
        DatabaseSink.capabilities,
        pacing=CommitPace(PACE, 50_000),
        features=DatabaseSink.capabilities.features | {Feature.COMPARISON, Feature.DEAD_LETTERS},
        repairs=True,
    )
    parameters: ClassVar[tuple[Parameter, ...]] = SpannerSettings.parameters()

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Read the URI.

        Raises:
            ChangefeedError: it is malformed, or the options ask for what Spanner is not kept with.
        """
        settings = SpannerSettings.read(uri)
        # Google's libraries take a second to import: not before this sink is wanted.
        from sinks.warehouse.spanner.client import Spanner

        server = Spanner(
            settings.uri.host,
            *settings.uri.database.split("/"),
            endpoint=settings.endpoint,
            credentials=settings.credentials,
        )
        policy = TablePolicy.read(options or {})
        self._tables: SpannerTables = SpannerTables(server, SpannerStrategy(), policy)
        super().__init__(policy, self._tables)
        self.commits = CommitWriter(self._tables)
        if self._policy.history is not History.OFF:
            raise ChangefeedError(
                Code.OPTION_DOES_NOT_FIT_SINK,
                "a Spanner sink keeps no history",
                hint="leave out the option history, or take deletes = 'soft'.",
            )

    @property
    def server(self) -> Spanner:
        """The client of the database."""
        return self._tables.server

    def topic(self, name: str) -> str:
        """As in the base class, but a table's name cannot begin with an underscore or a digit."""
        found = name.replace(".", "_")
        return super().topic(f"table{found}" if found[:1] in "_0123456789" else found)

    # ------------------------------------------------------------------ rounds

    def apply(self, epoch: Epoch, receipts: Sequence[Receipt]) -> bool:
        if not self._pending:
            return False
        self._tables.connect()
        for scan in (True, False):
            self.commits.write([p for p in self._pending if p.scan is scan and p.buffer])
        self._pending.clear()
        return True

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing of the round is in Spanner but whole commits, which are not repeated."""
        self._pending = []
        self._tables.forget()

    def begin_rows(self, known: KnownTable, shape: TargetShape) -> str:
        """Nothing is staged."""
        return ""

    def load(self, pending: PendingRows) -> None:
        """Many rows of a scan become part of the target at once: they are seen piece by piece
        anyway, and are not to fill the memory. Changes wait for those of the other tables."""
        if pending.scan and pending.buffer:
            self.commits.write([pending])

    # ------------------------------------------------------------------ marks

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self._tables.connect()
        ids = [self._tables.names(target).applied.id for target in self._opened.targets]

        def work(transaction: SpannerTransaction) -> None:
            there = list(transaction.read(FACTS, ("id",), [(each,) for each in ids]))
            transaction.update(
                FACTS, ("id", "resolved"), [(row[0], str(event.at)) for row in there]
            )

        if ids:
            self._tables.transact(work)

    def truncate_table(self, known: KnownTable, shape: TargetShape, event: Truncate) -> None:
        table, place = known.table, AppliedVersion(event.at.version, event.seq)
        if self._policy.soft:
            if self._is_done(known, place):
                return
            self._end_all(table, shape, event.at.version, "<=")

        def work(transaction: SpannerTransaction) -> None:
            if self._tables.progress(transaction, table).covers(place):
                return
            if not self._policy.soft:
                transaction.delete_all(table.topic)
                if table.has_side(event.schema):
                    transaction.delete_all(keeping.side_of(table.topic))
            keeping.advance(transaction, table.applied.id, self._opened.node, place)

        self._tables.transact(work, table.topic)

    def _end_all(self, table: TargetTable, shape: TargetShape, version: int, older: str) -> None:
        """Rows older than a version go, or are marked; cut short, it may come again."""
        if not table.has_side(shape.schema):
            self._tables.change_all(keeping.end_all(table, version, older), table.topic)
            return
        wire = RowWire.of(shape, self.server.dialect)
        below = version + 1 if older == "<=" else version

        def work(transaction: SpannerTransaction) -> int:
            # Keys of 8 kB each in an answer of 10 MB at most.
            most = max(1, min(1_000, self.commits.most_cells // (len(shape.key) + 1) // 2))
            sql = keeping.not_scanned(table, shape.key, below, most)
            keys = [wire.canonical(row) for row in transaction.query(sql, long=True)]
            keeping.end_rows(transaction, table, shape.key, keys, version)
            return len(keys)

        ended = 1
        while ended:
            limit = self.commits.most_cells
            try:
                ended = self._tables.transact(work, table.topic)
            except TooLarge as error:
                self.commits.be_smaller(limit, error)

    def _is_done(self, known: KnownTable, place: AppliedVersion) -> bool:
        """Another run has followed an event since this one looked: what no transaction guards
        must not be done again."""
        table = known.table
        now = self._tables.transact(lambda tx: self._tables.progress(tx, table), table.topic)
        if now.covers(place):
            self._tables.forget_table(table.topic)
            return True
        return False

    # ------------------------------------------------------------------ optional protocols

    def change_shape(self, known: KnownTable, event: SchemaChange) -> None:
        """A renamed column is a new one that gets the values of the old one: Spanner renames
        none."""
        table, server = known.table, self.server
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
        else:  # its first scan has not begun
            self._tables.prepare(known, TargetShape(event.new, table.topic), scan=False)

        def work(transaction: SpannerTransaction) -> None:
            if not self._tables.progress(transaction, table).covers(place):
                keeping.advance(transaction, table.applied.id, self._opened.node, place)

        self._tables.transact(work, table.topic)

    def _change(
        self, table: TargetTable, changes: Sequence[evolution.EvolutionStep], types: dict[str, str]
    ) -> None:
        d = self.server.dialect
        waiting: list[str] = []
        for change in changes:
            if change.kind not in ("rename", "aside"):
                waiting.append(change.sql)
                continue
            types[change.column] = types.pop(change.old)
            waiting.append(d.add_column(table.name, change.column, types[change.column]))
            self._tables.define(waiting, table.topic)
            self._tables.change_all(
                keeping.copy_column(table, change.old, change.column), table.topic
            )
            waiting = [d.drop_column(table.name, change.old)]
        self._tables.define(waiting, table.topic)

    def _keeps_digests(self, table: TargetTable, event: SchemaChange) -> None:
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
        table, shape = self._tables.find(target, schema).table, TargetShape(schema, target.topic)
        if ends is not ScanEnd.NOTHING:
            self._end_all(table, shape, at.version, "<")
        whole = AppliedVersion(at.version, bookkeeping.LAST)

        def work(transaction: SpannerTransaction) -> None:
            row = table.applied.id
            if not self._tables.progress(transaction, table).covers(whole):
                keeping.advance(transaction, row, self._opened.node, whole)
            transaction.update(FACTS, ("id", "scanned"), [(row, str(at.version))])

        self._tables.transact(work, table.topic)
        self._tables.forget_table(target.topic)

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """See :meth:`sinks.base.Sink.compare`."""
        shape = TargetShape(schema, target.topic)
        with SpannerComparison(
            self.server, self._policy, shape, context.scratch, context.read
        ) as comparison:
            return comparison.run(rows, limit)

    def dropped(self, target: Target) -> None:
        if not self._policy.drop:
            self._tables.forget_table(target.topic)
            return
        self._tables.connect()
        table = self._tables.names(target)
        if not self._tables.query(table.applied.read()):
            return  # nothing there carries the feed's mark
        self._tables.define(self._tables.strategy.drop(table), target.topic)
        self._tables.transact(
            lambda transaction: transaction.delete(FACTS, [(table.applied.id,)]), target.topic
        )
        self._tables.forget_table(target.topic)

    # ------------------------------------------------------------------ tables

    def begin_scan(
        self, target: Target, schema: TableSchema, version: int, *, after: int | None
    ) -> None:
        known, shape = self._tables.find(target, schema), TargetShape(schema, target.topic)
        self._tables.prepare(known, shape, scan=True)
        if shape.keyless:
            self._tables.change_all(keeping.not_of_this_scan(known.table, version), shape.topic)


def _written(column: Column) -> str:
    """What values of a column are written like: whole numbers of any size alike, and decimals."""
    if column.kind in INTEGERS:
        return "int"
    return str(column.logical).partition("(")[0]


def _is_local(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
