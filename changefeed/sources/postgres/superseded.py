"""Several writes of one key in one transaction: which row stays, and its image before.

A reader at a commit timestamp must see one row a key. Every row stays in the log; all but the
last of a key in a transaction are marked ``last = false``, and the last one gets as before
image what the *first* one had: the row as it was before the transaction.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import TableSchema
from changefeed.sources.postgres.columns import DELETED, Decoded
from changefeed.sources.postgres.values import Mask, Places

Codes = npt.NDArray[np.int64]


def mark_superseded(
    schema: TableSchema, rows: Decoded, transaction: Places
) -> tuple[Mask | None, list[pa.Array]]:
    """Mark the rows of one table.

    Args:
        transaction: for each row, the number of its transaction (rising).

    Returns:
        Which rows stay (None: all) and the before images, changed where that was needed.
        Rows of a table without a key never supersede each other: equal rows are two rows.
    """
    if schema.keyless or not _any_twice(transaction):
        return None, rows.before
    codes = _codes(rows.key, transaction)
    if codes is None:
        return None, rows.before
    positions = np.arange(len(rows))
    groups = int(codes.max()) + 1
    final = np.empty(groups, np.intp)
    final[codes] = positions  # of several writes to one place the last one stays
    first = np.empty(groups, np.intp)
    first[codes[::-1]] = positions[::-1]
    stays: Mask = final[codes] == positions
    origin = np.where(stays, first[codes], positions)
    return stays, _before(schema, rows, origin)


def _any_twice(transaction: Places) -> bool:
    return bool((transaction[1:] == transaction[:-1]).any())


def _codes(key: list[pa.Array], transaction: Places) -> Codes | None:
    """Numbers that are equal for rows of one key in one transaction; None when all differ."""
    columns = [_sortable(column) for column in key]
    if len(columns) == 1 and _all_differ(np.sort(columns[0])):
        return None  # the usual case, and a plain sort is several times cheaper than an order
    order = np.lexsort(columns)  # stable: within a key rows stay in log order
    same = transaction[order[1:]] == transaction[order[:-1]]
    for column in columns:
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    if not same.any():
        return None
    codes = np.zeros(len(order), np.int64)
    codes[order[1:]] = np.cumsum(~same)
    return codes


def _sortable(column: pa.Array) -> Codes:
    """Integers as they are, anything else (and nulls) as numbers of distinct values."""
    if pa.types.is_integer(column.type) and not column.null_count:
        values: Codes = column.to_numpy(zero_copy_only=False)
        return values
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    codes: Codes = encoded.indices.to_numpy(zero_copy_only=False)
    return codes


def _all_differ(ordered: Codes) -> bool:
    return bool((ordered[1:] != ordered[:-1]).all())


def _before(schema: TableSchema, rows: Decoded, origin: Places) -> list[pa.Array]:
    """Before images from the first row of the key. A delete keeps its key there in any case:
    it has no other place for it."""
    indices = pa.array(origin)
    images = [column.take(indices) for column in rows.before]
    deleted = rows.op == DELETED
    if deleted.any():
        for place, ordinal in enumerate(schema.before_ordinals):
            if ordinal in schema.key:
                own = rows.key[schema.key.index(ordinal)]
                images[place] = pc.if_else(pa.array(deleted), own, images[place])
    return images


def last_column(stays: Mask | None, count: int) -> pa.Array:
    """The ``last`` column of the log."""
    return pa.array(np.ones(count, np.bool_) if stays is None else stays)
