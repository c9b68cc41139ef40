r"""Columns as Debezium sends them -> columns of the change log.

===============================================  ======================  =========================
Debezium's type                                  logical                 text in the log
===============================================  ======================  =========================
boolean; int8, int16; int32; int64               bool; int16; int32; …   as such
float, double                                    float32, float64        fewest digits
Decimal                                          decimal(p,s)            zeros of the scale kept
VariableScaleDecimal                             decimal                 no zeros at the end
string, Enum, EnumSet, Xml, Ltree, TsVector      text                    any
bytes, Bits                                      bytes                   ``\x`` and digits
geometry                                         bytes                   SRID (4 bytes), then WKB
Date                                             date
Time, MicroTime, NanoTime                        time                    MySQL's: interval
Timestamp, MicroTimestamp, NanoTimestamp         timestamp               cut to microseconds
ZonedTimestamp                                   timestamptz             in UTC
ZonedTime                                        timetz
Year                                             int32
Interval                                         interval
Json                                             json                    one line
Uuid                                             uuid
array                                            array<..>               a JSON array
map, struct                                      json
===============================================  ======================  =========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.core.types import Kind, LogicalType

_SEMANTICS = {
    "io.debezium.time.Date": Kind.DATE,
    "io.debezium.time.Time": Kind.TIME,
    "io.debezium.time.MicroTime": Kind.TIME,
    "io.debezium.time.NanoTime": Kind.TIME,
    "io.debezium.time.Timestamp": Kind.TIMESTAMP,
    "io.debezium.time.MicroTimestamp": Kind.TIMESTAMP,
    "io.debezium.time.NanoTimestamp": Kind.TIMESTAMP,
    "io.debezium.time.ZonedTimestamp": Kind.TIMESTAMPTZ,
    "io.debezium.time.ZonedTime": Kind.TIMETZ,
    "io.debezium.time.Interval": Kind.INTERVAL,
    "io.debezium.data.VariableScaleDecimal": Kind.DECIMAL,
    "io.debezium.data.Json": Kind.JSON,
    "io.debezium.data.Uuid": Kind.UUID,
    "io.debezium.data.geometry.Point": Kind.BYTES,
    "io.debezium.data.geometry.Geometry": Kind.BYTES,
    "io.debezium.data.geometry.Geography": Kind.BYTES,
}
_TYPES = {
    "boolean": Kind.BOOL,
    "int8": Kind.INT16,
    "int16": Kind.INT16,
    "int32": Kind.INT32,
    "int64": Kind.INT64,
    "float": Kind.FLOAT32,
    "float32": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "float64": Kind.FLOAT64,
    "string": Kind.TEXT,
    "bytes": Kind.BYTES,
    "map": Kind.JSON,
    "struct": Kind.JSON,
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
#: Parameters in which Debezium repeats the column's own type.
_SOURCE_TYPE = "__debezium.source.column."


@dataclass(frozen=True, slots=True)
class Carrier:
    """How Debezium sends a column.

    Attributes:
        type, semantic: Kafka Connect's type, and the name that says what it means.
        kind: how the values travel, see ``java/Values.java``.
        default: the column has a default that is not null.
    """

    name: str
    type: str
    semantic: str
    kind: str
    optional: bool = True
    default: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    element: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type_name(self) -> str:
        """The type as the database calls it, as far as Debezium says."""
        declared = {
            name.removeprefix(_SOURCE_TYPE): value
            for name, value in self.parameters.items()
            if name.startswith(_SOURCE_TYPE)
        }
        sizes = [declared[name] for name in ("length", "scale") if name in declared]
        named = declared.get("type", self.type).lower()
        return f"{named}({','.join(sizes)})" if sizes else named


def logical_of(type_: str, semantic: str, parameters: Mapping[str, str]) -> LogicalType:
    """The neutral type of a type of Debezium."""
    if semantic == _DECIMAL:
        precision = parameters.get("connect.decimal.precision")
        digits = (int(precision), int(parameters.get("scale", 0))) if precision else ()
        return LogicalType(Kind.DECIMAL, *digits)
    return LogicalType(_SEMANTICS.get(semantic) or _TYPES.get(type_, Kind.TEXT))


def carried(carrier: Carrier, *, long_times: bool) -> LogicalType:
    """The logical type of a column. ``long_times``: a time of day may have more than 24 hours."""
    if carrier.type == "array":
        element = carrier.element
        inner = logical_of(
            element.get("type", ""), element.get("semantic", ""), element.get("parameters", {})
        )
        return LogicalType(Kind.ARRAY, element=inner)
    logical = logical_of(carrier.type, carrier.semantic, carrier.parameters)
    return LogicalType(Kind.INTERVAL) if logical.kind is Kind.TIME and long_times else logical


def column_of(carrier: Carrier, *, long_times: bool) -> Column:
    """The column of the log, made of what Debezium says alone."""
    logical = carried(carrier, long_times=long_times)
    return Column(carrier.name, carrier.type_name, logical, carrier.optional)


def fits(carrier: Carrier, column: Column, *, long_times: bool) -> bool:
    """Whether values of the carrier are values of the column."""
    if carrier.name != column.name:
        return False
    declared = carried(carrier, long_times=long_times)
    if declared == column.logical:
        return True
    # The database knows the precision, and what is JSON or a UUID; the carrier may not.
    return (declared.kind, column.kind) in _WIDER


_WIDER = frozenset({(Kind.DECIMAL, Kind.DECIMAL), (Kind.TEXT, Kind.OTHER)})


# ---------------------------------------------------------------------------- values


def log_values(carrier: Carrier, column: Column, values: pa.Array) -> pa.Array:
    """Values as they came -> values in the log's form."""
    semantic = carrier.semantic
    if carrier.kind == "z":
        return values
    if carrier.kind == "d":
        narrow = carrier.type in ("float", "float32")
        return _float_text(values.cast(pa.float32()) if narrow else values)
    if carrier.kind == "i":
        if column.kind is Kind.DATE:
            return values.cast(pa.int32()).cast(pa.date32()).cast(pa.string())
        if semantic.endswith(("Time", "Timestamp")) and semantic.startswith("io.debezium.time."):
            return _moment_text(_micros(semantic, values), column.kind)
        return values.cast(column.arrow)
    return values


