"""SYNC: wait until everything committed before now is durable in the sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from changefeed.catalog import Job, Status, TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.figures import duration_text
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.timings import NODE_TTL
from changefeed.dataset.definition import definition_of, is_definition
from changefeed.dataset.extracts import last_arrived, name_order, next_extract
from changefeed.dataset.store import DatasetFolders
from changefeed.options import read_duration, to_span
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, DeliveryWait, Result, handles
from changefeed.statements.notices import no_node_runs
from changefeed.statements.tables import paused_error, paused_tables
from changefeed.statements.values import Seconds
from grammar import nodes
from sinks.registry import capabilities, scheme_of

#: How often the extracts of a dataset are looked at, seconds.
LOOK_SECONDS = 0.25
SYNC_COLUMNS = ("job_id", "name", "synced_to", "waited")
#: A feed in one of these will never get there by itself.
_STUCK = (Status.PAUSED, Status.FAILED, Status.SUCCEEDED, Status.DROPPED)


@handles(nodes.Sync)
def sync(statement: nodes.Sync, context: Context) -> Result:
    """SYNC CHANGEFEED f [TIMEOUT '5m'].

    Raises:
        ChangefeedError: CF1304 not in time, naming the lag; CF1301 the feed stands still.
    """
    return sync_feed(statement, context)


def sync_feed(statement: nodes.Sync, context: Context, *, but_paused: bool = False) -> Result:
    """:func:`sync`; ``but_paused``: tables that are paused by themselves are left out, else they
    are refused."""
    seconds = _timeout(statement)
    job = context.job(statement.feed)
    begun = context.clock.monotonic()
    return _sync_one(statement, job, context, begun, seconds, but_paused=but_paused)


@handles(nodes.SyncAll)
def sync_all(statement: nodes.SyncAll, context: Context) -> Result:
    """SYNC ALL CHANGEFEEDS [TIMEOUT '5m']: those that are under way, one after the other.

    Raises:
        ChangefeedError: as :func:`sync`, of the first feed that is late or has failed.
    """
    seconds, begun = _timeout(statement), context.clock.monotonic()
    every = [job for job in context.catalog.jobs() if job.status is not Status.SUCCEEDED]
    paused = [job.name for job in every if job.status is Status.PAUSED]
    whole = Result(columns=SYNC_COLUMNS, tag="SYNC ALL CHANGEFEEDS")
    # The failed ones first: they need no waiting.
    for job in sorted(every, key=lambda job: job.status is not Status.FAILED):
        if job.name not in paused:
            one = nodes.Sync(nodes.FeedRef(job.name, span=statement.span))
            done = _sync_one(one, job, context, begun, seconds, but_paused=True)
            left_out = [written_name(table.table) for table in paused_tables(job, context)]
            if left_out:
                names = ", ".join(left_out)
                whole.notices.append(f"paused tables of {job.name} are left out: {names}")
            whole.rows.extend(done.rows)
            whole.notices.extend(done.notices)
    if paused:
        whole.notices.append(f"paused changefeeds are left out: {', '.join(paused)}")
    elif not every:
        whole.notices.append("there is no changefeed")
    return whole


def _sync_one(
    statement: nodes.Sync,
    job: Job,
    context: Context,
    begun: float,
    seconds: float,
    *,
    but_paused: bool,
) -> Result:
    waiting = _SyncWait(statement, context, job, begun, seconds)
    waiting.check(job)
    _refuse_standing_tables(job, context, statement, but_paused=but_paused)
    _await_extracts(job, context, waiting)
    shapes = _present_shapes(job, context)

    def durable(upto: Timestamp) -> bool:
        high_water = context.catalog.job(job.id).high_water
        if high_water is None or high_water < upto:
            return False
        # One that was just added, or is tried again, the feed may not have taken up yet.
        tables = context.catalog.tables(job.id)
        return not any(t.state in (TableState.PENDING, TableState.SCANNING) for t in tables)

    delivery = DeliveryWait(
        job.source,
        context.source(job.source).current_position(),
        context.log_lookup,
        context.clock,
        context.host.hasten,
        lambda _: context.host.deliver_now(job.id),
        durable,
    )
    waiting.until(delivery.reached)
    _refuse_standing_tables(job, context, statement, but_paused=but_paused)
    spent = Seconds(round(context.clock.monotonic() - waiting.begun, 3))
    return Result(
        columns=SYNC_COLUMNS,
        rows=[(job.id, job.name, str(delivery.upto), spent)],
        notices=_shapes_to_come(job, shapes, context),
        tag="SYNC CHANGEFEED",
    )


def _await_extracts(job: Job, context: Context, waiting: _SyncWait) -> None:
    """Where a node compares the extracts of the source: wait for those that have arrived.

    Raises:
        ChangefeedError: one of them was refused; CF1304, CF1301 as :func:`sync`.
    """
    uri = context.catalog.connection(job.source).uri
    if not is_definition(uri):
        return
    definition = definition_of(uri)
    store, now = DatasetFolders(definition.dataset), context.clock.now().wall / 1e9
    last = last_arrived(definition.schedule, store.latest(), now)
    looked = -inf

    def compared() -> bool:
        nonlocal looked
        if context.clock.monotonic() < looked + LOOK_SECONDS:
            return False
        looked = context.clock.monotonic()
        found = next_extract(definition.schedule, store.latest(), now)
        # What came later to a glob sorts behind the others.
        if (
            found is None
            or last is None
            or name_order(found.mark.name) > name_order(last.mark.name)
        ):
            return True
        refused = store.refusal(found.mark)
        if refused is not None:
            raise refused
        return False

    if last is not None:
        waiting.until(compared)


def _present_shapes(job: Job, context: Context) -> dict[TableName, TableSchema]:
    """How the tables of a feed are at the source now."""
    source = context.source(job.source)
    return source.describe_tables([table.table for table in context.catalog.tables(job.id)])


def _shapes_to_come(
    job: Job, shapes: Mapping[TableName, TableSchema], context: Context
) -> list[str]:
    """A source reports a change of columns with the next row of the table: until then everything
    committed is durable, and the target still has the old columns."""
    notices = []
    scanned = {t.table: t.schema_version for t in context.catalog.tables(job.id)}
    for table, now in sorted(shapes.items()):
        known = context.catalog.announced_schema(table)
        if known is not None and known.version < scanned.get(table, 0):
            known = context.catalog.schema(scanned[table])
        if (
            known is None
            or known.table_id not in (0, now.table_id)
            or _columns(known) == _columns(now)
        ):
            continue
        notices.append(
            f"the columns of {table.schema}.{table.name} changed at the source: the feed applies "
            "this with the table's next row"
        )
    return notices


def _columns(schema: TableSchema) -> list[tuple[int | str, str, str]]:
    return [(column.ref, column.name, column.type_name) for column in schema.columns]


class _SyncWait:
    """One SYNC: its deadline, and what ends it early."""

    def __init__(
        self, statement: nodes.Sync, context: Context, job: Job, begun: float, seconds: float
    ) -> None:
        self.statement = statement
        self.context = context
        self.job_id = job.id
        self.begun = begun
        self.seconds = seconds
        #: When a node was there last, if one was.
        self._node_at: float | None = None

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for ``reached``; raise when the feed stops moving or time is up."""

        def over() -> bool:
            if reached():
                return True
            self.check(self.context.catalog.job(self.job_id))
            return False

        left = self.begun + self.seconds - self.context.clock.monotonic()
        if not self.context.wait(over, left):
            raise self._late()

    def check(self, job: Job) -> None:
        """Raise when the feed stands still."""
        span = to_span(self.statement.feed.span)
        if job.status in _STUCK:
            why = f": {job.error}" if job.error else ""
            hint = job.hint or ""
            if not hint and job.status in (Status.PAUSED, Status.FAILED):
                hint = f"RESUME CHANGEFEED {job.name} continues it."
            raise ChangefeedError(
                Code.WRONG_JOB_STATE,
                f'changefeed "{job.name}" is {job.status}{why}',
                hint=hint,
                span=span,
            )
        now = self.context.clock.monotonic()
        if self.context.host.node_running():
            self._node_at = now
        elif self._node_at is None or now - self._node_at > NODE_TTL:
            # No node is heard of for a moment where the state does not answer, or a new one starts.
            raise no_node_runs(job, span)

    def _late(self) -> ChangefeedError:
        job = self.context.catalog.job(self.job_id)
        shown = self.context.health(job)
        far = "no change of it is durable yet" if shown.lag is None else f"it is {shown.lag} behind"
        error = self.context.catalog.source_state(job.source).error
        hint = (
            f"the feed keeps running. Retry, or see SHOW CHANGEFEED {job.name} for what blocks it."
        )
        if _pulled(job, self.context):
            hint = (
                "SYNC waits until the program that reads these changes has committed them: see "
                f"that it runs. SHOW CHANGEFEED {job.name} says how far it is."
            )
        return ChangefeedError(
            Code.TIMED_OUT,
            f'changefeed "{job.name}" did not catch up within {duration_text(self.seconds)}: '
            f"{far} ({shown.status})",
            detail=job.error or error or job.reason,
            hint=hint,
            span=to_span(self.statement.feed.span),
        )


