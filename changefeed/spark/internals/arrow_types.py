"""Types of Arrow as Spark's and back, and functions over Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark types of the columns of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    found: StructType = from_arrow_schema(schema)
    return found


def spark_type(kind: pa.DataType) -> DataType:
    """Spark's type for one of Arrow's."""
    from pyspark.sql.pandas.types import from_arrow_type

    found: DataType = from_arrow_type(kind)
    return found


def arrow_type(kind: DataType) -> pa.DataType:
    """Arrow's type for one of Spark's."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind)


def parsed_type(text: str) -> DataType:
    """Spark's type of its JSON form."""
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(text)


def arrow_function(function: Callable[..., Any], returns: str | DataType) -> Callable[..., Column]:
    """A function over columns, as Arrow arrays; its annotations say whether it takes one batch or
    an iterator of them."""
    from pyspark.sql.pandas.functions import arrow_udf

    # The stubs know it only as a decorator.
    made: Any = arrow_udf
    wrapped: Callable[..., Column] = made(function, returns)
    return wrapped
