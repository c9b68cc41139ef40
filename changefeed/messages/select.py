"""Which rows of the log are messages of a plan: by kind, and by a range of the key."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.errors import ChangefeedError
from changefeed.messages.plan import MessagePlan
from changefeed.schema import Column
from changefeed.shapes import Deletes


def wanted_rows(table: pa.Table, plan: MessagePlan, *, scan: bool = False) -> pa.Table:
    """The rows that become messages, in their order.

    Raises:
        ChangefeedError: CF1302, the key's type has no order here; CF4001, a value has none.
    """
    if not scan:
        if plan.collapse:
            table = _where(table, table["last"])
        if plan.deletes is Deletes.NO:
            table = _where(table, pc.not_equal(table["op"], "d"))
        elif plan.deletes is Deletes.ONLY:
            table = _where(table, pc.equal(table["op"], "d"))
    if plan.key_from:
        table = _where(table, _compared(table, plan, plan.key_from, scan=scan, at_least=True))
    if plan.key_to:
        table = _where(table, _compared(table, plan, plan.key_to, scan=scan, at_least=False))
    return table


def _where(table: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    return table if pc.all(mask).as_py() else table.filter(mask)


def _compared(
    table: pa.Table, plan: MessagePlan, bound: tuple[str, ...], *, scan: bool, at_least: bool
) -> pa.ChunkedArray:
    """``key >= bound`` or ``key < bound``, column by column from the last."""
    deletes = None if scan else pc.equal(table["op"], "d")
    result: pa.ChunkedArray | None = None
    for i, text in reversed(list(zip(plan.schema.key, bound, strict=False))):
        column = plan.schema.columns[i]
        values = table[f"a{i}"]
        if deletes is not None:
            values = pc.if_else(deletes, table[f"b{i}"], values)
        values = _ordered(column, values)
        limit = _ordered(column, _literal(column, text))[0]
        past = pc.greater(values, limit) if at_least else pc.less(values, limit)
        same = pc.equal(values, limit)
        if result is None:
            result = pc.or_(past, same) if at_least else past
        else:
            result = pc.or_(past, pc.and_(same, result))
    if result is None:
        raise AssertionError("a range has a bound")
    return pc.fill_null(result, False)


def _literal(column: Column, text: str) -> pa.Array:
    """A bound as a value of the log."""
    if column.logical == "bool":
        return pa.array([text in ("true", "t")])
    return pa.array([int(text)] if column.logical.startswith("int") else [text])


_AS_TEXT = frozenset({"text", "uuid", "date", "time", "timestamp"})

#: Digits before and behind the point a numeric key may have to be compared.
_DIGITS = 38
_NUMBER = rf"^-?\d{{1,{_DIGITS}}}(\.\d{{1,{_DIGITS - 1}}})?\z"
#: PostgreSQL's order of what is no number, as numbers beyond all others.
_BEYOND = {'"-Infinity"': "-" + "9" * _DIGITS, '"Infinity"': "9" * _DIGITS}
_BEYOND['"NaN"'] = _BEYOND['"Infinity"'] + ".5"


def _ordered(column: Column, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The values as something that sorts as the type does. Texts sort by code point.

    ISO times in UTC sort as text once the final Z is off: ``3.5Z`` would sort before ``3Z``.
    """
    logical = column.logical
    if logical.startswith("int"):
        return values.cast(pa.int64())
    if logical == "bool":
        return values
    if logical.startswith("decimal"):
        return _numbers(column, values)
    if logical == "timestamptz":
        return pc.utf8_rtrim(values, "Z")
    if logical in _AS_TEXT:
        return values
    raise ChangefeedError(
        "CF1302",
        f"VALUES FROM/TO is not supported on a key of type {column.type_name}",
        detail=f"column {column.name}",
    )


def _numbers(column: Column, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    for text, number in _BEYOND.items():
        values = pc.if_else(pc.equal(values, text), number, values)
    fits = pc.match_substring_regex(values, _NUMBER)
    if not pc.all(pc.fill_null(fits, True)).as_py():
        raise ChangefeedError(
            "CF4001",
            f"a value of key column {column.name} has more digits than VALUES FROM/TO compares",
            detail=f"up to {_DIGITS} before the point and {_DIGITS - 1} behind it",
        )
    return values.cast(pa.decimal256(2 * _DIGITS - 1, _DIGITS - 1))
