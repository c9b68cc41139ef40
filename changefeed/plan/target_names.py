"""Which target each table of a feed gets, and which tables would share one.

A sink with tables of its own (``Capabilities.owns_targets``) keeps one target per source table,
because two tables in one target would overwrite each other's rows. The sink itself decides which
names are equal there. In other sinks (topics, files) tables may share a target, perhaps with a
notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from changefeed.catalog import Catalog, Job
from changefeed.catalog.model import DesiredStatus, Status
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.options import FULL_TABLE_NAME, Options
from changefeed.plan.sink_resolution import ResolvedSink
from sinks import registry
from sinks.base import Sink


@dataclass(frozen=True, slots=True)
class Holder:
    """A table that has a target; ``feed`` is the name of the feed if it is another one."""

    table: TableName
    feed: str = ""

    def __str__(self) -> str:
        of = f' of changefeed "{self.feed}"' if self.feed else ""
        return f"table {self.table.schema}.{self.table.name}{of}"


def topics_of(
    tables: Mapping[TableName, str | None], sink: ResolvedSink, options: Options, database: str
) -> dict[TableName, str]:
    """The finished topic of each table; the values of ``tables`` are the names that AS gives.

    Tables of one name in several schemas are named ``schema_table`` if the sink keeps one target
    per table. ``database`` is the first part of a ``full_table_name``.

    Raises:
        ChangefeedError: the URI or an option is wrong.
    """
    topic_of = sink.topics(options, database)
    topics = {table: topic_of(table, named) for table, named in tables.items()}
    owner = None if options[FULL_TABLE_NAME] else sink.owner(options)
    if owner is None:
        return topics
    unnamed = [table for table, named in tables.items() if named is None]
    counts = Counter(owner.claims(topics[table])[0] for table in unnamed)
    for table in unnamed:
        if counts[owner.claims(topics[table])[0]] > 1:
            topics[table] = topic_of(table, f"{table.schema}_{table.name}")
    return topics


def clashes(
    topics: Mapping[TableName, str],
    sink: ResolvedSink,
    options: Options,
    *,
    held: Mapping[TableName, str],
    catalog: Catalog,
    job: int = 0,
) -> dict[TableName, ChangefeedError]:
    """Why tables cannot have the targets that they would get, by table.

    Args:
        topics: finished topics of the tables in question.
        sink: the feed's.
        options: the feed's.
        held: topics of the feed's other tables.
        catalog: knows the other feeds.
        job: the feed's number; 0 if it does not exist yet.
    """
    owner = sink.owner(options)
    if owner is None:
        return {}
    reserved = frozenset(owner.reserved())
    taken: dict[str, Holder] = {}
    targets: dict[str, Holder] = {}
    for table, topic, feed in (
        *((t, topic, "") for t, topic in held.items()),
        *_of_others(sink, catalog, job),
    ):
        _hold(owner, topic, Holder(table, feed), targets, taken)
    found: dict[TableName, ChangefeedError] = {}
    for table, topic in topics.items():
        names = owner.claims(topic)
        first = names[0]
        other = taken.get(first) or next((targets[n] for n in names if n in targets), None)
        if first in reserved:
            found[table] = _refused(table, f"the sink keeps its own bookkeeping in {topic}")
        elif other is not None:
            found[table] = _refused(table, f"its target {topic} is that of {other}")
            if first not in targets:
                why = f"its target {topic} is a table that the sink keeps for {other}"
                found[table] = _refused(table, why)
        else:
            _hold(owner, topic, Holder(table), targets, taken)
    return found


def _hold(
    owner: Sink, topic: str, holder: Holder, targets: dict[str, Holder], taken: dict[str, Holder]
) -> None:
    names = owner.claims(topic)
    targets.setdefault(names[0], holder)
    for name in names:
        taken.setdefault(name, holder)


def _refused(table: TableName, why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.TARGET_NOT_OURS,
        f"{table.schema}.{table.name}: {why}",
        detail="two tables cannot share a target: they would overwrite each other's rows",
        hint=f"give it another target: FOR TABLE {table.schema}.{table.name} AS name.",
    )


def _of_others(
    sink: ResolvedSink, catalog: Catalog, job: int
) -> Iterable[tuple[TableName, str, str]]:
    for other in sharing(sink, catalog, job):
        for progress in catalog.tables(other.id):
            yield progress.table, progress.topic, other.name


def sharing(sink: ResolvedSink, catalog: Catalog, job: int = 0) -> list[Job]:
    """The other feeds that write to the place of a sink."""
    if sink.written is None:
        return []
    place = registry.place_of(sink.real)
    found = []
    for other in catalog.jobs():
        ended = other.status is Status.SUCCEEDED or other.wanted is DesiredStatus.DROPPED
        if other.id == job or ended or not other.sink_uri:
            continue
        try:
            if registry.place_of(catalog.resolve_uri(other.sink_uri)) == place:
                found.append(other)
        except ChangefeedError:
            continue  # its connection is gone, or its sink is not installed here
    return found
