"""SHOW CHANGEFEED f [TABLES|ERRORS|EVENTS|..], SHOW CREATE, SHOW JOBS."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from changefeed.catalog import (
    Connection,
    Function,
    Job,
    JobEvent,
    Status,
    TableProgress,
    TableState,
    User,
)
from changefeed.catalog.history import KEPT_EVENTS
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.figures import duration_text
from changefeed.core.uri import REDACTED
from changefeed.options import SLO, VERIFY, Options, to_span
from changefeed.plan.build import feed_sql
from changefeed.plan.sink_resolution import find_sink
from changefeed.statements import brief, dead_letters, lineage, listing, spark_jobs
from changefeed.statements.brief import FeedSnapshot
from changefeed.statements.connections import existing_connection
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.health import rows_differ
from changefeed.statements.listing import error_text, feed_row, looks_at
from changefeed.statements.notices import no_node_runs
from changefeed.statements.schedules import find_schedule, schedule_sql
from changefeed.statements.tables import resume_sql
from changefeed.statements.times import clock_text, date, instant, moment, readable
from changefeed.statements.values import Cell, Names, Rate, Seconds, ShownText, Size
from grammar import nodes
from grammar.printer import to_sql
from grammar.split import LexemeKind, change_lexemes

#: How many events SHOW CHANGEFEED f ERRORS and EVENTS look back, unless they select.
SHOWN_EVENTS = 100
CREATE_COLUMNS = ("name", "create_statement")
TABLE_COLUMNS = (
    "table",
    "topic",
    "state",
    "scan",
    "proved",
    "lag",
    "done_upto",
    "emitted_rows",
    "emitted_bytes",
    "error",
    "hint",
    "transaction",
)
ERROR_COLUMNS = ("time", "kind", "code", "table", "problem", "hint", "times", "last")
EVENT_COLUMNS = ("time", "kind", "table", "event", "code", "times", "last")
DETAIL_COLUMNS = (
    *listing.COLUMNS,
    *("hint", "wanted", "scan_progress", "slo", "proved", "table_states"),
    *("emitted_rows", "emitted_bytes", "last_spark_job", "targets", "files", "options"),
    *("cursor", "end_time", "source_holds", "source_error", "stays", "generation"),
)
JOB_COLUMNS = (
    "job_id",
    "name",
    "job_type",
    "description",
    "status",
    "running_status",
    "created",
    "started",
    "finished",
    "modified",
    "error",
    "user_name",
)


@handles(nodes.ShowChangefeed)
def show_changefeed(statement: nodes.ShowChangefeed, context: Context) -> Result:
    """SHOW CHANGEFEED f [TABLES | ERRORS | EVENTS | JOBS | DEAD LETTERS | LINEAGE]."""
    job = context.job(statement.feed)
    return _ASPECTS[statement.aspect](job, context)


def _detail(job: Job, context: Context) -> Result:
    tables = context.catalog.tables(job.id)
    now = context.clock.now().wall
    node = context.catalog.lease_holder(job.id)
    look = FeedSnapshot(job, tables, context.health(job, tables), node)
    row = dict(zip(listing.COLUMNS, feed_row(look, now), strict=True))
    state = context.catalog.source_state(job.source)
    detail: dict[str, Cell] = {
        **row,
        "hint": job.hint and brief.with_names(job.hint, job),
        "wanted": str(job.wanted),
        "scan_progress": scan_text(tables),
        "slo": slo_text(job, now),
        "proved": _proved(job, tables, now),
        "table_states": _states(tables),
        "emitted_rows": Rate(job.emitted_rows),
        "emitted_bytes": Size(job.emitted_bytes),
        "last_spark_job": _last_spark_job(job, context, now),
        "targets": Names(job.targets),
        "files": _files(job, len({table.topic for table in tables}), context),
        "options": Names(_option_texts(job)),
        "cursor": instant(job.cursor, now),
        "end_time": instant(job.end_time, now),
        "source_holds": state.holds or None,
        "source_error": state.error or None,
        "stays": _stays(job, context),
        "generation": job.generation,
    }
    return Result(
        columns=tuple(detail),
        rows=[tuple(detail.values())],
        vertical=True,
        sections=brief.detail(look, detail),
    )


def _stays(job: Job, context: Context) -> str | None:
    """Why no other node than the one that captures the source can run the feed."""
    if context.catalog.log_place is None:
        return None
    news = context.catalog.capture_news().get(job.source)
    return None if news is None else news.bound.get(job.id)


def _last_spark_job(job: Job, context: Context, now: int) -> str | None:
    """The newest scan, backlog or batch of a query that ran as a Spark job; None: all bulk work ran
    in the node. Merges are not among them."""
    for event in context.catalog.events(job.id, limit=1, kinds=("engine",)):
        at = date(event.at)
        return ShownText(f"{at}: {event.text}", f"{at.words}: {event.text}")
    return None


def _files(job: Job, topics: int, context: Context) -> str | None:
    """How long changes may wait for their file; None where a sink makes no files or cannot say."""
    try:
        sink = find_sink(context.catalog, job.sink_uri, None)
        seconds, files = sink.files_a_day(Options.from_dict(job.options), topics)
    except ChangefeedError:
        return None  # its connection is gone or its package is not installed here: CREATE said so
    if files is None:
        return None
    return f"changes wait up to {duration_text(seconds)} for others to share it (flush_interval)"


def _option_texts(job: Job) -> list[str]:
    shown = Options.from_dict(job.options).display()
    return [f"{name} = '{text}'" if text else name for name, text in shown.items()]


def _states(tables: Sequence[TableProgress]) -> Names:
    counts = Counter(str(table.state) for table in tables)
    return Names(f"{count} {state}" for state, count in sorted(counts.items()))


def scan_text(tables: Sequence[TableProgress]) -> str | None:
    """``45 % (2 of 5 tables, 450 of about 1,000 rows)``, or ``2 of 5 tables, 450 rows`` where no
    table has an estimate; None when nothing is scanned now."""
    scanning = [t for t in tables if t.scan_wanted and not t.state.stands]
    if not scanning:
        return None
    begun = [t for t in tables if t.scan_wanted or t.scan_at is not None]
    rows = sum(t.scan_rows for t in begun)
    total = sum(max(t.scan_total, t.scan_rows) for t in begun)
    done = f"{len(begun) - len(scanning)} of {len(begun)} tables"
    if not any(t.scan_total for t in begun):
        return f"{done}, {rows:,} rows"
    share = min(99, 100 * rows // total)
    return f"{share} % ({done}, {rows:,} of about {total:,} rows)"


def slo_text(job: Job, now: int) -> str | None:
    """``99% within 5m: kept 99.9 % in 24h (10 % of the budget burnt), ..``; None without one."""
    promised = Options.from_dict(job.options)[SLO]
    if promised is None:
        return None
    said = []
    for window, kept, burnt in job.delays.against(promised, now):
        if kept is None or burnt is None:
            said.append(f"no rows in {window}")
        else:
            said.append(
                f"kept {_percent(100 * kept)} in {window}, {_percent(100 * burnt)} of budget burnt"
            )
    return f"{job.options[SLO.name]}: {'; '.join(said)}"


def _percent(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".") + " %"


def _proved(job: Job, tables: Sequence[TableProgress], now: int) -> Names | None:
    """How much of each table was compared with its target; None where nobody asked for it."""
    if VERIFY.name not in job.options:
        return None
    return Names(f"{brief.written_name(t.table)}: {proof_text(t, now)}" for t in tables)


def proof_text(table: TableProgress, now: int) -> str:
    """``62 % proved, all by 2026-11-27 14:05:00 UTC (15h ago), 2 rows differ``."""
    proof = table.proof
    said = []
    if proof.open or not (proof.whole or proof.problem):
        said.append(f"{min(99, 100 * proof.rows // max(proof.total, 1))} % proved")
    if proof.whole:
        said.append(f"all{'' if said else ' proved'} by {clock_text(Timestamp(proof.whole), now)}")
    if table.differing:
        said.append(rows_differ(table.differing))
    if proof.changing:
        said.append(f"{proof.changing:,} changed in each comparison")
    if proof.problem:
        said.append(f"cannot be compared: {proof.problem}")
    return ", ".join(said)


def _tables(job: Job, context: Context) -> Result:
    now = context.clock.now().wall
    rows: list[tuple[Cell, ...]] = []
    for table in context.catalog.tables(job.id):
        done = table.done_upto
        behind = None if done is None else max(0.0, (now - done.wall) / 1e9)
        over = behind is None or job.status is Status.SUCCEEDED
        rows.append(
            (
                brief.written_name(table.table),
                table.topic,
                str(table.state),
                scan_text([table]),
                proof_text(table, now) if VERIFY.name in job.options else None,
                None if over or behind is None else Seconds(round(behind, 3)),
                instant(done, now),
                Rate(table.emitted_rows),
                Size(table.emitted_bytes),
                None if table.error is None else readable(table.error, now),
                _hint_of_table(table, job),
                instant(table.refused, now) if table.error is not None else None,
            )
        )
    return Result(columns=TABLE_COLUMNS, rows=rows, brief=brief.feed_tables(TABLE_COLUMNS, rows))


def _errors(job: Job, context: Context) -> Result:
    rows: list[tuple[Cell, ...]] = []
    limit = KEPT_EVENTS if context.selecting else SHOWN_EVENTS
    events = context.catalog.events(job.id, limit=limit, kinds=("error", "retry"))
    now = context.clock.now().wall
    tables = {str(table.table): table for table in context.catalog.tables(job.id)}
    for event in events:
        if not _repeats_its_table(event, events):
            about = tables.get(event.table or "")
            if about is not None and about.error == event.text:
                hint = _hint(about, job)
            else:
                hint = _hint_of_code(event.code, job, about)
            at, text = moment(event.at, now), readable(event.text, now)
            last = moment(event.last, now)
            rows.append((at, event.kind, event.code, event.table, text, hint, event.times, last))
    known = {(event.table, event.text) for event in events}
    for name, table in tables.items():
        if table.error is not None and (name, table.error) not in known:
            hint = _hint(table, job)
            text = readable(table.error, now)
            rows.append((None, "error", table.error_code, name, text, hint, 1, None))
    return Result(
        columns=ERROR_COLUMNS, rows=rows, brief=brief.counted(ERROR_COLUMNS, rows, "problem")
    )


def _events(job: Job, context: Context) -> Result:
    limit = KEPT_EVENTS if context.selecting else SHOWN_EVENTS
    now = context.clock.now().wall
    rows: list[tuple[Cell, ...]] = [
        (
            moment(event.at, now),
            event.kind,
            event.table,
            readable(event.text, now),
            event.code,
            event.times,
            moment(event.last, now),
        )
        for event in context.catalog.events(job.id, limit=limit)
    ]
    return Result(
        columns=EVENT_COLUMNS, rows=rows, brief=brief.counted(EVENT_COLUMNS, rows, "event")
    )


def _repeats_its_table(event: JobEvent, events: Sequence[JobEvent]) -> bool:
    """A feed that ended with its last table repeats the table's failure as its own."""
    return event.table is None and any(
        other.table is not None
        and (other.kind, other.code, other.text) == (event.kind, event.code, event.text)
        and other.id < event.id
        for other in events
    )


