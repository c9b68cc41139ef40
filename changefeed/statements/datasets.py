"""CREATE CHANGEFEED FOR DATASET: a connection that defines the dataset, and a feed that reads it.

The connection has the feed's name. It goes with the last feed that reads it; the dataset's folders
stay, and a later statement of the same name goes on with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from changefeed.catalog import Connection
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import require_spark
from changefeed.core.state import StateLayout
from changefeed.core.uri import sink_location
from changefeed.dataset.config import local_folder
from changefeed.dataset.definition import (
    Definition,
    define,
    definition_of,
    is_definition,
    marked,
    read_columns,
    uri_of,
)
from changefeed.dataset.extracts import (
    ExtractSchedule,
    absolute_location,
    check_schedule,
    next_extract,
)
from changefeed.dataset.model import SCHEMA, DatasetColumn, table_name
from changefeed.dataset.store import DatasetFolders, check_sides
from changefeed.dataset.tables import Registration
from changefeed.options import parse_options, to_span
from changefeed.plan.dataset_options import (
    DATASET_OPTIONS,
    TABLE_OPTIONS,
    DatasetOptions,
    parse_dataset_options,
)
from changefeed.plan.sink_resolution import find_sink
from changefeed.statements.context import Context
from grammar import nodes
from sinks.registry import takers

_ONLY = "'only'"


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """What FOR DATASET comes to: the connection to have, and the feed to make."""

    definition: Definition
    connection: Connection
    statement: nodes.CreateChangefeed


def translate(
    statement: nodes.CreateDataset, context: Context, before: Definition | None = None
) -> DatasetPlan:
    """The connection and the feed of a statement; makes neither.

    Spark reads the columns from the extract where neither the statement nor ``before``, what the
    feed's dataset is, has them.

    Raises:
        ChangefeedError: CF1101 a column does not exist; CF1102 the connection's name is taken;
            CF1203 to CF1206 of the options; CF1302 there is no extract to read, or the folders have
            a column that is to be sensitive; CF4003 PySpark is not installed; as
            :func:`changefeed.plan.sink_resolution.find_sink`.
    """
    require_spark("a feed of a dataset")
    own = parse_dataset_options(statement.options, text=context.text)
    _refuse_scan_only(own)
    _check_options(statement, own, context)
    location = statement.location.text
    name = statement.name or f"dataset_{hashlib.sha256(location.encode()).hexdigest()[:8]}"
    schedule = ExtractSchedule(absolute_location(location), own.every, own.date)
    try:
        check_schedule(schedule)
        if before is not None and own.columns is None:
            columns = before.dataset.columns
        else:
            columns = _columns(schedule, own, context)
    except ChangefeedError as error:
        error.span = error.span or to_span(statement.location.span)
        raise
    current = _folder(own, "current_path") or _default_folder(name, context)
    dataset = define(
        name,
        _marked(columns, statement, own),
        current,
        history=_folder(own, "history_path"),
        extract=own.extract,
        hash_=own.hash,
        form=own.form,
        delimiter=own.delimiter,
        header=own.header,
        current_table=own.tables.get("current_table"),
        history_table=own.tables.get("history_table"),
        sensitive=_folder(own, "sensitive_path"),
        sensitive_table=own.tables.get("sensitive_table"),
        sensitive_history_table=own.tables.get("sensitive_history_table"),
    )
    check_sides(dataset, DatasetFolders(dataset).latest())
    definition = Definition(dataset, schedule)
    uri = uri_of(definition)
    if before is None:
        _check_name(name, uri, statement, context)
    plain = nodes.CreateChangefeed(
        targets=(
            nodes.TableTarget(
                nodes.QualifiedName((SCHEMA, name), span=statement.location.span),
                span=statement.location.span,
            ),
        ),
        name=statement.name,
        source=name,
        sink=statement.sink,
        options=own.others,
        if_not_exists=statement.if_not_exists,
        span=statement.span,
        name_span=statement.name_span,
    )
    now = context.clock.now().wall
    return DatasetPlan(definition, Connection(name, uri, now, sink_location(uri)), plain)


def replacing(statement: nodes.CreateDataset, context: Context) -> nodes.CreateChangefeed:
    """CREATE OR REPLACE of the feed of a dataset that is there, as one of the feed alone.

    Columns that the statement does not have are those that the dataset has: no extract is read.

    Raises:
        ChangefeedError: CF1303 the statement defines another dataset; else as :func:`translate`.
    """
    name = statement.name or ""
    uris = {connection.name: connection.uri for connection in context.catalog.connections()}
    uri = uris.get(name, "")
    made = translate(statement, context, definition_of(uri)) if is_definition(uri) else None
    if made is None or made.connection.uri != uri:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f'changefeed "{name}" cannot be replaced: it is there, and its dataset stays as it was '
            "defined",
            hint="DROP CHANGEFEED first, or give this one another name.",
            span=to_span(statement.name_span),
        )
    return replace(made.statement, or_replace=True)


def check_tables(made: DatasetPlan, options: Sequence[nodes.Option], context: Context) -> None:
    """Refuse tables of Spark's catalog that the dataset could not have; asks Spark where the
    statement names any.

    Raises:
        ChangefeedError: see :func:`changefeed.dataset.tables.check_tables`.
    """
    registration = Registration.of(made.definition.dataset)
    if not registration.names:
        return
    try:
        context.host.check_tables(registration)
    except ChangefeedError as error:
        given = [o for o in options if o.name in TABLE_OPTIONS]
        # One name may begin with the other.
        named = [o for o in given if o.value and table_name(o.value.text) in error.message]
        about = max(named or given[:1], key=lambda o: len(o.value.text) if o.value else 0)
        error.span = error.span or to_span(about.span)
        raise


def keep_connection(made: DatasetPlan, context: Context) -> str | None:
    """Make the connection; the URI that it had, empty for none, None where nothing changed."""
    catalog, connection = context.catalog, made.connection
    if catalog.create_connection(connection.name, connection.uri, if_not_exists=True):
        return ""
    before = catalog.connection(connection.name).uri
    if before == connection.uri:
        return None
    catalog.alter_connection(connection.name, connection.uri)
    return before


def restore_connection(made: DatasetPlan, before: str | None, context: Context) -> None:
    """Undo :func:`keep_connection` for a statement that failed."""
    if before:
        context.catalog.alter_connection(made.connection.name, before)
    elif before is not None:
        context.catalog.drop_connection(made.connection.name)


def forget_connection(name: str, context: Context) -> None:
    """Remove a connection that FOR DATASET made, once no feed reads it."""
    catalog = context.catalog
    known = next((c for c in catalog.connections() if c.name == name), None)
    if known is None or not is_definition(known.uri):
        return
    if any(name in catalog.connections_of(job) for job in catalog.jobs()):
        return
    catalog.drop_connection(name, if_exists=True)
    if context.session.source == name:
        context.session.source = None


def explained(definition: Definition) -> Iterator[tuple[str, str]]:
    """EXPLAIN's lines about the extracts."""
    dataset, schedule = definition.dataset, definition.schedule
    if schedule.local:
        each = "each match" if schedule.several else "it"
        where = schedule.location
    else:
        each, where = "it", sink_location(schedule.location.partition("?")[0])
        if schedule.location.startswith("jdbc:"):
            where = f"jdbc table {schedule.location.partition('#')[2]}"
    when = "when its files change" if schedule.every is None else f"every {schedule.every:g} s"
    yield "dataset", f"extract {where}, {dataset.extract}; Spark compares {each} {when}"
    columns = ", ".join(f"{c.name} {c.type}" for c in dataset.columns)
    yield "dataset", f"columns {columns}"
    ignored = ", ".join(c.name for c in dataset.columns if c.ignore)
    keys = ", ".join(c.name for c in dataset.keys)
    yield (
        "dataset",
        f"key {keys}" + (f"; a difference in {ignored} is no update" if ignored else ""),
    )
    yield "dataset", f"current dataset {dataset.current}, history {dataset.history}"
    if dataset.sensitive is not None:
        apart = ", ".join(c.name for c in dataset.sensitive_columns)
        yield "dataset", f"sensitive columns {apart}: kept apart in {dataset.sensitive}"
    named = (
        (dataset.current_table, "current dataset"),
        (dataset.history_table, "history"),
        (dataset.sensitive_table, "sensitive columns"),
        (dataset.sensitive_history_table, "history of the sensitive columns"),
    )
    tables = ", ".join(f"{name} ({what})" for name, what in named if name is not None)
    if tables:
        yield "dataset", f"tables of Spark's catalog: {tables}"


