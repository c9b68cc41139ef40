"""Rows of the change log as changes: typed columns of the table, then what happened and when.

================== ==================== ======================================================
column             type                 meaning
================== ==================== ======================================================
``_change_type``   string               ``insert``, ``update_preimage``, ``update_postimage``,
                                        ``delete``; ``truncate`` where it was asked for
``_commit_version``  string             the commit's timestamp, as resolved timestamps are written:
                                        texts compare in commit order
``_commit_timestamp``  timestamp (UTC)  the same moment, cut to microseconds
================== ==================== ======================================================

A transaction shows what it did to each key as a whole: one change per key, however often it wrote
it. A row that a scan read is an ``insert`` at the instant of the scan. ``update_preimage`` exists
where the source sends whole old rows (``REPLICA IDENTITY FULL``); elsewhere a ``delete`` has the
key columns alone. A large value that the source did not send and that is no longer known has the
placeholder of :mod:`changefeed.encoding.unsent`. No Python code runs per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import LOGICAL_DIGITS, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, Column, TableSchema
from changefeed.core.types import INTEGERS, Kind, LogicalType
from changefeed.encoding.arrow_schema import arrow_type
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_values import (
    not_numbers,
    printed,
    single_floats,
    typed_values,
    without_times,
)
from changefeed.encoding.unsent import settle_unsent

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
INSERT, PREIMAGE, POSTIMAGE, DELETE, TRUNCATE = (
    "insert",
    "update_preimage",
    "update_postimage",
    "delete",
    "truncate",
)

_COMMIT_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.string(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
)
_TYPES = pa.array([INSERT, PREIMAGE, POSTIMAGE, DELETE])


def change_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of the changes of one version of a table.

    Every column may be NULL, also one that is NOT NULL at the source: a delete has the key alone.

    Raises:
        ChangefeedError: CF1302, a column has the name of one that says what happened.
    """
    taken = {field.name.lower() for field in _COMMIT_FIELDS}
    for column in schema.columns:
        if column.name.lower() in taken:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"column {column.name} of {schema.table} has a name that readers use themselves",
                hint="name the other columns in the statement: FOR TABLE t (a, b).",
            )
    fields = [pa.field(c.name, _arrow(without_times(c.logical))) for c in schema.columns]
    return pa.schema([*fields, *_COMMIT_FIELDS])


def _arrow(of: LogicalType) -> pa.DataType:
    if of.element is not None:
        return pa.list_(_arrow(of.element))
    return pa.float32() if of.kind is Kind.FLOAT32 else arrow_type(of)


@dataclass(frozen=True)
class ChangeRows:
    """Makes changes of rows of the log, in the shape of one version of the table.

    Rows of other versions come in this shape, too: columns are matched by the source's number of
    the column, so a renamed column keeps its values. What a row's version does not have is NULL.

    Attributes:
        schema: the version whose shape the changes have.
    """

    schema: TableSchema

    @cached_property
    def arrow(self) -> pa.Schema:
        """See :func:`change_schema`."""
        return change_schema(self.schema)

    def of(self, rows: pa.Table, version: TableSchema) -> pa.RecordBatch:
        """The changes that rows of ``version.log_schema()`` stand for, in their order.

        Raises:
            ChangefeedError: CF4001, a value does not fit the type of its column.
        """
        rows = rows.combine_chunks()
        if not pc.all(rows["last"]).as_py():
            # One change per key: the row that stays shows what the whole transaction did.
            rows = rows.filter(rows["last"])
        rows, _ = settle_unsent(rows, MessagePlan(schema=version, topic=version.table.name))
        order = _Order.of(rows, whole=version.before_image is BeforeImage.FULL)
        columns = [self._column(c, rows, version, order) for c in self.schema.columns]
        wall = order.repeated(_chunk(rows["wall"]))
        logical = order.repeated(_chunk(rows["logical"]))
        columns += [_TYPES.take(order.types), _versions(wall, logical), _moments(wall)]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def truncated(self, at: Timestamp) -> pa.RecordBatch:
        """One row that says that the table was emptied; the columns of the table are NULL."""
        wall, logical = pa.array([at.wall], pa.int64()), pa.array([at.logical], pa.int32())
        columns = [pa.nulls(1, field.type) for field in self.arrow][: -len(_COMMIT_FIELDS)]
        columns += [pa.array([TRUNCATE]), _versions(wall, logical), _moments(wall)]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _column(
        self, wanted: Column, rows: pa.Table, version: TableSchema, order: _Order
    ) -> pa.Array:
        target = _arrow(without_times(wanted.logical))
        index = index_of(wanted, version)
        if index is None:
            return pa.nulls(len(order.types), target)
        column = version.columns[index]
        after = _chunk(rows[f"a{index}"])
        before = None
        if order.uses_before:
            known = index in version.before_ordinals
            before = _chunk(rows[f"b{index}"]) if known else pa.nulls(len(after), after.type)
        values = order.images(after, before)
        return _fitted(values, column, wanted, target)


