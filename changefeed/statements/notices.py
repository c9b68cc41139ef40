"""Notices that several statements about feeds give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from changefeed.plan.stages import TableStage
from changefeed.sources.base import Watch
from changefeed.statements.context import Context

#: A CREATE gives a NOTICE each for this many topics.
SHOWN_TOPICS = 20


def topic_notices(topics: tuple[str, ...]) -> Iterator[str]:
    """Where the feed will write; of many topics, how many more."""
    for topic in topics[:SHOWN_TOPICS]:
        yield f"changefeed will emit to topic {topic}"
    if len(topics) > SHOWN_TOPICS:
        yield f"changefeed will emit to {len(topics) - SHOWN_TOPICS} topics more"


def no_node(context: Context) -> list[str]:
    """That the feed waits, where no node runs."""
    if context.host.node_running():
        return []
    return ["no node runs for this state: the feed waits for one (changefeed start)"]


def source_warnings(
    name: str, stages: Sequence[TableStage], context: Context, *, server: bool = True
) -> list[str]:
    """What the source finds worth a word; not every kind of source has such a check.

    ``server`` is false where what it says of itself was said before, with its first feed.
    """
    source = context.source(name)
    tables = [stage.schema.table for stage in stages]
    words = source.warnings([Watch(table.name, table.schema) for table in tables])
    said = set() if server else set(source.warnings())
    return [word for word in words if word not in said]
