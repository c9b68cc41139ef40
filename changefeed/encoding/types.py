"""The type a column has in a typed format, from its logical type in the log.

One rule for Avro, protobuf and Parquet, so that all hold the same values:

==========================  =======================================================
logical type of the log      kind
==========================  =======================================================
``bool``, ``int16`` ..       ``BOOL``, ``INT`` (16, 32 or 64 bits)
``float32``, ``float64``     ``DOUBLE``: what the source printed, read back exactly
``decimal(p,s)``, p <= 38    ``DECIMAL``; NaN has no place in it, see each format
``decimal`` and wider ones   ``STRING``: with every digit
``text``, ``uuid``, json     ``STRING``; also intervals, ``timetz``, ranges and all
                             types without a row here, as the source prints them
``bytes``                    ``BYTES``
``date``, ``time``           ``DATE`` (days since 1970), ``TIME`` (microseconds of the day)
``timestamp``/``tz``         ``TIMESTAMP``, ``TIMESTAMPTZ``: microseconds since 1970 (UTC)
``array<x>``                 ``ARRAY`` of ``x``, of one dimension; ``array<json>`` is ``STRING``
==========================  =======================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.schema import Column

#: Digits that Spark's, Parquet's and Arrow's 128-bit decimals can have.
MOST_DIGITS = 38

#: The numbers for ``infinity`` of the log form where moments are numbers: out of the range of
#: finite values, so they are unambiguous. Microseconds as Debezium writes them; days
#: as PostgreSQL keeps them itself.
INFINITE_MICROS = 9_223_372_036_825_200_000
MINUS_INFINITE_MICROS = -9_223_372_036_832_400_000
INFINITE_DAYS = 2**31 - 1
MINUS_INFINITE_DAYS = -(2**31)

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")


class ValueKind(StrEnum):
    """The kinds of values a typed format has."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class ParametricKind:
    """A kind with its parameters.

    Attributes:
        bits: of an ``INT``; 32 also of a ``DOUBLE`` that the source stores in 32 bits.
        precision, scale: of a ``DECIMAL``; ``0 <= scale <= precision``.
        element: of an ``ARRAY``; every element may be NULL.
        number: the log's text is a number, which may be quoted (``"NaN"``).
    """

    kind: ValueKind
    bits: int = 0
    precision: int = 0
    scale: int = 0
    element: ParametricKind | None = None
    number: bool = False


STRING = ParametricKind(ValueKind.STRING)
LONG = ParametricKind(ValueKind.INT, bits=64)

_PLAIN = {
    "bool": ParametricKind(ValueKind.BOOL),
    "int16": ParametricKind(ValueKind.INT, bits=16),
    "int32": ParametricKind(ValueKind.INT, bits=32),
    "int64": LONG,
    "float32": ParametricKind(ValueKind.DOUBLE, bits=32, number=True),
    "float64": ParametricKind(ValueKind.DOUBLE, number=True),
    "decimal": ParametricKind(ValueKind.STRING, number=True),
    "bytes": ParametricKind(ValueKind.BYTES),
    "date": ParametricKind(ValueKind.DATE),
    "time": ParametricKind(ValueKind.TIME),
    "timestamp": ParametricKind(ValueKind.TIMESTAMP),
    "timestamptz": ParametricKind(ValueKind.TIMESTAMPTZ),
}


def typed(column: Column) -> ParametricKind:
    """The type of a column of the log."""
    return typed_logical(column.logical)


def typed_logical(logical: str) -> ParametricKind:
    """The type of a logical type; see :attr:`changefeed.core.schema.Column.logical`.

    >>> typed_logical("decimal(12,2)").scale
    2
    """
    if logical.startswith("array<") and logical.endswith(">"):
        element = logical[len("array<") : -1]
        # An element that is json and one that is a nested array read the same.
        nested = element.startswith("array<") or element == "json"
        return STRING if nested else ParametricKind(ValueKind.ARRAY, element=typed_logical(element))
    match = _DECIMAL.match(logical)
    if match:
        return _decimal(int(match[1]), int(match[2]))
    return _PLAIN.get(logical, STRING)


def _decimal(precision: int, scale: int) -> ParametricKind:
    """PostgreSQL has scales below zero and above the precision; formats have neither."""
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    if precision > MOST_DIGITS:
        return ParametricKind(ValueKind.STRING, number=True)
    return ParametricKind(ValueKind.DECIMAL, precision=precision, scale=scale, number=True)