def _hint_of_table(table: TableProgress, job: Job) -> Cell:
    """What to do about a table that stands; of one that is paused, since when and by whom."""
    if table.state is not TableState.PAUSED:
        return _hint(table, job)
    by = f" by {table.paused_by}" if table.paused_by else ""
    at, continues = date(table.paused), f"{resume_sql(job, [table])} continues it"
    return ShownText(f"paused{by} at {at}: {continues}", f"paused{by} {at.words}: {continues}")


def _hint(table: TableProgress, job: Job) -> str | None:
    """What to do about a table that failed."""
    said = brief.with_names(table.hint, job, table)
    return said or _hint_of_code(table.error_code, job, table)


def _hint_of_code(code: str | None, job: Job, table: TableProgress | None) -> str | None:
    """What the table of codes says to do here; None when it says nothing."""
    known = Code.stored(code)
    return brief.with_names(known.hint, job, table) or None if known is not None else None


_ASPECTS: dict[str | None, Callable[[Job, Context], Result]] = {
    None: _detail,
    "tables": _tables,
    "errors": _errors,
    "events": _events,
    "dead_letters": dead_letters.listing,
    "jobs": spark_jobs.listing,
    "lineage": lineage.listing,
}


@handles(nodes.ShowCreateChangefeed)
def show_create(statement: nodes.ShowCreateChangefeed, context: Context) -> Result:
    """SHOW CREATE CHANGEFEED: runs again as it is, once redacted secrets are put back."""
    job = context.job(statement.feed)
    sql = create_sql(job)
    return Result(columns=CREATE_COLUMNS, rows=[(job.name, sql)], notices=_redacted(sql))


