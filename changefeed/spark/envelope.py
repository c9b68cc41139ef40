"""Keys, values, headers and filters of a :class:`MessagePlan` as expressions of the JVM.

Spacing and order follow CockroachDB: ``", "`` and ``": "``, members of the envelope by
name, columns of a row in the table's order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.errors import ChangefeedError
from changefeed.schema import Column
from changefeed.shapes import Deletes, Envelope, Format
from changefeed.spark.failure import VALUE_PREFIX
from changefeed.spark.plan import MessagePlan
from changefeed.spark.tokens import Part, csv_token, joined, json_token, separated, string

#: Column with the time of encoding, nanoseconds since 1970 (enriched: ``ts_ns``).
NOW = "now"


@dataclass(frozen=True, slots=True)
class Expressions:
    """What a message is made of. ``where`` is None when every row is a message."""

    key: Expression
    value: Expression
    headers: Expression
    where: Expression | None


class _Rows:
    """Which side of the log's row to read, and how clean it is."""

    def __init__(self, plan: MessagePlan, clean: frozenset[str], scan: bool) -> None:
        self.plan = plan
        self.clean = clean
        #: A row may be a delete: its key is on the before side.
        self.deletes = not scan and plan.deletes is not Deletes.NO
        # What a scan reads has no side before, whatever the log would have.
        self.known = frozenset(() if scan else plan.schema.before_ordinals)

    def token(self, side: str, i: int) -> list[Part]:
        """The JSON token of a column; ``null`` where the log has no such column."""
        if side == "b" and i not in self.known:
            return ["null"]
        name = f"{side}{i}"
        return json_token(
            self.plan.schema.columns[i],
            name,
            clean=name in self.clean,
            null_as_object=self.plan.json_null_as_object,
        )

    def member(self, side: str, i: int) -> list[Part]:
        """``"b": "y"``."""
        return [f"{self.name(i)}: ", *self.token(side, i)]

    def object(self, side: str, columns: Sequence[int]) -> list[Part]:
        """``{"a": 1, "b": "y"}``."""
        return separated([self.member(side, i) for i in columns], "{", "}")

    def name(self, i: int) -> str:
        return string(self.plan.schema.columns[i].name)

    def key(self, side: str) -> list[Part]:
        """``[1, "x"]``, or an object in the enriched envelope."""
        columns = self.plan.message_key
        if self.plan.envelope is Envelope.ENRICHED:
            return self.object(side, columns)
        return separated([self.token(side, i) for i in columns], "[", "]")


def expressions(plan: MessagePlan, clean: frozenset[str], *, scan: bool = False) -> Expressions:
    """The expressions of a plan over rows of the log's schema.

    Args:
        plan: what the messages look like.
        clean: log columns (``a3``, ``b0``) whose text never needs escaping in JSON.
        scan: the rows were read by a scan: none is a delete.
    """
    rows = _Rows(plan, clean, scan)
    return Expressions(
        key=_choose(rows, joined(rows.key("a")), joined(rows.key("b"))),
        value=_value(rows),
        headers=_headers(rows),
        where=_where(rows, scan),
    )


def _choose(rows: _Rows, change: Expression, delete: Expression) -> Expression:
    if not rows.deletes:
        return change
    if rows.plan.deletes is Deletes.ONLY:
        return delete
    return F.when(F.col("op") == "d", delete).otherwise(change)


def _value(rows: _Rows) -> Expression:
    plan = rows.plan
    if plan.format is Format.CSV:
        return _csv(rows)
    if plan.envelope is Envelope.KEY_ONLY:
        return F.lit(None).cast("string")
    return _choose(rows, _SHAPES[plan.envelope](rows, "a"), _SHAPES[plan.envelope](rows, "b"))


def _csv(rows: _Rows) -> Expression:
    fields = [csv_token(rows.plan.schema.columns[i], f"a{i}") for i in rows.plan.columns]
    parts: list[Part] = []
    for i, field in enumerate(fields):
        parts += [",", field] if i else [field]
    return joined(parts)


def _wrapped(rows: _Rows, side: str) -> Expression:
    members = {"after": _after(rows, side), **_timestamps(rows.plan), **_placement(rows, side)}
    if rows.plan.shows_before:
        members["before"] = _before(rows, side)
    return _object(members)


