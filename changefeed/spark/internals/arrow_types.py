"""Types and tables of Arrow as Spark's and back, and functions over Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
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


def declared_type(text: str) -> DataType:
    """Spark's type of its name in SQL."""
    from pyspark.sql import types

    known: Any = types
    parse = getattr(types.DataType, "fromDDL", None) or known._parse_datatype_string  # PySpark 3.5
    found: DataType = parse(text)
    return found


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame with the rows of an Arrow table, in their order."""
    import pyarrow as pa
    from pyspark.sql import DataFrame

    if hasattr(DataFrame, "toArrow"):
        return session.createDataFrame(table)
    # PySpark 3.5 takes no Arrow table, but a function that returns one.
    sink = pa.BufferOutputStream()
    write_stream(sink, table)
    rows = bytearray(sink.getvalue())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for part in batch.column(0):
                yield from pa.ipc.open_stream(part.as_buffer())

    packed = session.createDataFrame([(rows,)], "rows binary")
    return packed.mapInArrow(read, spark_schema(table.schema))


def arrow_of(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame, collected."""
    import pyarrow as pa

    found: Any = frame
    if hasattr(found, "toArrow"):
        return found.toArrow()
    batches = found._collect_as_arrow()
    if batches:
        return pa.Table.from_batches(batches)
    return pa.schema(
        [(each.name, arrow_type(each.dataType)) for each in frame.schema]
    ).empty_table()


def write_stream(sink: pa.NativeFile, table: pa.Table) -> None:
    """Write a table as a stream of Arrow's IPC format."""
    import pyarrow as pa

    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def arrow_function(function: Callable[..., Any], returns: str | DataType) -> Callable[..., Column]:
    """A function over columns, as Arrow arrays; its annotations say whether it takes one batch or
    an iterator of them."""
    from pyspark.sql.pandas.functions import arrow_udf

    # The stubs know it only as a decorator.
    made: Any = arrow_udf
    wrapped: Callable[..., Column] = made(function, returns)
    return wrapped