def _float_text(values: pa.Array) -> pa.Array:
    texts = values.cast(pa.string())
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return texts
    for odd, quoted in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
        texts = pc.if_else(pc.equal(texts, odd), quoted, texts)
    return texts


def _micros(semantic: str, values: pa.Array) -> pa.Array:
    if ".Nano" in semantic:
        return _floor_divide(values, 1000)
    return values if ".Micro" in semantic else pc.multiply(values, 1000)


def _floor_divide(values: pa.Array, by: int) -> pa.Array:
    whole = values.fill_null(0).to_numpy(zero_copy_only=False) // by
    return pa.array(whole, mask=_nulls(values))


def _nulls(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    nulls: np.ndarray[Any, np.dtype[np.bool_]] = values.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _moment_text(micros: pa.Array, kind: Kind) -> pa.Array:
    if kind is Kind.TIMESTAMP:
        texts = micros.cast(pa.timestamp("us")).cast(pa.string())
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    elif kind is Kind.TIME:
        texts = micros.cast(pa.time64("us")).cast(pa.string())
    else:
        texts = _hours_text(micros)
    return _trimmed(texts)


def _trimmed(texts: pa.Array) -> pa.Array:
    """Without zeros at the end of the fraction, which Arrow writes with six digits."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, characters="0"), characters=".")


def _hours_text(micros: pa.Array) -> pa.Array:
    """A time of MySQL: up to 838 hours, either sign."""
    whole = micros.fill_null(0).to_numpy(zero_copy_only=False)
    size = np.abs(whole)
    hours = pa.array(size // 3_600_000_000).cast(pa.string())
    rest = pa.array(size % 3_600_000_000).cast(pa.time64("us")).cast(pa.string())
    sign = pc.if_else(pa.array(whole < 0), "-", "")
    texts = pc.binary_join_element_wise(
        sign, pc.utf8_lpad(hours, 2, "0"), pc.utf8_slice_codeunits(rest, 2), ""
    )
    return pc.if_else(pa.array(_nulls(micros)), None, texts)
