"""Rows that took over the key of a deleted one, where the delete is not delivered.

A changed key is a delete of the old key and an insert of the new one, and the insert lacks what the
source did not send. A target that is not sent the delete of the row that had the key before would
keep that row's value. The value at the new key is unknown, so it is NULL, as in a target that gets
deletes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.select import key_values


def end_unsent(table: pa.Table, plan: MessagePlan) -> pa.Table:
    """Rows of the log, with deletes and superseded rows, in which a value counts as unsent only if
    an earlier row of its key can have it; other unsent values are sent as NULL."""
    lacking = table["missing"]
    if lacking.null_count == table.num_rows:
        return table
    deleted = pc.equal(table["op"], "d")
    before = _before(table, key_values(table, plan))
    # The first change of its transaction to the key: an insert that lacks values can only be the
    # second half of an update, whose delete is the row before. Any other goes on from an insert
    # of its transaction, which an earlier chunk has.
    moved = pc.and_(pc.equal(table["op"], "c"), _follows_its_delete(table, deleted))
    unknown = pc.if_else(pc.is_null(before), moved, deleted.take(before))
    place = table.schema.get_field_index("missing")
    return table.set_column(place, "missing", pc.if_else(unknown, None, lacking))


def _before(table: pa.Table, keys: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """For each row the number of the preceding row with its key and transaction; NULL if none."""
    numbers = _numbers(table.num_rows)
    names = [f"k{i}" for i in range(len(keys))]
    sorted_by = [*names, "wall", "logical"]
    columns = [*keys, table["wall"], table["logical"], pa.chunked_array([numbers])]
    rows = pa.table(columns, names=[*sorted_by, "n"])
    order = pc.sort_indices(rows, [(name, "ascending") for name in (*sorted_by, "n")])
    rows = rows.take(order)
    same = pa.chunked_array([pa.array([True] * (table.num_rows - 1), pa.bool_())])
    for name in sorted_by:
        values = rows[name]
        same = pc.and_(same, pc.equal(values.slice(1), values.slice(0, table.num_rows - 1)))
    earlier = pc.if_else(same, rows["n"].slice(0, table.num_rows - 1), None)
    first = pa.nulls(1, pa.int64())
    found = pa.chunked_array([first, *earlier.chunks], pa.int64())
    return found.take(pc.sort_indices(rows["n"]))


def _follows_its_delete(table: pa.Table, deleted: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether the preceding row is a delete, and directly precedes it in the transaction."""
    count = table.num_rows - 1
    follows = pc.equal(table["ord"].slice(1), pc.add(table["ord"].slice(0, count), 1))
    follows = pc.and_(follows, deleted.slice(0, count))
    return pa.chunked_array([pa.array([False]), *follows.chunks], pa.bool_())


def _numbers(count: int) -> pa.Array:
    import numpy as np

    return pa.array(np.arange(count, dtype=np.int64))
