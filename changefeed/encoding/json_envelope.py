"""Values of JSON and CSV, and the headers of every format.

Spacing and order of JSON follow CockroachDB: ``", "`` and ``": "``, members of the envelope by
name, columns of a row in the table's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.shapes import Envelope
from changefeed.encoding.debezium.messages import JsonMessages
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import Part, chosen, csv_token, joined, separated, string
from changefeed.encoding.message_format import MessageFormat
from changefeed.encoding.plan import MessagePlan


class JsonFormat(MessageFormat):
    """``format = 'json'``."""

    def messages(self, rows: TokenRows) -> tuple[pa.Array, pa.Array]:
        if rows.plan.envelope is Envelope.DEBEZIUM:
            debezium = JsonMessages(rows)
            return debezium.keys(), debezium.values()
        return super().messages(rows)

    def values(self, rows: TokenRows) -> pa.Array:
        if rows.plan.envelope is Envelope.KEY_ONLY:
            return pa.nulls(rows.count, pa.string())
        shape = _SHAPES[rows.plan.envelope]
        return rows.choose(lambda side: shape(rows, side))


class CsvFormat(MessageFormat):
    """``format = 'csv'``: the columns of the row and nothing else."""

    def values(self, rows: TokenRows) -> pa.Array:
        parts: list[Part] = []
        for i in rows.plan.columns:
            field = csv_token(rows.plan.schema.columns[i], rows.column(f"a{i}"))
            parts += [",", field] if parts else [field]
        return joined(parts, rows.count)


def _wrapped(rows: TokenRows, side: str) -> pa.Array:
    members = {
        "after": _after(rows, side),
        **_timestamps(rows),
        **_placement(rows, side),
        **_transaction(rows),
    }
    if rows.plan.shows_before:
        members["before"] = rows.before(side)
    return _object(rows, members)


def _enriched(rows: TokenRows, side: str) -> pa.Array:
    plan = rows.plan
    members: dict[str, list[Part]] = {
        "after": _after(rows, side),
        "op": ['"d"'] if side == "b" else ['"', rows.operation, '"'],
        "ts_ns": [str(rows.now_ns)],
        **_placement(rows, side),
        **_transaction(rows),
    }
    if plan.shows_before:
        members["before"] = rows.before(side)
    if plan.source is not None:
        members["source"] = _source(rows)
    return _object(rows, members)


def _row(rows: TokenRows, side: str) -> pa.Array:
    if side == "b":
        return pa.nulls(rows.count, pa.string())
    return _flat(rows, side, _timestamps(rows) | _topic(rows.plan) | _transaction(rows))


def _changed(rows: TokenRows, side: str) -> pa.Array:
    """The columns whose value changed; all columns of a new row.

    A column without a value before in the log counts as changed.
    """
    if side == "b":
        return pa.nulls(rows.count, pa.string())
    meta = _timestamps(rows) | _topic(rows.plan) | _transaction(rows)
    members: list[Part] = []
    for i in rows.plan.columns:
        member = joined([", ", *rows.member("a", i)], rows.count)
        members.append(pc.if_else(rows.unchanged(i), "", member) if i in rows.known else member)
    if meta:
        return joined(['{"__crdb__": ', *_members(meta), *members, "}"], rows.count)
    body = pc.utf8_slice_codeunits(joined(members, rows.count), 2)
    return joined(["{", body, "}"], rows.count)


def _bare(rows: TokenRows, side: str) -> pa.Array:
    meta = {"key": rows.key(side), **_timestamps(rows), **_topic(rows.plan), **_transaction(rows)}
    return _flat(rows, side, meta)


_SHAPES: dict[Envelope, Callable[[TokenRows, str], pa.Array]] = {
    Envelope.WRAPPED: _wrapped,
    Envelope.ENRICHED: _enriched,
    Envelope.ROW: _row,
    Envelope.BARE: _bare,
    Envelope.CHANGED: _changed,
}


def _flat(rows: TokenRows, side: str, meta: dict[str, list[Part]]) -> pa.Array:
    """The row with the metadata as its first member; of deletes only the key is known."""
    members: list[tuple[list[Part], pa.Array | None]] = []
    if meta:
        members.append((['"__crdb__": ', *_members(meta)], None))
    key = set(rows.plan.schema.key)
    for i in rows.plan.columns:
        shown = side == "a" or i in key or (rows.plan.whole_deletes and i in rows.known)
        member = rows.member(side, i) if shown else [f"{rows.name(i)}: null"]
        members.append((member, rows.left_out(side, i)))
    return joined(chosen(members, "{", "}", rows.count), rows.count)


def _object(rows: TokenRows, members: Mapping[str, list[Part]]) -> pa.Array:
    return joined(_members(members), rows.count)


def _members(members: Mapping[str, list[Part]]) -> list[Part]:
    return separated([[f"{string(name)}: ", *members[name]] for name in sorted(members)], "{", "}")


def _after(rows: TokenRows, side: str) -> list[Part]:
    return ["null"] if side == "b" else rows.object("a", rows.plan.columns)


def _placement(rows: TokenRows, side: str) -> dict[str, list[Part]]:
    key = {"key": rows.key(side)} if rows.plan.key_in_value else {}
    return {**key, **_topic(rows.plan)}


def _topic(plan: MessagePlan) -> dict[str, list[Part]]:
    return {"topic": [string(plan.topic)]} if plan.topic_in_value else {}


def _timestamps(rows: TokenRows) -> dict[str, list[Part]]:
    wanted = {"updated": rows.plan.updated, "mvcc_timestamp": rows.plan.mvcc_timestamp}
    return {name: ['"', *rows.commit_time, '"'] for name, shown in wanted.items() if shown}


def _database(plan: MessagePlan) -> dict[str, str]:
    name = plan.origin.database_of(plan.schema.table)
    return {"database_name": name} if name else {}


def _transaction(rows: TokenRows) -> dict[str, list[Part]]:
    return {"transaction": rows.transaction(" ")} if rows.plan.transactions else {}


def _source(rows: TokenRows) -> list[Part]:
    plan, schema = rows.plan, rows.plan.schema
    fixed: dict[str, object] = {
        **_database(plan),
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


def headers(rows: TokenRows) -> pa.Array:
    """A JSON object: the fixed headers, then those of the column; of two equal names the last
    counts."""
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


def _merged(rows: TokenRows, name: str, fixed: Mapping[str, str], always: pa.Array) -> pa.Array:
    text = pc.utf8_trim(rows.column(name), " ")
    nothing = pc.fill_null(pc.match_substring_regex(text, r"^(null|\{\s*\})\z"), True)
    # Rows of the other kind have their headers on the other side.
    mine = pc.equal(rows.column("op"), "d") if name.startswith("b") else None
    wrong = pc.and_(pc.invert(nothing), pc.invert(pc.starts_with(pc.fill_null(text, "{"), "{")))
    if pc.any(wrong if mine is None else pc.and_(wrong, mine)).as_py():
        plan = rows.plan
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"the headers column {plan.headers_column} of {plan.schema.table.name} holds JSON "
            "that is not an object",
        )
    opening = json.dumps(fixed, ensure_ascii=False)[:-1] + ", " if fixed else "{"
    rest = pc.binary_join_element_wise(opening, pc.utf8_slice_codeunits(text, 1), "")
    return pc.if_else(nothing, always, rest)