def _check_options(statement: nodes.CreateDataset, own: DatasetOptions, context: Context) -> None:
    """Problems of the feed's own options are reported before an extract is looked for."""
    sink = statement.sink
    found = find_sink(
        context.catalog,
        None if sink is None else sink.text,
        None if sink is None else to_span(sink.span),
    )
    parse_options(
        own.others,
        scheme=found.scheme,
        capabilities=found.capabilities,
        takers=takers,
        text=context.text,
        clock=context.clock,
        beside=DATASET_OPTIONS,
    )


def _refuse_scan_only(own: DatasetOptions) -> None:
    for option in own.others:
        value = "" if option.value is None else option.value.text.lower()
        only = option.name == "initial_scan" and value == "only"
        if only or (option.name == "initial_scan_only" and value in ("", "yes", "true")):
            raise ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "a feed FOR DATASET goes on: its first rows are those of the first comparison",
                hint=f"leave out initial_scan = {_ONLY}, and DROP the feed when you have the rows.",
                span=to_span(option.span),
            )


def _columns(
    schedule: ExtractSchedule, own: DatasetOptions, context: Context
) -> tuple[DatasetColumn, ...]:
    if own.columns is not None:
        return read_columns(own.columns)
    found = next_extract(schedule, None, 0.0)
    if found is None:
        raise ChangefeedError(
            Code.TARGET_NOT_WATCHABLE,
            f"there is no extract yet to read the columns from: {schedule.location} has no files",
            hint="check the path, or name the columns: WITH columns = 'id bigint, name string'.",
        )
    if not own.header and own.form in (None, "csv"):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "CSV without a line of names needs the option columns",
            hint="write WITH columns = 'id bigint, name string'.",
        )
    return context.host.extract_columns(found.location, own.form, own.delimiter)


