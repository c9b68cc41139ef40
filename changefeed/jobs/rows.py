"""Rows of the log as a sink of :attr:`sinks.base.Accepts.ROWS` gets them: typed, not encoded.

The same rows as the messages of the feed would tell: those of its key range, with or without
deletes, and only the columns it names. All of it works on whole Arrow columns::

    log rows -> deletes, superseded, key range -> wanted columns, a0..an and b* numbered anew
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.schema import METADATA, Column, TableSchema
from changefeed.shapes import Deletes
from changefeed.spark.plan import MessagePlan
from changefeed.spark.scan import scan_rows

#: Beyond this many digits behind the point a numeric key has no exact order (as in Spark).
_SCALE = 18
_EXACT = pa.decimal128(38, _SCALE)
_DECIMAL = r"^(?P<whole>-?\d{1,20})(?:\.(?P<part>\d+))?$"

_AS_TEXT = frozenset({"text", "uuid", "date", "time", "timestamp"})


@dataclass(frozen=True)
class RowPlan:
    """What a typed-row sink sees of one version of a table. Pickles into executors.

    Attributes:
        plan: what the feed asks for; what concerns the writing of messages is not looked at.
    """

    plan: MessagePlan

    @cached_property
    def schema(self) -> TableSchema:
        """The table with the wanted columns alone, keys numbered anew.

        The table's own schema, version and all, where every column is wanted.
        """
        whole, wanted = self.plan.schema, self.plan.columns
        if len(wanted) == len(whole.columns):
            return whole
        place = {old: new for new, old in enumerate(wanted)}
        return replace(
            whole,
            columns=tuple(whole.columns[i] for i in wanted),
            key=tuple(place[i] for i in whole.key),
        )

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows of the log's ``table`` that the feed wants, in ``schema.log_schema()``.

        A row that a later one of its transaction supersedes is left out, unless a row of
        ``table`` has a value ``missing``, which the row before it may know.

        Raises:
            ChangefeedError: CF1302, the key range cannot be compared with this key.
        """
        mask = self._wanted(table)
        return self._projected(table if mask is None else table.filter(mask))

    def scanned(self, batch: pa.RecordBatch | pa.Table, at: Timestamp) -> pa.Table:
        """The same of rows that a scan read (``a0..an``) at ``at``."""
        return self.rows(scan_rows(self.plan.schema, batch, at))

    def _wanted(self, table: pa.Table) -> pa.ChunkedArray | None:
        """True for the rows that are wanted; None when all are."""
        plan = self.plan
        masks = []
        if plan.collapse and table["missing"].null_count == table.num_rows:
            masks.append(table["last"])
        is_delete = pc.equal(table["op"], "d")
        if plan.deletes is Deletes.NO:
            masks.append(pc.invert(is_delete))
        elif plan.deletes is Deletes.ONLY:
            masks.append(is_delete)
        if plan.key_from:
            masks.append(self._compared(table, is_delete, plan.key_from, at_least=True))
        if plan.key_to:
            masks.append(self._compared(table, is_delete, plan.key_to, at_least=False))
        if not masks:
            return None
        result = masks[0]
        for mask in masks[1:]:
            result = pc.and_kleene(result, mask)
        return result

    def _compared(
        self, table: pa.Table, is_delete: pa.ChunkedArray, bound: tuple[str, ...], *, at_least: bool
    ) -> pa.ChunkedArray:
        """``key >= bound`` or ``key < bound``, column by column from the last."""
        schema = self.plan.schema
        result = pa.scalar(at_least)
        for i, text in reversed(list(zip(schema.key, bound, strict=False))):
            value = table[f"a{i}"]
            if i in schema.before_ordinals:
                value = pc.if_else(is_delete, table[f"b{i}"], value)
            value = _ordered(schema.columns[i], value)
            limit = _ordered(schema.columns[i], pa.chunked_array([pa.array([text])]))[0]
            past = pc.greater(value, limit) if at_least else pc.less(value, limit)
            result = pc.or_kleene(past, pc.and_kleene(pc.equal(value, limit), result))
        return result

    def _projected(self, table: pa.Table) -> pa.Table:
        schema = self.schema
        if schema is self.plan.schema:
            return table
        wanted, target = self.plan.columns, schema.log_schema()
        names = [field.name for field in METADATA]
        names += [f"a{i}" for i in wanted]
        names += [f"b{wanted[i]}" for i in schema.before_ordinals]
        return pa.table([table[name] for name in names], schema=target)


def _ordered(column: Column, value: pa.ChunkedArray) -> pa.ChunkedArray:
    """The value as something that sorts as its type does. Texts sort by code point.

    The same orders as :func:`changefeed.spark.envelope.key_range`. What has no order (NaN)
    becomes NULL, which is in no range.
    """
    logical = column.logical
    if logical.startswith("int"):
        return value.cast(pa.int64())
    if logical == "bool":
        return value.cast(pa.bool_())
    if logical.startswith("decimal"):
        return _decimal(value)
    if logical == "timestamptz":
        return pc.utf8_rtrim(value, "Z")
    if logical in _AS_TEXT:
        return value
    raise ChangefeedError(
        "CF1302",
        f"VALUES FROM/TO is not supported on a key of type {column.type_name}",
        detail=f"column {column.name}",
    )


def _decimal(value: pa.ChunkedArray) -> pa.ChunkedArray:
    found = pc.extract_regex(value, _DECIMAL)
    whole, part = pc.struct_field(found, "whole"), pc.struct_field(found, "part")
    digits = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(part, ""), _SCALE, "0"), 0, _SCALE)
    return pc.binary_join_element_wise(whole, digits, ".").cast(_EXACT)
