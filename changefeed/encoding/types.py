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

from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.types import Kind, LogicalType

#: Digits that Spark's, Parquet's and Arrow's 128-bit decimals can have.
MOST_DIGITS = 38

#: The numbers for ``infinity`` of the log form where moments are numbers: out of the range of
#: finite values, so they are unambiguous. Microseconds as Debezium writes them; days
#: as PostgreSQL keeps them itself.
INFINITE_MICROS = 9_223_372_036_825_200_000
MINUS_INFINITE_MICROS = -9_223_372_036_832_400_000
INFINITE_DAYS = 2**31 - 1
MINUS_INFINITE_DAYS = -(2**31)


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
    Kind.BOOL: ParametricKind(ValueKind.BOOL),
    Kind.INT16: ParametricKind(ValueKind.INT, bits=16),
    Kind.INT32: ParametricKind(ValueKind.INT, bits=32),
    Kind.INT64: LONG,
    Kind.FLOAT32: ParametricKind(ValueKind.DOUBLE, bits=32, number=True),
    Kind.FLOAT64: ParametricKind(ValueKind.DOUBLE, number=True),
    Kind.DECIMAL: ParametricKind(ValueKind.STRING, number=True),
    Kind.BYTES: ParametricKind(ValueKind.BYTES),
    Kind.DATE: ParametricKind(ValueKind.DATE),
    Kind.TIME: ParametricKind(ValueKind.TIME),
    Kind.TIMESTAMP: ParametricKind(ValueKind.TIMESTAMP),
    Kind.TIMESTAMPTZ: ParametricKind(ValueKind.TIMESTAMPTZ),
}


def typed(logical: LogicalType) -> ParametricKind:
    """The type that a logical type has in typed formats.

    >>> typed(LogicalType(Kind.DECIMAL, 12, 2)).scale
    2
    """
    if logical.items is not None:
        return ParametricKind(ValueKind.ARRAY, element=typed(logical.items))
    if logical.digits is not None and logical.digits[0] <= MOST_DIGITS:
        precision, scale = logical.digits
        return ParametricKind(ValueKind.DECIMAL, precision=precision, scale=scale, number=True)
    return _PLAIN.get(logical.kind, STRING)
