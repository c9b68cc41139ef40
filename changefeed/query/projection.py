"""A query as a function of Spark's own: rows in, rows out, without a plan or a job for each batch.

Spark's optimizer turns the query into projections over the columns of a batch, and its code
generator compiles them once. A batch then goes through them in the driver's JVM: Arrow bytes in,
Arrow bytes out, a few calls whatever the query is. The classes are not part of Spark's public
interface: where one of them is missing, or the plan holds anything but projections, there is no
such function and the batch goes the way of DataFrames (:mod:`.evaluate`).
"""

from __future__ import annotations

import binascii
import mmap
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.query.compile import VIEW, batch_fields
from changefeed.query.model import CompiledQuery
from changefeed.query.written import KEEP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: The result of a batch above this size comes through a file: as text it is copied five times.
_BY_FILE = 256 << 10


class Projection:
    """A compiled query in one JVM. Threads take turns: the generated code has buffers."""

    def __init__(self, session: SparkSession, steps: list[Any], result: Any) -> None:
        package: Any = session._jvm.org.apache.spark.sql.execution.arrow  # type: ignore[union-attr]
        # A Scala object that has no static methods.
        self._converters = getattr(getattr(package, "ArrowConverters$"), "MODULE$")
        self._jvm: Any = session._jvm
        self._steps = steps
        self._result = result
        self._lock = threading.Lock()

    @classmethod
    def of(cls, session: SparkSession, query: CompiledQuery) -> Projection | None:
        """The function of a query; None where Spark has none for it."""
        from py4j.protocol import Py4JError
        from pyspark.sql.pandas.types import from_arrow_schema

        fields = pa.schema(
            batch_fields(
                query.source,
                query.inputs,
                prev=query.uses_prev,
                of_change=query.of_change,
                lookups=query.lookups,
            )
        )
        # Rows of an RDD: of a table in memory the optimizer would compute the result at once.
        nothing = session.createDataFrame(
            session.sparkContext.emptyRDD(), from_arrow_schema(fields)
        )
        view = f"__cf_rows_{threading.get_ident()}"
        nothing.createOrReplaceTempView(view)
        try:
            frame = session.sql(query.row_sql.replace(VIEW, view))
            steps = _steps(session, frame._jdf.queryExecution().optimizedPlan())
            return None if steps is None else cls(session, steps, frame._jdf.schema())
        except Py4JError:
            return None  # another version of Spark: its classes have other methods
        finally:
            session.catalog.dropTempView(view)

    def run(self, batch: pa.Table) -> pa.Table:
        """The rows of the batch that satisfy the WHERE; see :meth:`.evaluate.Evaluator.run`."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_table(batch)
        with self._lock:
            rows = self._converters.fromIPCStream(sink.getvalue().to_pybytes())._1()
            for step in self._steps:
                rows = rows.map(step)
            made = self._converters.toBatchWithSchemaIterator(
                rows, self._result, 0, 1 << 40, "UTC", True, False
            )
            large = batch.nbytes > _BY_FILE
            data = self._through_file(made) if large else self._as_text(made)
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        kept = table[KEEP]
        return table if pc.all(kept).as_py() else table.filter(kept)

    def _as_text(self, batches: Any) -> memoryview:
        """The bytes of an iterator of one array. py4j itself reads arrays of bytes one by one in
        Python (60 ns each), texts as a whole."""
        text = self._jvm.java.io.ByteArrayOutputStream()
        self._write(batches, self._jvm.java.util.Base64.getEncoder().wrap(text))
        # The length comes first, in four bytes.
        return memoryview(binascii.a2b_base64(text.toString()))[4:]

    def _through_file(self, batches: Any) -> memoryview:
        """The same for many bytes: a file that has no name any more when they are read."""
        with tempfile.NamedTemporaryFile(prefix="changefeed-query-") as file:
            self._write(batches, self._jvm.java.io.FileOutputStream(file.name))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return memoryview(content[4:])

    def _write(self, batches: Any, stream: Any) -> None:
        out = self._jvm.java.io.DataOutputStream(stream)
        self._jvm.org.apache.spark.api.python.PythonRDD.writeIteratorToStream(batches, out)
        out.close()


def _steps(session: SparkSession, plan: Any) -> list[Any] | None:
    """The projections of a plan over rows, the first one first; None for any other plan."""
    jvm: Any = session._jvm
    package = jvm.org.apache.spark.sql.catalyst.expressions
    factory = getattr(getattr(package, "UnsafeProjection$"), "MODULE$")
    steps: list[Any] = []
    while plan.getClass().getSimpleName() == "Project":
        child = plan.child()
        steps.insert(0, factory.create(plan.projectList(), child.output()))
        plan = child
    return steps if plan.getClass().getSimpleName() == "LogicalRDD" and steps else None
