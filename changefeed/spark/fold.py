"""Running expressions over a few thousand rows without starting a Spark job.

A DataFrame over little Arrow data is part of its own plan, and Spark's optimizer evaluates a
projection over such data while it optimizes: the finished rows stand in the optimized plan.
Reading them there, instead of by ``collect`` or ``toArrow``, leaves out the job (some 40 ms)
and the Python object per row. Sending them as one Arrow stream over a socket of Spark's own
leaves out py4j, whose long answers wait 40 ms for a delayed TCP acknowledgement. Measured on
two cores, 8 columns, median: 100 rows 11 ms (``collect`` 18, ``toArrow`` 58), 1,000 rows 14
(28), 5,000 rows 36 (86).

The JVM methods used here are those that pyspark itself calls, plus the optimized plan's
``data``; both are pinned with pyspark's minor version, and :func:`run` takes ``toArrow``
whenever Spark did not fold the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.util import _load_from_socket

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column as Expression
    from pyspark.sql import SparkSession

#: Rows and bytes of one Arrow batch on the way back.
_BATCH_ROWS, _BATCH_BYTES = 65_536, 16 * 2**20


@dataclass(frozen=True, slots=True)
class Prepared:
    """Expressions that live in the JVM, ready for any table of one schema."""

    inputs: pa.Schema
    inputs_json: str
    columns: Any
    where: Any | None


def prepare(
    session: SparkSession,
    inputs: pa.Schema,
    columns: Sequence[Expression],
    where: Expression | None,
) -> Prepared:
    """Keep expressions for :func:`run`: building them again costs some 20 round trips."""
    from pyspark.sql.classic.column import _to_java_column, _to_seq

    return Prepared(
        inputs=inputs,
        inputs_json=from_arrow_schema(inputs).json(),
        columns=_to_seq(session.sparkContext, list(columns), _to_java_column),
        where=None if where is None else _to_java_column(where),
    )


def run(session: SparkSession, prepared: Prepared, table: pa.Table, scratch: Path) -> pa.Table:
    """The prepared columns over the rows of ``table`` that pass ``where``, in order.

    ``table`` has the schema ``prepared.inputs``; ``scratch`` is a directory the JVM can read.
    """
    frame = _local_frame(session, prepared, table, scratch)
    if prepared.where is not None:
        frame = frame.where(prepared.where)
    frame = frame.select(prepared.columns)
    plan = frame.queryExecution().optimizedPlan()
    if plan.nodeName() == "LocalRelation":
        return _read(session, plan, frame.schema())
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(frame, session).toArrow()


def _local_frame(session: SparkSession, prepared: Prepared, table: pa.Table, scratch: Path) -> Any:
    # One file per thread is enough: it has been read when the call returns.
    path = str(scratch / f"rows-{threading.get_ident()}.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, prepared.inputs) as stream:
        stream.write_table(table)
    sql: Any = session._jvm.PythonSQLUtils  # type: ignore[union-attr]
    batches = sql.readArrowStreamFromFile(path)
    return sql.toDataFrame(batches, prepared.inputs_json, session._jsparkSession)


def _read(session: SparkSession, plan: Any, schema: Any) -> pa.Table:
    jvm: Any = session._jvm
    converters = getattr(jvm, "org.apache.spark.sql.execution.arrow.ArrowConverters$")
    streams = getattr(converters, "MODULE$").toBatchWithSchemaIterator(
        plan.data().iterator(), schema, _BATCH_ROWS, _BATCH_BYTES, "UTC", True, False
    )
    served = jvm.PythonRDD.serveIterator(streams, "changefeed-messages")
    tables = [
        pa.ipc.open_stream(stream).read_all()
        for stream in _load_from_socket(served, NoOpSerializer())
    ]
    return pa.concat_tables(tables)
