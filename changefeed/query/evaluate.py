"""Runs a query over a batch in Spark: a small batch without a job, a large one as a job.

A small batch goes through the query's compiled function in the driver's JVM
(:mod:`changefeed.spark.internals.projection`): some 5 ms for 100 rows, and nothing is planned.
Above :data:`DIRECT_BYTES` (more with few cores) a job distributes the batch over the executors. The
option ``engine`` can force or forbid jobs.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.catalog.rows import Function
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.spark_jobs import JobName
from changefeed.core.spark_sql import quoted
from changefeed.query.compile import VIEW, batch_fields, compile_query
from changefeed.query.functions import called, register
from changefeed.query.grouped import compile_grouped
from changefeed.query.lookups import LookupCache, described, read_lookup
from changefeed.query.model import CompiledQuery
from changefeed.query.written import ROW, Constants
from changefeed.spark.internals.arrow_types import arrow_of, frame_of
from changefeed.spark.internals.projection import Projection
from changefeed.spark.internals.sessions import another_session, named, with_settings
from grammar import nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changefeed.spark.session import NodeSpark

#: Batches up to this size need no job: some 25,000 narrow rows.
DIRECT_BYTES = 1 << 20
#: The same with few cores. A job takes five times the CPU for three short expressions, and two
#: threads of a backlog evaluate at the same time.
DIRECT_BYTES_FEW_CORES = 16 << 20
FEW_CORES = 8

#: A feed reports a job at most this often (seconds).
REPORT_SECONDS = 600.0

#: The most compiled queries that are kept.
COMPILED_KEPT = 500

_SETTINGS = {
    # A batch is distributed over the tasks of a job, not kept in the plan.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    # Names in double quotes are names, as in the rest of the language and in PostgreSQL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Where queries are checked by the text of their plans, all columns stand in it.
    "spark.sql.debug.maxToStringFields": "100000",
}


class QuerySessions:
    """The Spark session of queries: one for each JVM of the node.

    It shares the context of the node's session, but has settings, views and functions of its own.
    """

    def __init__(
        self,
        spark: NodeSpark,
        functions: Callable[[], Sequence[Function]] = tuple,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            spark: Spark.
            functions: the Python functions that queries may call, asked for each query.
            clock: for the age of look-up tables."""
        self.spark = spark
        self.clock: Clock = clock or SystemClock()
        self._functions = functions
        self._registered: dict[str, Function] = {}
        self._lock = threading.Lock()
        self._made: tuple[SparkSession, SparkSession] | None = None
        self._projections: dict[CompiledQuery, tuple[SparkSession, Projection | None]] = {}
        self._compiled: OrderedDict[Hashable, CompiledQuery] = OrderedDict()

    def of(self, plain: SparkSession) -> SparkSession:
        """The session of queries that shares its context with ``plain``, the node's session."""
        with self._lock:
            if self._made is None or self._made[0] is not plain:
                self._made = plain, with_settings(another_session(plain), _SETTINGS)
                self._registered = {}
                self._compiled.clear()
            return self._made[1]

    def projection(self, session: SparkSession, query: CompiledQuery) -> Projection | None:
        """The query as a compiled function; None if Spark has none for it."""
        with self._lock:
            known = self._projections.get(query)
            if known is None or known[0] is not session:
                known = self._projections[query] = session, _projection(session, query)
            return known[1]

    def compile(
        self, schema: TableSchema, query: nodes.Query, constants: Constants | None = None
    ) -> CompiledQuery:
        """A query checked against a table; waits for Spark.

        Raises:
            ChangefeedError: see :func:`.compile.compile_query`; CF4002, CF4003 of Spark.
        """
        names = called(query)
        functions = tuple(f for f in self._functions() if f.name in names)
        # Before the session is taken: a format that comes in a jar may need another session.
        lookups = {join.alias: described(self.spark, join) for join in query.joins}
        with self.spark.use() as plain:
            session = self.of(plain)
            self._forget(session, names - {f.name for f in functions})
            self.register(session, functions)
            fields = tuple((alias, tuple(columns)) for alias, columns in lookups.items())
            # A feed that is resumed compiles its query again.
            key = (schema, schema.version, query, constants, functions, fields)
            with self._lock:
                known = self._compiled.get(key)
            if known is not None:
                return known
            compiler = compile_grouped if query.group else compile_query
            found = compiler(session, schema, query, constants, functions, lookups)
            compiled = replace(found, functions=functions)
        with self._lock:
            if self._made is not None and self._made[1] is session:
                self._compiled[key] = compiled
                if len(self._compiled) > COMPILED_KEPT:
                    self._compiled.popitem(last=False)
        return compiled

    def lookups(self, refresh: float = math.inf) -> LookupCache:
        """Look-up tables for one feed, which are read again after ``refresh`` seconds."""
        return LookupCache(lambda lookup: read_lookup(self.spark, lookup), self.clock, refresh)

    def _forget(self, session: SparkSession, names: set[str]) -> None:
        with self._lock:
            for name in names & self._registered.keys():
                session.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {quoted(name)}")
                del self._registered[name]

    def register(self, session: SparkSession, functions: Sequence[Function]) -> None:
        """Make functions known to the session of queries.

        Raises:
            ChangefeedError: CF1102 Spark has a function of that name.
        """
        with self._lock:
            for function in functions:
                known = self._registered.get(function.name)
                if known == function:
                    continue
                if known is None and session.catalog.functionExists(function.name):
                    raise ChangefeedError(
                        Code.NAME_TAKEN,
                        f"Spark SQL has a function {function.name}() of its own",
                        hint="give yours another name: DROP FUNCTION, CREATE FUNCTION.",
                    )
                register(session, function)
                self._registered[function.name] = function


