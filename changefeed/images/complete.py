"""Completes changes of one table from the store of its images, and updates the store.

    rows of the log, as the source sent them
        the row before each  <- the previous change of its key, or the store
        values not sent      <- the row before (if the key changed: the row under the old key)
    -> rows of the log with whole rows before and after, and the last row of each key in the store

All work is done on whole batches: no Python runs per row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.images.packing import Mask, Places
from changefeed.images.runs import KeyBatch
from changefeed.images.store import ImageRows, ImageStore, pack_keys


def complete(
    store: ImageStore,
    schema: TableSchema,
    rows: pa.RecordBatch,
    *,
    in_part: Timestamp | None = None,
) -> pa.RecordBatch:
    """Complete rows of the log, which are in order. Afterwards the store has the table as of the
    last row.

    Args:
        schema: shape of the rows; the store has the same.
        in_part: the timestamp of a transaction whose earlier parts were completed before.

    Returns:
        The rows with every value. If the schema promises whole old rows, they have those, too.

    Raises:
        ChangefeedError: CF3005, the store lacks a row that changed. The store can no longer be
            used.
    """
    if not rows.num_rows:
        return rows
    work = _KeyedRows.of(store, schema, rows)
    images = store.find(work.keys)
    base = None
    if in_part is not None and (work.of_part(in_part) & work.last).any():
        base = store.find(work.keys, before_transaction=True)
    return _Completion(store, work, images, base, in_part).run()


def follow(store: ImageStore, schema: TableSchema, rows: pa.RecordBatch) -> None:
    """Apply to the store rows that are in the log already, however their transactions are divided.

    Raises:
        ChangefeedError: CF3005, as in :func:`complete`.
    """
    if rows.num_rows:
        work = _KeyedRows.of(store, schema, rows)
        _Completion(store, work, store.find(work.keys), None, None).follow()


@dataclass(frozen=True, slots=True)
class _KeyedRows:
    """Rows grouped by key.

    Attributes:
        keys: the distinct keys.
        code: for each row, the index of its key in ``keys``.
        previous: for each row, the previous row of the same key, -1 for none.
        first: for each row, the first row of the same key in its transaction.
        final: for each key, its last row.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    keys: KeyBatch
    code: Places
    previous: Places
    first: Places
    final: Places
    deleted: Mask
    created: Mask
    last: Mask
    wall: Places
    logical: Places
    seq: Places

    @classmethod
    def of(cls, store: ImageStore, schema: TableSchema, rows: pa.RecordBatch) -> _KeyedRows:
        count = rows.num_rows
        deleted, created = _is(rows["op"], "d"), _is(rows["op"], "c")
        wall, logical = rows["wall"].to_numpy(), rows["logical"].to_numpy()
        packed = pack_keys(store.key, [_key(rows, i, deleted) for i in schema.key])
        encoded = packed.dictionary_encode()
        code = encoded.indices.to_numpy().astype(np.int64)
        previous = np.full(count, -1, np.int64)
        first = np.arange(count)
        final = first
        if len(encoded.dictionary) < count:
            order = np.argsort(code, kind="stable")
            same = code[order[1:]] == code[order[:-1]]
            previous[order[1:][same]] = order[:-1][same]
            changed = (np.diff(wall) != 0) | (np.diff(logical) != 0)
            transaction = np.concatenate([[0], np.cumsum(changed)])
            together = same & (transaction[order[1:]] == transaction[order[:-1]])
            begin = np.concatenate([[True], ~together])
            group = np.cumsum(begin) - 1
            first = np.empty(count, np.int64)
            first[order] = order[begin][group]
            final = np.empty(len(encoded.dictionary), np.int64)
            final[code] = np.arange(count)  # the last of several writes to one index stays
        return cls(
            schema,
            rows,
            KeyBatch.of(encoded.dictionary),
            code,
            previous,
            first,
            final,
            deleted,
            created,
            np.asarray(rows["last"]).astype(np.bool_),
            wall,
            logical,
            rows["seq"].to_numpy(),
        )

    def of_part(self, at: Timestamp) -> Mask:
        mine: Mask = (self.wall == at.wall) & (self.logical == at.logical)
        return mine


