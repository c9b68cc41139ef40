"""MySQL types as columns of the change log.

One rule for the binlog and for the initial scan: both build their schemas with :func:`column_of`,
so a table has the same fingerprint wherever it was seen.

What does not fit the neutral form of a value without loss:

* a date with a zero year, month or day (``0000-00-00``) is NULL, so every column of dates or
  moments may be NULL; in a key it stops the table;
* ``TIME`` is a duration of up to 838 hours, and therefore an ``interval``;
* the 64 bits of ``BIGINT UNSIGNED`` are a ``decimal(20,0)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from changefeed.core.schema import Column
from changefeed.core.types import Kind, LogicalType


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column as ``information_schema.columns`` or the binlog has it.

    Attributes:
        column_type: ``COLUMN_TYPE``: ``int(10) unsigned``, ``enum('a','b')``.
        nullable: may hold NULL.
        json: MariaDB's JSON: a LONGTEXT that a CHECK constraint holds to be JSON.
    """

    name: str
    column_type: str
    nullable: bool = True
    json: bool = False

    @property
    def data_type(self) -> str:
        """The type without what is in brackets or behind: ``int``, ``enum``."""
        return re.split(r"[ (/]", self.column_type.strip().lower(), maxsplit=1)[0]

    @property
    def unsigned(self) -> bool:
        """A number without a sign."""
        return bool(re.search(r" (unsigned|zerofill)\b", self.column_type.lower()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers in brackets behind the type."""
        match = re.match(r"\w+\((\d+)(?:,(\d+))?\)", self.column_type)
        return tuple(int(size) for size in match.groups() if size) if match else ()


#: Types where nothing else decides.
_FIXED = {
    "tinyint": Kind.INT16,
    "smallint": Kind.INT16,
    "mediumint": Kind.INT32,
    "int": Kind.INT32,
    "bigint": Kind.INT64,
    "year": Kind.INT16,
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "json": Kind.JSON,
    "date": Kind.DATE,
    "time": Kind.INTERVAL,
    "datetime": Kind.TIMESTAMP,
    "timestamp": Kind.TIMESTAMPTZ,
    "uuid": Kind.UUID,
    **dict.fromkeys(
        ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"),
        Kind.TEXT,
    ),
    **dict.fromkeys(
        (
            "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector",
            "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
            "multipolygon", "geometrycollection", "geomcollection",
        ),
        Kind.BYTES,
    ),
}  # fmt: skip

_UNSIGNED = {"smallint": Kind.INT32, "int": Kind.INT64}

#: ``BIGINT UNSIGNED``.
UNSIGNED_LONG = LogicalType(Kind.DECIMAL, 20, 0)

#: Types of which a value may be no date, and then is NULL.
_MOMENTS = frozenset({"date", "datetime", "timestamp"})


def column_of(info: ColumnInfo) -> Column:
    """The log column of a MySQL column. A type without a rule is kept as the server prints it."""
    return Column(
        name=info.name,
        type_name=info.column_type,
        logical=_resolve(info),
        nullable=info.nullable or info.data_type in _MOMENTS,
    )


def _resolve(info: ColumnInfo) -> LogicalType:
    kind = info.data_type
    if info.json:
        kind = "json"
    if info.unsigned and kind == "bigint":
        return UNSIGNED_LONG
    if info.unsigned and kind in _UNSIGNED:
        return LogicalType(_UNSIGNED[kind])
    if kind == "decimal":
        precision, scale = info.sizes if len(info.sizes) == 2 else (*(info.sizes or (10,)), 0)
        return LogicalType(Kind.DECIMAL, precision, scale)
    if kind == "bit":
        return LogicalType(Kind.BOOL if info.sizes in ((), (1,)) else Kind.BYTES)
    return LogicalType(_FIXED.get(kind, Kind.OTHER))


#: Types that only the catalog knows, and how the binlog calls them.
_STORED_AS = {
    "uuid": "binary(16)",
    "inet6": "binary(16)",
    "inet4": "binary(4)",
}
_GEOMETRY = frozenset({"geomcollection", "geometrycollection"})
_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")
_NOISE = re.compile(r" zerofill| /\*.*\*/", re.I)


def canonical(text: str) -> str:
    """A COLUMN_TYPE without what the binlog does not have: widths of display."""
    head, quote, values = text.partition("'")
    head = _NOISE.sub("", _WIDTH.sub(r"\1", head.lower().strip()))
    if text.lower().rstrip().endswith("zerofill") and "unsigned" not in head:
        head += " unsigned"
    head = _STORED_AS.get(head, head)
    if head.startswith(("float(", "double(")):
        head = head.partition("(")[0] + head.partition(")")[2]
    if head in _GEOMETRY:
        head = "geometrycollection"
    return head + quote + values
