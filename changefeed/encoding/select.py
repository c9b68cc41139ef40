"""Which rows of the log are messages of a plan: by kind, by a range of the key, by partition."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.partition import Members, PartitionCondition, Prefixes
from changefeed.core.schema import Column
from changefeed.core.shapes import Deletes
from changefeed.core.types import COMPARED_AS_THEY_ARE, DATES, INTEGERS, Kind
from changefeed.encoding.plan import MessagePlan


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
        rows = _values(table, plan.schema.key, plan, scan=scan)
        table = _where(table, _beyond(rows, plan.key_from, above=True, or_equal=True))
    if plan.key_to:
        rows = _values(table, plan.schema.key, plan, scan=scan)
        table = _where(table, _beyond(rows, plan.key_to, above=False, or_equal=False))
    for condition in plan.within:
        table = _where(table, _inside(table, plan, condition, scan=scan))
    return table


def key_values(table: pa.Table, plan: MessagePlan) -> list[pa.ChunkedArray]:
    """The columns of the primary key; of deleted rows the values before."""
    return [values for _, values in _values(table, plan.schema.key, plan, scan=False)]


def _where(table: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    return table if _all(mask) else table.filter(mask)


def _all(mask: pa.ChunkedArray | pa.Array) -> bool:
    """True of no rows, for which ``pc.all`` is NULL by default."""
    return bool(pc.all(mask, min_count=0).as_py())


#: A column of the table and its values in some rows.
_Values = tuple[Column, pa.ChunkedArray]


def _values(
    table: pa.Table, ordinals: Sequence[int], plan: MessagePlan, *, scan: bool
) -> list[_Values]:
    """The values after the change, and of deleted rows those before it."""
    deletes = None if scan else pc.equal(table["op"], "d")
    found = []
    for i in ordinals:
        values = table[f"a{i}"]
        if deletes is not None:
            values = pc.if_else(deletes, table[f"b{i}"], values)
        found.append((plan.schema.columns[i], values))
    return found


def _beyond(
    rows: Sequence[_Values], bound: Sequence[str], *, above: bool, or_equal: bool
) -> pa.ChunkedArray:
    """Which rows are above (or below) ``bound``, column by column from the last.

    A bound with fewer columns than the key concerns the first ones.
    """
    result: pa.ChunkedArray | None = None
    for (column, values), text in reversed(list(zip(rows, bound, strict=False))):
        ordered = _ordered(column, values)
        limit = _ordered(column, _literal(column, text))[0]
        past = pc.greater(ordered, limit) if above else pc.less(ordered, limit)
        same = pc.equal(ordered, limit)
        if result is None:
            result = pc.or_(past, same) if or_equal else past
        else:
            result = pc.or_(past, pc.and_(same, result))
    if result is None:
        raise AssertionError("a range has a bound")
    return pc.fill_null(result, False)


def _inside(
    table: pa.Table, plan: MessagePlan, condition: PartitionCondition, *, scan: bool
) -> pa.ChunkedArray:
    if isinstance(condition, Prefixes):
        prefixes = table[f"a{plan.numbered(condition.column)}"]  # messages are not deleted
        return pc.match_substring_regex(prefixes, _any_of(condition.patterns))
    if isinstance(condition, Members):
        ((column, values),) = _values(table, [plan.numbered(condition.column)], plan, scan=scan)
        return _one_of(column, values, condition.values)
    ordinals = [plan.numbered(number) for number in condition.columns]
    rows = _values(table, ordinals, plan, scan=scan)
    mask = pc.is_valid(rows[0][1])
    for _, values in rows[1:]:
        mask = pc.and_(mask, pc.is_valid(values))
    if condition.low:
        least = not condition.low_excluded
        mask = pc.and_(mask, _beyond(rows, condition.low, above=True, or_equal=least))
    if condition.high:
        most = condition.high_included
        mask = pc.and_(mask, _beyond(rows, condition.high, above=False, or_equal=most))
    return mask


def _any_of(patterns: Sequence[str]) -> str:
    return rf"(?s)\A(?:{'|'.join(map(_regex, patterns))})\z"


#: The parts of a glob: a class of characters, any text, any character, a character.
_GLOB = re.compile(r"\[(!?)(\]?[^\]]*)\]|(\*)|(\?)|(.)", re.DOTALL)


def _regex(pattern: str) -> str:
    made = []
    for negated, members, star, mark, plain in _GLOB.findall(pattern):
        if members:
            # A range that ends before it begins is empty, as for fnmatch.
            held = re.sub(r"(.)-(.)", lambda m: "" if m[1] > m[2] else m[0], members)
            safe = re.sub(r"([\\\[\]^])", r"\\\1", held)
            nothing = r"[^\x00-\x{10FFFF}]" if not negated else "."
            made.append(f"[{'^' if negated else ''}{safe}]" if safe else nothing)
        elif star:
            made.append(".*")
        elif mark:
            made.append(".")
        else:
            made.append(re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", plain))
    return "".join(made)


def _one_of(
    column: Column, values: pa.ChunkedArray, wanted: Sequence[str | None]
) -> pa.ChunkedArray:
    texts = [text for text in wanted if text is not None]
    literals = [_literal(column, text) for text in texts]
    if column.kind is Kind.DECIMAL:  # 1 and 1.0 are the same
        values = _numbers(column, values)
        literals = [_numbers(column, literal) for literal in literals]
    known = pa.concat_arrays([x.cast(values.type) for x in literals]) if literals else None
    if known is None:
        return pc.is_null(values)
    mask = pc.is_in(values, known)
    return pc.or_(mask, pc.is_null(values)) if None in wanted else mask


def _literal(column: Column, text: str) -> pa.Array:
    if column.kind is Kind.BOOL:
        return pa.array([text in ("true", "t")])
    return pa.array([int(text)] if column.kind in INTEGERS else [text])


#: Digits before and behind the point a numeric key may have to be compared.
_DIGITS = 38
_NUMBER = rf"^-?\d{{1,{_DIGITS}}}(\.\d{{1,{_DIGITS - 1}}})?\z"
#: For the order of NaN and infinity: numbers beyond all others.
_BEYOND = {'"-Infinity"': "-" + "9" * _DIGITS, '"Infinity"': "9" * _DIGITS}
_BEYOND['"NaN"'] = _BEYOND['"Infinity"'] + ".5"


def _ordered(column: Column, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The values in a form that sorts as their type does; texts sort by code point."""
    if column.kind in INTEGERS:
        return values.cast(pa.int64())
    if column.kind in COMPARED_AS_THEY_ARE:
        return values
    if column.kind in DATES:
        return _dates(column, values)
    if column.kind is Kind.DECIMAL:
        return _numbers(column, values)
    raise ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"VALUES FROM/TO is not supported on a key of type {column.type_name}",
        detail=f"column {column.name}",
    )


