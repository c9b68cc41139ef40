"""What is allowed in a feed but deserves a word."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.catalog import Catalog
from changefeed.plan.sink_resolution import ResolvedSink
from changefeed.plan.stages import TableStage
from changefeed.plan.target_names import sharing
from sinks.registry import entry


def table_notices(tables: Sequence[TableStage], sink: ResolvedSink) -> list[str]:
    """What is allowed but deserves a word."""
    notices = [
        f"table {t.shown} has no primary key: all its columns are the key of its messages"
        for t in tables
        if t.schema.keyless
    ]
    if sink.written is not None and "topic_name=" not in sink.real:
        word, by_topic = entry(sink.scheme).target, dict[str, list[str]]()
        for table in tables:
            by_topic.setdefault(table.progress.topic, []).append(table.shown)
        notices += [
            f"{' and '.join(names)} share the {word} {topic}; full_table_name keeps them apart"
            for topic, names in by_topic.items()
            if len(names) > 1
        ]
    return notices


def sharing_notices(
    tables: Sequence[TableStage], sink: ResolvedSink, catalog: Catalog, job: int = 0
) -> list[str]:
    """Other feeds that write to the same topics or into the same folder."""
    if not sink.capabilities.shared_topics:
        return []
    topics = {table.progress.topic for table in tables}
    notices = []
    for other in sharing(sink, catalog, job):
        common = sorted(topics & {progress.topic for progress in catalog.tables(other.id)})
        if common:
            listed = ", ".join(common[:5]) + (", .." if len(common) > 5 else "")
            notices.append(
                f'changefeed "{other.name}" writes to {listed} at the same place: readers get the '
                "messages of both, and a resolved timestamp of one does not cover the other"
            )
        elif not sink.capabilities.resolved_by_topic:
            notices.append(
                f'changefeed "{other.name}" writes to the same place: a resolved timestamp there '
                "says nothing of the tables of the other changefeed"
            )
    return notices