def _enriched(rows: _Rows, side: str) -> Expression:
    plan = rows.plan
    members: dict[str, list[Part]] = {
        "after": _after(rows, side),
        "op": ['"d"'] if side == "b" else _upsert_op(),
        "ts_ns": [F.col(NOW).cast("string")],
        **_placement(rows, side),
    }
    if plan.shows_before:
        members["before"] = _before(rows, side)
    if plan.source is not None:
        members["source"] = _source(plan)
    return _object(members)


def _row(rows: _Rows, side: str) -> Expression:
    if side == "b":
        return F.lit(None).cast("string")
    return _flat(rows, side, _timestamps(rows.plan) | _topic(rows.plan))


def _bare(rows: _Rows, side: str) -> Expression:
    meta = {"key": rows.key(side), **_timestamps(rows.plan), **_topic(rows.plan)}
    return _flat(rows, side, meta)


_SHAPES = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ENRICHED: _enriched,
    Envelope.ROW: _row,
    Envelope.BARE: _bare,
}


def _flat(rows: _Rows, side: str, meta: dict[str, list[Part]]) -> Expression:
    """The row itself with the metadata as its first member; of a delete only the key is known."""
    members: list[list[Part]] = []
    if meta:
        members.append(['"__crdb__": ', *_members(meta)])
    key = set(rows.plan.schema.key)
    for i in rows.plan.columns:
        shown = side == "a" or i in key
        members.append(rows.member(side, i) if shown else [f"{rows.name(i)}: null"])
    return joined(separated(members, "{", "}"))


def _object(members: dict[str, list[Part]]) -> Expression:
    return joined(_members(members))


def _members(members: dict[str, list[Part]]) -> list[Part]:
    return separated([[f'"{name}": ', *members[name]] for name in sorted(members)], "{", "}")


def _after(rows: _Rows, side: str) -> list[Part]:
    return ["null"] if side == "b" else rows.object("a", rows.plan.columns)


def _before(rows: _Rows, side: str) -> list[Part]:
    """The row before: always there on a delete, absent of a scan and where the change made the row.

    Its key tells: a key column of a row is never NULL. Without a key every column is asked.
    """
    plan = rows.plan
    if not rows.known:
        return ["null"]
    image = rows.object("b", plan.before_columns)
    if side == "b":
        return image
    known = [F.col(f"b{i}").isNotNull() for i in plan.schema.key if i in rows.known]
    there = reduce(lambda one, other: one | other, known)
    return [F.when(there, joined(image)).otherwise("null")]


def _placement(rows: _Rows, side: str) -> dict[str, list[Part]]:
    key = {"key": rows.key(side)} if rows.plan.key_in_value else {}
    return {**key, **_topic(rows.plan)}


def _topic(plan: MessagePlan) -> dict[str, list[Part]]:
    return {"topic": [string(plan.topic)]} if plan.topic_in_value else {}


def _timestamps(plan: MessagePlan) -> dict[str, list[Part]]:
    wanted = {"updated": plan.updated, "mvcc_timestamp": plan.mvcc_timestamp}
    return {name: ['"', _commit_time(), '"'] for name, shown in wanted.items() if shown}


def _commit_time() -> Expression:
    """``1536242855577149065.0000000000``; see :class:`changefeed.clock.Timestamp`."""
    logical = F.lpad(F.col("logical").cast("string"), 10, "0")
    return F.concat(F.col("wall").cast("string"), F.lit("."), logical)


def _upsert_op() -> list[Part]:
    return ['"', F.when(F.col("op") == "u", "u").otherwise("c"), '"']


def _source(plan: MessagePlan) -> list[Part]:
    schema = plan.schema
    fixed: dict[str, object] = {
        "primary_keys": [] if schema.keyless else [column.name for column in schema.key_columns],
        "schema_name": schema.table.schema,
        "table_name": schema.table.name,
        **dict(plan.source or ()),
    }
    members: dict[str, list[Part]] = {
        name: [json.dumps(value, ensure_ascii=False)] for name, value in fixed.items()
    }
    if plan.mvcc_timestamp:
        members["mvcc_timestamp"] = ['"', _commit_time(), '"']
    if plan.updated:
        members["ts_hlc"] = ['"', _commit_time(), '"']
        members["ts_ns"] = [F.col("wall").cast("string")]
    return separated([[f"{string(name)}: ", *members[name]] for name in sorted(members)], "{", "}")


