"""One table of a feed, compared with its target until the answer is sure.

A pass reads the source under one snapshot, waits until the feed has delivered everything up to
then, and lets the sink compare. The target is never behind the snapshot, but it may be ahead of
it: a row that changed at the source meanwhile looks different. So a difference counts only once two
passes, one after the other, found the same row with the same values on both sides; the feed has
caught up in between. Rows that look different each time are changing, not wrong.

The source is read by one connection, a part of the table after the other; nothing but a batch of
rows and the differences is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import TRAITS
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.core.shapes import Deletes
from changefeed.core.state import StateLayout
from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed.encoding.compile import NOWHERE, message_plan, names_origin, origin_of
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.formats import FORMATS
from changefeed.encoding.plan import MessagePlan, Origin
from changefeed.encoding.typed_rows import RowPlan
from changefeed.options import Options
from changefeed.scan.table import TYPED_ROWS, joined
from changefeed.sources.base import KeyRange, Source
from sinks import registry
from sinks.base import Difference, SinkContext, SparkAccess, Target

#: Differences that are named of one table.
LIMIT = 1_000
#: Comparisons of one table before rows that look different each time are called changing.
PASSES = 5
#: When the source's rows were written, as far as their messages say it; any instant will do whose
#: nanoseconds have the usual number of digits.
_INSTANT = Timestamp(1_000_000_000_000_000_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out for one table.

    Attributes:
        differences: rows that differ, by key; at most :data:`LIMIT`.
        changing: rows that looked different in the last pass, and otherwise in the one before.
        more: there are differences beyond those named.
    """

    table: TableProgress
    differences: tuple[Difference, ...] = ()
    changing: int = 0
    more: bool = False


