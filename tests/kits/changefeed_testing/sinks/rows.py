"""A source without a database, for sinks of typed rows: it turns transactions into rows of the log.

:class:`SourceDouble` keeps tables, takes transactions, and writes the log rows that capture would
write (``changefeed/core/schema.py``): a changed key is a delete and an insert, and ``last`` is
false for a change that a later change of the key in the transaction supersedes. :class:`RowFeed`
delivers its log to a sink in a feed's order of calls, from any place, as often as a test needs;
the target is compared with the tables of the source.

    source = Source(table_of("t", a="int32", b="text", key=("a",)))
    source.commit(insert("t", a=1, b="x"), insert("t", a=2, b="y"))
    source.commit(update("t", {"a": 1}, a=3), delete("t", a=2))
    feed = RowFeed(source)
    feed.deliver(feed.open(sink))
    assert source.rows("t") == [{"a": 3, "b": "x"}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed_testing.sinks.feed import START
from sinks.base import (
    Batch,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)

Row = dict[str, object]
"""A row of a table: column name -> value in log form."""

_BEFORE = re.compile(r"b\d+")
_SQL = {"int16": "smallint", "int32": "integer", "int64": "bigint", "bool": "boolean"}


# ------------------------------------------------------------------------------- shapes


def column_of(name: str, logical: str, number: int, *, nullable: bool = True) -> Column:
    """A column of a logical type, with the log type that a source would give it."""
    return Column(name, _SQL.get(logical, logical), LogicalType.parse(logical), nullable, number)


def table_of(name: str, /, *, key: Sequence[str] = (), **columns: str) -> TableSchema:
    """A table by the logical types of its columns. Without ``key`` it logs whole old rows."""
    made = [
        column_of(column, logical, number, nullable=column not in key)
        for number, (column, logical) in enumerate(columns.items(), start=1)
    ]
    places = tuple(list(columns).index(column) for column in key)
    return TableSchema(
        table=TableName("shop", "public", name),
        columns=tuple(made),
        key=places or tuple(range(len(made))),
        before_image=BeforeImage.KEY if key else BeforeImage.FULL,
        keyless=not key,
        table_id=sum(map(ord, name)),
        version=1,
    )


# ------------------------------------------------------------------------------- transactions


@dataclass(frozen=True, slots=True)
class RowChange:
    """One statement of a transaction: ``c``, ``u``, ``d`` or ``t`` (truncate)."""

    op: str
    table: str
    where: Row
    row: Row
    missing: tuple[str, ...] = ()


def insert(table: str, /, **row: object) -> RowChange:
    """A new row."""
    return RowChange("c", table, {}, row)


def update(table: str, where: Row, missing: Sequence[str] = (), /, **row: object) -> RowChange:
    """Give the first row with the values ``where`` the values of ``row``. The source sends no
    values of the columns ``missing``, which do not change."""
    return RowChange("u", table, where, row, tuple(missing))


def delete(table: str, /, **where: object) -> RowChange:
    """Delete the first row that has these values."""
    return RowChange("d", table, where, {})


def truncate(table: str) -> RowChange:
    """Delete all rows."""
    return RowChange("t", table, {}, {})


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One place in the log: a row of :meth:`TableSchema.log_schema`, or a control event."""

    at: Timestamp
    schema: TableSchema
    row: Row | None = None
    control: Truncate | SchemaChange | None = None


