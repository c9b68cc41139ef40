"""The tables of a feed: found, checked and made stages of a plan, for CREATE and for ALTER."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from changefeed.catalog import Catalog
from changefeed.catalog.model import TableProgress
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.events import Position
from changefeed.core.logical_messages import PREFIX
from changefeed.core.partition import Partition, Prefixes
from changefeed.core.schema import BeforeImage, KeyRange, TableName, TableSchema
from changefeed.core.table_errors import before_log
from changefeed.core.types import Kind
from changefeed.options import HEADERS_JSON_COLUMN_NAME, KEY_COLUMN, InitialScan, Options, to_span
from changefeed.plan.context import PlanContext
from changefeed.plan.sink_resolution import ResolvedSink
from changefeed.plan.stages import TableStage
from changefeed.plan.target_names import sharing, topics_of
from changefeed.plan.targets import (
    ResolvedTarget,
    look_up,
    look_up_messages,
    qualified,
    target_text,
    wishes,
)
from changefeed.sources.base import Source, TableInfo, Watch
from grammar import nodes
from grammar.spelling import did_you_mean
from sinks.registry import entry


def find_tables(
    targets: Sequence[nodes.FeedTarget], source: Source, *, diff: bool
) -> tuple[list[ResolvedTarget], list[ChangefeedError]]:
    """The tables that the targets mean now, and the problems of the targets."""
    asked, problems = wishes(targets, source, diff=diff)
    found, missing = look_up(asked, source)
    messages, others = look_up_messages(targets, source)
    return [*found, *messages], [*problems, *missing, *others]


def watches_of(
    found: Sequence[ResolvedTarget], options: Options | None, sink: ResolvedSink | None
) -> list[Watch]:
    """The tables in the form in which the source checks them."""
    diff = whole = False
    if options is not None:
        diff = options.needs_logged_before
        replaces = sink is not None and sink.capabilities.replaces_rows
        whole = replaces and not options.stores_images
    return [
        Watch(f.schema.table.name, f.schema.table.schema, diff, to_span(f.target.span), whole)
        for f in found
        if not f.messages
    ]


def check_messages(found: Sequence[ResolvedTarget], scan: InitialScan) -> list[ChangefeedError]:
    """The problems of logical messages in a feed that is only a scan."""
    return [
        ChangefeedError(
            Code.NOT_SUPPORTED,
            "MESSAGES cannot be combined with initial_scan='only'",
            detail="logical messages are in the source's log alone: a scan finds none",
            hint="leave out one of the two.",
            span=to_span(place.target.span),
        )
        for place in found
        if place.messages and scan is InitialScan.ONLY
    ]


def check_row_images(source: Source, options: Options) -> list[ChangefeedError]:
    """The problem if the source's changes cannot be completed from row images."""
    if not options.stores_images or source.takes_row_images:
        return []
    return [
        ChangefeedError(
            Code.NOT_SUPPORTED,
            "row_images = 'store' is for tables of PostgreSQL, MySQL and MariaDB",
            detail=f"the changes of {source.name} are not completed from row images",
            hint="leave the option out; the source's own log has whole old rows where it is set "
            "to log them.",
        )
    ]


def _messages_wanted(place: ResolvedTarget) -> Partition | None:
    """The condition on logical messages; None for a table."""
    if not isinstance(place.target, nodes.MessagesTarget):
        return None
    column = next(c for c in place.schema.columns if c.name == PREFIX)
    condition = Prefixes(column.column_id, place.target.prefixes)
    return Partition("", (condition,))


def table_stages(
    found: Sequence[ResolvedTarget],
    source: Source,
    sink: ResolvedSink,
    options: Options,
    *,
    scan: InitialScan,
    start: Position | None,
) -> list[TableStage]:
    """The stages of the tables, with topics and estimates."""
    sizes: dict[TableName, TableInfo] = {info.name: info for info in source.tables()}
    stages = []
    named = {f.schema.table: named_topic(f.target) for f in found}
    topics = topics_of(named, sink, options, source.database)
    for place in found:
        table = place.schema.table
        target = place.target
        own = target if isinstance(target, nodes.TableTarget) else None
        info = place.partition or sizes.get(table)
        part = place.partition.partition if place.partition else _messages_wanted(place)
        progress = TableProgress(
            table,
            topic=topics[table],
            scan_wanted=scan is not InitialScan.NO and not place.messages,
            start=start if scan is InitialScan.NO or place.messages else None,
            scan_total=info.rows_estimate if info else 0,
            columns=own.columns if own else (),
            values_from=tuple(v.text for v in own.values_from) if own else (),
            values_to=tuple(v.text for v in own.values_to) if own else (),
            partition=part,
            joined=place.joined,
            table_id=place.schema.table_id,
        )
        stages.append(
            TableStage(
                place.schema,
                progress,
                rows_estimate=info.rows_estimate if info else 0,
                bytes_estimate=info.bytes if info else 0,
                target=target_text(target),
                query=place.query,
                stored=options.stores_images and place.schema.before_image is BeforeImage.KEY,
            )
        )
    return stages