def _pulled(job: Job, context: Context) -> bool:
    """A program reads the changes from the log, and its commits are the feed's progress."""
    if job.sink_uri is None:
        return False
    return capabilities(scheme_of(context.catalog.resolve_uri(job.sink_uri))).pulled


def _timeout(statement: nodes.Sync | nodes.SyncAll) -> float:
    if statement.timeout is None:
        return inf
    seconds = read_duration("TIMEOUT", statement.timeout, "5m")
    if seconds <= 0:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "TIMEOUT must be greater than 0",
            span=to_span(statement.timeout.span),
        )
    return seconds


def _refuse_standing_tables(
    job: Job, context: Context, statement: nodes.Sync, *, but_paused: bool
) -> None:
    """A feed whose table failed or is paused has not delivered everything, however far the others
    are."""
    failed = [t for t in context.catalog.tables(job.id) if t.state is TableState.FAILED]
    if failed:
        table = failed[0]
        raise ChangefeedError(
            Code.WRONG_JOB_STATE,
            f'{len(failed)} of the tables of changefeed "{job.name}" failed: '
            f"{table.table.schema}.{table.table.name}: {table.error}",
            hint=f"SHOW CHANGEFEED {job.name} TABLES lists them; RESUME tries them again.",
            span=to_span(statement.feed.span),
        )
    paused = paused_tables(job, context)
    if paused and not but_paused:
        raise paused_error(job, paused[0], statement.feed)
