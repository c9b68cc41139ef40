"""Values that the source did not send: what earlier rows of a transaction have of them, and the
column of the log that names them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, DecodedRows
from changefeed.sources.decoded.spans import Mask, Places
from changefeed.sources.decoded.superseded import same_key_codes


def missing_column(schema: TableSchema, unsent: Mapping[int, Mask], count: int) -> pa.Array:
    """The column ``missing`` of the log: for each row the names of its unsent columns."""
    columns = sorted(column for column, where in unsent.items() if where.any())
    if not columns:
        return pa.nulls(count, pa.string())
    pattern: npt.NDArray[np.intp] = np.zeros(count, np.intp)
    texts: list[str | None] = [None]
    for column in columns:
        # Rows with the same columns so far share a number; each column may split it in two.
        distinct, pattern = np.unique(2 * pattern + unsent[column], return_inverse=True)
        name = schema.columns[column].name
        texts = [
            json.dumps([*json.loads(texts[old // 2] or "[]"), name]) if old % 2 else texts[old // 2]
            for old in distinct.tolist()
        ]
    return pa.array(texts, pa.string()).take(pa.array(pattern))


def fill_from_transaction(
    schema: TableSchema, rows: DecodedRows, transaction: Places
) -> DecodedRows:
    """The rows with the unsent values that earlier rows of their transaction have: those of the
    same key, or, where an update changed the key, of the key before.

    Args:
        transaction: for each row, the number of its transaction (rising). All rows of a
            transaction are here.
    """
    codes = None
    if rows.unchanged and not schema.keyless:
        codes = same_key_codes(rows.key, transaction)
    if codes is None:
        return rows
    source = _sources(rows, codes)
    after, unchanged = list(rows.after), dict(rows.unchanged)
    for column, unsent in rows.unchanged.items():
        at = np.where(unsent, source, -1)
        while True:
            further = np.zeros(len(at), np.bool_)
            further[at >= 0] = unsent[at[at >= 0]]
            if not further.any():
                break
            at[further] = source[at[further]]
        known = at >= 0
        if known.any():
            values = after[column].take(pa.array(np.where(known, at, 0)))
            after[column] = pc.if_else(pa.array(known), values, after[column])
            unchanged[column] = unsent & ~known
    return replace(rows, after=after, unchanged=unchanged)


def _sources(rows: DecodedRows, codes: npt.NDArray[np.int64]) -> Places:
    """For each row, the row before it of the same transaction and the same row of the table; -1:
    none, or it was deleted."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    previous: Places = np.full(len(codes), -1, np.intp)
    previous[order[1:][same]] = order[:-1][same]
    # A message of updates has a delete before an insert only where an update changed the key.
    moved = np.zeros(len(codes), np.bool_)
    moved[1:] = (rows.message[1:] == rows.message[:-1]) & (rows.op[1:] == CREATED)
    moved[1:] &= rows.op[:-1] == DELETED
    at = np.flatnonzero(moved)
    source = previous.copy()
    source[at] = previous[at - 1]
    gone = source >= 0
    gone[gone] = rows.op[source[gone]] == DELETED
    source[gone] = -1
    return source
