"""Values as structs of typed columns: the rows of Parquet files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.arrow_schema import arrow_type
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import joined
from changefeed.encoding.message_format import MessageFormat
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.record_shape import Leaf, LeafOrigin, value_shape
from changefeed.encoding.typed_values import not_numbers, typed_values


class ParquetFormat(MessageFormat):
    """``format = 'parquet'``."""

    def values(self, rows: TokenRows) -> pa.Array:
        return parquet_values(rows)

    def value_field(self, plan: MessagePlan) -> pa.Field:
        return pa.field("value", pa.struct(parquet_fields(plan)))


def parquet_fields(plan: MessagePlan) -> list[pa.Field]:
    """The columns of a plan's Parquet files."""
    return [pa.field(name, arrow_type(leaf.type)) for name, leaf in _leaves(plan)]


def _leaves(plan: MessagePlan) -> list[tuple[str, Leaf]]:
    shape = value_shape(plan)
    members = () if shape is None else shape.members
    return [(name, member) for name, member in members if isinstance(member, Leaf)]


def parquet_values(rows: TokenRows) -> pa.Array:
    """One struct per message; its fields are those of :func:`parquet_fields`.

    Raises:
        ChangefeedError: CF4001, a value does not fit its column.
    """
    columns = [_column(rows, leaf) for _, leaf in _leaves(rows.plan)]
    return pa.StructArray.from_arrays(columns, fields=parquet_fields(rows.plan))


def _column(rows: TokenRows, leaf: Leaf) -> pa.Array:
    wanted = arrow_type(leaf.type)

    def side_of(side: str) -> pa.Array:
        if leaf.origin is not LeafOrigin.COLUMN:
            return _other(rows, leaf, side)
        i = leaf.ordinal
        # Of a deleted row only the key is certain.
        sure = rows.plan.whole_deletes or i in rows.plan.schema.key
        if side == "b" and (i not in rows.known or not sure):
            return pa.nulls(rows.count, wanted)
        return _typed(rows, leaf, f"{side}{i}").cast(wanted)

    return rows.choose(side_of)


def _typed(rows: TokenRows, leaf: Leaf, name: str) -> pa.Array:
    column = rows.plan.schema.columns[leaf.ordinal].name
    values = rows.column(name)
    if leaf.type.precision and not_numbers(values) is not None:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"column {column} holds NaN, which a decimal of Parquet cannot be",
        )
    return typed_values(leaf.type, values, column)


def _other(rows: TokenRows, leaf: Leaf, side: str) -> pa.Array:
    if leaf.origin is LeafOrigin.OP:
        if side == "b":
            return pa.repeat(pa.scalar("d"), rows.count)
        return rows.operation
    if leaf.origin is LeafOrigin.STAMP:
        return joined(rows.commit_time, rows.count)
    image = joined(rows.before(side), rows.count)
    return pc.if_else(pc.equal(image, "null"), None, image)