class _Completion:
    """Completes one batch. A *place* is an index into the pool: the images of the store, then the
    images from before a transaction whose earlier parts were completed, then the rows after the
    changes of this batch."""

    def __init__(
        self,
        store: ImageStore,
        work: _KeyedRows,
        images: ImageRows,
        base: ImageRows | None,
        in_part: Timestamp | None,
    ) -> None:
        self._store = store
        self._work = work
        self._in_part = in_part
        self._images = images
        self._base = base
        #: How many rows of the pool come from the store.
        self._known = len(images.columns[0]) + (len(base.columns[0]) if base else 0)
        #: For each change, the place of the row before it, -1 if there was none.
        self._prior = self._prior_rows()

    def run(self) -> pa.RecordBatch:
        """Complete the rows, and apply them to the store."""
        rows, schema = self._work.rows, self._work.schema
        before = self._before_rows()
        after = self._after_rows()
        columns = {name: rows[name] for name in rows.schema.names}
        columns |= {f"a{i}": column for i, column in enumerate(after)}
        columns["missing"] = pa.nulls(rows.num_rows, pa.string())
        if schema.before_image is BeforeImage.FULL:
            at = pa.array(before, mask=before < 0)
            columns |= {f"b{i}": self._pool(i, own).take(at) for i, own in enumerate(after)}
        self._put(after)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)

    def follow(self) -> None:
        self._put(self._after_rows())

    def _put(self, after: Sequence[pa.Array]) -> None:
        work = self._work
        final = pa.array(work.final)
        self._store.put(
            work.keys,
            after if _all_rows(work) else [column.take(final) for column in after],
            pa.array(~work.deleted[work.final]),
        )

    def _after_rows(self) -> list[pa.Array]:
        rows, schema = self._work.rows, self._work.schema
        after = [rows[f"a{i}"] for i in range(len(schema.columns))]
        missing = rows["missing"]
        if missing.null_count < len(missing):
            holes = _holes(schema, missing)
            source = self._sources(holes)
            for i, hole in holes.items():
                after[i] = self._filled(i, after[i], hole, source)
        return after

    def _prior_rows(self) -> Places:
        """The place of the row just before each change, even inside a transaction."""
        work, own = self._work, self._work.previous
        prior: Places = np.where(own >= 0, own + self._known, self._images.at[work.code])
        gone = own >= 0
        gone[gone] = work.deleted[own[gone]]
        prior[gone] = -1
        return prior

    def _before_rows(self) -> Places:
        """The places of the rows before, as the log has them. For the last of several changes of a
        key in a transaction, this is the row before the transaction. -1 for a new row."""
        work = self._work
        before = self._prior.copy()
        if not _all_rows(work):
            before[work.last] = self._prior[work.first[work.last]]
        if self._base is not None and self._in_part is not None:
            mine = work.of_part(self._in_part) & work.last
            at = self._base.at[work.code[mine]]
            before[mine] = np.where(at >= 0, at + len(self._images.columns[0]), -1)
        before[work.created] = -1
        lost = (before < 0) & ~work.created
        if lost.any():
            raise ChangefeedError(
                Code.ROW_IMAGES_LOST,
                f"the row images of {work.schema.table} lack a row that changed",
                detail=f"change {int(work.seq[np.argmax(lost)])} of the change log",
            )
        return before

    def _moved(self) -> Mask:
        """Rows that got their key by a change of the key. The log has such a change as a delete of
        the old key, directly followed by this row, whose key no row had before."""
        work = self._work
        moved = np.zeros(len(work.seq), np.bool_)
        moved[1:] = work.deleted[:-1] & (np.diff(work.seq) == 1)
        moved &= ~work.deleted & (self._prior < 0)
        return moved

    def _sources(self, holes: dict[int, Mask]) -> Places:
        work = self._work
        source = self._prior.copy()
        wanted = np.logical_or.reduce(list(holes.values()))
        moved = np.flatnonzero(wanted & self._moved())
        source[moved] = self._prior[moved - 1]
        if (source[wanted] < 0).any():
            raise ChangefeedError(
                Code.ROW_IMAGES_LOST,
                f"the row images of {work.schema.table} lack a row of which a change tells only "
                "a part",
            )
        return source

    def _filled(self, i: int, own: pa.Array, hole: Mask, source: Places) -> pa.Array:
        """A column after the changes. Each value that was not sent is taken from the nearest
        earlier row that has it."""
        at = source[hole]
        while True:
            inside = at >= self._known
            if not inside.any():
                break
            again = np.zeros(len(at), np.bool_)
            again[inside] = hole[at[inside] - self._known]
            if not again.any():
                break
            at = np.where(again, source[np.where(again, at - self._known, 0)], at)
        values = self._pool(i, own).take(pa.array(at))
        return pc.replace_with_mask(own, pa.array(hole), values)

    def _pool(self, i: int, own: pa.Array) -> pa.Array:
        parts = [self._images.columns[i]]
        if self._base is not None:
            parts.append(self._base.columns[i])
        return pa.concat_arrays([*parts, own])


def _all_rows(work: _KeyedRows) -> bool:
    return len(work.final) == len(work.code)


def _holes(schema: TableSchema, missing: pa.Array) -> dict[int, Mask]:
    encoded = missing.dictionary_encode()
    named = [frozenset(json.loads(text)) for text in encoded.dictionary.to_pylist()]
    of = encoded.indices.fill_null(-1).to_numpy()
    holes = {}
    for i, column in enumerate(schema.columns):
        hits = np.array([*(column.name in names for names in named), False])
        if hits.any():
            holes[i] = hits[of]
    return holes


def _is(op: pa.Array, letter: str) -> Mask:
    same: Mask = np.asarray(pc.equal(op, letter)).astype(np.bool_)
    return same


def _key(rows: pa.RecordBatch, i: int, deleted: Mask) -> pa.Array:
    """A key column of each row; a delete has it in the row before."""
    if not deleted.any():
        return rows[f"a{i}"]
    return pc.if_else(pa.array(deleted), rows[f"b{i}"], rows[f"a{i}"])