def index_of(column: Column, version: TableSchema) -> int | None:
    """Where another version of the table has a column; None where it has none."""
    for i, other in enumerate(version.columns):
        if column.column_id and other.column_id:
            if other.column_id == column.column_id:
                return i
        elif other.name == column.name:
            return i
    return None


@dataclass(frozen=True)
class _Order:
    """Which image of which row each change shows.

    Attributes:
        places: index into the rows' images after the change, those before it behind them; None
            where each row is one change with its image after.
        types: index into the names of the kinds of changes.
    """

    places: pa.Array | None
    types: pa.Array
    rows: int

    @classmethod
    def of(cls, rows: pa.Table, *, whole: bool) -> _Order:
        count = rows.num_rows
        op = rows["op"]
        updated = pc.equal(op, "u").combine_chunks().to_numpy(zero_copy_only=False)
        deleted = pc.equal(op, "d").combine_chunks().to_numpy(zero_copy_only=False)
        kinds = np.where(deleted, 3, np.where(updated, 2, 0)).astype(np.int64)
        if not deleted.any() and not (whole and updated.any()):
            return cls(None, pa.array(kinds), count)
        row = np.arange(count, dtype=np.int64)
        shown = np.where(deleted, row + count, row)
        if not whole:
            return cls(pa.array(shown), pa.array(kinds), count)
        doubled = 1 + updated.astype(np.int64)
        last = np.cumsum(doubled) - 1  # the place of each row's own change
        places = np.empty(int(doubled.sum()), dtype=np.int64)
        types = np.empty_like(places)
        places[last], types[last] = shown, kinds
        first = last[updated] - 1
        places[first], types[first] = row[updated] + count, 1
        return cls(pa.array(places), pa.array(types), count)

    @property
    def uses_before(self) -> bool:
        return self.places is not None

    def images(self, after: pa.Array, before: pa.Array | None) -> pa.Array:
        if self.places is None or before is None:
            return after
        return pa.concat_arrays([after, before]).take(self.places)

    def repeated(self, values: pa.Array) -> pa.Array:
        """A value of each row, repeated for each of its changes."""
        if self.places is None:
            return values
        return values.take(pc.subtract(self.places, pc.multiply(self._behind, self.rows)))

    @cached_property
    def _behind(self) -> pa.Array:
        return pc.greater_equal(self.places, self.rows).cast(pa.int64())


def _fitted(values: pa.Array, column: Column, wanted: Column, target: pa.DataType) -> pa.Array:
    of = without_times(column.logical)
    made = _text(of, values) if pa.types.is_string(target) else _typed(of, values, column)
    if made.type == target:
        return made
    try:
        return made.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {wanted.name} was a {column.type_name} once and does not fit the "
            f"type it has now, {wanted.type_name}",
        ) from cause


def _text(of: LogicalType, values: pa.Array) -> pa.Array:
    if not pa.types.is_string(values.type):
        return values.cast(pa.string())
    return printed(of, values)


def _typed(of: LogicalType, values: pa.Array, column: Column) -> pa.Array:
    if of.kind is Kind.BOOL or of.kind in INTEGERS:
        return values
    if of.kind is Kind.FLOAT32:
        return single_floats(values, column.name)
    if of.precision and not_numbers(values) is not None:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column.name} is NaN or infinite, which no decimal is",
        )
    return typed_values(of, values, column.name)


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else made.chunk(0)


def _versions(wall: pa.Array, logical: pa.Array) -> pa.Array:
    """Texts as ``1536242855577149065.0000000000``; see :class:`changefeed.core.clock.Timestamp`."""
    text = pc.utf8_lpad(logical.cast(pa.string()), LOGICAL_DIGITS, "0")
    return pc.binary_join_element_wise(wall.cast(pa.string()), text, ".")


def _moments(wall: pa.Array) -> pa.Array:
    return pc.divide(wall, 1_000).cast(pa.timestamp("us", tz="UTC"))
