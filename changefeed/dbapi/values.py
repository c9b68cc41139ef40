"""Python values of cells and parameters, and the types of PEP 249."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from changefeed.core.clock import Timestamp as LogTimestamp
from changefeed.dbapi.errors import ProgrammingError
from changefeed.statements.values import COLUMN_KINDS, Cell, ColumnKind, plain_cell
from grammar.binding import ParameterValue

#: (name, type, and five facts that are not known).
Description = tuple[str, ColumnKind, None, None, None, None, None]


class TypeObject:
    """Equals the types of the columns that hold such values."""

    def __init__(self, *kinds: ColumnKind) -> None:
        self._kinds = frozenset(kinds)

    def __eq__(self, other: object) -> bool:
        return other in self._kinds if isinstance(other, ColumnKind) else self is other

    def __hash__(self) -> int:
        return hash(self._kinds)


STRING = TypeObject(ColumnKind.TEXT)
NUMBER = TypeObject(ColumnKind.INTEGER, ColumnKind.NUMBER)
DATETIME = TypeObject(ColumnKind.MOMENT)
LIST = TypeObject(ColumnKind.LIST)
#: No column has such values.
BINARY, ROWID = TypeObject(), TypeObject()

Date, Time, Timestamp, Binary = dt.date, dt.time, dt.datetime, bytes


def DateFromTicks(ticks: float) -> dt.date:
    """The local date of seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks).date()


def TimeFromTicks(ticks: float) -> dt.time:
    """The local time of day of seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:
    """The moment of seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks, dt.UTC)


def description_of(names: Iterable[str], *, typed: bool = True) -> tuple[Description, ...]:
    """What PEP 249 has of each column; all are text if they are not ``typed``."""
    known = COLUMN_KINDS if typed else {}
    return tuple(
        (name, known.get(name, ColumnKind.TEXT), None, None, None, None, None) for name in names
    )


def row_of(row: Sequence[Cell], columns: Sequence[Description]) -> tuple[Any, ...]:
    """The Python values of a row."""
    return tuple(_value(cell, column[1]) for cell, column in zip(row, columns, strict=True))


def _value(cell: Cell, kind: ColumnKind) -> Any:
    plain = plain_cell(cell)
    if kind is ColumnKind.MOMENT and isinstance(plain, str):
        try:
            return dt.datetime.fromisoformat(plain).replace(tzinfo=dt.UTC)
        except ValueError:
            return plain  # a word in place of a moment
    if kind is ColumnKind.NUMBER and isinstance(plain, int):
        return float(plain)
    return str(plain) if isinstance(plain, str) else plain


def parameter_of(value: object) -> ParameterValue:
    """What a statement gets for a Python value.

    Raises:
        ProgrammingError: the language has no such value.
    """
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"
    if isinstance(value, dt.timedelta):
        return f"{value // dt.timedelta(microseconds=1)}us"
    if isinstance(value, dt.date | Decimal | LogTimestamp):
        return str(value)
    raise ProgrammingError(
        f"a parameter cannot be {type(value).__name__}",
        hint="there are texts, numbers, true and false, dates, moments and spans of time; the "
        "language has no NULL.",
    )
