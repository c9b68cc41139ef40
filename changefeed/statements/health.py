"""The state of a feed as people see it: what its job says, and what the job's row cannot say.

A job's row holds what a node last wrote there. It does not say whether any node is left, and a
job whose table has failed is ``running`` still. Every place that shows a status (SHOW, the
toolbar, the status page, the metrics) takes it from :func:`health`, so that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from changefeed.catalog import Job, Status, TableProgress, TableState
from changefeed.core.clock import Timestamp
from changefeed.statements.times import clock_text
from changefeed.statements.values import Seconds, ShownText
from grammar.printer import name as name_sql

#: The node runs the feed, but at least one of its tables has failed or differs from its target.
DEGRADED = "degraded"

#: The feed should run, and no node of this state is alive.
STOPPED = "stopped"

#: Every status that SHOW CHANGEFEEDS can show.
STATUSES = (*(str(status) for status in Status if status is not Status.DROPPED), DEGRADED, STOPPED)

#: Statuses that want a person's attention.
TROUBLE = frozenset(
    {str(Status.RETRYING), str(Status.STALLED), str(Status.FAILED), DEGRADED, STOPPED}
)

#: A wait on purpose that is as long has words, ns; a shorter one would come and go at each look.
_SHOWN = 30 * 10**9

_MOVING = frozenset({str(Status.SCANNING), str(Status.RUNNING), DEGRADED})

NO_NODE = "no node runs it: changefeed start"

#: The job's row says so until a node has opened the feed's sink, or knows what else it waits for.
WAITING = "waits for a node"
STARTING = "starting: waits until the source sends its tables"

#: While the job says one of these, a failed table is the worst there is to say.
_AT_WORK = frozenset({Status.STARTING, Status.SCANNING, Status.RUNNING})


@dataclass(frozen=True, slots=True)
class Health:
    """How a feed is.

    Attributes:
        status: one of :data:`STATUSES`, or ``dropped``.
        reason: why, in one sentence.
        lag: how far behind its worst table is, without tables that are paused by themselves and
            without the time for which the feed lets changes gather on purpose; None before anything
            was delivered, and once the feed has succeeded.
        age: the same with those tables and that time.
        gathers: until when changes gather on purpose now; empty if they do not.
        letters: how many dead letters it has.
        upto: everything at or below is durable, for every table that is neither paused nor failed;
            where all are, for all.
    """

    status: str
    reason: str
    lag: Seconds | None
    age: Seconds | None = None
    gathers: str = ""
    letters: int = 0
    upto: Timestamp | None = None

    @property
    def moves(self) -> bool:
        """The feed delivers, so it has a rate."""
        return self.status in _MOVING

    @property
    def troubled(self) -> bool:
        """The feed needs attention."""
        return self.status in TROUBLE


def health(
    job: Job,
    tables: Sequence[TableProgress],
    *,
    node: bool,
    now: int,
    letters: int = 0,
    every: bool = True,
) -> Health:
    """The state of a feed.

    Args:
        job: its row.
        tables: its tables; those that failed, are paused or differ are enough for all but ``upto``,
            which then is the job's: ``every`` says whether these are all.
        node: whether a node of this state is alive.
        now: ns since 1970.
        letters: how many dead letters it has.
    """
    failed = [table for table in tables if table.state is TableState.FAILED]
    paused = [table for table in tables if table.state is TableState.PAUSED]
    age = _lag(job, [*failed, *paused], now)
    lag, gathers = _lag(job, failed, now) if paused else age, ""
    if node and not failed:
        lag, gathers = _but_on_purpose(job, lag, now)
    says = "; ".join(filter(None, (gathers, paused_text(paused), refused_rows(job, letters))))
    upto = _complete_upto(job, tables) if every else job.high_water
    status, reason = _status(job, tables, failed, says, upto, node=node, now=now)
    return Health(status, reason, lag, age, gathers, letters, upto)


def _complete_upto(job: Job, tables: Sequence[TableProgress]) -> Timestamp | None:
    """The job's row has what the tables that were delivered had reached; an ALTER may have left
    none but paused ones, which are behind that."""
    begun = [table for table in tables if not table.never_began]
    if job.high_water is None or not begun or not all(table.state.stands for table in begun):
        return job.high_water
    places = [table.done_upto for table in begun if table.done_upto is not None]
    return min([job.high_water, *places]) if len(places) == len(begun) else None


def paused_text(tables: Sequence[TableProgress]) -> str:
    """``paused: public.a, public.b``; empty if none of the tables is paused by itself."""
    names = [
        f"{table.table.schema}.{table.table.name}"
        for table in tables
        if table.state is TableState.PAUSED
    ]
    return f"paused: {', '.join(names)}" if names else ""


def refused_rows(job: Job, letters: int) -> str:
    """What there is to say of a feed's dead letters; empty if there are none."""
    if not letters:
        return ""
    rows = "1 row was" if letters == 1 else f"{letters:,} rows were"
    return f"{rows} refused: SHOW CHANGEFEED {name_sql(job.name)} DEAD LETTERS"