@handles(nodes.ShowCreateConnection)
def show_create_connection(statement: nodes.ShowCreateConnection, context: Context) -> Result:
    """SHOW CREATE EXTERNAL CONNECTION."""
    connection = existing_connection(statement.name, statement.name_span, context)
    sql = connection_sql(connection)
    return Result(
        columns=CREATE_COLUMNS,
        rows=[(connection.name, sql)],
        notices=_redacted(sql),
    )


@handles(nodes.ShowCreateSchedule)
def show_create_schedule(statement: nodes.ShowCreateSchedule, context: Context) -> Result:
    """SHOW CREATE SCHEDULE."""
    schedule = find_schedule(statement.schedule, context)
    sql = schedule_sql(schedule)
    return Result(columns=CREATE_COLUMNS, rows=[(schedule.name, sql)], notices=_redacted(sql))


def connection_sql(connection: Connection) -> str:
    """The statement that makes a connection, without its secrets."""
    return to_sql(nodes.CreateConnection(connection.name, nodes.Literal(connection.redacted)))


def function_sql(function: Function) -> str:
    """The statement that makes a function of queries."""
    path = nodes.Literal(function.path) if function.path else None
    arguments = tuple((nodes.Name(name), kind) for name, kind in function.arguments)
    reference = nodes.Literal(function.reference)
    return to_sql(nodes.CreateFunction(function.name, arguments, function.returns, reference, path))


