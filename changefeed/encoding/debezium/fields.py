"""The type that a column has in Debezium's messages, with the default settings of its connectors.

That is ``decimal.handling.mode = precise``, ``time.precision.mode = adaptive``
(``adaptive_time_microseconds`` for MySQL), ``binary.handling.mode = bytes``,
``interval.handling.mode = numeric`` and ``bigint.unsigned.handling.mode = long``. A type of Kafka
Connect is a primitive one and, for most, a name that says what the value means.

The log has one logical type for columns of both families; what else Debezium distinguishes
(digits of a second, ``year``, ``bit``, ``enum``) is taken from the source's own type text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.schema import Column
from changefeed.core.types import Kind, LogicalType


class Conversion(StrEnum):
    """How a value of the log becomes one of the message."""

    AS_IS = "as_is"
    """The log's own token: booleans, integers, floating point numbers."""
    TEXT = "text"
    """The log's text, as a string."""
    LONG = "long"
    """An unsigned number in 64 bits with a sign."""
    BYTES = "bytes"
    BITS = "bits"
    """Bytes, the last one first."""
    BIT = "bit"
    """PostgreSQL's ``0`` or ``1``."""
    DIGITS = "digits"
    """PostgreSQL's ``digits`` zeros and ones, the last one in the first byte."""
    UNSCALED = "unscaled"
    """The digits of a decimal as a number in two's complement."""
    SCALED = "scaled"
    """The same with its scale, which differs from value to value."""
    DAYS = "days"
    TIME = "time"
    """The time of day; ``divisor`` microseconds are a unit."""
    MOMENT = "moment"
    """A date and time since 1970; ``divisor`` microseconds are a unit."""
    ZONED_TIME = "zoned_time"
    ZONED = "zoned"
    """A moment in UTC as text with ``digits`` digits of the second."""
    DURATION = "duration"
    """PostgreSQL's interval in microseconds; a month has 30.4375 days."""
    CLOCK = "clock"
    """MySQL's time, which may be negative and long, in microseconds."""
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class ConnectType:
    """A type of Kafka Connect.

    Attributes:
        type: ``boolean int16 int32 int64 float double string bytes array struct``.
        way: how values are converted to it.
        name: the meaning of the value; empty for a primitive type.
        parameters: of the name.
        divisor, digits: see :class:`Conversion`.
        items: the type of an array's elements.
    """

    type: str
    way: Conversion
    name: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    divisor: int = 1
    digits: int = 0
    items: ConnectType | None = None

    @property
    def zero(self) -> str:
        """The JSON token that stands for a value that a required column cannot be without."""
        if self.way is Conversion.ZONED:
            return '"1970-01-01T00:00:00Z"'
        if self.way is Conversion.ZONED_TIME:
            return '"00:00:00Z"'
        if self.way is Conversion.SCALED:
            return '{"scale":0,"value":"AA=="}'
        if self.way is Conversion.UNSCALED:
            return '"AA=="'
        return _ZEROS.get(self.type, "0")


_ZEROS = {"boolean": "false", "string": '""', "bytes": '""', "array": "[]"}

#: The type name of a UUID.
UUID_NAME = "io.debezium.data.Uuid"

_TEXT = ConnectType("string", Conversion.TEXT)
_JSON = ConnectType("string", Conversion.TEXT, "io.debezium.data.Json")

_PLAIN = {
    Kind.BOOL: ConnectType("boolean", Conversion.AS_IS),
    Kind.INT16: ConnectType("int16", Conversion.AS_IS),
    Kind.INT32: ConnectType("int32", Conversion.AS_IS),
    Kind.INT64: ConnectType("int64", Conversion.AS_IS),
    Kind.FLOAT32: ConnectType("float", Conversion.AS_IS),
    Kind.FLOAT64: ConnectType("double", Conversion.AS_IS),
    Kind.DECIMAL: ConnectType("struct", Conversion.SCALED, "io.debezium.data.VariableScaleDecimal"),
    Kind.BYTES: ConnectType("bytes", Conversion.BYTES),
    Kind.DATE: ConnectType("int32", Conversion.DAYS, "io.debezium.time.Date"),
    Kind.TIMETZ: ConnectType("string", Conversion.ZONED_TIME, "io.debezium.time.ZonedTime"),
    Kind.UUID: ConnectType("string", Conversion.TEXT, UUID_NAME),
    Kind.JSON: _JSON,
}
#: Types whose values are text, with the names that say which type it is.
_NAMED = {
    "xml": "io.debezium.data.Xml",
    "ltree": "io.debezium.data.Ltree",
    "public.ltree": "io.debezium.data.Ltree",
}

