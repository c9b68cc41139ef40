"""A query as a compiled function of Spark: rows in, rows out, without a plan or a job per batch.

Spark's optimizer turns the query into projections over the columns of a batch, and its code
generator compiles them once. A batch then passes through them in the driver's JVM: Arrow bytes in,
Arrow bytes out, with a few calls for any query. If one of the classes is missing, or the plan has
something else than projections, there is no such function, and the batch is evaluated as a
DataFrame (:mod:`changefeed.query.evaluate`).
"""

from __future__ import annotations

import binascii
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from changefeed.core.telemetry import log
from changefeed.spark.internals.abilities import PROJECTION, allows, java_object, jvm_of
from changefeed.spark.internals.arrow_types import spark_schema, write_stream
from changefeed.spark.internals.plans import sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The expressions of one projection, and the columns that it reads.
_Stage = tuple[Any, Any]

#: The rows of larger batches are exchanged through files: as text they are copied five
#: times.
_BY_FILE = 256 << 10
#: Threads that evaluate one query at the same time: two chunks of a backlog.
_AT_ONCE = 2


class Projection:
    """A compiled query in one JVM.

    The generated code has buffers, so two threads cannot share it: each of the :data:`_AT_ONCE`
    threads that may evaluate the query at the same time has its own.
    """

    def __init__(self, session: SparkSession, stages: list[_Stage], given: Any, made: Any) -> None:
        """``given`` and ``made``: the types of the rows before and after ``stages``."""
        self._jvm = jvm_of(session)
        self._converters = java_object(
            self._jvm.org.apache.spark.sql.execution.arrow, "ArrowConverters"
        )
        self._stages = stages
        self._given = given
        self._made = made
        self._free = threading.Semaphore(_AT_ONCE)
        self._idle = [self._compiled()]

    @classmethod
    def of(
        cls, session: SparkSession, batch: pa.Schema, sql: Callable[[str], str]
    ) -> Projection | None:
        """The function of a query; None where the session cannot have one for it.

        Args:
            batch: the columns of the batches.
            sql: makes the query's text of the name of a batch's view.
        """
        from py4j.protocol import Py4JError

        if not allows(session, PROJECTION):
            return None
        # Rows of an RDD: of a table in memory the optimizer would compute the result at once.
        nothing: Any = session.createDataFrame(session.sparkContext.emptyRDD(), spark_schema(batch))
        view = f"__cf_rows_{threading.get_ident()}"
        nothing.createOrReplaceTempView(view)
        try:
            frame: Any = session.sql(sql(view))
            stages = _stages(frame._jdf.queryExecution().optimizedPlan())
            if stages is None:
                return None
            return cls(session, stages, nothing._jdf.schema(), frame._jdf.schema())
        except Py4JError as failure:
            log.warning("batches of a CDC query are Spark jobs: %s", type(failure).__name__)
            return None  # another version of Spark: its classes have other methods
        finally:
            session.catalog.dropTempView(view)

    def run(self, batch: pa.Table) -> pa.Table:
        """A row for each row of the batch; see :meth:`changefeed.query.evaluate.Evaluator.run`."""
        with self._code() as steps:
            if batch.nbytes > _BY_FILE:
                return self._by_files(steps, batch)
            sink = pa.BufferOutputStream()
            write_stream(sink, batch)
            rows = self._converters.fromIPCStream(sink.getvalue().to_pybytes())._1()
            with _released(lambda: [rows]):
                text = self._as_text(self._through(steps, rows))
            with pa.ipc.open_stream(text) as stream:
                return stream.read_all()

    @contextmanager
    def _code(self) -> Iterator[list[Any]]:
        with self._free:
            try:
                steps = self._idle.pop()
            except IndexError:
                steps = self._compiled()
            try:
                yield steps
            finally:
                self._idle.append(steps)

    def _compiled(self) -> list[Any]:
        """Spark caches the generated code; the buffers are new."""
        factory = java_object(
            self._jvm.org.apache.spark.sql.catalyst.expressions, "UnsafeProjection"
        )
        return [factory.create(expressions, given) for expressions, given in self._stages]

    def _through(self, steps: list[Any], rows: Any) -> Any:
        """Rows of Spark -> an iterator of one array with Arrow's bytes."""
        for step in steps:
            rows = rows.map(step)
        return self._converters.toBatchWithSchemaIterator(
            rows, self._made, 0, 1 << 40, "UTC", True, False
        )

    def _as_text(self, batches: Any) -> memoryview:
        """The bytes of an iterator of one array. py4j reads arrays of bytes one by one in Python
        (60 ns each), but texts as a whole."""
        text = self._jvm.java.io.ByteArrayOutputStream()
        encoder = self._jvm.java.util.Base64.getEncoder().wrap(text)
        self._put(batches, self._jvm.java.io.DataOutputStream(encoder))
        # The length comes first, in four bytes.
        return memoryview(binascii.a2b_base64(text.toString()))[4:]

    def _by_files(self, steps: list[Any], batch: pa.Table) -> pa.Table:
        """:meth:`run` for many bytes. The second file is already unlinked when it is read."""
        with (
            tempfile.NamedTemporaryFile(prefix="changefeed-query-") as given,
            tempfile.NamedTemporaryFile(prefix="changefeed-query-") as made,
        ):
            with pa.OSFile(given.name, "wb") as sink:
                write_stream(sink, batch)
            channel = self._jvm.java.io.FileInputStream(given.name).getChannel()
            try:
                batches = self._converters.getBatchesFromStream(channel)
                rows = self._converters.fromBatchIterator(
                    batches, self._given, "UTC", True, False, None
                )
                stream = self._jvm.java.io.FileOutputStream(made.name)
                out = self._jvm.java.io.DataOutputStream(stream)
                with _released(lambda: [*sequence(rows.resources())][::-1]):
                    out.writeInt(0)  # so that numbers stand at multiples of eight bytes
                    self._put(self._through(steps, rows), out)
            finally:
                channel.close()
            content = pa.memory_map(made.name)
            content.seek(8)
            with pa.ipc.open_stream(content) as reader:
                return reader.read_all()

    def _put(self, batches: Any, out: Any) -> None:
        """Write the bytes after their length, which has four bytes."""
        try:
            self._jvm.org.apache.spark.api.python.PythonRDD.writeIteratorToStream(batches, out)
        finally:
            out.close()


@contextmanager
def _released(held: Callable[[], list[Any]]) -> Iterator[None]:
    """Close what an iterator of Spark holds outside the heap if it is not read to its end, because
    an expression fails on a row."""
    try:
        yield
    except BaseException:
        # If the JVM is gone, nothing is left to close.
        with suppress(Exception):
            for each in held():
                each.close()
        raise


def _stages(plan: Any) -> list[_Stage] | None:
    """The projections of a plan over rows, in order of evaluation; None for any other plan."""
    stages: list[_Stage] = []
    while plan.getClass().getSimpleName() == "Project":
        child = plan.child()
        stages.insert(0, (plan.projectList(), child.output()))
        plan = child
    return stages if plan.getClass().getSimpleName() == "LogicalRDD" and stages else None