def user_sql(user: User) -> str:
    """The statement that makes a user of this name, with a token of its own."""
    option = nodes.Option("role", nodes.Literal(user.role))
    return to_sql(nodes.CreateUser(user.name, (option,)))


def create_sql(job: Job) -> str:
    """The statement that makes the feed as it is now; of a dropped one, as it was."""
    if job.status is Status.DROPPED:
        return job.statement
    options = Options.from_dict(job.options)
    return feed_sql(job.name, job.targets, job.source, job.sink_uri, options)


@handles(nodes.ShowCreateAll)
def show_create_all(statement: nodes.ShowCreateAll, context: Context) -> Result:
    """SHOW CREATE ALL: what a state has, in the order in which it can be made."""
    catalog, wanted = context.catalog, statement.aspect
    rows: list[tuple[Cell, ...]] = []
    notices: list[str] = []
    if wanted in (None, "connections"):
        rows += [
            ("connection", c.name, with_references(connection_sql(c), c.name))
            for c in catalog.connections()
        ]
    if wanted is None:
        rows += [("function", f.name, function_sql(f)) for f in catalog.functions()]
        # To others than admins, what SHOW USERS and SHOW GRANTS show them.
        if context.session.bound is None:
            rows += [("user", u.name, user_sql(u)) for u in catalog.users()]
        rows += [("grant", g.user, g.sql) for g in catalog.grants(context.session.bound)]
    if wanted in (None, "changefeeds"):
        runs = catalog.scheduled_jobs()
        every = [job for job in catalog.jobs() if not job.sinkless and job.id not in runs]
        over = [job.name for job in every if job.status is Status.SUCCEEDED]
        rows += [
            ("changefeed", j.name, with_references(create_sql(j), j.name))
            for j in every
            if j.name not in over
        ]
        if wanted is None:
            # Feeds of users who were dropped come to belong to the admins.
            rows += [
                ("owner", j.name, to_sql(nodes.ChangeOwner(nodes.FeedRef(j.name), j.owner)))
                for j in every
                if j.owner and j.name not in over
            ]
        if over:
            notices.append(f"feeds that have succeeded are left out: {', '.join(over)}")
    if wanted in (None, "schedules"):
        rows += [
            ("schedule", each.name, with_references(schedule_sql(each), each.name))
            for each in catalog.schedules()
        ]
    if any("${" in str(row[2]) for row in rows):
        notices.append(
            "secrets are written as ${NAME}: changefeed apply reads them from the environment"
        )
    return Result(columns=("kind", *CREATE_COLUMNS), rows=rows, notices=notices)


