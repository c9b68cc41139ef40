"""CREATE, PAUSE, RESUME, DROP and SHOW SCHEDULE.

A node makes the feeds of a schedule (:mod:`changefeed.node.schedules`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace

from changefeed.catalog import Schedule
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.recurring import next_time
from changefeed.core.uri import redact
from changefeed.options import (
    INITIAL_SCAN,
    INITIAL_SCAN_ONLY,
    InitialScan,
    OptionReader,
    Options,
    redact_option,
    to_span,
)
from changefeed.options.types import parse_moment, shown_moment
from changefeed.plan.build import feed_sql, plan_create
from changefeed.plan.names import unknown_name
from changefeed.plan.own_options import SCHEDULE_OPTIONS, own_values
from changefeed.plan.stages import FeedPlan
from changefeed.plan.targets import parse_targets
from changefeed.statements.alter import address_changes, changed, option_changes
from changefeed.statements.context import Context, Result, handles
from changefeed.statements.times import date, moment
from changefeed.statements.values import Cell
from grammar import nodes
from grammar.parser import parse
from grammar.printer import to_sql

COLUMNS = (
    "schedule_id",
    "name",
    "status",
    "recurring",
    "next_run",
    "last_run",
    "job_id",
    "job_status",
    "error",
)
DETAIL_COLUMNS = (
    *COLUMNS,
    *("on_execution_failure", "on_previous_running", "created", "changefeed_stmt"),
)
MADE_COLUMNS = ("schedule_id", "name", "first_run", "recurring")

#: How many times EXPLAIN and VALIDATE name.
SHOWN_RUNS = 3
#: What a schedule keeps when it is replaced.
_KEPT = (
    *("id", "created", "paused", "error", "last_due"),
    *("job_id", "job_name", "job_status", "under_way"),
)

_ONLY = nodes.Option(INITIAL_SCAN.name, nodes.Literal(InitialScan.ONLY))


@handles(nodes.CreateSchedule)
def create_schedule(statement: nodes.CreateSchedule, context: Context) -> Result:
    """CREATE SCHEDULE: the feed of a run is planned, and not made."""
    there = schedule_there(statement, context)
    if there is not None and statement.if_not_exists:
        notice = f'schedule "{there.name}" already exists, skipping'
        return _made(there, [notice], context)
    if statement.or_replace and there is not None:
        planned, plan, notices = plan_schedule(statement, context, there, making=True)
        if differences(there, planned):
            context.catalog.replace_schedule(planned)
            context.host.wake()
            notices = [*plan.notices, *notices]
            notices += [f"run {name} goes on" for name in there.under_way]
        else:
            notices = [f'schedule "{there.name}" is as the statement says: nothing was changed']
        return _made(planned, notices, context)
    planned, plan, notices = plan_schedule(statement, context, making=True)
    notices = [*plan.notices, *notices]
    try:
        schedule = context.catalog.create_schedule(planned)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.name_span)
        raise
    context.host.wake()
    if not context.host.node_running():
        notices.append("no node runs for this state: the schedule waits for one (changefeed start)")
    return _made(schedule, notices, context)


def _made(schedule: Schedule, notices: list[str], context: Context) -> Result:
    at = moment(schedule.due, context.clock.now().wall)
    row: tuple[Cell, ...] = (schedule.id, schedule.name, at, schedule.recurring)
    return Result("rows", MADE_COLUMNS, [row], notices, tag="CREATE SCHEDULE")


def schedule_there(statement: nodes.CreateSchedule, context: Context) -> Schedule | None:
    """The schedule that has the name of a statement.

    Raises:
        ChangefeedError: CF1303 OR REPLACE without a name.
    """
    if statement.name is None and statement.or_replace:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "CREATE OR REPLACE needs the name of a schedule",
            hint="write CREATE OR REPLACE SCHEDULE name FOR ...",
            span=to_span(statement.span),
        )
    found = (each for each in context.catalog.schedules() if each.name == statement.name)
    return next(found, None)


def plan_schedule(
    statement: nodes.CreateSchedule,
    context: Context,
    there: Schedule | None = None,
    *,
    making: bool = False,
) -> tuple[Schedule, FeedPlan, list[str]]:
    """What a statement would store, in the place of ``there`` if that is given; the feed of a run,
    and notices. ``making``: it is about to be stored.

    A secret that the statement has redacted is the one that ``there`` has. Its next time changes
    with the expression; a first run is that of a schedule without one.

    Raises:
        ChangefeedError: every problem of the feed, or what is wrong with the times.
    """
    first, given = times(statement, context)
    feed, notices = export(statement.statement if there is None else with_secrets(statement, there))
    plan = plan_create(feed, context.surroundings(making=making))
    spec = plan.spec()
    schedule = Schedule(
        source=spec.source,
        sink_uri=spec.sink_uri or "",
        targets=spec.targets,
        options=spec.options,
        recurring=statement.recurring.text,
        on_failure=given.get("on_execution_failure", "reschedule"),
        on_running=given.get("on_previous_running", "wait"),
        due=first,
        name=statement.name or "",
    )
    if there is not None:
        fresh = "first_run" in given and there.last_due is None
        stays = schedule.recurring == there.recurring and not fresh
        kept = {name: getattr(there, name) for name in _KEPT}
        schedule = replace(schedule, due=there.due if stays else first, **kept)
    return schedule, plan, notices


def with_secrets(statement: nodes.CreateSchedule, there: Schedule) -> nodes.CreateChangefeed:
    """The feed with the secrets of ``there`` where they are redacted."""
    feed = statement.statement
    sink = feed.sink
    if sink is not None and sink.text == redact(there.sink_uri):
        sink = replace(sink, text=there.sink_uri)
    options = []
    for option in feed.options:
        stored = there.options.get(option.name)
        given = option.value
        if stored and given is not None and given.text == redact_option(option.name, stored):
            option = replace(option, value=replace(given, text=stored))
        options.append(option)
    return replace(feed, sink=sink, options=tuple(options))


def differences(there: Schedule, planned: Schedule) -> list[tuple[str, str]]:
    """What a replacement changes, as rows of EXPLAIN."""
    rows = [("drop", target) for target in there.targets if target not in planned.targets]
    rows += [("add", target) for target in planned.targets if target not in there.targets]
    names = {
        "source": "source",
        "recurring": "RECURRING",
        "on_failure": "on_execution_failure",
        "on_running": "on_previous_running",
    }
    for field, name in names.items():
        old, new = getattr(there, field), getattr(planned, field)
        if old != new:
            rows.append(("change", f"{name} {changed(old, new)}"))
    texts = option_changes(there.options, planned.options)
    texts += address_changes(there.sink_uri, planned.sink_uri)
    return rows + [("change", text) for text in texts]


def next_runs(recurring: str, first: int, now: int) -> str:
    """The next times of a schedule in a sentence."""
    following = [first]
    while len(following) < SHOWN_RUNS:
        following.append(next_time(recurring, max(following[-1], now)))
    return f"{recurring}: runs at {', '.join(date(at).words for at in following)}"


def export(feed: nodes.CreateChangefeed) -> tuple[nodes.CreateChangefeed, list[str]]:
    """The feed of a run: it ends with its scan.

    Raises:
        ChangefeedError: CF1205 it is to go on.
    """
    for option in feed.options:
        value = option.value.text.lower() if option.value is not None else ""
        goes_on = option.name == "no_initial_scan" or (
            option.name == INITIAL_SCAN.name and value != InitialScan.ONLY
        )
        if goes_on:
            raise ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "a run of a schedule ends with its scan: it has initial_scan = 'only'",
                hint="leave the option out.",
                span=to_span(option.span),
            )
    if any(option.name in (INITIAL_SCAN.name, INITIAL_SCAN_ONLY.name) for option in feed.options):
        return feed, []
    notice = "each run has initial_scan = 'only': it ends when the rows are delivered"
    return replace(feed, options=(*feed.options, _ONLY)), [notice]


def times(statement: nodes.CreateSchedule, context: Context) -> tuple[int, dict[str, str]]:
    """When the first run is, and the options by name."""
    reading = OptionReader(context.clock, context.text)
    more = "; those of the feed stand before RECURRING"
    values = own_values(statement.options, SCHEDULE_OPTIONS, "a schedule", reading, more)
    given = {name: value.text.lower() for name, value in values.items()}
    now = context.clock.now()
    # As a date would be written.
    first = at_once = now.wall - now.wall % 10**9
    try:
        following = next_time(statement.recurring.text, now.wall)
        first = following if "first_run" not in given else at_once
    except ValueError as error:
        reading.problem(
            Code.INVALID_OPTION_VALUE,
            f"RECURRING is no cron expression: {error}",
            to_span(statement.recurring.span),
            "write minute, hour, day, month and day of the week, as '0 3 * * *', or '@daily'.",
        )
    if given.get("first_run", "now") != "now":
        try:
            first = parse_moment(values["first_run"].text, now).wall
        except ValueError as error:
            reading.problem(
                Code.INVALID_OPTION_VALUE,
                f"first_run is 'now' or a timestamp: {error}",
                to_span(values["first_run"].span),
            )
    raise_all(reading.problems)
    return first, given


@handles(nodes.PauseSchedule)
def pause_schedule(statement: nodes.PauseSchedule, context: Context) -> Result:
    """PAUSE SCHEDULE."""
    return _each(statement.schedules, "PAUSE", context, context.catalog.pause_schedule)


@handles(nodes.ResumeSchedule)
def resume_schedule(statement: nodes.ResumeSchedule, context: Context) -> Result:
    """RESUME SCHEDULE: at the next time from now on; one that is not paused stays as it is."""
    now = context.clock.now().wall
    times = {each.id: each.recurring for each in context.catalog.schedules()}
    return _each(
        statement.schedules,
        "RESUME",
        context,
        lambda number: context.catalog.resume_schedule(number, next_time(times[number], now)),
    )


@handles(nodes.DropSchedule)
def drop_schedule(statement: nodes.DropSchedule, context: Context) -> Result:
    """DROP SCHEDULE."""
    refs, notices = list(statement.schedules), []
    if statement.if_exists:
        known = {each for s in context.catalog.schedules() for each in (s.name, s.id)}
        gone = [ref for ref in refs if (ref.name or ref.job_id) not in known]
        refs = [ref for ref in refs if ref not in gone]
        notices = [f'schedule "{r.name or r.job_id}" does not exist, skipping' for r in gone]
    return _each(refs, "DROP", context, context.catalog.drop_schedule, notices)


def _each(
    refs: Sequence[nodes.FeedRef],
    verb: str,
    context: Context,
    change: Callable[[int], None],
    notices: Sequence[str] = (),
) -> Result:
    found = [find_schedule(ref, context) for ref in refs]
    said = list(notices)
    for schedule in found:
        change(schedule.id)
        if verb != "RESUME":
            said += [f"run {name} goes on" for name in schedule.under_way]
    context.host.wake()
    return Result("done", notices=said, tag=f"{verb} SCHEDULE")


def find_schedule(ref: nodes.FeedRef, context: Context) -> Schedule:
    """The schedule that a statement names.

    Raises:
        ChangefeedError: CF1101 with the nearest name.
    """
    every = context.catalog.schedules()
    for schedule in every:
        if (schedule.name if ref.name is not None else schedule.id) == (ref.name or ref.job_id):
            return schedule
    names = [schedule.name for schedule in every] if ref.name is not None else []
    wanted = ref.name or ref.job_id or ""
    raise unknown_name("schedule", wanted, names, "SHOW SCHEDULES lists them.", ref.span)


@handles(nodes.ShowSchedules)
def show_schedules(statement: nodes.ShowSchedules, context: Context) -> Result:
    """SHOW SCHEDULES."""
    rows = [
        _row(schedule, context)
        for schedule in context.catalog.schedules()
        if statement.which is None or schedule.paused == (statement.which == "paused")
    ]
    return Result(columns=COLUMNS, rows=rows)


@handles(nodes.ShowSchedule)
def show_schedule(statement: nodes.ShowSchedule, context: Context) -> Result:
    """SHOW SCHEDULE s: all about one."""
    schedule = find_schedule(statement.schedule, context)
    row = (
        *_row(schedule, context),
        schedule.on_failure,
        schedule.on_running,
        date(schedule.created),
        _feed_sql(schedule),
    )
    return Result(columns=DETAIL_COLUMNS, rows=[row], vertical=True)


def _row(schedule: Schedule, context: Context) -> tuple[Cell, ...]:
    now = context.clock.now().wall
    waits = schedule.on_running == "wait" and schedule.under_way and schedule.due <= now
    status = "paused" if schedule.paused else "waiting" if waits else "active"
    return (
        schedule.id,
        schedule.name,
        status,
        schedule.recurring,
        None if schedule.paused else moment(schedule.due, now),
        moment(schedule.last_due, now),
        schedule.job_id,
        schedule.job_status,
        schedule.error,
    )


def _feed_sql(schedule: Schedule) -> str:
    options = Options.from_dict(schedule.options)
    return feed_sql(None, schedule.targets, schedule.source, schedule.sink_uri, options)


def schedule_sql(schedule: Schedule) -> str:
    """The statement that makes a schedule, without secrets, with the time of a first run that was
    asked for and is to come."""
    feed = parse(_feed_sql(schedule))
    if not isinstance(feed, nodes.CreateChangefeed):
        raise AssertionError("a schedule makes changefeeds")
    given = {}
    fresh = schedule.created and schedule.last_due is None and not schedule.paused
    if fresh and schedule.due != next_time(schedule.recurring, schedule.created):
        given["first_run"] = shown_moment(str(schedule.due))
    if schedule.on_failure != "reschedule":
        given["on_execution_failure"] = schedule.on_failure
    if schedule.on_running != "wait":
        given["on_previous_running"] = schedule.on_running
    options = tuple(nodes.Option(name, nodes.Literal(text)) for name, text in given.items())
    recurring = nodes.Literal(schedule.recurring)
    return to_sql(nodes.CreateSchedule(feed, recurring, schedule.name or None, options))


def run_sql(schedule: Schedule, due: int) -> str:
    """The statement that makes the feed of a run. It holds secrets."""
    targets = parse_targets(schedule.targets)
    query = any(isinstance(t, nodes.TableTarget) and t.query is not None for t in targets)
    feed = nodes.CreateChangefeed(
        targets=targets,
        name=f"{schedule.name}_{dt.datetime.fromtimestamp(due // 10**9, dt.UTC):%Y%m%d_%H%M%S}",
        source=None if query else schedule.source,
        sink=nodes.Literal(schedule.sink_uri),
        options=tuple(
            nodes.Option(name, nodes.Literal(text) if text else None)
            for name, text in schedule.options.items()
        ),
    )
    return to_sql(feed)