_MILLIS, _MICROS = 1_000, 1

_DIGITS = re.compile(r"\((\d+)\)")
_BIT = re.compile(r"bit\((\d+)\)\Z")
#: A type that MySQL spells so, and PostgreSQL does not.
_MYSQL_MOMENT = re.compile(r"(?:datetime|timestamp|time)(?:\(\d\))?\Z")
_CHOICES = re.compile(r"(enum|set)\((.*)\)", re.IGNORECASE | re.DOTALL)
_CHOICE = re.compile(r"'((?:[^']|'')*)'")


def field_of(column: Column) -> ConnectType:
    """The type that a column has in messages."""
    return _field(column.logical, column.type_name.strip())


def _field(logical: LogicalType, written: str) -> ConnectType:
    lower, kind = written.lower(), logical.kind
    if kind is Kind.ARRAY:
        if logical.items is None:
            return _JSON
        return ConnectType(
            "array", Conversion.ARRAY, items=_field(logical.items, written.replace("[]", ""))
        )
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TIME, Kind.INTERVAL):
        return _time(kind, lower)
    if logical.digits is not None:
        if lower.startswith("bigint"):
            return ConnectType("int64", Conversion.LONG)
        precision, scale = logical.digits
        parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
        return ConnectType(
            "bytes", Conversion.UNSCALED, "org.apache.kafka.connect.data.Decimal", parameters
        )
    if lower == "year" or lower.startswith("year("):
        return ConnectType("int32", Conversion.AS_IS, "io.debezium.time.Year")
    if kind is Kind.BYTES and lower.startswith("bit("):
        length = ("length", lower[len("bit(") : lower.index(")")])
        return ConnectType("bytes", Conversion.BITS, "io.debezium.data.Bits", (length,))
    if kind is Kind.OTHER and (bits := _BIT.match(lower)):
        width = int(bits[1])
        if width == 1:
            return ConnectType("boolean", Conversion.BIT)
        length = ("length", str(width))
        return ConnectType(
            "bytes", Conversion.DIGITS, "io.debezium.data.Bits", (length,), digits=width
        )
    if kind is Kind.TEXT and (choices := _CHOICES.match(written)):
        name = "Enum" if choices[1].lower() == "enum" else "EnumSet"
        allowed = ",".join(c.replace("''", "'") for c in _CHOICE.findall(choices[2]))
        return ConnectType(
            "string", Conversion.TEXT, f"io.debezium.data.{name}", (("allowed", allowed),)
        )
    if kind is Kind.OTHER and lower in _NAMED:
        return ConnectType("string", Conversion.TEXT, _NAMED[lower])
    return _PLAIN.get(kind, _TEXT)


def _time(kind: Kind, written: str) -> ConnectType:
    """By the digits after the second: if none are written, six, for MySQL none."""
    mysql = bool(_MYSQL_MOMENT.match(written))
    found = _DIGITS.search(written)
    digits = int(found[1]) if found else 0 if mysql else 6
    if kind is Kind.INTERVAL:
        if mysql:
            return ConnectType("int64", Conversion.CLOCK, "io.debezium.time.MicroTime")
        return ConnectType("int64", Conversion.DURATION, "io.debezium.time.MicroDuration")
    if kind is Kind.TIMESTAMPTZ:
        return ConnectType(
            "string", Conversion.ZONED, "io.debezium.time.ZonedTimestamp", digits=digits
        )
    if kind is Kind.TIME:
        if digits <= 3:
            return ConnectType("int32", Conversion.TIME, "io.debezium.time.Time", divisor=_MILLIS)
        return ConnectType("int64", Conversion.TIME, "io.debezium.time.MicroTime", divisor=_MICROS)
    if digits <= 3:
        return ConnectType(
            "int64", Conversion.MOMENT, "io.debezium.time.Timestamp", divisor=_MILLIS
        )
    return ConnectType(
        "int64", Conversion.MOMENT, "io.debezium.time.MicroTimestamp", divisor=_MICROS
    )
