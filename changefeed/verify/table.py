"""One table of a feed, or a part of it, compared with its target until the answer is sure.

A pass reads the source under one snapshot, waits until the feed has delivered everything up to
then, and lets the sink compare. The target is never behind the snapshot, but it may be ahead of
it: a row that changed at the source meanwhile looks different. So a difference counts only once two
passes, one after the other, found the same row with the same values on both sides, and the change
log has no change of the row since the source was read for the second one. Rows that look different
each time are changing, not wrong.

The source is read by one connection, a piece of the table after the other; nothing but a batch of
rows and the differences is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.formats import TRAITS, Format
from changefeed.core.schema import Column, KeyRange, TableSchema
from changefeed.core.shapes import Deletes
from changefeed.core.state import StateLayout
from changefeed.encoding.compile import NOWHERE, message_plan, names_origin, origin_of
from changefeed.encoding.plan import Origin
from changefeed.options import FORMAT, HISTORY, Options
from changefeed.plan.targets import query_of
from changefeed.query.evaluate import QuerySessions
from changefeed.query.of_feed import FeedQuery
from changefeed.scan.repair import why_rescan
from changefeed.scan.table import joined
from changefeed.shared_logs import readable_log
from changefeed.sources.base import DEFAULT_PART_BYTES, Source
from changefeed.verify.changes import changed_since
from changefeed.verify.keys import repair_of, row_key
from changefeed.verify.source_rows import SourceRows
from changefeed.verify.unfit import UnfitRows
from sinks import registry
from sinks.base import Difference, SinkContext, SparkAccess, Target

#: Differences that are named of one table.
LIMIT = 1_000
#: Comparisons of one table before rows that look different each time are called changing.
PASSES = 5
#: More bytes than any table has.
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """What came out for one table.

    Attributes:
        differences: rows that differ, by key; at most :data:`LIMIT`.
        changing: rows that looked different in the last pass and may only have changed meanwhile.
        more: there are differences beyond those named.
        lookups: tables that the feed's query joins, which were read for the comparison.
        repair: the rows that differ, if they can be repaired one by one.
        why_rescan: why they cannot, as far as they differ.
        rows: rows of the source that were compared.
        table_rows: about how many the source has of the whole table.
        target_bytes: of the target's rows that it read by itself in all comparisons, about.
    """

    table: TableProgress
    differences: tuple[Difference, ...] = ()
    changing: int = 0
    more: bool = False
    lookups: tuple[str, ...] = ()
    repair: RowRepair | None = None
    why_rescan: str = ""
    rows: int = 0
    table_rows: int = 0
    target_bytes: int = 0


class TableVerifier:
    """Compares tables of one feed."""

    def __init__(
        self,
        catalog: Catalog,
        job: Job,
        source: Source,
        delivered: Callable[[], object],
        spark: Callable[[Sequence[str]], SparkAccess],
        sessions: Callable[[], QuerySessions],
        wanted: Callable[[int], object],
    ) -> None:
        """
        Args:
            catalog, job, source: the feed and what it reads.
            delivered: returns when everything that is committed at the source is in the target.
            spark: gives Spark with jar packs; called only where the sink needs it.
            sessions: evaluates CDC queries; called only where the feed has one.
            wanted: raises an error if nobody waits for the outcome any more; called often, with
                the bytes of rows of the source, or of the target, that were read since the last
                call.

        Raises:
            ChangefeedError: CF1303 the feed's sink cannot be compared with.
        """
        if job.sink_uri is None:
            message = "a feed without a sink has no target to verify"
            raise ChangefeedError(Code.NOT_SUPPORTED, message)
        self._catalog = catalog
        self._job = job
        self._source = source
        self._delivered = delivered
        self._wanted = wanted
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
        self._reads_itself = abilities.compares_parts
        self._options = Options.from_dict(job.options, abilities=abilities)
        form = Format(self._options[FORMAT].value)
        if not abilities.takes_rows and not TRAITS[form].read_back:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"a feed of format = '{form}' cannot be verified: it delivers an initial scan, and "
                "no change after it",
            )
        self._sessions = sessions
        self._query: FeedQuery | None = None
        self._lookups: tuple[str, ...] = ()
        #: Of the table that is compared: why its rows cannot be repaired one by one, and its key.
        self._why_rescan = ""
        self._key: Sequence[Column] = ()
        #: Of the last pass: the table at the source, where its rows were read, and how many.
        self._read: tuple[TableSchema, Position] | None = None
        self._rows_read = self._table_rows = self._target_bytes = 0

    def part_after(
        self, table: TableProgress, low: tuple[str, ...] | None, rows: int
    ) -> KeyRange | None:
        """About ``rows`` rows of a table from a key on (None: its begin); None if the table can
        only be compared as a whole."""
        if not self._reads_itself or self._job.is_query or table.values_from or table.values_to:
            return None
        schema = self._schema(table)
        if schema.keyless or not self._source.range_columns(schema):
            return None
        return KeyRange(low, self._source.key_after(schema, low, rows))

    def verify(self, table: TableProgress, part: KeyRange | None = None) -> TableOutcome:
        """Compare a table, or a part of it (:meth:`part_after`), as often as it takes.

        Raises:
            ChangefeedError: CF1303 the table cannot be compared; the source or the sink failed.
        """
        # For each table anew: look-up tables as they are now, and the same ones in all passes.
        self._query = self._feed_query()
        found: list[Difference] = []
        if table.partition is not None and table.partition.of_messages:
            why = "they are in the source's log alone"
            message = f"{table.table}: logical messages cannot be verified: {why}"
            raise ChangefeedError(Code.NOT_SUPPORTED, message)
        self._target_bytes = 0
        before: frozenset[Difference] | None = None
        always: frozenset[Difference] | None = None
        for number in range(1, PASSES + 1):
            found = self._pass(table, part)
            more, found = len(found) > LIMIT, found[:LIMIT]
            always = frozenset(found) if always is None else always & frozenset(found)
            still = self._unchanged(found, always if number == PASSES else frozenset())
            sure = tuple(d for d in found if before is not None and d in before and d in still)
            if len(sure) == len(found):
                return self._outcome(table, sure, more=more)
            before = frozenset(found)
        return self._outcome(table, sure, changing=len(found) - len(sure), more=more)

    def _unchanged(
        self, found: Sequence[Difference], always: frozenset[Difference]
    ) -> frozenset[Difference]:
        """Those whose rows have not changed since the source was read.

        Args:
            always: what counts although its key cannot be looked up and its table is changing.
        """
        if not found or self._read is None:
            return frozenset(found)
        schema, position = self._read
        keys = {d: row_key(self._key, d.values) for d in found}
        known = {key for key in keys.values() if key is not None}
        with readable_log(self._catalog, self._job.source) as log:
            if not log.exists():
                return frozenset(found)
            # All of them, if it matters whether there was any.
            changed = changed_since(log, schema, position, known if len(known) == len(keys) else ())
        if changed is None:
            return frozenset()
        return frozenset(
            d
            for d, key in keys.items()
            if (key not in changed if key is not None else not changed or d in always)
        )

    def _outcome(
        self, table: TableProgress, sure: tuple[Difference, ...], *, changing: int = 0, more: bool
    ) -> TableOutcome:
        repair, why = None, self._why_rescan
        if more:
            why = f"more than {LIMIT:,} rows differ"
        elif not why:
            repair = repair_of(self._key, sure)
            why = "" if repair else "the target does not show the values of its keys"
        return TableOutcome(
            table,
            sure,
            changing,
            more,
            self._lookups,
            repair,
            why,
            self._rows_read,
            self._table_rows,
            self._target_bytes,
        )

    def _pass(self, table: TableProgress, part: KeyRange | None) -> list[Difference]:
        """What looks different now; one more than :data:`LIMIT` where there are more."""
        self._require_own_topic(table)
        schema = self._schema(table)
        delivered, query = schema, None
        if self._query is not None:
            compiled = self._query.require_of_rows(schema)
            self._lookups = tuple(lookup.shown for lookup in compiled.lookups)
            delivered, query = compiled.schema, compiled.shape
        plan = message_plan(self._job, self._options, table, delivered, query, self._origin())
        deletes = plan.deletes
        if deletes is Deletes.ONLY:
            why = "delivers only deletes"
            raise ChangefeedError(Code.NOT_SUPPORTED, f"{table.table} cannot be verified: it {why}")
        sink = registry.open_sink(self._uri, self._options)
        self._key = schema.key_columns
        self._why_rescan = why_rescan(
            table,
            schema,
            plan,
            source=self._source,
            sink=sink.capabilities,
            history=self._options[HISTORY],
            has_query=self._query is not None,
        )
        target = Target(table.known_as, table.topic, part=part)
        context = SinkContext(
            feed=self._job.name,
            job_id=self._job.id,
            targets=(target,),
            options=self._options,
            spark=self._spark(self._packs) if self._packs else None,
            scratch=str(StateLayout(Path(self._catalog.directory)).scratch(self._job.id)),
            state=self._catalog.state_id,
            read=self._wanted,
        )
        try:
            rows = SourceRows(schema, plan, self._query, sink.capabilities.takes_rows)
            read = self._rows(table, rows, part)
            unfit = UnfitRows(sink, self._job.name, target, rows.seen, LIMIT + 1)
            if sink.capabilities.takes_rows:
                read = unfit.but_these(read)
            found = unfit.among(sink.compare(context, target, rows.seen, read, LIMIT + 1))
        finally:
            sink.close()
        # What was deleted at the source stays in a target that is told of no deletes.
        return [d for d in found if d.kind != "extra" or deletes is not Deletes.NO]

    def _feed_query(self) -> FeedQuery | None:
        query = query_of(self._job)
        if query is None:
            return None
        return FeedQuery(query, self._job, self._catalog, self._sessions(), math.inf)

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
            raise ChangefeedError(
                Code.TABLE_REPLACED, f"another table has the name {table.table} now"
            )
        return self._catalog.intern_schema(schema)

    def _rows(
        self, table: TableProgress, rows: SourceRows, part: KeyRange | None
    ) -> Iterator[pa.Table]:
        """The rows of the source; when they have ended, the target has what they showed."""
        if part is None:
            size = DEFAULT_PART_BYTES
            keys = KeyRange(table.values_from or None, table.values_to or None)
        else:
            size, keys = _WHOLE, part  # the index of the key finds it
        with self._source.snapshot([rows.schema]) as snapshot:
            self._read, self._rows_read = (rows.schema, snapshot.position), 0
            parts = snapshot.parts(rows.schema, size, keys=keys, partition=table.partition)
            self._table_rows = sum(part.rows_estimate for part in parts)
            batches = (batch for part in parts for batch in part.read())
            if not rows.typed:
                yield rows.shaped(rows.none)  # says what messages look like, where there are none
            for batch in joined(batches, rows.batch_rows):
                self._wanted(batch.nbytes)
                self._rows_read += batch.num_rows
                if self._reads_itself:
                    self._target_bytes += batch.nbytes
                yield rows.shaped(batch)
        self._delivered()


def _comparable() -> list[str]:
    """Schemes of the sinks that can be compared with."""
    return [scheme for scheme in registry.schemes() if registry.capabilities(scheme).compares]