def _projection(session: SparkSession, query: CompiledQuery) -> Projection | None:
    fields = batch_fields(
        query.source,
        query.inputs,
        prev=query.uses_prev,
        of_change=query.of_change,
        lookups=query.lookups,
    )
    return Projection.of(session, pa.schema(fields), lambda view: query.row_sql.replace(VIEW, view))


class Evaluator:
    """Evaluates batches of one feed, for its thread and for that of its scan.

    Args:
        sessions: Spark's sessions for queries.
        direct_bytes: batches up to this size need no job; None: depends on the number of cores.
        lookups: the feed's look-up tables; None: tables that are read once.
        engine: with ``spark`` all but the smallest batches are jobs, with ``driver`` none.
        note: called with a sentence when a job runs, at most every :data:`REPORT_SECONDS`.
        work: what Spark's UI calls the jobs, but for the table.
    """

    def __init__(
        self,
        sessions: QuerySessions,
        direct_bytes: int | None = None,
        lookups: LookupCache | None = None,
        engine: EngineOption = EngineOption.AUTO,
        note: Callable[[str], None] | None = None,
        work: JobName | None = None,
    ) -> None:
        self._sessions = sessions
        self._work = work
        self._engine = engine
        self._note = note
        self._noted = -math.inf
        self._lookups = lookups or sessions.lookups()
        #: How many batches were evaluated without a job, and by one.
        self.direct = self.jobs = 0
        spark = sessions.spark
        few = spark.master.startswith("local") and spark.cores <= FEW_CORES
        usual = DIRECT_BYTES_FEW_CORES if few else DIRECT_BYTES
        self._direct_bytes = usual if direct_bytes is None else direct_bytes

    def run(self, query: CompiledQuery, batch: pa.Table) -> pa.Table:
        """The rows of a batch for which the query's WHERE holds: ``__cf_row`` and ``c<i>``.

        If there is a column ``__cf_keep``, also the rows for which it is false, without values.

        Raises:
            ChangefeedError: CF4001 an expression fails on a row, CF4002 Spark failed.
        """
        if query.sql is None:
            raise AssertionError("nothing to evaluate")
        batch = self._lookups.joined(query, batch)
        with self._sessions.spark.use() as plain:
            session = self._sessions.of(plain)
            self._sessions.register(session, query.functions)
            if self._needs_no_job(batch):
                projection = self._sessions.projection(session, query)
                if projection is not None:
                    with _rows_that_fail(query):
                        self.direct += 1
                        return projection.run(batch)
            return _in_order(self._job(session, query, query.sql, batch))

    def _needs_no_job(self, batch: pa.Table) -> bool:
        if self._engine is EngineOption.DRIVER:
            return True
        least = self._sessions.spark.state().least_job_rows
        if self._engine is EngineOption.SPARK and batch.num_rows >= least:
            return False
        return bool(batch.nbytes <= self._direct_bytes)

    def groups(self, query: CompiledQuery, batch: pa.Table) -> pa.Table:
        """The groups of whole windows: when the window of each ends, and ``c<i>``.

        Raises:
            ChangefeedError: as :meth:`run`.
        """
        if query.sql is None:
            raise AssertionError("nothing to evaluate")
        batch = self._lookups.joined(query, batch)
        with self._sessions.spark.use() as plain:
            session = self._sessions.of(plain)
            self._sessions.register(session, query.functions)
            return self._job(session, query, query.sql, batch)

    def _job(
        self, session: SparkSession, query: CompiledQuery, sql: str, batch: pa.Table
    ) -> pa.Table:
        table = query.source.table
        name = (
            nullcontext()
            if self._work is None
            else named(session, replace(self._work, table=str(table)))
        )
        with name, _rows_that_fail(query):
            view = f"__cf_batch_{threading.get_ident()}"
            frame = frame_of(session, batch)
            if batch.nbytes <= self._direct_bytes:
                frame = frame.coalesce(1)  # one task: groups need no shuffle
            frame.createOrReplaceTempView(view)
            self.jobs += 1
            self._report(batch.num_rows)
            return arrow_of(session.sql(sql.replace(VIEW, view)))

    def _report(self, rows: int) -> None:
        now = self._sessions.clock.monotonic()
        if self._note is not None and now - self._noted >= REPORT_SECONDS:
            self._noted = now
            self._note(f"the query over {rows:,} rows as a Spark job")


def _in_order(made: pa.Table) -> pa.Table:
    rows = made[ROW]
    if len(rows) > 1 and not pc.all(pc.less(rows[:-1], rows[1:])).as_py():
        return made.take(pc.sort_indices(rows))
    return made


class _rows_that_fail:
    """Turns an exception of an expression into an error of the table, without the row's values."""

    def __init__(self, query: CompiledQuery) -> None:
        self._query = query

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        state: Callable[[], str | None] | None = getattr(failure, "getSqlState", None)
        if failure is None or state is None or not (state() or "").startswith("22"):
            return
        condition = getattr(failure, "getCondition", lambda: None)() or type(failure).__name__
        contexts: list[Any] = getattr(failure, "getQueryContext", list)() or []
        where = f" in {contexts[0].fragment()}" if contexts else ""
        table = self._query.source.table
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"the query cannot be evaluated on a row of {table}: {condition}{where}",
            hint="try_divide, try_cast and the like give NULL where these fail: make a feed with "
            "a query that uses them, or change the row at the source and RESCAN.",
        ) from failure