def _marked(
    columns: tuple[DatasetColumn, ...], statement: nodes.CreateDataset, own: DatasetOptions
) -> tuple[DatasetColumn, ...]:
    known = {column.name.lower() for column in columns}
    try:
        return marked(
            columns,
            [k.text for k in statement.keys],
            [i.text for i in statement.ignored],
            own.sensitive,
        )
    except ChangefeedError as error:
        wrong = (n for n in (*statement.keys, *statement.ignored) if n.text.lower() not in known)
        name = next(wrong, None)
        if name is None and any(s.lower() not in known for s in own.sensitive):
            option = next(o for o in statement.options if o.name == "sensitive")
            error.span = to_span(option.span)
        else:
            error.span = to_span((name or statement.keys[0]).span)
        raise


def _folder(own: DatasetOptions, name: str) -> Path | None:
    if name not in own.folders:
        return None
    try:
        return local_folder(own.folders[name])
    except ValueError as error:
        raise ChangefeedError(Code.INVALID_OPTION_VALUE, f"option {name} must be {error}") from None


def _default_folder(name: str, context: Context) -> Path:
    state = StateLayout(Path(context.catalog.directory)).root
    return state.absolute() / "datasets" / quote(name, safe="") / "current"


def _check_name(name: str, uri: str, statement: nodes.CreateDataset, context: Context) -> None:
    """The connection of this name is free, the same, or a dataset that nobody reads."""
    known = next((c for c in context.catalog.connections() if c.name == name), None)
    if known is None or known.uri == uri:
        return
    users = [j.name for j in context.catalog.jobs() if name in context.catalog.connections_of(j)]
    if users or not is_definition(known.uri):
        used = f", which {', '.join(users)} uses" if users else ""
        raise ChangefeedError(
            Code.NAME_TAKEN,
            f'external connection "{name}" already exists{used}',
            hint="the dataset's connection has the name of its feed: give the feed another name.",
            span=to_span(statement.name_span),
        )
