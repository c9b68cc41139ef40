"""The row of a Parquet file as a struct of typed columns, made in the JVM."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from changefeed.errors import ChangefeedError
from changefeed.formats.shape import value_shape
from changefeed.formats.types import Kind, Typed
from changefeed.spark.failure import VALUE_PREFIX
from changefeed.spark.members import Members
from changefeed.spark.sides import Rows


def parquet_value(rows: Rows) -> Expression:
    """A struct with fields ``f0``, ``f1``, ..: the columns that ``parquet_fields`` names.

    Moments are numbers still: Arrow takes them as its own types without a copy
    (:func:`changefeed.formats.columns.finished`).
    """
    shape = value_shape(rows.plan)
    if shape is None:
        raise ChangefeedError("CF1205", "format=parquet needs an envelope with a value")
    return Members(rows, _number).struct(shape, lambda i: f"f{i}")


def _number(kind: Typed, value: Expression, logged: Expression) -> Expression:
    """NaN has no place in a decimal column."""
    if kind.kind is not Kind.DECIMAL:
        return value
    wrong = "a numeric column with digits given holds NaN, which Parquet's decimal cannot"
    refused = F.raise_error(F.lit(f"{VALUE_PREFIX}{wrong}:end"))
    return F.when(logged.startswith('"'), refused).otherwise(value)
