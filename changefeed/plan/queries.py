"""Planning of CDC queries: implied options, problems, notices, and lines of EXPLAIN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from changefeed.core.engines import EngineOption
from changefeed.core.errors import ChangefeedError, Code, Span
from changefeed.core.figures import duration_text
from changefeed.core.formats import traits_of
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.shapes import Envelope
from changefeed.options import (
    CURSOR,
    DIFF,
    ENGINE,
    ENVELOPE,
    FORMAT,
    INITIAL_SCAN,
    INITIAL_SCAN_ONLY,
    KEY_COLUMN,
    LOOKUP_REFRESH,
    NO_INITIAL_SCAN,
    ON_ROW_ERROR,
    TRANSACTION_METADATA,
    InitialScan,
    OnRowError,
    Options,
    to_span,
)
from changefeed.options.types import FOREVER
from changefeed.plan.sink_resolution import ResolvedSink
from changefeed.query.model import CompiledQuery, no_images
from grammar import nodes


class QueryTable(Protocol):
    """What notices need of a table of a plan."""

    @property
    def schema(self) -> TableSchema:
        """The table's shape."""
        ...

    @property
    def query(self) -> CompiledQuery | None:
        """The CDC query over it, if there is one."""
        ...


def query_options(
    query: nodes.Query | None, written: Sequence[nodes.Option], sink: ResolvedSink | None
) -> list[nodes.Option]:
    """Options that the statement of a query implies: CockroachDB's envelope ``bare``, and no
    initial scan if the query groups changes."""
    if query is None:
        return []
    given = {option.name: option for option in written}
    scans = (INITIAL_SCAN, INITIAL_SCAN_ONLY, NO_INITIAL_SCAN, CURSOR)
    implied = []
    if query.group and not any(row.name in given for row in scans):
        implied.append(nodes.Option(INITIAL_SCAN.name, nodes.Literal(InitialScan.NO.value)))
    return [*implied, *_envelope(given, sink)]


def _envelope(given: Mapping[str, nodes.Option], sink: ResolvedSink | None) -> list[nodes.Option]:
    if sink is None or sink.capabilities.takes_rows:
        return []
    if ENVELOPE.name in given or DIFF.name in given:
        return []
    envelopes = sink.capabilities.envelopes
    written_format = given.get(FORMAT.name)
    traits = traits_of(str(getattr(getattr(written_format, "value", None), "text", "")))
    never = traits is not None and Envelope.BARE in traits.never
    if never or (envelopes and Envelope.BARE not in envelopes):
        return []
    return [nodes.Option(ENVELOPE.name, nodes.Literal(Envelope.BARE.value))]


def query_problems(
    compiled: CompiledQuery, target: nodes.FeedTarget, options: Options | None
) -> list[ChangefeedError]:
    """What query, options and table require of each other."""
    problems = []
    table = compiled.source.table
    span = to_span(target.span)
    if compiled.uses_prev and compiled.source.before_image is not BeforeImage.FULL:
        problems.append(no_images(compiled))
        problems[-1].span = to_span(target.name.span)
    debezium = options is not None and options[ENVELOPE] is Envelope.DEBEZIUM
    shows_before = options is not None and (options.needs_before or debezium)
    if shows_before and (compiled.tells_change or compiled.of_changes):
        problems.append(
            ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "the row before a change cannot be shown for a query that uses event_op(), "
                "event_timestamp() or cdc_prev",
                hint="use another envelope, and select what you want of cdc_prev."
                if debezium
                else "leave out diff and select what you want of cdc_prev.",
                span=span,
            )
        )
    if compiled.window is not None and options is not None:
        problems += group_problems(options, span)
    if options is not None and options[KEY_COLUMN] in compiled.hides_key:
        problems.append(
            ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"key_column {options[KEY_COLUMN]} is not a column of the SELECT",
                detail=f"table {table.schema}.{table.name}",
                span=span,
            )
        )
    return problems


def group_problems(options: Options, span: Span | None) -> Iterator[ChangefeedError]:
    """Options that a query with GROUP BY cannot have: groups are made of changes of many
    transactions."""
    if options[INITIAL_SCAN] is not InitialScan.NO:
        yield ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "a query with GROUP BY has no initial scan: it groups changes, and rows that were "
            "there before are none",
            hint="leave out initial_scan, or write initial_scan = 'no'.",
            span=span,
        )
    if options[TRANSACTION_METADATA]:
        yield ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "transaction_metadata does not go with GROUP BY: a group is of many transactions",
            hint="leave it out.",
            span=span,
        )
    if options[ON_ROW_ERROR] is OnRowError.DEAD_LETTER:
        yield ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "on_row_error = 'dead_letter' does not go with GROUP BY: a group is of many rows",
            hint="leave it out.",
            span=span,
        )


