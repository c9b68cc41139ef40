"""One feed as its runner sees it: the job's row in typed form, and its progress.

The runner's thread owns it; nothing here waits or does I/O except :meth:`Feed.save`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from changefeed.catalog import Catalog, Lease
from changefeed.catalog.model import Job, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.events import SchemaChange
from changefeed.core.log_rows import but_of_transaction
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.encoding.compile import NOWHERE, message_plan, names_origin, origin_of
from changefeed.encoding.plan import MessagePlan, Origin
from changefeed.encoding.registered import FeedSchemas, feed_schemas
from changefeed.encoding.select import wanted_rows
from changefeed.encoding.transactions import boundary_table
from changefeed.encoding.typed_rows import RowPlan
from changefeed.feeds.dead_letters import LetterKeeper
from changefeed.options import (
    DEAD_LETTER_LIMIT,
    DEAD_LETTER_SHARE,
    DELIVERY,
    ENGINE,
    INITIAL_SCAN_CONCURRENCY,
    INITIAL_SCAN_MAX_RATE,
    LOOKUP_REFRESH,
    MAX_DISK,
    MAX_MEMORY,
    MIN_CHECKPOINT_FREQUENCY,
    ON_ROW_ERROR,
    RESOLVED,
    RETRY_FOR,
    SLO,
    TRANSACTION_METADATA,
    TRANSACTION_TOPIC,
    VERIFY,
    VERIFY_MAX_RATE,
    VERIFY_REPAIR,
    Feature,
    Guarantee,
    Options,
)
from changefeed.plan.build import feed_sql
from changefeed.plan.targets import query_of, renamed_targets
from changefeed.query.evaluate import QuerySessions
from changefeed.query.of_feed import FeedQuery
from changefeed.scan.host import scan_progress_key
from changefeed.sources.registry import open_source
from sinks.base import Capabilities, SinkContext, SparkAccess, Target
from sinks.registry import capabilities, scheme_of, topic_namer

#: Options that say nothing of rows: a scan goes on after an ALTER of one of them.
_NOT_OF_FORM = frozenset(
    row.name
    for row in (
        DEAD_LETTER_LIMIT,
        DEAD_LETTER_SHARE,
        ENGINE,
        INITIAL_SCAN_CONCURRENCY,
        INITIAL_SCAN_MAX_RATE,
        MAX_DISK,
        MAX_MEMORY,
        MIN_CHECKPOINT_FREQUENCY,
        ON_ROW_ERROR,
        RETRY_FOR,
        SLO,
        VERIFY,
        VERIFY_MAX_RATE,
        VERIFY_REPAIR,
    )
)


class Feed:
    """A job, its options and tables, and the plans of its messages."""

    def __init__(
        self,
        catalog: Catalog,
        job: Job,
        lease: Lease,
        sessions: QuerySessions | None = None,
    ) -> None:
        self._catalog = catalog
        self.lease = lease
        self.job = job
        uri = catalog.resolve_uri(job.sink_uri) if job.sink_uri else None
        #: What the sink can do; None for a sinkless feed.
        self.abilities: Capabilities | None = capabilities(scheme_of(uri)) if uri else None
        self.options = Options.from_dict(job.options, abilities=self.abilities)
        self.tables: dict[TableName, TableProgress] = {t.table: t for t in catalog.tables(job.id)}
        #: Tables whose progress is no longer saved, because of a RESCAN or a DROP meanwhile.
        self.superseded: frozenset[TableName] = frozenset()
        self._living = catalog.living()
        self._source_id = catalog.source_state(job.source).identity
        # Until this is saved, the state may lift a table that is paused with the high-water mark.
        self._changed = {t.table for t in self.in_state(TableState.PAUSED)}
        promised = self.options[SLO]
        #: How late the rows were; :meth:`save` makes it durable.
        self.delays = job.delays.judged(promised.within if promised else 0.0)
        self._delays_saved = job.delays
        self._plans: dict[TableSchema, MessagePlan] = {}
        self._row_plans: dict[TableSchema, RowPlan] = {}
        self.dead_letters = LetterKeeper(catalog, job.id, job.name, lease, self.options)
        #: The feed's CDC query; None for a feed of whole tables.
        self.query = self._query(sessions)

    def _query(self, sessions: QuerySessions | None) -> FeedQuery | None:
        query = query_of(self.job)
        if query is None or sessions is None:
            return None
        return FeedQuery(
            query,
            self.job,
            self._catalog,
            sessions,
            self.options[LOOKUP_REFRESH],
            self.asked_engine(sessions.spark.preferred),
            lambda text: self._catalog.record_event(self.job.id, "engine", text),
        )

    def places(self) -> list[str]:
        """The URIs and the options that lead to its source and its sink, with their secrets."""
        uris = [self._catalog.connection(self.job.source).uri]
        if self.job.sink_uri is not None:
            uris.append(self._catalog.resolve_uri(self.job.sink_uri))
        return [*uris, *self.job.options.values()]

    # Not in the constructor, which the node calls: these read secrets that are given by reference,
    # and a command may take its time.

    @cached_property
    def schemas(self) -> FeedSchemas | None:
        """The feed's schemas in its schema registry; None without a registry."""
        return feed_schemas(
            self.options,
            self._catalog.resolve_uri(self.job.sink_uri) if self.job.sink_uri else None,
        )

    @cached_property
    def boundaries(self) -> Target | None:
        """The topic of BEGIN and END messages; None if they are not sent."""
        if not self.options[TRANSACTION_METADATA]:
            return None
        name, namer = self.options[TRANSACTION_TOPIC], self._namer()
        return Target(boundary_table(self.job.source), namer(name) if namer else name)

    @cached_property
    def _origin(self) -> Origin:
        if not names_origin(self.options):
            return NOWHERE
        uri = self._catalog.connection(self.job.source).uri
        return origin_of(uri, open_source(self.job.source, uri).database)

    @property
    def needs_spark(self) -> bool:
        """Whether the feed needs Spark, for merges or its query. Else Spark only speeds up large
        scans."""
        merged = self.abilities is not None and bool(self.abilities.spark_packs)
        return merged or self.query is not None

    def asked_engine(self, preferred: EngineOption) -> EngineOption:
        """Where bulk work should run: the feed's option, else the node's default."""
        asked = self.options[ENGINE]
        return preferred if asked is EngineOption.AUTO else asked

    # -- what to send ---------------------------------------------------------------------

    def plan(self, schema: TableSchema) -> MessagePlan:
        """How changes of this version of a table become messages (cached per version)."""
        plan = self._plans.get(schema)
        if plan is None:
            progress = self.tables[schema.table]
            delivered, shape = schema, None
            if self.query is not None:
                compiled = self.query.compiled(schema)
                delivered, shape = compiled.schema, compiled.shape
            plan = message_plan(self.job, self.options, progress, delivered, shape, self._origin)
            self._plans[schema] = plan
        return plan

    def rows(self, schema: TableSchema, rows: pa.Table, *, superseded: bool = False) -> pa.Table:
        """Convert rows of a table's log into rows of the feed's result, in log form: the same
        rows, unless the feed has a query.

        Rows of a transaction that is to be skipped are left out.

        ``superseded``: as of :meth:`.query.of_feed.FeedQuery.rows`.

        Raises:
            ChangefeedError: the query no longer fits the table (CF1101, CF1303), fails on
                a row (CF4001), Spark failed (CF4002, CF4003), or a look-up cannot be used (CF4004).
        """
        known = self.tables.get(schema.table)
        if known is not None and known.skipped is not None:
            rows = but_of_transaction(rows, known.skipped)
        if self.query is None:
            return rows
        return self.query.rows(schema, rows, self.plan(schema), superseded=superseded)

    def messages(self, schema: TableSchema) -> MessagePlan:
        """:meth:`plan`, with the ids of its schemas where the feed has a schema registry.

        Raises:
            ChangefeedError: the registry cannot be reached (CF5001, CF5002) or refuses the
                table's schema (CF5003).
        """
        plan = self.plan(schema)
        return plan if self.schemas is None else self.schemas.registered(plan)

    def form(self, schema: TableSchema) -> str:
        """A digest of what determines the form of delivered rows of a table version, and where they
        go: rows of different forms may not complete one another."""
        table = self.tables[schema.table]
        query = self.job.targets if self.query is not None else ()
        wanted = table.columns, table.values_from, table.values_to, table.partition, table.topic
        given = sorted((n, v) for n, v in self.job.options.items() if n not in _NOT_OF_FORM)
        form = self.job.sink_uri, given, query, wanted, schema.version
        return hashlib.blake2b(repr(form).encode(), digest_size=12).hexdigest()

    def row_plan(self, schema: TableSchema) -> RowPlan:
        """What a typed-row sink sees of this version of a table (cached per version)."""
        plan = self._row_plans.get(schema)
        if plan is None:
            plan = self._row_plans[schema] = RowPlan(self.plan(schema))
        return plan

    def seen(self, event: SchemaChange) -> SchemaChange | None:
        """The schema change restricted to the columns of the feed; None if it concerns none of
        them. If another table with the same columns now has the name, it concerns all.

        Raises:
            ChangefeedError: CF1101, a column of the feed is gone.
        """
        old, new = self.row_plan(event.old).schema, self.row_plan(event.new).schema
        replaced = event.rewritten and event.old == event.new
        return None if old == new and not replaced else replace(event, old=old, new=new)

    def recognise(self, schema: TableSchema) -> None:
        """Check, before rows or a scan of a table, that it is the table that the feed began
        with.

        Raises:
            ChangefeedError: CF2106, another table has the name now.
        """
        known = self.tables.get(schema.table)
        if known is not None and known.table_id and schema.table_id not in (0, known.table_id):
            raise ChangefeedError(
                Code.TABLE_REPLACED, f"another table has the name {schema.table} now"
            )

    def target(self, table: TableName) -> Target:
        """The table as the sink sees it."""
        known = self.tables[table]
        return Target(known.known_as, known.topic)

    def targets(self) -> tuple[Target, ...]:
        """All tables that have not failed and are not paused."""
        return tuple(
            Target(t.known_as, t.topic) for t in self.tables.values() if not t.state.stands
        )

    def sink_context(
        self,
        node_id: str,
        *,
        scan: bool = False,
        spark: SparkAccess | None = None,
        scratch: str = "",
    ) -> SinkContext:
        """What the sink may know of the feed."""
        return SinkContext(
            feed=self.job.name,
            job_id=self.job.id,
            targets=self.targets() + ((self.boundaries,) if self.boundaries else ()),
            options=self.options,
            node=node_id,
            resolved=self.options[RESOLVED] is not None,
            spark=spark,
            scratch=scratch,
            state=self._catalog.state_id,
            scan=scan,
            feeds=self._living,
            source=self._source_id,
            state_database=self._catalog.url
            if self.abilities is not None and self.abilities.state_database
            else "",
        )

    def counted(self) -> dict[TableName, Timestamp] | None:
        """The tables whose changes are numbered in their transactions, each with the timestamp of
        the scan that contains earlier changes; None if changes are not numbered.

        Failed and paused tables are counted, too, because they may continue later, and the numbers
        in other tables must not depend on it. A table without delivered rows begins with a scan.
        """
        if self.boundaries is None:
            return None
        return {
            name: table.scan_at or Timestamp.ZERO
            for name, table in self.tables.items()
            if table.scan_at is not None or table.done_upto is not None
        }

    def numbered(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        """The rows of the log that become messages, for counting.

        For a table that cannot be delivered now (its delivery will say so), all rows count.
        """
        try:
            return wanted_rows(self.rows(schema, rows), self.plan(schema))
        except ChangefeedError as error:
            if error.scope is not Scope.TABLE:
                raise
            return rows.filter(rows["last"])

    @property
    def finds_refused(self) -> bool:
        """Whether a batch that fails at a row is delivered again by halves, to find that row."""
        return self.dead_letters.wanted or (
            self.abilities is not None
            and Feature.DEAD_LETTERS in self.abilities.features
            and self.options[DELIVERY] is not Guarantee.EXACTLY_ONCE
            and self.boundaries is None
        )

    def refuse_row(
        self, schema: TableSchema, row: pa.Table, error: ChangefeedError, delivered: int = 0
    ) -> None:
        """Keep a row of a table, in the log's columns, as a dead letter. Durable on return.

        ``delivered``: rows that a scan under way has delivered of the table.

        Raises:
            ChangefeedError: CF5009, there are too many.
            TableError: the feed keeps none; it names the transaction of the row, before which all
                is durable.
        """
        if not self.dead_letters.wanted:
            at = Timestamp(row["wall"][0].as_py(), row["logical"][0].as_py())
            skip = f"ALTER CHANGEFEED .. SKIP TRANSACTION '{at}' continues without it."
            error.hint = f"{error.hint} {skip}".strip()
            # All before the row is durable, so what was skipped before is passed for good.
            self.advance([schema.table], at.previous())
            raise TableError(schema.table, error, at)
        known = self.tables.get(schema.table)
        before = known.emitted_rows if known is not None else 0
        self.dead_letters.keep(schema, row, error, delivered=before + delivered)

    # -- how far it is --------------------------------------------------------------------

    def update(self, table: TableName, **changes: object) -> TableProgress:
        """Change a table's progress in memory; :meth:`save` makes it durable."""
        self.tables[table] = replace(self.tables[table], **changes)  # type: ignore[arg-type]
        self._changed.add(table)
        return self.tables[table]

    def continue_from(self, before: Feed) -> None:
        """Take over the progress of ``before``, the same feed before it was reloaded."""
        for name, table in self.tables.items():
            old = before.tables.get(name)
            if old is None or old.rescan == table.rescan:
                continue  # what it had was saved
            done = max((at for at in (old.done_upto, table.done_upto) if at), default=None)
            if done != table.done_upto:
                self.update(name, done_upto=done, scan_at=done.next() if done else None)

    def keep_only(self, names: Collection[TableName]) -> None:
        """Forget the tables that the job no longer has."""
        for name in self.tables.keys() - set(names):
            del self.tables[name]
            self._changed.discard(name)

    def rename_table(
        self, table: TableName, now: TableName, text: str, at: Timestamp | None
    ) -> int:
        """Continue with a table under another name; durable on return.

        Args:
            table: the name until now.
            now: the name from now on.
            text: of the event in the job's history.
            at: when the source committed it; None: not known.

        Returns:
            The job's new generation; 0 if nothing was changed, because the job no longer has the
            table (the feed then forgets it), or has one of the new name already.
        """
        self.save()
        targets = renamed_targets(self.job.targets, self.tables[table], now, self._namer())
        source, uri = self.job.source, self.job.sink_uri
        written = feed_sql(self.job.name, targets, source, uri, self.options)
        generation = self._catalog.rename_table(
            self.job.id,
            table,
            now,
            lease=self.lease,
            text=text,
            targets=targets,
            statement=written,
            at=at,
        )
        if generation is None:
            names = {t.table for t in self._catalog.tables(self.job.id)}
            if table not in names:
                self.keep_only(self.tables.keys() - {table})
            return 0
        self.tables[now] = self.tables.pop(table).renamed(now)
        self.job = replace(self.job, targets=targets, statement=written, generation=generation)
        return generation

    def _namer(self) -> Callable[[str], str] | None:
        if self.job.sink_uri is None:
            return None
        return topic_namer(self._catalog.resolve_uri(self.job.sink_uri), self.options)

    def fail_table(
        self, table: TableName, error: ChangefeedError, at: Timestamp | None = None
    ) -> None:
        """Stop one table until RESUME, at a row of the transaction ``at``; the others continue."""
        self.tables[table] = self.tables[table].failed(error, at)
        self._changed.add(table)
        self.save()
        self._catalog.record_event(
            self.job.id, "error", error.message, table=str(table), code=error.code.number
        )

    def record_event(self, kind: str, text: str, table: TableName, at: Timestamp) -> None:
        """Record for SHOW .. EVENTS what the source did to a table with the commit at ``at``."""
        self._catalog.record_event(self.job.id, kind, text, table=str(table), at=at)

    def in_state(self, *states: TableState) -> list[TableProgress]:
        return [t for t in self.tables.values() if t.state in states]

    @property
    def changed(self) -> bool:
        """Whether something other than the timestamps has changed that :meth:`save` must write."""
        return bool(self._changed) or self.delays is not self._delays_saved

    def advance(self, names: Iterable[TableName], upto: Timestamp) -> None:
        """Everything of these tables up to ``upto`` is durable in the sink."""
        for name in names:
            done = self.tables[name].done_upto
            if done is None or done < upto:
                self.tables[name] = replace(self.tables[name], done_upto=upto)

    def take_progress(self, progress: Mapping[str, Timestamp], *, scans: bool) -> None:
        """Continue from the progress that the sink has committed; never go back.

        ``scans``: scans that the sink has committed completely are not repeated.
        """
        for name, table in list(self.tables.items()):
            if table.state is TableState.FAILED:
                continue
            scanned = progress.get(scan_progress_key(table.known_as))
            owed = table.scan_wanted and table.scan_at is not None
            if scans and owed and scanned is not None and scanned >= (table.scan_at or scanned):
                table = self.update(
                    name,
                    state=table.state if table.state.stands else TableState.RUNNING,
                    scan_wanted=False,
                    rescanned=table.rescan,
                    repair=None,
                    scan_at=scanned,
                    done_upto=max(table.done_upto or scanned, scanned),
                )
            # Changes of a table follow its start; before that there is nothing to go on from.
            since, upto = table.done_upto or table.scan_at, progress.get(str(table.known_as))
            if since is not None and upto is not None and upto > since:
                self.update(name, done_upto=upto)

    def count(self, table: TableName, rows: int, size: int) -> None:
        """Add rows and bytes that were delivered to the counters of a table."""
        old = self.tables[table]
        self.update(
            table, emitted_rows=old.emitted_rows + rows, emitted_bytes=old.emitted_bytes + size
        )

    def gather(self, since: int, until: int) -> None:
        """Changes gather on purpose between these instants (ns)."""
        if self.delays.waits != (since, until):
            self.delays = replace(self.delays, waits=(since, until))

    def high_water(self) -> Timestamp | None:
        """Everything at or below is durable for every table that has not failed and is not paused.

        A table that needs a backfill counts as it was before the schema change (``scan_at``
        until the backfill is done), however far its changes were delivered. A table with an
        unfinished scan has no high-water mark, even if changes were delivered (the scan was
        started again).
        """
        if self.in_state(TableState.SCANNING):
            return None
        live = [_complete(t) for t in self.tables.values() if not t.state.stands]
        return _least(live)

    def resolved(self, *, by_topic: bool) -> Timestamp | None:
        """No change at or below it will be sent after consumers get it.

        A table that failed or is paused may later continue from where it stopped, so it holds back
        every resolved timestamp that covers it: one for the whole feed, or for a topic that it
        shares with a running table. A table that was refused before it joined holds back nothing,
        because its later scan is above. ``by_topic``: resolved timestamps cover only the topics of
        the other tables.
        """
        topics = {t.topic for t in self.tables.values() if not t.state.stands}
        standing = [
            _complete(t)
            for t in self.tables.values()
            if t.state.stands and not t.never_began and (not by_topic or t.topic in topics)
        ]
        return _least([self.high_water(), *standing])

    def save(self) -> Timestamp | None:
        """Make progress durable; returns the high-water mark that it wrote.

        A running table that is exactly at the high-water needs no row of its own (the catalog
        raises it), so a feed of a thousand quiet tables writes one row.
        """
        high_water = self.high_water()
        names = self._changed | self._ahead(high_water)
        self.superseded = self._catalog.save_progress(
            self.job.id,
            {name: self.tables[name] for name in names},
            lease=self.lease,
            high_water=high_water,
            delays=None if self.delays is self._delays_saved else self.delays,
        )
        self._delays_saved = self.delays
        self._changed.clear()
        return high_water

    def _ahead(self, high_water: Timestamp | None) -> set[TableName]:
        return {
            name
            for name, t in self.tables.items()
            if t.done_upto is not None and high_water is not None and t.done_upto > high_water
        }

    def offer_high_water(self, *, soon: bool) -> Timestamp | None:
        """Let the next write for all feeds make progress durable; returns the high-water mark that
        it will write, None if there is more to write than that.

        ``soon``: a statement waits for it.
        """
        high_water = self.high_water()
        if self.changed or high_water is None or self._ahead(high_water):
            return None
        self._catalog.offered.offer(self.lease, high_water, soon=soon)
        return high_water

    @property
    def saved_with_others(self) -> Timestamp | None:
        """The last high-water mark of :meth:`offer_high_water` that is durable."""
        return self._catalog.offered.saved.get(self.job.id)


def _complete(table: TableProgress) -> Timestamp | None:
    """Whether everything of the table at or below is durable and as it should be."""
    done, since = table.done_upto, table.scan_at
    if table.scan_wanted and since and done and done >= since:
        return since.previous()
    return done


def _least(values: Sequence[Timestamp | None]) -> Timestamp | None:
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None
