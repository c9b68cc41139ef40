"""Keys, values and headers of a :class:`MessagePlan`.

Spacing and order follow CockroachDB: ``", "`` and ``": "``, members of the envelope by
name, columns of a row in the table's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError
from changefeed.core.shapes import Envelope, Format
from changefeed.encoding.avro.messages import AvroMessages
from changefeed.encoding.binary_record import Filler
from changefeed.encoding.debezium import avro
from changefeed.encoding.debezium import messages as debezium_json
from changefeed.encoding.images import Rows
from changefeed.encoding.json_tokens import Part, csv_token, joined, separated, string
from changefeed.encoding.parquet import parquet_values
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.messages import ProtobufMessages


def keys_and_values(rows: Rows) -> tuple[pa.Array, pa.Array]:
    """The message keys, and the values; null where a message has none."""
    if rows.plan.envelope is Envelope.DEBEZIUM:
        debezium = _DEBEZIUM[rows.plan.format](rows)
        return debezium.keys(), debezium.values()
    binary = _BINARY.get(rows.plan.format)
    if binary is not None:
        messages = binary(rows)  # one for both: a key's columns are encoded once
        return messages.keys(), messages.values()
    return rows.choose(lambda side: joined(rows.key(side), rows.count)), _values(rows)


def _values(rows: Rows) -> pa.Array:
    other = _OTHER.get(rows.plan.format)
    if other is not None:
        return other(rows)
    if rows.plan.envelope is Envelope.KEY_ONLY:
        return pa.nulls(rows.count, pa.string())
    shape = _SHAPES[rows.plan.envelope]
    return rows.choose(lambda side: shape(rows, side))


def _csv(rows: Rows) -> pa.Array:
    parts: list[Part] = []
    for i in rows.plan.columns:
        field = csv_token(rows.plan.schema.columns[i], rows.column(f"a{i}"))
        parts += [",", field] if parts else [field]
    return joined(parts, rows.count)


_BINARY: dict[Format, type[Filler]] = {
    Format.AVRO: AvroMessages,
    Format.PROTOBUF: ProtobufMessages,
}

#: Debezium's envelope, by format.
_DEBEZIUM: dict[Format, type[debezium_json.Messages[Any]]] = {
    Format.JSON: debezium_json.JsonMessages,
    Format.AVRO: avro.AvroMessages,
}

_OTHER: dict[Format, Callable[[Rows], pa.Array]] = {
    Format.CSV: _csv,
    Format.PARQUET: parquet_values,
}


def _wrapped(rows: Rows, side: str) -> pa.Array:
    members = {"after": _after(rows, side), **_timestamps(rows), **_placement(rows, side)}
    if rows.plan.shows_before:
        members["before"] = rows.before(side)
    return _object(rows, members)


def _enriched(rows: Rows, side: str) -> pa.Array:
    plan = rows.plan
    members: dict[str, list[Part]] = {
        "after": _after(rows, side),
        "op": ['"d"'] if side == "b" else ['"', rows.operation, '"'],
        "ts_ns": [str(rows.now_ns)],
        **_placement(rows, side),
    }
    if plan.shows_before:
        members["before"] = rows.before(side)
    if plan.source is not None:
        members["source"] = _source(rows)
    return _object(rows, members)


def _row(rows: Rows, side: str) -> pa.Array:
    if side == "b":
        return pa.nulls(rows.count, pa.string())
    return _flat(rows, side, _timestamps(rows) | _topic(rows.plan))


def _changed(rows: Rows, side: str) -> pa.Array:
    """The columns whose value is another than before the change; all of a row that is new.

    A column of which the log has no value before counts as changed.
    """
    if side == "b":
        return pa.nulls(rows.count, pa.string())
    meta = _timestamps(rows) | _topic(rows.plan)
    members: list[Part] = []
    for i in rows.plan.columns:
        member = joined([", ", *rows.member("a", i)], rows.count)
        members.append(pc.if_else(rows.unchanged(i), "", member) if i in rows.known else member)
    if meta:
        return joined(['{"__crdb__": ', *_members(meta), *members, "}"], rows.count)
    body = pc.utf8_slice_codeunits(joined(members, rows.count), 2)
    return joined(["{", body, "}"], rows.count)


def _bare(rows: Rows, side: str) -> pa.Array:
    meta = {"key": rows.key(side), **_timestamps(rows), **_topic(rows.plan)}
    return _flat(rows, side, meta)


_SHAPES: dict[Envelope, Callable[[Rows, str], pa.Array]] = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ENRICHED: _enriched,
    Envelope.ROW: _row,
    Envelope.BARE: _bare,
    Envelope.CHANGED: _changed,
}


def _flat(rows: Rows, side: str, meta: dict[str, list[Part]]) -> pa.Array:
    """The row itself with the metadata as its first member; of a delete only the key is known."""
    members: list[list[Part]] = []
    if meta:
        members.append(['"__crdb__": ', *_members(meta)])
    key = set(rows.plan.schema.key)
    for i in rows.plan.columns:
        shown = side == "a" or i in key or (rows.plan.whole_deletes and i in rows.known)
        members.append(rows.member(side, i) if shown else [f"{rows.name(i)}: null"])
    return joined(separated(members, "{", "}"), rows.count)


def _object(rows: Rows, members: Mapping[str, list[Part]]) -> pa.Array:
    return joined(_members(members), rows.count)


def _members(members: Mapping[str, list[Part]]) -> list[Part]:
    return separated([[f"{string(name)}: ", *members[name]] for name in sorted(members)], "{", "}")


def _after(rows: Rows, side: str) -> list[Part]:
    return ["null"] if side == "b" else rows.object("a", rows.plan.columns)


def _placement(rows: Rows, side: str) -> dict[str, list[Part]]:
    key = {"key": rows.key(side)} if rows.plan.key_in_value else {}
    return {**key, **_topic(rows.plan)}


def _topic(plan: MessagePlan) -> dict[str, list[Part]]:
    return {"topic": [string(plan.topic)]} if plan.topic_in_value else {}


def _timestamps(rows: Rows) -> dict[str, list[Part]]:
    wanted = {"updated": rows.plan.updated, "mvcc_timestamp": rows.plan.mvcc_timestamp}
    return {name: ['"', *rows.commit_time, '"'] for name, shown in wanted.items() if shown}


def _source(rows: Rows) -> list[Part]:
    plan, schema = rows.plan, rows.plan.schema
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
        members["mvcc_timestamp"] = ['"', *rows.commit_time, '"']
    if plan.updated:
        members["ts_hlc"] = ['"', *rows.commit_time, '"']
        members["ts_ns"] = [rows.wall]
    return _members(members)


# ------------------------------------------------------------------------------- headers


def headers(rows: Rows) -> pa.Array:
    """A JSON object: the fixed headers, then the column's; a name given twice counts last."""
    fixed = dict(rows.plan.extra_headers)
    text = json.dumps(fixed, ensure_ascii=False) if fixed else None
    always = pa.repeat(pa.scalar(text, pa.string()), rows.count)
    i = rows.plan.headers_ordinal
    if i is None:
        return always

    def merged(side: str) -> pa.Array:
        if side == "b" and i not in rows.known:
            return always
        return _merged(rows, f"{side}{i}", fixed, always)

    return rows.choose(merged)


def _merged(rows: Rows, name: str, fixed: Mapping[str, str], always: pa.Array) -> pa.Array:
    text = pc.utf8_trim(rows.column(name), " ")
    nothing = pc.fill_null(pc.match_substring_regex(text, r"^(null|\{\s*\})\z"), True)
    # Of rows of the other kind this column says nothing: theirs is the other side.
    mine = pc.equal(rows.column("op"), "d") if name.startswith("b") else None
    wrong = pc.and_(pc.invert(nothing), pc.invert(pc.starts_with(pc.fill_null(text, "{"), "{")))
    if pc.any(wrong if mine is None else pc.and_(wrong, mine)).as_py():
        plan = rows.plan
        raise ChangefeedError(
            "CF4001",
            f"the headers column {plan.headers_column} of {plan.schema.table.name} holds JSON "
            "that is not an object",
        )
    opening = json.dumps(fixed, ensure_ascii=False)[:-1] + ", " if fixed else "{"
    rest = pc.binary_join_element_wise(opening, pc.utf8_slice_codeunits(text, 1), "")
    return pc.if_else(nothing, always, rest)