def lookup_problems(query: nodes.Query | None, options: Options) -> list[ChangefeedError]:
    """``lookup_refresh`` needs a look-up."""
    if LOOKUP_REFRESH.name not in options.given or (query is not None and query.joins):
        return []
    return [
        ChangefeedError(
            Code.OPTIONS_CONTRADICT,
            "lookup_refresh needs a query that joins a look-up table",
            hint="leave it out, or see HELP CREATE CHANGEFEED AS SELECT.",
        )
    ]


def key_problems(
    compiled: CompiledQuery, sink: ResolvedSink, span: nodes.Span | None
) -> list[ChangefeedError]:
    """A merged table needs the key of the source's table; a key of groups must not be NULL."""
    if not sink.capabilities.takes_rows:
        return []
    if compiled.window is not None:
        return [
            _null_group(column, sink, span)
            for column in compiled.schema.key_columns
            if column.nullable
        ]
    if not compiled.hides_key:
        return []
    names = ", ".join(compiled.hides_key)
    return [
        ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"the SELECT leaves out key columns that {sink.scheme} merges rows by: {names}",
            hint=f"add {names} to the SELECT, under another name if you like.",
            span=to_span(span),
        )
    ]


def _null_group(column: Column, sink: ResolvedSink, span: nodes.Span | None) -> ChangefeedError:
    return ChangefeedError(
        Code.TARGET_NOT_WATCHABLE,
        f"the query groups by {column.name}, which may be NULL, and {sink.scheme} identifies rows "
        "by it",
        detail="of a deleted row only the key is known",
        hint="group by an expression that is never NULL, such as coalesce(.., '').",
        span=to_span(span),
    )


def query_notices(tables: Sequence[QueryTable], sink: ResolvedSink) -> Iterator[str]:
    """Effects of a query that its author may not expect."""
    for table in tables:
        query = table.query
        if query is None or not query.filtered or query.window is not None:
            continue
        name = f"{query.source.table.schema}.{query.source.table.name}"
        if query.of_changes:
            if sink.capabilities.takes_rows:
                yield (
                    "the WHERE looks at changes, not only at rows: a row of the target stays when "
                    "a later change of it is not selected"
                )
        elif query.where_lookups:
            yield (
                "a look-up table may change, so every update of a row that does not satisfy the "
                "WHERE, or that has no row in an inner join, is delivered as a delete"
            )
        elif not query.sees_leaving:
            yield (
                f"{name} does not log its old rows, so every update of a row that does not satisfy "
                f"the WHERE is delivered as a delete; ALTER TABLE {name} REPLICA IDENTITY FULL, or "
                "row_images = 'store', limits that to rows that satisfied it before"
            )


def query_lines(query: CompiledQuery, options: Options) -> Iterator[str]:
    """Lines of EXPLAIN: what the query makes, of which rows, and where."""
    table = query.source.table
    columns = ", ".join(f"{name} {kind}" for name, kind in query.types())
    yield f"{table.schema}.{table.name}: {query.text}"
    yield f"columns {columns}"
    if query.hides_key:
        yield f"message key from {', '.join(query.hides_key)}, which the SELECT leaves out"
    if query.window is not None:
        yield (
            f"groups the changes of each {duration_text(query.window / 1e9)} of commit time; a "
            "window is delivered once, when all changes up to its end are known"
        )
    elif query.of_changes and query.filtered:
        yield "the WHERE selects changes: nothing is deleted because a later change is not selected"
    elif query.where_lookups:
        yield "an update that does not satisfy joins and WHERE is a delete: look-ups may change"
    elif query.filtered and query.sees_leaving:
        yield "a row that stops satisfying the WHERE is deleted, one that begins to is inserted"
    elif query.filtered:
        yield "an update that does not satisfy the WHERE is a delete: the old row is not logged"
    for lookup in query.lookups:
        pairs = (f"{query.source.columns[i].name} = {name}" for i, name in lookup.keys)
        left = "" if lookup.left else ", and rows without one of it are not delivered"
        yield f"look-up {lookup.shown}: one row by {' and '.join(pairs)}{left}"
    if query.lookups:
        age = options.display().get(LOOKUP_REFRESH.name, LOOKUP_REFRESH.shown_default)
        again = "not read again" if age == FOREVER[0] else f"read again when {age} old"
        yield f"look-ups are kept in memory, {again}; nothing is sent again when they change"
    for function in query.functions:
        takes = "columns" if function.vectorized else "a row at a time"
        yield f"{function.signature} is Python {function.reference}, called with {takes}"
    if query.functions:
        yield "evaluated by a Spark job: its Python workers call the functions"
    elif query.window is not None:
        yield "evaluated by a Spark job for whole windows"
    elif query.sql is None:
        yield "evaluated by Arrow in the node: the query only chooses columns"
    elif options[ENGINE] is EngineOption.SPARK:
        yield "evaluated by a Spark job, except for a few rows"
    elif options[ENGINE] is EngineOption.DRIVER:
        yield "evaluated by Spark SQL in the driver's JVM without a job, however large the batch is"
    else:
        yield "evaluated by Spark SQL: a small batch without a job, a large one by a job"