def _headers(rows: _Rows) -> Expression:
    """A JSON object: the fixed headers, then the column's; a name given twice counts last."""
    plan = rows.plan
    fixed = dict(plan.extra_headers)
    always = F.lit(json.dumps(fixed, ensure_ascii=False) if fixed else None).cast("string")
    i = plan.headers_ordinal
    if i is None:
        return always
    after = _merged(plan, f"a{i}", fixed, always)
    return _choose(
        rows, after, _merged(plan, f"b{i}", fixed, always) if i in rows.known else always
    )


def _merged(plan: MessagePlan, name: str, fixed: dict[str, str], always: Expression) -> Expression:
    text = F.trim(F.col(name))
    wrong = f"the headers column {plan.headers_column} of {plan.schema.table.name} holds JSON "
    refused = F.raise_error(F.lit(f"{VALUE_PREFIX}{wrong}that is not an object:end"))
    opening = json.dumps(fixed, ensure_ascii=False)[:-1] + ", " if fixed else "{"
    return (
        F.when(text.isNull() | (text == "null") | text.rlike(r"^\{\s*\}\z"), always)
        .when(text.startswith("{"), F.concat(F.lit(opening), F.substring(text, 2, 2**31 - 1)))
        .otherwise(refused.cast("string"))
    )


def _where(rows: _Rows, scan: bool) -> Expression | None:
    plan = rows.plan
    conditions: list[Expression] = []
    if not scan:
        if plan.collapse:
            conditions.append(F.col("last"))
        if plan.deletes is Deletes.NO:
            conditions.append(F.col("op") != "d")
        elif plan.deletes is Deletes.ONLY:
            conditions.append(F.col("op") == "d")
    conditions += key_range(plan, deletes=rows.deletes)
    return reduce(lambda one, other: one & other, conditions) if conditions else None


def key_range(plan: MessagePlan, *, deletes: bool) -> list[Expression]:
    """``VALUES FROM (..) TO (..)``: the key as a tuple is in ``[from, to)``."""
    out = []
    if plan.key_from:
        out.append(_tuple_compare(plan, plan.key_from, deletes, at_least=True))
    if plan.key_to:
        out.append(_tuple_compare(plan, plan.key_to, deletes, at_least=False))
    return out


def _tuple_compare(
    plan: MessagePlan, bound: tuple[str, ...], deletes: bool, *, at_least: bool
) -> Expression:
    """``key >= bound`` or ``key < bound``, column by column from the last."""
    result = F.lit(at_least)
    for i, text in reversed(list(zip(plan.schema.key, bound, strict=False))):
        column = plan.schema.columns[i]
        limit = _ordered(column, F.lit(text))
        value = _ordered(column, F.col(f"a{i}"))
        if deletes:
            value = F.when(F.col("op") == "d", _ordered(column, F.col(f"b{i}"))).otherwise(value)
        past = value > limit if at_least else value < limit
        result = past | ((value == limit) & result)
    return result


#: Beyond this many digits on either side of the point a numeric key has no exact order here.
_EXACT = "decimal(38,18)"

_AS_TEXT = frozenset({"text", "uuid", "date", "time", "timestamp"})


def _ordered(column: Column, value: Expression) -> Expression:
    """The value as something that sorts as its type does. Texts sort by code point.

    ISO times in UTC sort as text once the final Z is off: ``3.5Z`` would sort before ``3Z``.
    """
    logical = column.logical
    if logical.startswith("int"):
        return value.cast("long")
    if logical == "bool":
        return value.cast("boolean")
    if logical.startswith("decimal"):
        return value.try_cast(_EXACT)
    if logical == "timestamptz":
        return F.rtrim(value, F.lit("Z"))
    if logical in _AS_TEXT:
        return value
    raise ChangefeedError(
        "CF1302",
        f"VALUES FROM/TO is not supported on a key of type {column.type_name}",
        detail=f"column {column.name}",
    )
