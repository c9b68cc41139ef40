"""EXPLAIN ANALYZE: a feed runs for a while into nothing, and the answer says what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.figures import duration_text
from changefeed.core.formats import TRAITS
from changefeed.core.work_stages import Flow, StageCost, WorkStage
from changefeed.options import FORMAT, INITIAL_SCAN_MAX_RATE, read_duration, to_span
from changefeed.plan import cdc
from changefeed.plan.build import plan_create
from changefeed.plan.stages import FeedPlan
from changefeed.statements.brief import written_name
from changefeed.statements.context import Context, Measurement, Result, handles
from changefeed.statements.release import leave_source
from changefeed.statements.values import Cell, Seconds, Size
from grammar import nodes

COLUMNS = ("stage", "rows", "bytes", "seconds", "share", "detail")

#: How long it runs by default, and at most, seconds.
_SECONDS, _MOST = 10.0, 3600.0
#: A stage is named as what bounds a feed from this part of the time on, else the source is.
_BUSY = 0.5


@handles(nodes.ExplainAnalyze)
def explain_analyze(statement: nodes.ExplainAnalyze, context: Context) -> Result:
    """EXPLAIN ANALYZE [(DURATION '10s')] CREATE CHANGEFEED ..: of a feed of messages.

    Raises:
        ChangefeedError: CF1303 for a sink whose work cannot be left out; what CREATE would raise;
            the feed failed.
    """
    seconds, made = _duration(statement), statement.statement
    if isinstance(made, nodes.CreateDataset):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "EXPLAIN ANALYZE reads tables and their changes, and a dataset is compared as a whole",
            hint="EXPLAIN shows its stages.",
            span=to_span(made.span),
        )
    plain = cdc.translate(made, context.text) if isinstance(made, nodes.CreateCdc) else made
    # What there is of that name has no part in it.
    plain = replace(plain, name=None, if_not_exists=False, or_replace=False)
    plan = plan_create(plain, context.surroundings())
    able = plan.sink.capabilities
    if able.takes_rows or able.pulled:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"a {plan.sink.scheme} sink takes rows and not messages, and what it does with them "
            "cannot be left out",
            hint="EXPLAIN ANALYZE the statement without INTO, or with a sink of messages.",
            span=to_span(None if plain.sink is None else plain.sink.span),
        )
    if TRAITS[plan.options[FORMAT]].columnar:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{plan.options[FORMAT]} files are made by the sink, whose work is left out",
            hint="EXPLAIN ANALYZE the statement with another format.",
            span=to_span(plain.span),
        )
    try:
        found = context.host.measure(plan, seconds, context.session.gone)
    finally:
        left = leave_source(plan.source.source, context)
    failed = [t for t in found.tables if t.error is not None]
    notices = [f"{written_name(t.table)} failed: {t.error}" for t in failed]
    notices.append("nothing was delivered or kept: what the sink does is not in these figures")
    return Result("rows", COLUMNS, list(_rows(found, plan)), [*plan.notices, *notices, *left])


def _duration(statement: nodes.ExplainAnalyze) -> float:
    if statement.duration is None:
        return _SECONDS
    seconds = read_duration("DURATION", statement.duration, "10s")
    if not 0 < seconds <= _MOST:
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            f"DURATION must be above 0 and at most {duration_text(_MOST)}",
            span=to_span(statement.duration.span),
        )
    return seconds


def _rows(found: Measurement, plan: FeedPlan) -> Iterator[tuple[Cell, ...]]:
    scans = any(table.scan_wanted for table in found.tables if not table.state.stands)
    for kind, flow in (("scan", found.scan), ("changes", found.changes)):
        costs = {s: cost for s, cost in found.costs.items() if s.startswith(f"{kind}:")}
        spent = found.seconds
        if kind == "scan":
            # At work from the snapshot to the last row, if it is over.
            end = spent if scans else flow.last
            spent = max(end - flow.first, *(cost.seconds for cost in costs.values()), 0.0)
        for stage, cost in costs.items():
            detail = f"{_per_second(cost.rows, cost.seconds)} in this stage"
            yield _row(stage, cost, cost.seconds, spent, detail)
        if not flow.rows:
            continue
        mean = round(flow.bytes / flow.rows)
        detail = f"{_per_second(flow.rows, spent)}, the first after {duration_text(flow.first)}"
        sizes = f"{mean:,} bytes a message, the largest {flow.largest:,}"
        yield _row(f"{kind}: messages", flow, spent, None, f"{detail}; {sizes}")
        seconds = {stage: cost.seconds for stage, cost in costs.items()}
        if kind == "scan":
            bound = _scan_bound(flow, seconds, spent, plan)
        else:
            bound = _changes_bound(seconds, spent)
        over = ""
        if kind == "scan" and scans:
            total = max(flow.rows, sum(table.scan_total for table in found.tables))
            over = f"; the scan was at {flow.rows:,} of about {total:,} rows"
        yield (f"{kind}: bound by", None, None, None, None, bound + over)
    if not found.scan.rows and not found.changes.rows:
        what = "the scan had not begun to deliver" if scans else "nothing changed"
        yield ("bound by", None, None, None, None, f"the source: {what}")


def _row(
    stage: str, what: StageCost | Flow, seconds: float, of: float | None, detail: str
) -> tuple[Cell, ...]:
    share = None if of is None else _share(seconds, of)
    return stage, what.rows, Size(what.bytes), Seconds(round(seconds, 3)), share, detail


def _share(seconds: float, of: float) -> str:
    return f"{100 * seconds / max(of, 1e-9):.0f} %"


def _per_second(rows: int, seconds: float) -> str:
    return f"{round(rows / max(seconds, 1e-9)):,} rows/s"


def _scan_bound(
    flow: Flow, seconds: Mapping[WorkStage, float], spent: float, plan: FeedPlan
) -> str:
    """What the scan spent most of its time with."""
    slowest = max(seconds, key=lambda stage: seconds[stage])
    if flow.first > spent:
        return f"the start of the scan: its first message came after {duration_text(flow.first)}"
    if slowest is not WorkStage.SCAN_READ:
        return _named(slowest, seconds[slowest], spent)
    limited = plan.options[INITIAL_SCAN_MAX_RATE] is not None
    what = f"{INITIAL_SCAN_MAX_RATE.name}, or the source" if limited else "the source"
    return f"{what}: reading its rows ({_share(seconds[slowest], spent)} of the time)"


def _changes_bound(seconds: Mapping[WorkStage, float], spent: float) -> str:
    slowest = max(seconds, key=lambda stage: seconds[stage])
    if seconds[slowest] < _BUSY * spent:
        return "the source: every change was delivered when it came"
    return _named(slowest, seconds[slowest], spent)


def _named(stage: WorkStage, seconds: float, spent: float) -> str:
    words = {
        WorkStage.READ: "the change log: reading it",
        WorkStage.QUERY: "the CDC query",
        WorkStage.SCAN_QUERY: "the CDC query",
    }
    return f"{words.get(stage, 'encoding')} ({_share(seconds, spent)} of the time)"