class TableVerifier:
    """Compares tables of one feed."""

    def __init__(
        self,
        catalog: Catalog,
        job: Job,
        source: Source,
        delivered: Callable[[], object],
        spark: Callable[[Sequence[str]], SparkAccess],
    ) -> None:
        """
        Args:
            catalog, job, source: the feed and what it reads.
            delivered: returns when everything that is committed at the source is in the target.
            spark: gives Spark with jar packs; called only where the sink needs it.

        Raises:
            ChangefeedError: CF1303 the feed's sink cannot be compared with.
        """
        if job.sink_uri is None:
            message = "a feed without a sink has no target to verify"
            raise ChangefeedError(Code.NOT_SUPPORTED, message)
        if job.is_query:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "the target of a CDC query cannot be verified yet",
                hint="VERIFY compares feeds of whole tables.",
            )
        self._catalog = catalog
        self._job = job
        self._source = source
        self._delivered = delivered
        self._spark = spark
        self._uri = catalog.resolve_uri(job.sink_uri)
        scheme = registry.scheme_of(self._uri)
        abilities = registry.capabilities(scheme)
        if not abilities.compares:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"a {scheme}:// sink cannot be verified yet",
                hint=f"these can: {', '.join(_comparable())}.",
            )
        self._packs = abilities.spark_packs
        self._options = Options.from_dict(job.options, abilities=abilities)

    def verify(self, table: TableProgress) -> Outcome:
        """Compare a table, as often as it takes.

        Raises:
            ChangefeedError: CF1303 the table cannot be compared; the source or the sink failed.
        """
        found: list[Difference] = []
        before: frozenset[Difference] | None = None
        for _ in range(PASSES):
            found = self._pass(table)
            more, found = len(found) > LIMIT, found[:LIMIT]
            sure = tuple(d for d in found if before is not None and d in before)
            if len(sure) == len(found):
                return Outcome(table, sure, more=more)
            before = frozenset(found)
        return Outcome(table, sure, changing=len(found) - len(sure), more=more)

    def _pass(self, table: TableProgress) -> list[Difference]:
        """What looks different now; one more than :data:`LIMIT` where there are more."""
        self._require_own_topic(table)
        schema = self._schema(table)
        plan = message_plan(self._job, self._options, table, schema, origin=self._origin())
        deletes = plan.deletes
        if deletes is Deletes.ONLY:
            why = "is delivered as deletes alone"
            raise ChangefeedError(Code.NOT_SUPPORTED, f"{table.table} cannot be verified: it {why}")
        sink = registry.open_sink(self._uri, self._options)
        target = Target(table.table, table.topic)
        context = SinkContext(
            feed=self._job.name,
            job_id=self._job.id,
            targets=(target,),
            options=self._options,
            spark=self._spark(self._packs) if self._packs else None,
            scratch=str(StateLayout(Path(self._catalog.directory)).scratch(self._job.id)),
            state=self._catalog.state_id,
        )
        try:
            typed = RowPlan(plan) if sink.capabilities.takes_rows else None
            shape = self._messages(plan) if typed is None else typed.scanned
            rows = self._rows(table, schema, shape)
            seen = schema if typed is None else typed.schema
            found = sink.compare(context, target, seen, rows, LIMIT + 1)
        finally:
            sink.close()
        # What was deleted at the source stays in a target that is told of no deletes.
        return [d for d in found if d.kind != "extra" or deletes is not Deletes.NO]

    def _require_own_topic(self, table: TableProgress) -> None:
        others = [
            t.table
            for t in self._catalog.tables(self._job.id)
            if t.topic == table.topic and t.table != table.table
        ]
        if others:
            message = f"{table.table} cannot be verified: {others[0]} is in {table.topic}, too"
            raise ChangefeedError(Code.NOT_SUPPORTED, message)

    def _origin(self) -> Origin:
        """What messages say of the source, where they do."""
        if not names_origin(self._options):
            return NOWHERE
        return origin_of(self._catalog.connection(self._job.source).uri, self._source.database)

    def _schema(self, table: TableProgress) -> TableSchema:
        schema = self._source.describe(table.table.schema, table.table.name)
        if table.table_id and schema.table_id not in (0, table.table_id):
            raise ChangefeedError("CF2106", f"another table has the name {table.table} now")
        return self._catalog.intern_schema(schema)

    def _messages(self, plan: MessagePlan) -> Callable[[pa.Table, Timestamp], pa.Table]:
        """Encodes rows of the source as the feed does, but for what tells of the change."""
        if not TRAITS[plan.format].read_back:
            message = f"a feed of format = '{plan.format}' cannot be verified yet"
            raise ChangefeedError(Code.NOT_SUPPORTED, message, hint="VERIFY reads JSON and Avro.")
        if plan.schema.keyless:
            message = f"{plan.schema.table} has no primary key: its messages cannot be verified"
            raise ChangefeedError(Code.NOT_SUPPORTED, message)
        written = FORMATS[plan.format].schemas(plan.envelope)
        bare = replace(
            plan,
            updated=False,
            mvcc_timestamp=False,
            diff=False,
            transactions=False,
            key_in_value=False,
            topic_in_value=False,
        )

        def encoded(rows: pa.Table, at: Timestamp) -> pa.Table:
            made = encode_messages(scan_rows(plan.schema, rows, at), bare, scan=True)
            return made if written is None else _with_key_schema(made, written.key(bare).text)

        return encoded

    def _rows(
        self,
        table: TableProgress,
        schema: TableSchema,
        shape: Callable[[pa.Table, Timestamp], pa.Table],
    ) -> Iterator[pa.Table]:
        """The rows of the source; when they have ended, the target has what they showed."""
        keys = KeyRange(table.values_from or None, table.values_to or None)
        with self._source.snapshot([schema]) as snapshot:
            parts = snapshot.parts(schema, keys=keys, partition=table.partition)
            batches = (batch for part in parts for batch in part.read())
            for rows in joined(batches, TYPED_ROWS):
                yield shape(rows, _INSTANT)
        self._delivered()


def _with_key_schema(messages: pa.Table, schema: str) -> pa.Table:
    """The messages with the schema of their keys beside these, as that of the values is."""
    place = messages.schema.get_field_index("key")
    field = messages.schema.field(place).with_metadata({SCHEMA_KEY: schema})
    return messages.set_column(place, field, messages.column(place))


def _comparable() -> list[str]:
    """Schemes of the sinks that can be compared with."""
    return [scheme for scheme in registry.schemes() if registry.capabilities(scheme).compares]
