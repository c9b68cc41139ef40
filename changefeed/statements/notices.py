"""Notices that several statements about feeds give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from changefeed.catalog import DesiredStatus, Job
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.schema import TableName
from changefeed.sources.base import Watch
from changefeed.statements.context import Context
from sinks.registry import entry, scheme_of

#: A CREATE gives a NOTICE each for this many topics.
SHOWN_TOPICS = 20


def topic_notices(topics: tuple[str, ...], uri: str) -> Iterator[str]:
    """Where the feed will write at the sink of ``uri``; of many topics, how many more."""
    for topic in topics[:SHOWN_TOPICS]:
        yield f"changefeed will emit to {entry(scheme_of(uri)).target} {topic}"
    if len(topics) > SHOWN_TOPICS:
        yield f"changefeed will emit to {len(topics) - SHOWN_TOPICS} more"


def no_node(context: Context) -> list[str]:
    """That the feed waits, where no node runs."""
    if context.host.node_running():
        return []
    return ["no node runs for this state: the feed waits for one (changefeed start)"]


def no_node_runs(job: Job, span: Span | None) -> ChangefeedError:
    """CF1301 of a statement that waits for a feed which nobody runs."""
    return ChangefeedError(
        Code.WRONG_JOB_STATE,
        f'no node runs changefeed "{job.name}"',
        hint="changefeed start runs one.",
        span=span,
    )


def not_taken_yet(job: Job, context: Context) -> list[str]:
    """Wait until the runner of a feed goes by ``job``; what to say if it is late.

    A feed that nobody runs takes it when it starts.
    """
    if not context.host.node_running():
        return []

    def settled() -> bool:
        now = context.catalog.find_job(job.id)
        return now is None or now.taken >= job.generation or not _runs(now, context)

    if context.wait(settled, context.timings.answer):
        return []
    error = context.catalog.source_state(job.source).error
    why = (
        f"it waits for source {job.source}: {error}"
        if error
        else "it first finishes what it has started"
    )
    return [f'changefeed "{job.name}" has not applied this yet: {why}']


def _runs(job: Job, context: Context) -> bool:
    """Some node runs the feed, and means to go on with it."""
    wanted = job.status.active and job.wanted is DesiredStatus.RUNNING
    return wanted and context.catalog.lease_holder(job.id) is not None


def source_warnings(
    name: str, tables: Sequence[TableName], context: Context, *, server: bool = True
) -> list[str]:
    """What the source finds worth a word; not every kind of source has such a check.

    ``server`` is false where what it says of itself was said before, with its first feed.
    """
    source = context.source(name)
    words = source.warnings([Watch(table.name, table.schema) for table in tables])
    said = set() if server else set(source.warnings())
    return [word for word in words if word not in said]
