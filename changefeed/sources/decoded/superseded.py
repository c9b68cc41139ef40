"""Several writes of one key in one transaction: one change, from the row before the transaction.

A reader at a commit timestamp must see one row per key. Every row stays in the log, and all but the
last one of a key in a transaction are marked ``last = false``. The last one says what the
transaction did: its image before is that of the *first* write, and it is an insert or an update by
whether the key existed before. A key that the transaction made and deleted again has no change at
all: none of its rows is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.decoded.spans import Mask, Places

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CollapsedRows:
    """Rows of one table with their place among the writes of their key.

    Attributes:
        op: what each row did; of a row that stays, what its transaction did to the key.
        stays: which rows are the change of their transaction (None: all).
        before: the images before, by ``schema.before_ordinals``; of a row that stays, the row
            before its transaction.
    """

    op: Operations
    stays: Mask | None
    before: list[pa.Array]

    def last_column(self) -> pa.Array:
        """The ``last`` column of the log."""
        return pa.array(np.ones(len(self.op), np.bool_) if self.stays is None else self.stays)


def collapse(schema: TableSchema, rows: DecodedRows, transaction: Places) -> CollapsedRows:
    """Find the writes of one key in one transaction among the rows of one table.

    Args:
        transaction: for each row, the number of its transaction (rising). All rows of a
            transaction are here.

    Rows of a table without a key never supersede each other: equal rows are two rows.
    """
    codes = None if schema.keyless else same_key_codes(rows.key, transaction)
    if codes is None:
        return CollapsedRows(rows.op, None, rows.before)
    positions = np.arange(len(rows))
    groups = int(codes.max()) + 1
    final = np.empty(groups, np.intp)
    final[codes] = positions  # of several writes to one place the last one stays
    first = np.empty(groups, np.intp)
    first[codes[::-1]] = positions[::-1]
    stays: Mask = final[codes] == positions
    existed: Mask = (rows.op[first] != CREATED)[codes]
    stays &= existed | (rows.op != DELETED)
    origin = pa.array(np.where(stays, first[codes], positions))
    return CollapsedRows(
        op=transaction_op(rows.op, stays, existed),
        stays=stays,
        before=[column.take(origin) for column in rows.before],
    )


def transaction_op(op: Operations, stays: Mask, existed: Mask) -> Operations:
    """What the transaction of each row that ``stays`` did to its key; others keep their own."""
    written = stays & (op != DELETED)
    of_transaction = np.where(existed, np.uint8(UPDATED), np.uint8(CREATED))
    changed: Operations = np.where(written, of_transaction, op).astype(np.uint8)
    return changed


def _any_twice(transaction: Places) -> bool:
    return bool((transaction[1:] == transaction[:-1]).any())


def same_key_codes(key: list[pa.Array], transaction: Places) -> Codes | None:
    """Numbers that are equal for rows of one key in one transaction; None when all differ."""
    if not _any_twice(transaction):
        return None
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
