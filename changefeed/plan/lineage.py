"""Where the columns of a feed's targets come from: SHOW CHANGEFEED f LINEAGE.

The members of a message are read from the one that EXPLAIN shows, so they are those that the
encoder makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from changefeed.catalog.model import TableProgress
from changefeed.core.formats import TRAITS
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.encoding.compile import table_messages
from changefeed.encoding.plan import MessagePlan, QueryShape
from changefeed.options import Options
from changefeed.plan.example import example
from grammar import nodes

if TYPE_CHECKING:
    from changefeed.query.lineage import Derivation, QueryLineage

#: Members that hold the columns of a row, and whether it is the row before the change.
_ROWS = {"after": False, "record": False, "before": True}
#: What the other members of a message are, by name without ``__crdb__``.
_META = {
    "updated": "commit timestamp",
    "mvcc_timestamp": "commit timestamp",
    "event_type": "operation",
    "op": "operation",
    "topic": "topic",
    "source": "source, table and commit timestamp",
    "transaction": "transaction and place in it",
    "ts_ms": "time of the message",
    "ts_us": "time of the message",
    "ts_ns": "time of the message",
}
_TEXT = LogicalType.parse("text")


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """One column of a target with one column that it comes from.

    Attributes:
        target: topic, table, index or folder.
        part: ``key``, ``value`` or ``headers`` of a message; ``row``.
        column: dots lead into members; empty: all of the row.
        source_table: the feed's table as a name, or a look-up table as a text.
        source_column: empty: it comes from no column.
        how: ``copy``, ``before`` (the value before the change), ``computed``, ``aggregated``,
            ``metadata``; of a row ``filter``, ``join`` or ``group``.
        detail: the expression, or what the metadata is.
    """

    target: str
    part: str
    column: str
    source_table: TableName | str
    source_column: str
    how: str
    detail: str = ""


def table_lineage(
    options: Options,
    progress: TableProgress,
    schema: TableSchema,
    query: nodes.Query | None,
    *,
    takes_rows: bool,
) -> Iterator[ColumnLineage]:
    """The lineage of what a table of a feed becomes, column by column.

    Args:
        options, progress: of the feed and the table.
        schema: the table's shape.
        query: the feed's CDC query.
        takes_rows: the sink takes typed rows.
    """
    made: QueryLineage | None = None
    shape, delivered = None, schema
    if query is not None:
        from changefeed.query.lineage import QueryLineage  # loads sqlglot

        made = QueryLineage(query, schema)
        delivered, shape = _result(schema, made)
    plan = table_messages(options, progress, delivered, query=shape)
    # A hidden key column stands in the message key alone, as it is in the table.
    derived = made.columns if made is not None else ()
    for part, column, ordinal, before in _row(plan) if takes_rows else _message(plan):
        if ordinal is None:
            detail = _META.get(column.rpartition(".")[2].removeprefix("__crdb__"), "envelope")
            yield ColumnLineage(plan.topic, part, column, schema.table, "", "metadata", detail)
        elif ordinal < len(derived):
            for one in _of_query(derived[ordinal], schema.table):
                how = "before" if before and one.how == "copy" else one.how
                yield replace(one, target=plan.topic, part=part, column=column, how=how)
        else:
            name, how = delivered.columns[ordinal].name, "before" if before else "copy"
            yield ColumnLineage(plan.topic, part, column, schema.table, name, how)
    for condition in made.conditions if made is not None else ():
        for one in _of_query(condition, schema.table):
            yield replace(one, target=plan.topic)
    for i in delivered.key[: max(len(progress.values_from), len(progress.values_to))]:
        name = delivered.columns[i].name
        yield ColumnLineage(plan.topic, "row", "", schema.table, name, "filter", "VALUES")
    if progress.partition is not None:
        what = "messages" if plan.logical else f"PARTITION {progress.partition.name}"
        yield ColumnLineage(plan.topic, "row", "", schema.table, "", "filter", what)


def _result(schema: TableSchema, made: QueryLineage) -> tuple[TableSchema, QueryShape]:
    """The shape of a query's result, whose types nobody asks for."""
    columns = [Column(derived.name, "text", _TEXT) for derived in made.columns]
    copies: dict[str, int] = {}
    for i, derived in enumerate(made.columns):
        if derived.how == "copy" and not (derived.reads[0].before or derived.reads[0].lookup):
            copies.setdefault(derived.reads[0].column, i)
    key = list(made.key)
    for column in () if key else schema.key_columns:
        if column.name not in copies:
            copies[column.name] = len(columns)
            columns.append(column)
        key.append(copies[column.name])
    hidden = tuple(range(len(made.columns), len(columns)))
    whole_deletes = any(read.what or read.before for one in made.columns for read in one.reads)
    full = (whole_deletes or schema.before_image is BeforeImage.FULL) and not made.key
    images = BeforeImage.FULL if full else BeforeImage.KEY
    shown = replace(schema, columns=tuple(columns), key=tuple(key), before_image=images)
    return shown, QueryShape("", hidden, whole_deletes)


#: Part, column, position of the column that it comes from, and whether it is the one before.
_Member = tuple[str, str, int | None, bool]


def _row(plan: MessagePlan) -> Iterator[_Member]:
    for i in plan.columns:
        yield "row", plan.schema.columns[i].name, i, False


def _message(plan: MessagePlan) -> Iterator[_Member]:
    traits = TRAITS[plan.format]
    names = {i: column.name for i, column in enumerate(plan.schema.columns)}
    if traits.line:
        yield from _row(plan)
        return
    if not traits.row_alone:
        for i in plan.message_key:
            yield "key", names[i], i, False
    if plan.headers_ordinal is not None:
        yield "headers", "", plan.headers_ordinal, False
    if plan.content:
        yield "value", "", next(i for i, name in names.items() if name == "content"), False
        return
    _, text = example(plan).read
    if not text:
        return
    value = json.loads(text)
    if plan.schemas_enabled:
        value = value["payload"]
    if not _ROWS.keys() & value.keys():
        for i in plan.columns:
            yield "value", names[i], i, False
    for name, member in value.items():
        if name in _ROWS:
            before = _ROWS[name]
            for i in plan.before_columns if before else plan.columns:
                yield "value", f"{name}.{names[i]}", i, before
        elif name == "__crdb__":
            for inner in member:
                yield from _meta(plan, f"{name}.{inner}")
        elif _ROWS.keys() & value.keys() or name not in names.values():
            yield from _meta(plan, name)


def _meta(plan: MessagePlan, path: str) -> Iterator[_Member]:
    if path.rpartition(".")[2] == "key":
        for i in plan.message_key:
            yield "value", f"{path}.{plan.schema.columns[i].name}", i, False
    else:
        yield "value", path, None, False


def _of_query(derived: Derivation, table: TableName) -> Iterator[ColumnLineage]:
    """A column or a condition of a query, of a target that is not known here."""
    for read in derived.reads:
        how = "before" if read.before and derived.how == "copy" else derived.how
        how = "metadata" if read.what and how == "copy" else how
        detail = derived.text or read.what
        yield ColumnLineage("", "row", "", read.lookup or table, read.column, how, detail)
    if not derived.reads:
        yield ColumnLineage("", "row", "", table, "", derived.how, derived.text)
