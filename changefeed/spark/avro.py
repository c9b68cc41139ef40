"""Avro keys and values as expressions of the JVM: no Python per row.

What a message holds is :mod:`changefeed.formats.shape`; Spark's ``to_avro`` (pack ``avro``)
writes it.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from changefeed.formats.avro import header, wire_schema
from changefeed.formats.shape import Record, key_shape, value_shape
from changefeed.formats.types import Kind, Typed
from changefeed.spark.members import Members
from changefeed.spark.sides import Rows
from changefeed.spark.typed import not_a_number


def avro_key(rows: Rows) -> Expression:
    """The key in Confluent's wire format, or as a bare datum without a registry."""
    ids = rows.plan.registered
    return _datum(rows, key_shape(rows.plan), ids.key if ids else None)


def avro_value(rows: Rows) -> Expression:
    """The value, likewise; NULL where there is none (tombstones)."""
    shape = value_shape(rows.plan)
    if shape is None:
        return F.lit(None).cast("binary")
    ids = rows.plan.registered
    return _datum(rows, shape, ids.value if ids else None)


def _datum(rows: Rows, shape: Record, schema_id: int | None) -> Expression:
    value = Members(rows, _branch).struct(shape, lambda i: f"f{i}")
    datum = to_avro(value, wire_schema(shape))
    if schema_id is None:
        return datum
    return F.concat(F.lit(bytearray(header(schema_id))), datum)


def _branch(kind: Typed, value: Expression, logged: Expression) -> Expression:
    """Of a decimal's union the first branch that is not NULL: the number, or NaN as text."""
    if kind.kind is not Kind.DECIMAL:
        return value
    branches = F.struct(value.alias("member0"), not_a_number(logged).alias("member1"))
    return F.when(logged.isNotNull(), branches)
