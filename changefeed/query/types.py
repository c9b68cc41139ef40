"""Types on the way into Spark and back.

In: a column of the log as an Arrow column that Spark reads. Out: a type of Spark as a column of
the result, with the SQL that brings its values into a form from which :func:`log_text` makes the
log's text.

=======================================  ==============================================
column of the table                      in Spark
=======================================  ==============================================
``numeric(p,s)``, p <= 38                ``DECIMAL(p,s)``; NaN is NULL
``numeric``                              ``DECIMAL(38,18)``
``numeric`` of more digits               ``STRING``
``real``, ``double precision``           ``FLOAT``, ``DOUBLE``
``timestamp``, ``timestamptz``, ``date`` ``TIMESTAMP_NTZ``, ``TIMESTAMP``, ``DATE``
``bytea``                                ``BINARY``
arrays of one dimension                  ``ARRAY``
``json``, ``uuid``, ``time``, the rest   ``STRING``, as PostgreSQL prints it
=======================================  ==============================================
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column
from changefeed.core.types import FLOATS, Form, Kind, LogicalType
from changefeed.encoding.arrow_schema import arrow_type
from changefeed.encoding.typed_values import (
    INFINITE_MICROS,
    MINUS_INFINITE_MICROS,
    printed,
    single_floats,
    typed_values,
    without_times,
)

_UNBOUNDED = LogicalType(Kind.DECIMAL, 38, 18)
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")

# ------------------------------------------------------------------------------- into Spark


def _input(column: Column) -> LogicalType:
    unbounded = column.kind is Kind.DECIMAL and not column.logical.precision
    return _UNBOUNDED if unbounded else without_times(column.logical)


def input_type(column: Column) -> pa.DataType:
    """The Arrow type of a column of the table in a batch."""
    return pa.float32() if column.kind is Kind.FLOAT32 else arrow_type(_input(column))


def input_values(column: Column, values: pa.Array) -> pa.Array:
    """Values of the log as Spark reads them.

    Raises:
        ChangefeedError: CF4001, one does not fit.
    """
    of, wanted = _input(column), input_type(column)
    if wanted == pa.float32():
        return single_floats(values, column.name)
    if of.is_text:
        return printed(of, values)
    try:
        return typed_values(of, values, column.name).cast(wanted)
    except pa.ArrowInvalid as cause:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column.name} has no place in Spark's type {wanted}",
        ) from cause


# ------------------------------------------------------------------------------- out of Spark

_PLAIN = {
    "boolean": Kind.BOOL,
    "tinyint": Kind.INT16,
    "smallint": Kind.INT16,
    "int": Kind.INT32,
    "bigint": Kind.INT64,
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "binary": Kind.BYTES,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMPTZ,
    "timestamp_ntz": Kind.TIMESTAMP,
}
#: Elements of arrays that typed sinks read from JSON as well.
_ELEMENTS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"}
_NESTED = ("array<", "map<", "struct<", "variant")

_JSON_OPTIONS = (
    "map('ignoreNullFields', 'false',"
    " 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX',"
    " 'timestampNTZFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
)


def output_column(name: str, spark_type: str) -> Column:
    """The column of the log for an expression of this type; it is identified by its name."""
    return Column(name, spark_type, _logical(spark_type))


def _logical(spark_type: str) -> LogicalType:
    if spark_type in _PLAIN:
        return LogicalType(_PLAIN[spark_type])
    if _DECIMAL.match(spark_type):
        return LogicalType.parse(spark_type)
    if spark_type.startswith(_NESTED):
        element = spark_type.removeprefix("array<").removesuffix(">")
        if spark_type.startswith("array<") and (element in _ELEMENTS or _DECIMAL.match(element)):
            return LogicalType(Kind.ARRAY, element=_logical(element))
        return LogicalType(Kind.JSON)
    return LogicalType(Kind.TEXT)


def output_sql(name: str, spark_type: str) -> str:
    """The SQL that makes a computed column readable for :func:`log_text`: text, except where Arrow
    prints the type as the log form does."""
    if spark_type in _PLAIN and spark_type != "binary":
        return name
    if spark_type == "binary":
        return f"concat(char(92), 'x', lower(hex({name})))"
    if spark_type.startswith(_NESTED):
        return f"to_json({name}, {_JSON_OPTIONS})"
    return f"CAST({name} AS STRING)"


def log_text(column: Column, values: pa.Array) -> pa.Array:
    """Values out of Spark as values of the log."""
    kind = column.kind
    if column.form is Form.NATIVE:
        return values.cast(column.arrow)
    if kind in FLOATS:
        return _numbers(values)
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _moments(values, "Z" if kind is Kind.TIMESTAMPTZ else "")
    return values.cast(pa.string())


def _numbers(values: pa.Array) -> pa.Array:
    text = values.cast(pa.string())
    finite = pc.fill_null(pc.is_finite(values), True)
    if pc.all(finite).as_py():
        return text
    nan = pc.fill_null(pc.is_nan(values), False)
    odd = pc.if_else(nan, '"NaN"', pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(finite, text, odd)


def _moments(values: pa.Array, zone: str) -> pa.Array:
    micros = values.cast(pa.int64())
    plain = values.cast(pa.timestamp("us"))
    text = pc.strftime(plain, "%Y-%m-%dT%H:%M:%S")
    text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    text = pc.binary_join_element_wise(text, zone, "")
    for number, word in ((INFINITE_MICROS, "infinity"), (MINUS_INFINITE_MICROS, "-infinity")):
        text = pc.if_else(pc.equal(micros, number), word, text)
    return text