class SourceDouble:
    """Tables and the log of their changes.

    Attributes:
        schemas: the present shape of each table.
        log: all entries, in order; neighbours of one timestamp are a transaction.
    """

    def __init__(self, *tables: TableSchema) -> None:
        self.schemas = {schema.table.name: schema for schema in tables}
        self.log: list[LogEntry] = []
        self._rows: dict[str, list[Row]] = {name: [] for name in self.schemas}
        self._step = 0
        self._seq = 0

    def now(self) -> Timestamp:
        """The timestamp of the last transaction."""
        return Timestamp(START.wall + self._step * 1_000_000_000)

    def rows(self, table: str) -> list[Row]:
        """What the table holds now, sorted."""
        return ordered(self._rows[table])

    def load(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows from before the log began, which only a scan delivers."""
        self._rows[table] += [dict(row) for row in rows]

    def commit(self, *changes: RowChange) -> Timestamp:
        """Commit one transaction."""
        self._step += 1
        began = len(self.log)
        for change in changes:
            self._change(change)
        self._supersede(began)
        return self.now()

    def alter(self, table: str, new: TableSchema, *, rewritten: bool = False) -> Timestamp:
        """Give the table another shape. Columns are matched by number; new ones are NULL."""
        self._step += 1
        old = self.schemas[table]
        new = replace(new, version=old.version + 1, table_id=old.table_id, table=old.table)
        was = {c.column_id: c.name for c in old.columns}
        self._rows[table] = [
            {c.name: row.get(was.get(c.column_id, "")) for c in new.columns}
            for row in self._rows[table]
        ]
        self.schemas[table] = new
        event = SchemaChange(old, new, self.now(), self._next(), rewritten)
        self.log.append(LogEntry(self.now(), new, control=event))
        return self.now()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _change(self, change: RowChange) -> None:
        schema, rows = self.schemas[change.table], self._rows[change.table]
        if change.op == "t":
            rows.clear()
            event = Truncate(schema, self.now(), self._next())
            self.log.append(LogEntry(self.now(), schema, control=event))
            return
        if change.op == "c":
            after: Row = {c.name: change.row.get(c.name) for c in schema.columns}
            rows.append(after)
            self._tell("c", schema, None, after)
            return
        place = next(i for i, row in enumerate(rows) if change.where.items() <= row.items())
        before = rows[place]
        if change.op == "d":
            del rows[place]
            self._tell("d", schema, before, None)
            return
        after = before | change.row
        rows[place] = after
        if _key(schema, before) == _key(schema, after):
            self._tell("u", schema, before, after, change.missing)
        else:
            self._tell("d", schema, before, None)
            self._tell("c", schema, None, after, change.missing)

    def _tell(
        self,
        op: str,
        schema: TableSchema,
        before: Row | None,
        after: Row | None,
        missing: tuple[str, ...] = (),
    ) -> None:
        seq = self._next()
        row: Row = {
            "op": op,
            "wall": self.now().wall,
            "logical": self.now().logical,
            "seq": seq,
            "ord": seq,
            "xid": self._step,
            "commit_us": self.now().wall // 1_000,
            "last": True,
            "missing": json.dumps(list(missing)) if missing else None,
        }
        for i, column in enumerate(schema.columns):
            sent = after is not None and column.name not in missing
            row[f"a{i}"] = after[column.name] if after is not None and sent else None
        for i in schema.before_ordinals:
            row[f"b{i}"] = before[schema.columns[i].name] if before is not None else None
        self.log.append(LogEntry(self.now(), schema, row=row))

    def _supersede(self, began: int) -> None:
        """Of several changes of a key in a transaction the final one is ``last`` and says what the
        transaction did, as :mod:`changefeed.sources.decoded.superseded` has it."""
        writes: dict[tuple[object, ...], list[Row]] = {}
        for entry in self.log[began:]:
            if entry.row is None or entry.schema.keyless:
                continue
            side = "b" if entry.row["op"] == "d" else "a"
            key = (entry.schema.table, *(entry.row[f"{side}{i}"] for i in entry.schema.key))
            writes.setdefault(key, []).append(entry.row)
        for rows in writes.values():
            existed, final = rows[0]["op"] != "c", rows[-1]
            images = {name: cell for name, cell in rows[0].items() if _BEFORE.fullmatch(name)}
            for row in rows:
                row["last"] = row is final and (existed or row["op"] != "d")
            if final["last"]:
                final.update(images)
                final["op"] = "d" if final["op"] == "d" else "u" if existed else "c"


def _key(schema: TableSchema, row: Row) -> list[object]:
    return [row[c.name] for c in schema.key_columns]


def ordered(rows: Iterable[Mapping[str, object]]) -> list[Row]:
    """Rows sorted, so that they can be compared."""
    return sorted((dict(row) for row in rows), key=lambda row: repr(sorted(row.items())))


# ------------------------------------------------------------------------------- delivery

WriteScan = Callable[[Sink, Batch], None]
"""Hands a batch of a scan to a sink, for sinks that take scans otherwise than by ``write``."""


class RowFeed:
    """Delivers a source's log to one sink object after another, as a job does across restarts."""

    def __init__(
        self,
        source: SourceDouble,
        topic: Callable[[str], str] = str,
        *,
        options: Mapping[str, object] | None = None,
        write_scan: WriteScan | None = None,
        context: Callable[[SinkContext], SinkContext] = lambda context: context,
    ) -> None:
        """``topic`` names the target of a table; ``context`` may add what the sink needs."""
        self.source = source
        self.targets = {
            name: Target(schema.table, topic(name)) for name, schema in source.schemas.items()
        }
        self.place = 0
        self._options = dict(options or {})
        self._write_scan = write_scan
        self._made_context = context
        self._epoch = 0
        self._nodes = 0

    def context(self, unfinished: Mapping[str, Timestamp] | None = None) -> SinkContext:
        """The context for a sink that a new run of the job opens; ``unfinished`` is by table."""
        self._nodes += 1
        places = {self.targets[name].table: at for name, at in (unfinished or {}).items()}
        made = SinkContext(
            feed="conformance",
            job_id=17,
            targets=tuple(self.targets.values()),
            options=self._options,
            node=f"node{self._nodes}",
            resolved=True,
            state="conformance-state",
            unfinished=places,
        )
        return self._made_context(made)

    def open(self, sink: Sink, unfinished: Mapping[str, Timestamp] | None = None) -> Sink:
        """Open a sink as a new run; ``unfinished``: the timestamp of each scan to be repeated."""
        sink.open(self.context(unfinished))
        return sink

    # ------------------------------------------------------------------ changes

    def deliver(
        self,
        sink: Sink,
        start: int | None = None,
        stop: int | None = None,
        *,
        chunk: int | None = None,
    ) -> None:
        """Deliver and commit the log from ``start`` (default: the current place) up to ``stop``
        (default: the end).

        Both are indexes into ``source.log``; an earlier ``start`` is a replay. ``chunk`` is the
        most rows of a batch, even if that divides a transaction.
        """
        begin = self.place if start is None else start
        end = len(self.source.log) if stop is None else stop
        epoch, receipts = self.write(sink, begin, end, chunk=chunk)
        self.commit(sink, epoch, receipts)
        self.place = max(self.place, end)

    def write(
        self, sink: Sink, start: int, stop: int, *, chunk: int | None = None
    ) -> tuple[Epoch, list[Receipt]]:
        """Hand over rows without a final commit; a control event commits the rows before it."""
        log = self.source.log[start:stop]
        epoch = self._next(log[-1].at if log else self.source.now())
        receipts: list[Receipt] = []
        run: list[LogEntry] = []
        for entry in log:
            same = run and entry.control is None and entry.schema == run[0].schema
            if run and (not same or len(run) == chunk):
                receipts.append(sink.write(self._batch(epoch, run, len(receipts))))
                run = []
            if entry.control is None:
                run.append(entry)
            else:
                before = replace(epoch, upto=entry.at.previous())
                self.commit(sink, before, receipts)
                receipts = []
                self._control(sink, entry.control)
        if run:
            receipts.append(sink.write(self._batch(epoch, run, len(receipts))))
        return epoch, receipts

    def write_some(self, sink: Sink, places: Sequence[int]) -> None:
        """Hand over and commit these rows of the log, in a round that states no progress, as a feed
        does that looks for a row that is refused. If it fails, nothing stays staged."""
        run = [self.source.log[place] for place in places]
        epoch = self._next(self.source.log[0].at.previous())
        receipts: list[Receipt] = []
        try:
            if run:
                receipts.append(sink.write(self._batch(epoch, run, 0)))
            self.commit(sink, epoch, receipts)
        except ChangefeedError:
            sink.abort(epoch, receipts)
            raise

    def examine(self, sink: Sink, places: Sequence[int]) -> None:
        """Let the sink look at these rows of the log."""
        run = [self.source.log[place] for place in places]
        sink.examine(self._batch(self._next(run[-1].at), run, 0))

    def commit(self, sink: Sink, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Commit the receipts, and check that the sink reports them as durable."""
        if sink.commit(epoch, receipts) is not Durability.DURABLE:
            raise AssertionError("commit returned before the rows were durable")

    def _next(self, upto: Timestamp) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch, upto)

    def _batch(self, epoch: Epoch, run: Sequence[LogEntry], number: int) -> Batch:
        schema = run[0].schema
        rows = [entry.row for entry in run]
        return Batch(
            feed="conformance",
            epoch=epoch,
            partition=number,
            target=self.targets[schema.table.name],
            schema=schema,
            rows=pa.Table.from_pylist(rows, schema=schema.log_schema()),
            after=run[0].at.previous(),
        )

    def _control(self, sink: Sink, event: Truncate | SchemaChange) -> None:
        if isinstance(event, Truncate):
            sink.truncate(event, self.targets[event.schema.table.name], b"")
        else:
            assert sink.capabilities.evolves, "the sink does not follow changes of shape"
            sink.evolve(event, self.targets[event.new.table.name])

    # ------------------------------------------------------------------ scans

    def scan(
        self,
        sink: Sink,
        table: str,
        *,
        upto: int | None = None,
        left: Callable[[Row], bool] = lambda row: True,
        since: Timestamp | None = None,
        end: bool = True,
    ) -> Timestamp:
        """Deliver the present table as rows of a scan; only the first ``upto`` rows if it breaks
        off, and only rows that are ``left`` if it goes on with one whose first instant was
        ``since``.

        The scan covers the log of the table up to now: deliver only later changes.
        """
        schema, target = self.source.schemas[table], self.targets[table]
        at = self.source.now()
        epoch = self._next(at)
        rows = [row for row in self.source.rows(table) if left(row)][:upto]
        for start in range(0, len(rows), 2):
            found = [scanned_row(schema, row, at) for row in rows[start : start + 2]]
            batch = Batch(
                feed="conformance",
                epoch=epoch,
                partition=start // 2,
                target=target,
                schema=schema,
                rows=pa.Table.from_pylist(found, schema=schema.log_schema()),
                after=at.previous(),
                scan=True,
            )
            if self._write_scan is not None:
                self._write_scan(sink, batch)
            else:
                self.commit(sink, epoch, [sink.write(batch)])
        if end:
            assert sink.capabilities.ends_scans, "the sink does not end scans"
            sink.end_scan(target, schema, since or at)
        return at

    def repair(self, sink: Sink, table: str, rows: Sequence[Row], at: Timestamp) -> None:
        """Deliver single rows and deletes in log form as of a scan at ``at`` that is not ended."""
        schema, epoch = self.source.schemas[table], self._next(at)
        batch = Batch(
            feed="conformance",
            epoch=epoch,
            partition=0,
            target=self.targets[table],
            schema=schema,
            rows=pa.Table.from_pylist(list(rows), schema=schema.log_schema()),
            after=at.previous(),
            scan=True,
        )
        self.commit(sink, epoch, [sink.write(batch)])


def scanned_row(schema: TableSchema, row: Row, at: Timestamp) -> Row:
    """The row as a scan at ``at`` delivers it, in log form."""
    found: Row = {
        "op": "r",
        "wall": at.wall,
        "logical": at.logical,
        "seq": 0,
        "ord": 0,
        "xid": 0,
        "commit_us": at.wall // 1_000,
        "last": True,
        "missing": None,
    }
    found |= {f"a{i}": row[c.name] for i, c in enumerate(schema.columns)}
    return found | {f"b{i}": None for i in schema.before_ordinals}