def _status(
    job: Job,
    tables: Sequence[TableProgress],
    failed: Sequence[TableProgress],
    says: str,
    upto: Timestamp | None,
    *,
    node: bool,
    now: int,
) -> tuple[str, str]:
    if job.status.active and not node:
        return STOPPED, NO_NODE
    if job.status in _AT_WORK and failed:
        return DEGRADED, _failures(failed)
    if job.status is Status.RUNNING and (differ := [t for t in tables if t.differing]):
        return DEGRADED, _differences(job, differ)
    if job.status is Status.STARTING and job.reason.endswith(WAITING):
        return str(job.status), STARTING
    if job.status is Status.RUNNING and upto is not None:
        # CockroachDB's words.
        waits = "; ".join(filter(None, (waits_of(job), says)))
        also = f"; {waits}" if waits else ""
        shown = ShownText(
            f"running: resolved={upto}{also}",
            lambda: f"complete up to {clock_text(upto, now)}{also}",
        )
        return str(job.status), shown
    return str(job.status), job.reason


def waits_of(job: Job) -> str:
    """What a running feed waits for; empty where nothing is known to hold it up."""
    return job.reason.removeprefix("running").removeprefix(": ")


def _failures(failed: Sequence[TableProgress]) -> str:
    """``2 tables failed: public.a: was dropped; public.b: ...``: each with its cause."""
    causes = "; ".join(f"{t.table.schema}.{t.table.name}: {t.error}" for t in failed)
    return f"{len(failed)} table{'s' * (len(failed) != 1)} failed: {causes}"


def _differences(job: Job, differ: Sequence[TableProgress]) -> str:
    """``public.a: 2 rows differ from the source: VERIFY CHANGEFEED f REPAIR makes them equal``."""
    counts = "; ".join(
        f"{t.table.schema}.{t.table.name}: {rows_differ(t.differing)} from the source"
        for t in differ
    )
    return f"{counts}: VERIFY CHANGEFEED {name_sql(job.name)} REPAIR makes them equal"


def rows_differ(count: int) -> str:
    """``1 row differs``, ``2 rows differ``."""
    return "1 row differs" if count == 1 else f"{count:,} rows differ"


def _but_on_purpose(job: Job, age: Seconds | None, now: int) -> tuple[Seconds | None, str]:
    """The lag without what the feed waits on purpose, and until when it does so now."""
    if age is None or job.high_water is None or job.status is not Status.RUNNING:
        return age, ""
    waited = job.delays.waited(now, job.high_water.wall)
    lag = Seconds(round(max(0.0, age - waited / 1e9), 3))
    began, until = job.delays.waits
    if not began <= now < until or until - began < _SHOWN:
        return lag, ""
    return lag, f"gathers changes until {Timestamp(until).time_of_day()}"


def _lag(job: Job, standing: Sequence[TableProgress], now: int) -> Seconds | None:
    """A table that stands is as far as it came, and has come nowhere since it was added."""
    if job.status in (Status.SUCCEEDED, Status.DROPPED):
        return None
    places = [] if job.high_water is None else [job.high_water.wall]
    for table in standing:
        places.append(table.done_upto.wall if table.done_upto else table.added_at or job.created)
    return Seconds(round(max(0.0, (now - min(places)) / 1e9), 3)) if places else None
