"""The members of a typed message: one tree, from which schema and values are both made.

``wrapped``, ``bare`` and ``enriched`` follow CockroachDB's Avro messages; ``row`` is the row's
record itself, as the RFC's ``format='avro'`` has it. Every member may be NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import TRAITS
from changefeed.core.shapes import Envelope
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.plan import MessagePlan

#: Prefix of members that are no columns (CockroachDB's).
META = "__crdb__"
_STRING, _LONG = LogicalType(Kind.TEXT), LogicalType(Kind.INT64)


class LeafOrigin(StrEnum):
    """Where the value of a leaf comes from."""

    COLUMN = "column"
    """Column number ``ordinal`` of the log's row, on the side that its record is of."""
    STAMP = "stamp"
    """The commit timestamp, ``1536242855577149065.0000000000``."""
    OP = "op"
    """``c``, ``u`` or ``d``."""
    NOW = "now"
    """Time of encoding, nanoseconds."""
    WALL = "wall"
    """Wall part of the commit timestamp, nanoseconds."""
    CONSTANT = "constant"
    BEFORE_JSON = "before_json"
    """The row before as JSON text."""


class Side(StrEnum):
    """The image of the row that a record shows, and which messages have the record."""

    AFTER = "after"
    """The row after the change; no record for a delete."""
    BEFORE = "before"
    """The row before the change; no record where there was none."""
    PRESENT = "present"
    """The row after the change; of a delete its key columns."""
    KEY = "key"
    """The key: from the row after the change, of a delete from the one before."""
    NONE = "none"
    """No columns in it; always there."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value. ``text`` is what a constant is, ``note`` the source's definition of a column."""

    type: LogicalType
    origin: LeafOrigin
    ordinal: int = -1
    text: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Members under the names readers see. ``suffix`` makes the record's own name unique."""

    members: tuple[tuple[str, Leaf | Record], ...]
    side: Side = Side.NONE
    suffix: str = ""


def key_shape(plan: MessagePlan) -> Record:
    """The tree of the message key."""
    return _row(plan, plan.message_key, Side.KEY)


def value_shape(plan: MessagePlan) -> Record | None:
    """The tree of the message value; None where messages have none."""
    if TRAITS[plan.format].row_alone:
        return _flat(plan)
    if plan.envelope is Envelope.KEY_ONLY:
        return None
    return _SHAPES[plan.envelope](plan)


def _row(plan: MessagePlan, columns: Sequence[int], side: Side, suffix: str = "") -> Record:
    return Record(tuple(_columns(plan, columns)), side, suffix)


def _columns(plan: MessagePlan, columns: Sequence[int]) -> list[tuple[str, Leaf]]:
    members = []
    for i in columns:
        column = plan.schema.columns[i]
        note = f"{column.name} {column.type_name}" + ("" if column.nullable else " NOT NULL")
        members.append((column.name, Leaf(column.logical.typed, LeafOrigin.COLUMN, i, note=note)))
    return members


def _stamps(plan: MessagePlan) -> list[tuple[str, Leaf | Record]]:
    wanted = {"updated": plan.updated, "mvcc_timestamp": plan.mvcc_timestamp}
    return [(name, Leaf(_STRING, LeafOrigin.STAMP)) for name, shown in wanted.items() if shown]


def _topic(plan: MessagePlan) -> list[tuple[str, Leaf | Record]]:
    shown = plan.topic_in_value
    return [("topic", Leaf(_STRING, LeafOrigin.CONSTANT, text=plan.topic))] if shown else []


def _images(plan: MessagePlan) -> list[tuple[str, Leaf | Record]]:
    members: list[tuple[str, Leaf | Record]] = []
    if plan.shows_before:
        members.append(("before", _row(plan, plan.before_columns, Side.BEFORE, "_before")))
    members.append(("after", _row(plan, plan.columns, Side.AFTER)))
    return members


def _placement(plan: MessagePlan) -> list[tuple[str, Leaf | Record]]:
    key = _row(plan, plan.message_key, Side.KEY, "_key")
    return [*([("key", key)] if plan.key_in_value else []), *_topic(plan)]


def _wrapped(plan: MessagePlan) -> Record:
    return Record((*_images(plan), *_stamps(plan), *_placement(plan)), suffix="_envelope")


def _bare(plan: MessagePlan) -> Record:
    record = _row(plan, plan.columns, Side.PRESENT)
    return Record((("record", record), *_stamps(plan), *_topic(plan)), suffix="_envelope")


def _row_envelope(plan: MessagePlan) -> Record:
    meta = (*_stamps(plan), *_topic(plan))
    head = ((META, Record(meta, suffix="_crdb")),) if meta else ()
    return Record((*head, *_columns(plan, plan.columns)), Side.AFTER)


def _enriched(plan: MessagePlan) -> Record:
    more: list[tuple[str, Leaf | Record]] = [("op", Leaf(_STRING, LeafOrigin.OP))]
    if plan.source is not None:
        more.append(("source", _source(plan)))
    more.append(("ts_ns", Leaf(_LONG, LeafOrigin.NOW)))
    return Record((*_images(plan), *more, *_placement(plan)), suffix="_envelope")


def _source(plan: MessagePlan) -> Record:
    table = plan.schema.table
    database = plan.origin.database_of(table)
    fixed = {
        **({"database_name": database} if database else {}),
        "schema_name": table.schema,
        "table_name": table.name,
        **{name: str(value) for name, value in plan.source or () if value is not None},
    }
    members: list[tuple[str, Leaf | Record]] = [
        (name, Leaf(_STRING, LeafOrigin.CONSTANT, text=text))
        for name, text in sorted(fixed.items())
    ]
    if plan.mvcc_timestamp:
        members.append(("mvcc_timestamp", Leaf(_STRING, LeafOrigin.STAMP)))
    if plan.updated:
        members.append(("ts_hlc", Leaf(_STRING, LeafOrigin.STAMP)))
        members.append(("ts_ns", Leaf(_LONG, LeafOrigin.WALL)))
    return Record(tuple(members), suffix="_source")


def _flat(plan: MessagePlan) -> Record:
    """The row of a Parquet file: its columns, then the metadata."""
    more: list[tuple[str, Leaf | Record]] = [(f"{META}event_type", Leaf(_STRING, LeafOrigin.OP))]
    more += [(f"{META}{name}", leaf) for name, leaf in _stamps(plan)]
    if plan.shows_before:
        more.append((f"{META}diff", Leaf(_STRING, LeafOrigin.BEFORE_JSON)))
    taken = {name for name, _ in more}
    columns = _columns(plan, plan.columns)
    for name, _ in columns:
        if name in taken:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"column {name} of {plan.schema.table.name} has the name of a column that "
                "format=parquet adds",
            )
    return Record((*columns, *more), Side.PRESENT)


_SHAPES = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ROW: _row_envelope,
    Envelope.BARE: _bare,
    Envelope.ENRICHED: _enriched,
}
