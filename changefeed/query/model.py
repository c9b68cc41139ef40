"""A query that was checked against one version of its table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from changefeed.catalog.rows import Function
from changefeed.core.schema import TableSchema
from changefeed.encoding.plan import QueryShape


@dataclass(frozen=True)
class Output:
    """One column of a query's result: a column of the table as it is, or an expression.

    Attributes:
        ordinal: position in the table's schema, None of an expression.
        place: number of the column ``c<place>`` of the evaluated batch, None of a plain column.
        spark_type: the type as Spark names it.
    """

    ordinal: int | None
    place: int | None
    spark_type: str


@dataclass(frozen=True)
class CompiledQuery:
    """A query over one version of its table.

    Attributes:
        text: canonical SQL of the query.
        source: the table's shape.
        schema: the result's shape: the columns of the SELECT, then the key columns that it
            leaves out. Its key is the table's key.
        outputs: one for each column of ``schema``.
        shown: how many of them the SELECT has; those behind are key columns for the message key.
        sql: evaluates a batch, with a placeholder for its name; None where nothing is computed.
        row_sql: the same with a row for each row of the batch, ``__cf_keep`` among its columns.
        inputs: columns of the table that ``sql`` reads.
        filtered: there is a WHERE.
        of_changes: the WHERE asks for more than the row (``event_op()``, ``cdc_prev``): it
            selects changes, not rows.
        tells_change: an expression of the SELECT does.
        uses_prev: ``cdc_prev`` is read.
        where_inputs: columns of the table that the WHERE reads.
        functions: Python functions that it calls.
    """

    text: str
    source: TableSchema
    schema: TableSchema
    outputs: tuple[Output, ...]
    shown: int
    sql: str | None
    row_sql: str
    inputs: tuple[int, ...]
    filtered: bool
    of_changes: bool
    tells_change: bool
    uses_prev: bool
    where_inputs: tuple[int, ...]
    functions: tuple[Function, ...] = ()

    @cached_property
    def shape(self) -> QueryShape:
        """What the encoding of messages must know of the query."""
        hidden = tuple(range(self.shown, len(self.outputs)))
        return QueryShape(self.text, hidden, self.tells_change)

    @property
    def computed(self) -> tuple[int, ...]:
        """Positions of the outputs that are expressions."""
        return tuple(i for i, output in enumerate(self.outputs) if output.place is not None)

    @property
    def sees_leaving(self) -> bool:
        """Whether the row before a change satisfied the WHERE is known for every change."""
        return set(self.where_inputs) <= set(self.source.before_ordinals)

    @property
    def hides_key(self) -> tuple[str, ...]:
        """Key columns that the SELECT leaves out."""
        return tuple(column.name for column in self.schema.columns[self.shown :])

    def types(self) -> tuple[tuple[str, str], ...]:
        """Name and Spark type of each column of the SELECT."""
        columns = self.schema.columns[: self.shown]
        return tuple(
            (column.name, output.spark_type)
            for column, output in zip(columns, self.outputs, strict=False)
        )
