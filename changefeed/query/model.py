"""A query that was checked against one version of its table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from changefeed.catalog.rows import Function
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.spark_sql import quoted
from changefeed.encoding.plan import QueryShape

if TYPE_CHECKING:
    import pyarrow as pa


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
class LookupField:
    """A column of a look-up: its type as Spark names it, and as Arrow has it."""

    name: str
    spark_type: str
    arrow: pa.DataType


@dataclass(frozen=True)
class LookupTable:
    """A look-up table that a query joins.

    Attributes:
        parts: its name in Spark.
        alias: its name in the query, and that of its column in a batch.
        keys: positions of columns of the feed's table, each with the look-up's column that is
            equal to it.
        key_types: the types of the look-up's columns among them, as Spark names them.
        left: changes without a row in it are kept.
        fields: the columns that the query reads.
    """

    parts: tuple[str, ...]
    alias: str
    keys: tuple[tuple[int, str], ...]
    key_types: tuple[str, ...]
    left: bool
    fields: tuple[LookupField, ...]

    @cached_property
    def arrow(self) -> pa.StructType:
        """The type of its column in a batch."""
        import pyarrow as pa  # a listing plans nothing and does without it

        return pa.struct([pa.field(field.name, field.arrow) for field in self.fields])

    @property
    def read(self) -> tuple[tuple[str, str], ...]:
        """Name and type of each of its columns that is read."""
        keys = {name: kind for (_, name), kind in zip(self.keys, self.key_types, strict=True)}
        return tuple((keys | {field.name: field.spark_type for field in self.fields}).items())

    @property
    def shown(self) -> str:
        """Its name in messages for users."""
        return ".".join(part if part.isidentifier() else quoted(part) for part in self.parts)


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
        row_sql: the same with a result for each row of the batch and the column ``__cf_keep``.
        inputs: columns of the table that ``sql`` reads.
        filtered: there is a WHERE.
        of_changes: the WHERE asks for more than the row (``event_op()``, ``cdc_prev``): it
            selects changes, not rows.
        tells_change: an expression of the SELECT asks for more than the row.
        uses_prev: ``cdc_prev`` is read.
        where_inputs: columns of the table that the WHERE reads.
        functions: Python functions that it calls.
        lookups: the tables that it joins, as far as it reads them.
        where_lookups: the WHERE reads one of them; an inner join is part of the WHERE.
        feed: the job that alone has this result, None where every feed with this text has it.
        window: nanoseconds of the windows that it groups changes by, None where each change is a
            row of its own. ``sql`` then evaluates whole windows, and ``row_sql`` is empty.
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
    lookups: tuple[LookupTable, ...] = ()
    where_lookups: bool = False
    feed: int | None = None
    window: int | None = None

    @cached_property
    def shape(self) -> QueryShape:
        """The properties of the query that concern the encoding of messages."""
        hidden = tuple(range(self.shown, len(self.outputs)))
        return QueryShape(self.text, hidden, self.tells_change, self.feed)

    @cached_property
    def of_change(self) -> frozenset[str]:
        """Which columns a batch needs that describe the change itself: its operation, its time."""
        from changefeed.query.written import OP, TIME  # a listing does without Arrow

        read = f"{self.sql} {self.row_sql}".lower()
        return frozenset(name for name in (OP, TIME) if name in read)

    @property
    def computed(self) -> tuple[int, ...]:
        """Positions of the outputs that are expressions."""
        return tuple(i for i, output in enumerate(self.outputs) if output.place is not None)

    @property
    def sees_leaving(self) -> bool:
        """Whether the row before a change satisfied the WHERE is known for every change.

        With a look-up it is not: the look-up may have been another one then.
        """
        return not self.where_lookups and set(self.where_inputs) <= set(self.source.before_ordinals)

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


def no_images(compiled: CompiledQuery) -> ChangefeedError:
    """The error of ``cdc_prev`` for a table that does not log its old rows."""
    table = compiled.source.table
    return ChangefeedError(
        Code.SOURCE_NOT_SET_UP,
        "cdc_prev needs the old values of all columns, and table "
        f"{table.schema}.{table.name} logs only its key",
        hint="make the source log whole old rows (PostgreSQL: ALTER TABLE "
        f"{table.schema}.{table.name} REPLICA IDENTITY FULL; MySQL: binlog_row_image = FULL), or "
        "row_images = 'store'. A feed that stopped goes on with ALTER CHANGEFEED .. RESCAN.",
    )