def with_references(sql: str, name: str) -> str:
    """A statement with a reference, ``${SHOP_SECRET}``, in the place of each redacted secret."""
    stem = re.sub(r"\W", "_", name).upper() + "_SECRET"
    numbers = itertools.count(1)

    def reference(_: re.Match[str]) -> str:
        number = next(numbers)
        return f"${{{stem}}}" if number == 1 else f"${{{stem}_{number}}}"

    redacted = re.compile(rf"\b{REDACTED}\b")
    return change_lexemes(sql, {LexemeKind.STRING}, partial(redacted.sub, reference))


def _redacted(sql: str) -> list[str]:
    if REDACTED not in sql:
        return []
    return [
        "secrets are redacted; put them back before you run this, or keep them in an "
        "EXTERNAL CONNECTION"
    ]


@handles(nodes.ShowJobs)
def show_jobs(statement: nodes.ShowJobs, context: Context) -> Result:
    """SHOW JOBS: every job, dropped ones too."""
    return _jobs([*context.catalog.jobs(), *context.catalog.dropped_jobs()], context)


@handles(nodes.ShowJob)
def show_job(statement: nodes.ShowJob, context: Context) -> Result:
    """SHOW JOB [WHEN COMPLETE] n.

    Raises:
        ChangefeedError: CF1301 no node runs the job that is to complete.
    """
    job = context.job(statement.job)

    def complete() -> bool:
        now = context.catalog.find_job(job.id)
        if now is None or now.status is Status.FAILED or now.status.finished:
            return True
        if not context.host.node_running():
            raise no_node_runs(job, to_span(statement.job.span))
        return False

    if statement.when_complete:
        context.wait(complete, inf)
    return _jobs([context.catalog.find_job(job.id) or job], context)


def _jobs(jobs: Sequence[Job], context: Context) -> Result:
    rows: list[tuple[Cell, ...]] = []
    now = context.clock.now().wall
    looks = looks_at(sorted(jobs, key=lambda job: job.id), context)
    for look in looks:
        job, tables, shown = look.job, look.tables, look.health
        rows.append(
            (
                job.id,
                job.name,
                "CHANGEFEED",
                create_sql(job),
                shown.status,
                shown.reason,
                moment(job.created, now),
                moment(job.started, now),
                moment(job.finished, now),
                moment(job.modified, now),
                error_text(job, tables),
                job.owner or None,
            )
        )
    return Result(columns=JOB_COLUMNS, rows=rows, brief=brief.jobs(looks, now))
