"""Keys, values, headers and filters of a :class:`MessagePlan` as expressions of the JVM.

Spacing and order follow CockroachDB: ``", "`` and ``": "``, members of the envelope by
name, columns of a row in the table's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.errors import ChangefeedError
from changefeed.schema import Column
from changefeed.shapes import Deletes, Envelope, Format
from changefeed.spark.failure import VALUE_PREFIX
from changefeed.spark.plan import MessagePlan
from changefeed.spark.sides import NOW, Rows, before_json, commit_time, upsert_op
from changefeed.spark.tokens import Part, csv_token, joined, separated, string


@dataclass(frozen=True, slots=True)
class Expressions:
    """What a message is made of. ``where`` is None when every row is a message."""

    key: Expression
    value: Expression
    headers: Expression
    where: Expression | None


def expressions(plan: MessagePlan, clean: frozenset[str], *, scan: bool = False) -> Expressions:
    """The expressions of a plan over rows of the log's schema.

    Args:
        plan: what the messages look like.
        clean: log columns (``a3``, ``b0``) whose text never needs escaping in JSON.
        scan: the rows were read by a scan: none is a delete.
    """
    rows = Rows(plan, clean, scan)
    key, value = _FORMATS[plan.format]
    return Expressions(
        key=key(rows),
        value=value(rows),
        headers=_headers(rows),
        where=_where(rows, scan),
    )


def _json_key(rows: Rows) -> Expression:
    return rows.choose(joined(rows.key("a")), joined(rows.key("b"))).cast("binary")


def _json(rows: Rows) -> Expression:
    plan = rows.plan
    if plan.envelope is Envelope.KEY_ONLY:
        return F.lit(None).cast("string")
    shape = _SHAPES[plan.envelope]
    return rows.choose(shape(rows, "a"), shape(rows, "b")).cast("binary")


def _csv(rows: Rows) -> Expression:
    fields = [csv_token(rows.plan.schema.columns[i], f"a{i}") for i in rows.plan.columns]
    parts: list[Part] = []
    for i, field in enumerate(fields):
        parts += [",", field] if i else [field]
    return joined(parts).cast("binary")


def _wrapped(rows: Rows, side: str) -> Expression:
    members = {"after": _after(rows, side), **_timestamps(rows.plan), **_placement(rows, side)}
    if rows.plan.shows_before:
        members["before"] = before_json(rows, side)
    return _object(members)


def _enriched(rows: Rows, side: str) -> Expression:
    plan = rows.plan
    members: dict[str, list[Part]] = {
        "after": _after(rows, side),
        "op": ['"d"'] if side == "b" else ['"', upsert_op(), '"'],
        "ts_ns": [F.col(NOW).cast("string")],
        **_placement(rows, side),
    }
    if plan.shows_before:
        members["before"] = before_json(rows, side)
    if plan.source is not None:
        members["source"] = _source(plan)
    return _object(members)


def _row(rows: Rows, side: str) -> Expression:
    if side == "b":
        return F.lit(None).cast("string")
    return _flat(rows, side, _timestamps(rows.plan) | _topic(rows.plan))


def _changed(rows: Rows, side: str) -> Expression:
    """The columns whose value is another than before the change; all of a row that is new.

    A column of which the log has no value before counts as changed.
    """
    if side == "b":
        return F.lit(None).cast("string")
    meta = _timestamps(rows.plan) | _topic(rows.plan)
    members = []
    for i in rows.plan.columns:
        member = joined([", ", *rows.member("a", i)])
        if i in rows.known:
            same = rows.had_before() & F.col(f"a{i}").eqNullSafe(F.col(f"b{i}"))
            member = F.when(same, "").otherwise(member)
        members.append(member)
    body = F.concat(*members)
    if meta:
        return joined(['{"__crdb__": ', *_members(meta), body, "}"])
    return joined(["{", F.substring(body, 3, 2**31 - 1), "}"])


def _bare(rows: Rows, side: str) -> Expression:
    meta = {"key": rows.key(side), **_timestamps(rows.plan), **_topic(rows.plan)}
    return _flat(rows, side, meta)


_SHAPES = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ENRICHED: _enriched,
    Envelope.ROW: _row,
    Envelope.BARE: _bare,
    Envelope.CHANGED: _changed,
}


#: Key and value of each format, as the columns of messages have them.
_FORMATS: dict[Format, tuple[Callable[[Rows], Expression], Callable[[Rows], Expression]]] = {
    Format.JSON: (_json_key, _json),
    Format.CSV: (_json_key, _csv),
}


def _flat(rows: Rows, side: str, meta: dict[str, list[Part]]) -> Expression:
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


def _after(rows: Rows, side: str) -> list[Part]:
    return ["null"] if side == "b" else rows.object("a", rows.plan.columns)


def _placement(rows: Rows, side: str) -> dict[str, list[Part]]:
    key = {"key": rows.key(side)} if rows.plan.key_in_value else {}
    return {**key, **_topic(rows.plan)}


def _topic(plan: MessagePlan) -> dict[str, list[Part]]:
    return {"topic": [string(plan.topic)]} if plan.topic_in_value else {}


def _timestamps(plan: MessagePlan) -> dict[str, list[Part]]:
    wanted = {"updated": plan.updated, "mvcc_timestamp": plan.mvcc_timestamp}
    return {name: ['"', commit_time(), '"'] for name, shown in wanted.items() if shown}


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
        members["mvcc_timestamp"] = ['"', commit_time(), '"']
    if plan.updated:
        members["ts_hlc"] = ['"', commit_time(), '"']
        members["ts_ns"] = [F.col("wall").cast("string")]
    return separated([[f"{string(name)}: ", *members[name]] for name in sorted(members)], "{", "}")


def _headers(rows: Rows) -> Expression:
    """A JSON object: the fixed headers, then the column's; a name given twice counts last."""
    plan = rows.plan
    fixed = dict(plan.extra_headers)
    always = F.lit(json.dumps(fixed, ensure_ascii=False) if fixed else None).cast("string")
    i = plan.headers_ordinal
    if i is None:
        return always
    after = _merged(plan, f"a{i}", fixed, always)
    return rows.choose(after, _merged(plan, f"b{i}", fixed, always) if i in rows.known else always)


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


def _where(rows: Rows, scan: bool) -> Expression | None:
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