def _dates(column: Column, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """ISO dates and times sort as text, with three exceptions.

    Those in UTC only without the final Z: ``3.5Z`` would sort before ``3Z``. Years of more than
    four digits get a colon, which sorts after all digits. Years before Christ have no order.
    """
    if column.kind is Kind.TIMESTAMPTZ:
        values = pc.utf8_rtrim(values, "Z")
    usual = pc.match_substring_regex(values, r"^(\d{4}-[^B]*|-?infinity)\z")
    if _all(pc.fill_null(usual, True)):
        return values
    if pc.any(pc.fill_null(pc.ends_with(values, "BC"), False)).as_py():
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column.name} is before the year 1, which ranges cannot compare",
        )
    for digits in range(5, 8):
        padding = "0" * (7 - digits)
        values = pc.replace_substring_regex(values, rf"^(\d{{{digits}}})-", rf":{padding}\1-")
    return values


def _numbers(column: Column, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    for text, number in _BEYOND.items():
        values = pc.if_else(pc.equal(values, text), number, values)
    fits = pc.match_substring_regex(values, _NUMBER)
    if not _all(pc.fill_null(fits, True)):
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column.name} has more digits than ranges can compare",
            detail=f"up to {_DIGITS} before the point and {_DIGITS - 1} after it",
        )
    return values.cast(pa.decimal256(2 * _DIGITS - 1, _DIGITS - 1))
