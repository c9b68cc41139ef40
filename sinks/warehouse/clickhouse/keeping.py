"""How ClickHouse keeps a table: rows with versions, and a view that shows those that are.

ClickHouse has no MERGE, no transactions and no cheap UPDATE. So nothing is ever changed: every
statement inserts rows that supersede others by their version, and a statement that is repeated, cut
short or run late inserts what loses or what is there. ``_rows_<table>`` holds them,

============= ============================== =============================================
kept          sorted by; versions by         of a row that is gone
============= ============================== =============================================
row per key   key; ``_sequence_num``         ``_is_deleted`` is 1: the engine hides it
no key        ``_row``, a digest of the row; ``_copies``, how many there are, is 0
              ``_sequence_num``
``append``    number, ``_ord``, ``_row``     nothing goes
``scd2``      key, number, ``_seen``         a version with ``_gone``; ``_seen`` marks one that
                                             a scan found as it was
============= ============================== =============================================

and the view ``<table>`` reads them with FINAL. Versions of equal number (a transaction that a
TRUNCATE cuts in two) go by the order in which they came. Of a table without a key each distinct
row knows up to which change its copies are counted, so a change counts once however often it comes.

The same holds for the bookkeeping: ``_rows__changefeed_applied`` has a row per fact, the newest
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from changefeed.core.clock import Timestamp
from changefeed.core.events import SchemaChange
from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import Kind
from changefeed.options import History
from sinks.merged.history import COMMITTED_AT, IS_CURRENT, OPERATION, ORDER, VALID_FROM, VALID_TO
from sinks.merged.policy import DELETED, MergeMode, Removal, TablePolicy
from sinks.warehouse import applied as bookkeeping
from sinks.warehouse import evolution
from sinks.warehouse.applied import AppliedRow
from sinks.warehouse.clickhouse import rows
from sinks.warehouse.clickhouse.rows import (
    COPIES,
    COPY,
    CURRENT,
    GONE,
    IS_DELETED,
    NEXT,
    OURS,
    ROW,
    SEEN,
    SEEN_LAST,
)
from sinks.warehouse.clickhouse.sql import ClickHouseDialect
from sinks.warehouse.dialect import Dialect, Warehouse
from sinks.warehouse.staging import SEQUENCE, TargetShape
from sinks.warehouse.strategy import Strategy
from sinks.warehouse.tables import StagedRows, TargetTable

ROWS = "_rows_"
"""What the name of a table of rows begins with."""
_FACTS = ROWS + bookkeeping.TABLE

_STAMP = "_stamp"
_NOW = "toUnixTimestamp64Nano(now64(9))"


@dataclass(frozen=True, slots=True)
class _Facts(AppliedRow):
    """The bookkeeping as facts: ``at`` is how far the table is, ``resolved`` the feed's mark.

    ``table`` is the view of both; ``facts`` holds them.
    """

    facts: str

    @property
    def stored(self) -> str:
        return self.facts

    def insert(self, feed: str, topic: str) -> str:
        text = self.d.literal
        values = f"{text(self.id)}, 'at', {text(feed)}, {text(topic)}, 0, 0, 0, {_NOW}"
        found = f"SELECT count() FROM {self.table} WHERE {self.d.quote('id')} = {text(self.id)}"
        return f"{self._into()} SELECT {values} WHERE ({found}) = 0"

    def reset(self) -> str:
        return self._change(version="0", seq="0", scanned="0")

    def advance(self, version: int, seq: int) -> str:
        q = self.d.quote
        place = f"(f.{q('version')}, f.{q('seq')}) < ({version}, {seq})"
        return self._change(place, version=str(version), seq=str(seq))

    def scanned(self, version: int) -> str:
        return self._change(scanned=str(version))

    def _into(self) -> str:
        names = ("id", "fact", "feed", "table_name", "version", "seq", "scanned", _STAMP)
        return f"INSERT INTO {self.facts} ({self.d.listed(names)})"

    def _change(self, only: str = "", **sets: str) -> str:
        """The fact ``at`` once more, with other values."""
        q = self.d.quote
        listed = [f"f.{q(name)}" for name in ("id", "fact", "feed", "table_name")]
        listed += [sets.get(n) or f"f.{q(n)}" for n in ("version", "seq", "scanned")]
        listed.append(f"greatest(f.{q(_STAMP)} + 1, {_NOW})")
        where = f"f.{q('id')} = {self.d.literal(self.id)} AND f.{q('fact')} = 'at'"
        where += f" AND {only}" if only else ""
        return (
            f"{self._into()} SELECT {', '.join(listed)} FROM {self.facts} AS f FINAL WHERE {where}"
        )


class ClickHouseStrategy(Strategy):
    """Insert what supersedes; show what is."""

    merges = False

    # ------------------------------------------------------------------ names and bookkeeping

    def table(
        self, warehouse: Warehouse, topic: str, policy: TablePolicy, applied: AppliedRow
    ) -> TargetTable:
        plain = super().table(warehouse, topic, policy, applied)
        name = warehouse.name(self.place(topic))
        return replace(plain, name=name, view=plain.name, side="")

    def place(self, topic: str) -> str:
        return ROWS + topic

    def number(self, table: TargetTable, schema: TableSchema) -> str:
        return SEQUENCE

    def beside(self, topic: str) -> tuple[str, ...]:
        return (*super().beside(topic), self.place(topic))

    @property
    def bookkeeping_names(self) -> tuple[str, ...]:
        return bookkeeping.TABLE, _FACTS

    def empty(self, table: TargetTable) -> list[str]:
        return [f"TRUNCATE TABLE {table.name}"]

    def applied(self, warehouse: Warehouse, job: str, name: str) -> AppliedRow:
        view, facts = warehouse.name(bookkeeping.TABLE), warehouse.name(_FACTS)
        return _Facts(warehouse.dialect, view, job, name, facts)

    def bookkeeping(self, warehouse: Warehouse) -> list[str]:
        d, view = warehouse.dialect, warehouse.name(bookkeeping.TABLE)
        assert isinstance(d, ClickHouseDialect)
        text, number = d.staging_types["string"], d.staging_types["int64"]
        texts = dict.fromkeys(("id", "fact", "feed", "table_name"), text)
        numbers = dict.fromkeys(("version", "seq", "scanned"), number)
        columns = {**texts, **numbers, "resolved": text, _STAMP: number}
        facts, q = warehouse.name(_FACTS), d.quote
        engine = f"ReplacingMergeTree({q(_STAMP)})"
        present = [name for name in columns if name != "resolved"]
        shown = [f"f.{q('id')} AS {q('id')}"]
        shown += [f"anyIf(f.{q(n)}, f.{q('fact')} = 'at') AS {q(n)}" for n in _SHOWN]
        shown.append(f"anyIf(f.{q('resolved')}, f.{q('fact')} = 'resolved') AS {q('resolved')}")
        return [
            d.sorted_table(facts, columns, engine, ("id", "fact"), present),
            f"CREATE OR REPLACE VIEW {view} AS SELECT {', '.join(shown)} FROM {facts} AS f FINAL "
            f"GROUP BY f.{q('id')} HAVING countIf(f.{q('fact')} = 'at') > 0",
        ]

    def resolved(self, warehouse: Warehouse, ids: Iterable[str], at: str) -> str:
        d = warehouse.dialect
        names = ", ".join(map(d.quote, ("id", "fact", "resolved", _STAMP)))
        listed = ", ".join(map(d.literal, ids))
        return (
            f"INSERT INTO {warehouse.name(_FACTS)} ({names}) "
            f"SELECT arrayJoin([{listed}]), 'resolved', {d.literal(at)}, {_NOW}"
        )

    # ------------------------------------------------------------------ definitions

    def check(self, table: TargetTable, schema: TableSchema) -> None:
        super().check(table, schema)
        taken = [c.name for c in schema.columns if c.name in OURS]
        if taken:
            raise table.refused(schema, f"the column name {taken[0]} is used by the sink itself")
        if schema.keyless and table.policy.history is History.APPEND:
            why = "history = 'append' needs a table with a key in ClickHouse"
            raise table.refused(schema, why)

    def columns(self, table: TargetTable, schema: TableSchema) -> dict[str, str]:
        d, policy = table.d, table.policy
        number, text, flag = (d.staging_types[kind] for kind in ("int64", "string", "bool"))
        found = {
            c.name: d.rule(c, key=not schema.keyless and i in schema.key).sql
            for i, c in enumerate(schema.columns)
        }
        found[SEQUENCE] = number
        if policy.history is History.APPEND:
            instant = d.types[Kind.TIMESTAMPTZ].sql
            return found | {ORDER: number, OPERATION: text, COMMITTED_AT: instant, ROW: _DIGEST}
        if policy.history is History.SCD2:
            return found | {GONE: "UInt8", SEEN: "UInt8"}
        if schema.keyless:
            return found | {ORDER: number, ROW: _DIGEST, COPIES: number}
        return found | {IS_DELETED: "UInt8"} | ({DELETED: flag} if policy.soft else {})

    def create(self, table: TargetTable, schema: TableSchema) -> list[str]:
        d = table.d
        assert isinstance(d, ClickHouseDialect)
        columns = self.columns(table, schema)
        engine, order = engine_of(table, schema)
        ours = [n for n in (SEQUENCE, IS_DELETED, ORDER, COPIES, GONE) if n in columns]
        return [d.sorted_table(table.name, columns, engine, order, ours)]

    def settle(self, table: TargetTable, schema: TableSchema) -> list[str]:
        return [f"CREATE OR REPLACE VIEW {table.view} AS {_shown(table, schema)}"]

    def evolve(
        self, table: TargetTable, event: SchemaChange, present: Mapping[str, str]
    ) -> list[str]:
        _can_follow(table, event)
        steps = [change.sql for change in evolution.changes(table, event, present)]
        return [*steps, *self.settle(table, event.new)]

    def drop(self, table: TargetTable) -> list[str]:
        return [f"DROP VIEW IF EXISTS {table.view}", table.d.drop_table(table.name)]

    # ------------------------------------------------------------------ rows

    def readable(self, table: TargetTable) -> str:
        return f"{table.view}"

    def begin(self, table: TargetTable, node: str) -> list[str]:
        """Nothing: a run that comes late inserts what loses."""
        return []

    def apply(self, table: TargetTable, staged: StagedRows) -> list[str]:
        mode = table.policy.mode(staged.shape.schema)
        if mode is MergeMode.APPEND:
            return [rows.append(table, staged)]
        if mode is MergeMode.VERSIONS:
            return [
                rows.scanned_versions(table, staged)
                if staged.scan
                else rows.versions(table, staged)
            ]
        if mode is MergeMode.MERGE:
            return [rows.upsert(table, staged)]
        if staged.scan:
            return [
                f"ALTER TABLE {staged.staging} MOVE PARTITION {staged.batch} TO TABLE {table.scan}"
            ]
        return [rows.count(table, staged)]

    def unstage(self, d: Dialect, staging: str, batch: int) -> str:
        return f"ALTER TABLE {staging} DROP PARTITION {batch}"

    def truncate(
        self, table: TargetTable, shape: TargetShape, at: Timestamp, seq: int
    ) -> list[str]:
        d = table.d
        q = d.quote
        if table.policy.removal is Removal.RECORD:
            names = ", ".join(map(q, (ROW, SEQUENCE, ORDER, OPERATION, COMMITTED_AT)))
            values = f"'', {at.version}, {seq}, 'TRUNCATE', {d.instant(str(at.version))}"
            return [f"INSERT INTO {table.name} ({names}) SELECT {values}"]
        if table.policy.removal is Removal.END:
            return [
                rows.end_versions(table, shape, at.version, f"current.{q(CURRENT)} <= {at.version}")
            ]
        before = f"target.{q(SEQUENCE)} <= {at.version}"
        if shape.keyless:
            return [rows.no_copies(table, at.version, seq, before)]
        return [rows.end_rows(table, shape, at.version, before)]

    # ------------------------------------------------------------------ scans

    def gathers(self, table: TargetTable, shape: TargetShape) -> list[str]:
        """Batches are moved there, so the table is made as staging is."""
        if table.policy.mode(shape.schema) is not MergeMode.COUNT:
            return []
        create = table.d.create_staging(table.scan, shape.staging_columns(table.d))
        return [table.d.drop_table(table.scan), create]

    def forget_scans(self, table: TargetTable, after: int) -> list[str]:
        q = table.d.quote
        return [
            f"DELETE FROM {table.name} WHERE {q(OPERATION)} = 'READ' AND {q(SEQUENCE)} > {after}"
        ]

    def end_scan(self, table: TargetTable, shape: TargetShape, at: Timestamp) -> list[str]:
        q = table.d.quote
        if table.policy.removal is Removal.RECORD:
            return []
        if table.policy.removal is Removal.END:
            return [
                rows.end_versions(
                    table, shape, at.version, f"current.{q(SEEN_LAST)} < {at.version}"
                )
            ]
        if not shape.keyless:
            return [rows.end_rows(table, shape, at.version, f"target.{q(SEQUENCE)} < {at.version}")]
        return [rows.replace_rows(table, shape, at.version), f"TRUNCATE TABLE {table.scan}"]


_DIGEST = "FixedString(16)"
_SHOWN = ("feed", "table_name", "version", "seq", "scanned")


def engine_of(table: TargetTable, schema: TableSchema) -> tuple[str, tuple[str, ...]]:
    """The engine of a table of rows, and what it is sorted by."""
    q, key = table.d.quote, tuple(c.name for c in schema.key_columns)
    if table.policy.history is History.APPEND:
        return "ReplacingMergeTree", (SEQUENCE, ORDER, ROW)
    if table.policy.history is History.SCD2:
        return "ReplacingMergeTree", (*key, SEQUENCE, SEEN)
    if schema.keyless:
        return f"ReplacingMergeTree({q(SEQUENCE)})", (ROW,)
    return f"ReplacingMergeTree({q(SEQUENCE)}, {q(IS_DELETED)})", key


def same_engine(found: str, wanted: str) -> bool:
    """The engine that a server names does what the wanted one does: it may be replicated, which
    has arguments of its own before these."""
    (kind, given), (name, arguments) = _parts(found), _parts(wanted)
    if not kind.endswith(name):
        return False
    return given.endswith(arguments) if arguments else SEQUENCE not in given


def _parts(engine: str) -> tuple[str, str]:
    """``ReplacingMergeTree(a, b) ORDER BY c`` -> its name and ``a, b``."""
    parts = re.match(r"(\w*)(?:\(([^)]*)\))?", engine.replace("`", ""))
    return (parts[1], parts[2] or "") if parts else ("", "")


def _shown(table: TargetTable, schema: TableSchema) -> str:
    """SELECT of the rows that are, for the view. Columns that others added are shown too."""
    d, policy = table.d, table.policy
    q = d.quote
    number = f", {q(SEQUENCE)} AS {q(table.sequence)}"
    if policy.history is History.SCD2:
        key = ", ".join(q(c.name) for c in schema.key_columns)
        window = (
            f"OVER (PARTITION BY {key} ORDER BY {q(SEQUENCE)} "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        )
        following = f"leadInFrame({q(SEQUENCE)}) {window} AS {q(NEXT)}"
        if policy.soft:
            following += f", leadInFrame({q(GONE)}) {window} = 1 AS {q(DELETED)}"
        ends = f"if({q(NEXT)} = 0, NULL, {d.instant(q(NEXT))})"
        return (
            f"SELECT * EXCEPT ({', '.join(map(q, (SEQUENCE, GONE, SEEN, NEXT)))}){number}, "
            f"{d.instant(q(SEQUENCE))} AS {q(VALID_FROM)}, {ends} AS {q(VALID_TO)}, "
            f"{q(NEXT)} = 0 AS {q(IS_CURRENT)} FROM "
            f"(SELECT *, {following} FROM {table.name} FINAL WHERE {q(SEEN)} = 0) "
            f"WHERE {q(GONE)} = 0"
        )
    if policy.history is History.APPEND:
        hidden = ", ".join(map(q, (SEQUENCE, ROW)))
        return f"SELECT * EXCEPT ({hidden}){number} FROM {table.name} FINAL"
    number = number if policy.sequence else ""
    if schema.keyless:
        listed = ", ".join(q(c.name) for c in schema.columns)
        copies = f"range(toUInt64(greatest({q(COPIES)}, 0))) AS {q(COPY)}"
        return f"SELECT {listed}{number} FROM {table.name} FINAL ARRAY JOIN {copies}"
    hidden = ", ".join(map(q, (SEQUENCE, IS_DELETED)))
    return f"SELECT * EXCEPT ({hidden}){number} FROM {table.name} FINAL"


def _can_follow(table: TargetTable, event: SchemaChange) -> None:
    """ClickHouse can alter no column of a sorting key, and a digest is made of all columns."""
    d, old, new = table.d, event.old, event.new

    def kept(columns: Sequence[Column]) -> list[tuple[object, str, str]]:
        return [(c.ref, c.name, d.rule(c).sql) for c in columns]

    def before(columns: Sequence[Column]) -> list[Column | None]:
        return [event.was(column) for column in columns]

    if old.keyless and new.keyless and kept(old.columns) != kept(new.columns):
        why = "a table without a key cannot change its columns in ClickHouse"
        raise evolution.refused(table, new, why)
    same_key = old.keyless == new.keyless and len(old.key) == len(new.key)
    if not old.keyless and same_key:
        pairs = zip(old.key_columns, new.key_columns, before(new.key_columns), strict=True)
        for was, column, same in pairs:
            if was == same and kept([was])[0][1:] != kept([column])[0][1:]:
                why = f"ClickHouse cannot alter the column {was.name}, which is part of the key"
                raise evolution.refused(table, new, why)
