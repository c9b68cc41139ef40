"""Keys of rows that differ, as the change log has them: what a repair needs to find the rows.

A target shows a key in its own way. Only values that can be read in one way count; where there is
any doubt the rows are not repaired one by one.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence

from changefeed.catalog.model import RowRepair
from changefeed.core.schema import Column, RowKey
from changefeed.core.types import Kind
from sinks.base import Difference

_BITS = {Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BOOLEANS = {"true": True, "false": False}


def repair_of(key: Sequence[Column], differences: Iterable[Difference]) -> RowRepair | None:
    """The rows to repair; None if the key of one of them is in doubt.

    Args:
        key: the key columns at the source.
    """
    wrong: list[RowKey] = []
    extra: list[RowKey] = []
    for difference in differences:
        values = row_key(key, difference.values)
        if values is None:
            return None
        (extra if difference.kind == "extra" else wrong).append(values)
    return RowRepair(tuple(wrong), tuple(extra))


def row_key(key: Sequence[Column], values: Sequence[str | int | bool]) -> RowKey | None:
    """The key of a row as the change log has it; None if a value is in doubt."""
    if len(values) != len(key):
        return None
    found = [_log_value(column, value) for column, value in zip(key, values, strict=True)]
    known = tuple(value for value in found if value is not None)
    return known if len(known) == len(found) else None


def _log_value(column: Column, value: str | int | bool) -> str | int | bool | None:
    """The value as the log has it; None if the column cannot have it, or it is in doubt."""
    kind, text = column.kind, str(value)
    if kind in _BITS:
        number = int(text) if _INTEGER.fullmatch(text) and len(text) <= 20 else None
        bound = 1 << (_BITS[kind] - 1)
        return number if number is not None and -bound <= number < bound else None
    if kind is Kind.BOOL:
        return value if isinstance(value, bool) else _BOOLEANS.get(text)
    if not isinstance(value, str):
        return None
    if kind is Kind.TEXT:
        return None if "\0" in text or not _is_unicode(text) else text
    if kind is Kind.UUID:
        return text if re.fullmatch(kind.pattern, text) else None
    return text if kind is Kind.DATE and _is_date(text) else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half of a pair, which JSON can spell
    return True


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True