def named_topic(target: nodes.FeedTarget) -> str | None:
    """The topic that ``AS`` gives the target; None without ``AS``."""
    return target.topic if isinstance(target, nodes.TableTarget | nodes.MessagesTarget) else None


def check_table(
    schema: TableSchema, target: nodes.FeedTarget, options: Options | None
) -> list[ChangefeedError]:
    """The problems of the target's columns and range, and of options that name columns."""
    if isinstance(target, nodes.MessagesTarget):
        return []  # options name columns of tables
    problems = []
    known = {column.name: column for column in schema.columns}
    span = to_span(target.span)
    own = target if isinstance(target, nodes.TableTarget) else None
    named = list(own.columns if own else ())
    if options is not None:
        named += filter(None, (options[KEY_COLUMN], options[HEADERS_JSON_COLUMN_NAME]))
    problems += [_no_column(name, schema, span) for name in named if name not in known]
    headers = known.get((options[HEADERS_JSON_COLUMN_NAME] if options else None) or "")
    if headers is not None and headers.kind is not Kind.JSON:
        problems.append(
            ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"column {headers.name} of {shown(schema.table)} is {headers.type_name}, "
                "not json: it cannot hold headers",
                span=span,
            )
        )
    width = max(len(own.values_from), len(own.values_to)) if own else 0
    if width and schema.keyless:
        message = f"{shown(schema.table)} has no key, so VALUES has no meaning"
        problems.append(ChangefeedError(Code.TARGET_NOT_WATCHABLE, message, span=span))
    elif width > len(schema.key):
        key = ", ".join(column.name for column in schema.key_columns)
        problems.append(
            ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"VALUES has more columns than the key of {shown(schema.table)}",
                detail=f"the key is ({key})",
                span=span,
            )
        )
    return problems


def check_range(place: ResolvedTarget, source: Source) -> list[ChangefeedError]:
    """The problem if no row can be in the range of keys that the target names."""
    own = place.target
    if not isinstance(own, nodes.TableTarget):
        return []
    low, high = (tuple(v.text for v in bound) for bound in (own.values_from, own.values_to))
    if not (low or high) or place.schema.keyless:
        return []
    if max(len(low), len(high)) > len(place.schema.key):
        return []  # check_table reports it
    problem = source.range_problem(place.schema, KeyRange(low or None, high or None))
    if problem is None:
        return []
    problem.span = to_span(own.span)
    return [problem]


def shown(table: TableName) -> str:
    """A table's name within its source: ``schema.table``."""
    return f"{table.schema}.{table.name}"


def _no_column(name: str, schema: TableSchema, span: Span | None) -> ChangefeedError:
    columns = [column.name for column in schema.columns]
    near = did_you_mean(name, columns)
    listed = f"its columns are: {', '.join(columns[:20])}."
    return ChangefeedError(
        Code.NAME_UNKNOWN,
        f"required column {name} not present on table {schema.table.name}",
        hint=f'did you mean "{near}"?' if near else listed,
        span=span,
    )


def cursor_problems(
    cursor: Timestamp,
    tables: Iterable[TableName],
    source: str,
    around: PlanContext,
    hint: str,
    span: Span | None,
) -> list[ChangefeedError]:
    """The tables whose change log does not go back to a cursor."""
    captured = around.catalog.captured(source)
    oldest = around.log_oldest(source) or Timestamp.ZERO
    problems = []
    for table in tables:
        since = captured.get(table)
        begin = None if since is None else max(since, oldest)
        if begin is None or begin > cursor:
            problems.append(before_log(cursor, table, begin, hint))
            problems[-1].span = span
    return problems


def definite(
    targets: Sequence[nodes.FeedTarget], found: Sequence[ResolvedTarget], source: Source
) -> list[nodes.FeedTarget]:
    """The targets with full names, which mean the same in every session."""
    tables = {id(f.target): f.schema.table for f in found if not f.joined}
    return [qualified(target, source.name, tables.get(id(target))) for target in targets]


# ------------------------------------------------------------------------------- notices


def table_notices(tables: Sequence[TableStage], sink: ResolvedSink) -> list[str]:
    """Facts about the tables that users may not expect: no primary key, a shared topic."""
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
