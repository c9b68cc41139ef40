"""The CDC query of a feed: compiled for each version of its table, run on each chunk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.catalog import Catalog
from changefeed.catalog.model import Job
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.core.spark_jobs import JobName
from changefeed.encoding.plan import MessagePlan
from changefeed.query.changes import changes_of_result
from changefeed.query.evaluate import Evaluator, QuerySessions
from changefeed.query.functions import called
from changefeed.query.model import CompiledQuery, no_images
from changefeed.query.window_rows import result_rows, window_batch
from changefeed.query.windows import window_length
from changefeed.query.written import CREATION_TIME, SCHEMA_TIME, Constants
from grammar import nodes


class FeedQuery:
    """The query of a feed with ``AS SELECT``: turns rows of the table into rows of its result.

    Called by the threads of the feed and its scan, and by a statement that compares.

    Args:
        query: as stored in the job.
        job: the feed.
        catalog: knows when versions of the table were first seen.
        sessions: Spark's sessions for queries.
        lookup_refresh: seconds after which look-up tables are read again.
        engine, note: see :class:`.evaluate.Evaluator`.
    """

    def __init__(
        self,
        query: nodes.Query,
        job: Job,
        catalog: Catalog,
        sessions: QuerySessions,
        lookup_refresh: float,
        engine: EngineOption = EngineOption.AUTO,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self._query = query
        self._job = job
        self._catalog = catalog
        self._sessions = sessions
        lookups = sessions.lookups(lookup_refresh)
        work = JobName(job.name, job.id, "query", state=catalog.state_id)
        self._evaluator = Evaluator(sessions, lookups=lookups, engine=engine, note=note, work=work)
        self._compiled: dict[TableSchema, CompiledQuery] = {}
        self._lock = threading.Lock()

    def require_of_rows(self, schema: TableSchema) -> CompiledQuery:
        """The query over this version, if its result follows from the rows of the table alone.

        Raises:
            ChangefeedError: CF1303 it depends on changes; see :meth:`compiled`.
        """
        compiled = self._known(schema)
        by_time = self.grouped or SCHEMA_TIME in called(self._query)
        if by_time or compiled.of_changes or compiled.tells_change:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"{schema.table} cannot be verified: the query tells of changes, not only of rows",
                detail="event_op(), event_timestamp(), event_schema_timestamp(), cdc_prev and "
                "windows do not follow from the rows of the table",
            )
        return compiled

    def compiled(self, schema: TableSchema) -> CompiledQuery:
        """The query over this version of the table (kept per version); waits for Spark.

        Raises:
            ChangefeedError: it does not fit the table: CF1101, CF1303, CF2003; CF4004 a look-up.
        """
        compiled = self._known(schema)
        if compiled.uses_prev and schema.before_image is not BeforeImage.FULL:
            raise no_images(compiled)
        return compiled

    def _known(self, schema: TableSchema) -> CompiledQuery:
        """As :meth:`compiled`, without the check that rows before changes are logged."""
        with self._lock:
            known = self._compiled.get(schema)
            if known is None:
                known = self._compiled[schema] = self._compile(schema)
            return known

    def _compile(self, schema: TableSchema) -> CompiledQuery:
        constants = Constants(self._job.created, self._catalog.schema_seen(schema.version))
        try:
            compiled = self._sessions.compile(schema, self._query, constants)
        except ChangefeedError as error:
            # Places are offsets into the job's own copy of the query, which users do not see.
            error.span = None
            raise
        if compiled.lookups or CREATION_TIME in called(self._query):
            return replace(compiled, feed=self._job.id)
        return compiled

    @property
    def grouped(self) -> bool:
        """Whether it groups changes by windows of commit time; :mod:`.windows` then delivers its
        feed."""
        return bool(self._query.group)

    @property
    def window_length(self) -> int:
        """The length of its windows in nanoseconds."""
        length = window_length(self._query)
        if length is None:
            raise AssertionError("the query groups nothing")
        return length

    def window_batch(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        """Changes with their windows, for :meth:`groups`; see :mod:`changefeed.query.window_rows`.

        A row that one transaction changed several times is one change.
        """
        return window_batch(self.compiled(schema), rows.filter(rows["last"]))

    def groups(self, schema: TableSchema, batch: pa.Table, last_seq: int) -> pa.Table:
        """The groups of whole windows as rows of the log of the result."""
        compiled = self.compiled(schema)
        return result_rows(compiled, self._evaluator.groups(compiled, batch), last_seq)

    def rows(
        self, schema: TableSchema, rows: pa.Table, plan: MessagePlan, *, superseded: bool = False
    ) -> pa.Table:
        """Rows of the table's log as rows of the log of the query's result.

        Args:
            schema: of ``rows``.
            rows: in log order.
            plan: of the result's messages.
            superseded: keep rows that a later row of their transaction supersedes, because they
                may have values that it lacks. A row that satisfied the query only within its
                transaction then ends in a delete.
        """
        if not superseded and plan.collapse and not pc.all(rows["last"]).as_py():
            rows = rows.filter(rows["last"])
        before = plan.shows_before or plan.envelope is Envelope.CHANGED
        run = self._evaluator.run
        compiled = self.compiled(schema)
        return changes_of_result(compiled, rows, run, before=before, superseded=superseded)
