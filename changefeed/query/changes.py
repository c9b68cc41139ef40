"""Changes of a table -> changes of the result of a query over it.

A WHERE over the row keeps the target equal to the query's result. It is evaluated on the row
after a change and, where the log has it, on the row before:

=========  =========  =====================================================
before     after      becomes
=========  =========  =====================================================
satisfies  satisfies  the change
does not   satisfies  an insert: the row enters the result
satisfies  does not   a delete: the row leaves the result
does not   does not   nothing
not known  satisfies  the change
not known  does not   a delete, in case the row was in the result
=========  =========  =====================================================

Where the WHERE reads a look-up table, the row before is not known: another version of the look-up
may have decided on it.

A WHERE that asks for more than the row (``event_op()``, ``cdc_prev``) selects changes: each is
delivered or not, and nothing is deleted for leaving.

An *image* is a row that Spark evaluates: a row after a change, before one, or the known part of a
deleted row (its key). All images of a batch are evaluated at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.arrow import METADATA
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, Column
from changefeed.query.compile import batch_fields, prev_type
from changefeed.query.model import CompiledQuery
from changefeed.query.types import input_values, log_text
from changefeed.query.written import KEEP, OP, ROW, TIME

#: A compiled query and a batch -> rows of its result; see :meth:`.evaluate.Evaluator.run`.
Evaluation = Callable[[CompiledQuery, pa.Table], pa.Table]

_NOWHERE = -1
#: Operations of the log as numbers, and the words of ``event_op()`` for them.
_OPS = ("c", "r", "u", "d")
_INSERT, _READ, _UPDATE, _DELETE = range(4)
_EVENTS = ("insert", "insert", "update", "delete")


def changes_of_result(
    query: CompiledQuery,
    rows: pa.Table,
    run: Evaluation,
    *,
    before: bool = False,
    superseded: bool = False,
) -> pa.Table:
    """Rows of the table's log as rows of the log of the query's result, in their order.

    Args:
        query: compiled for the schema of ``rows``.
        rows: superseded changes of a transaction are left out already, unless ``superseded``.
        run: evaluates images.
        before: the messages show the row before a change.
        superseded: the receiver of the result also gets superseded changes, which may be of
            these rows or of others of the transaction.

    Raises:
        ChangefeedError: CF4001 a value is missing or does not fit, or what ``run`` raises.
    """
    return _Changes(query, rows, run, before, superseded).made()


def change_images(query: CompiledQuery, rows: pa.Table) -> tuple[pa.Table, pa.Array]:
    """An image for each change of a query that selects changes, and the row that each is of.

    Raises:
        ChangefeedError: CF4001 a value that the query reads is missing or does not fit.
    """
    return _Changes(query, rows, None, False).images()


@dataclass(frozen=True)
class _Images:
    """The images of one kind in the batch: ``rows`` of the log, from place ``start`` on."""

    rows: np.ndarray
    start: int

    def places(self, count: int) -> np.ndarray:
        found = np.full(count, _NOWHERE, np.int64)
        found[self.rows] = self.start + np.arange(len(self.rows))
        return found


def _read_columns(query: CompiledQuery, rows: pa.Table) -> list[str]:
    columns = range(len(query.source.columns)) if query.uses_prev else query.inputs
    read = {*columns, *query.source.key}
    read.update(output.ordinal for output in query.outputs if output.ordinal is not None)
    wanted = {f"{side}{i}" for i in read for side in "ab"}.union(f.name for f in METADATA)
    return [name for name in rows.column_names if name in wanted]


class _Changes:
    def __init__(
        self,
        query: CompiledQuery,
        rows: pa.Table,
        run: Evaluation | None,
        before: bool,
        superseded: bool = False,
    ) -> None:
        self._query = query
        self._rows = rows.select(_read_columns(query, rows)).combine_chunks()
        self._run = run
        self._superseded = superseded
        self._count = rows.num_rows
        self._op = _numbers(pc.index_in(rows["op"], pa.array(_OPS)))
        self._deletes = self._op == _DELETE
        self._existed = (self._op == _UPDATE) | self._deletes
        #: Images with the row before the change, by the query's WHERE.
        self._compares = query.filtered and not query.of_changes and query.sees_leaving
        full = query.source.before_image is BeforeImage.FULL
        self._shows_before = before and full and not query.tells_change and bool(query.computed)

    # -- images -----------------------------------------------------------------------------

    @cached_property
    def _after(self) -> np.ndarray:
        return np.flatnonzero(~self._deletes)

    @cached_property
    def _before(self) -> np.ndarray:
        if self._query.of_changes or not (self._compares or self._shows_before):
            return np.empty(0, np.int64)
        return np.flatnonzero(self._existed & self._had_before)

    @cached_property
    def _deleted(self) -> np.ndarray:
        """Rows of the log for which a delete with values of its own may be sent."""
        if self._query.of_changes:
            return np.flatnonzero(self._deletes)
        if not self._query.tells_change:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._existed if self._query.filtered else self._deletes)

    @cached_property
    def _had_before(self) -> np.ndarray:
        known = np.zeros(self._count, bool)
        for i in self._query.source.key:
            if f"b{i}" in self._rows.column_names:
                known |= one_piece(pc.is_valid(self._rows[f"b{i}"])).to_numpy(zero_copy_only=False)
        return known

    def images(self) -> tuple[pa.Table, pa.Array]:
        """The batch, and the row of the log that each image belongs to."""
        rows = np.concatenate([self._after, self._before, self._deleted])
        return self._batch(), pa.array(rows)

    def _batch(self) -> pa.Table:
        """The order is: images after, before, deleted."""
        self._check_missing()
        query = self._query
        indices = [self._after, self._before, self._deleted]
        total = sum(len(each) for each in indices)
        fields = batch_fields(
            query.source, query.inputs, prev=query.uses_prev, of_change=query.of_change
        )
        columns: list[pa.Array] = []
        for i in query.inputs:
            column = query.source.columns[i]
            parts = [
                self._side(side, i, rows)
                for side, rows in zip("abk", indices, strict=True)
                if len(rows)
            ]
            parts = [part.cast(column.arrow) for part in parts] or [pa.nulls(0, column.arrow)]
            values = pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
            columns.append(input_values(column, values))
        if query.uses_prev:
            columns.append(self._previous())
        always = np.zeros(total, bool)
        if not query.of_changes:
            always[len(self._after) + len(self._before) :] = True
        columns += [pa.array(np.arange(total, dtype=np.int32)), pa.array(always)]
        if OP in query.of_change:
            columns.append(self._events(indices))
        if TIME in query.of_change:
            columns.append(self._times(np.concatenate(indices)))
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _side(self, side: str, i: int, rows: np.ndarray) -> pa.Array:
        """Values of a column after (a) or before (b) the changes ``rows``, or of deleted rows, of
        which only the key is known (k)."""
        if side == "k" and i not in self._query.source.key:
            return pa.nulls(len(rows), self._query.source.columns[i].arrow)
        if side == "k":
            before, after = self._column(f"b{i}"), self._column(f"a{i}")
            values = pc.coalesce(before, after)
        else:
            values = self._column(f"{side}{i}")
        return values if len(rows) == self._count else values.take(pa.array(rows))

    def _column(self, name: str) -> pa.Array:
        if name not in self._rows.column_names:
            column = self._query.source.columns[int(name[1:])]
            return pa.nulls(self._count, column.arrow)
        return one_piece(self._rows[name])

    def _previous(self) -> pa.Array:
        """``cdc_prev`` of each image; NULL where there was no row before, and in images of that
        row."""
        schema = self._query.source
        indices = np.concatenate([self._after, self._before, self._deleted])
        taken = pa.array(indices)
        children = [
            input_values(column, self._column(f"b{i}").take(taken))
            for i, column in enumerate(schema.columns)
        ]
        present = self._had_before[indices]
        here = len(self._after)
        present[here : here + len(self._before)] = False
        kind = prev_type(schema)
        cast = [child.cast(kind.field(i).type) for i, child in enumerate(children)]
        return pa.StructArray.from_arrays(cast, fields=list(kind), mask=pa.array(~present))

    def _events(self, indices: list[np.ndarray]) -> pa.Array:
        return pa.array(_EVENTS).take(pa.array(self._op[np.concatenate(indices)]))

    def _times(self, indices: np.ndarray) -> pa.Array:
        taken = pa.array(indices)
        wall = self._rows["wall"].take(taken).cast(pa.string())
        logical = pc.utf8_lpad(self._rows["logical"].take(taken).cast(pa.string()), 10, "0")
        text = pc.binary_join_element_wise(wall, logical, ".")
        return one_piece(text).cast(pa.decimal128(30, 10))

    def _check_missing(self) -> None:
        missing = self._rows["missing"]
        if missing.null_count == len(missing):
            return
        read = {self._query.source.columns[i].name for i in self._query.inputs}
        for text in pc.unique(missing).to_pylist():
            unsent = read & set(json.loads(text)) if text else set()
            if unsent:
                table = self._query.source.table
                raise ChangefeedError(
                    Code.VALUE_NOT_ENCODABLE,
                    f"the query reads {', '.join(sorted(unsent))} of {table}, and a change came "
                    "without that value",
                    detail="the source leaves out values that a change did not touch",
                    hint="make it send them (PostgreSQL: ALTER TABLE "
                    f"{table.schema}.{table.name} REPLICA IDENTITY FULL; MySQL: binlog_row_image = "
                    "FULL), or SET row_images = 'store'; then RESCAN the table.",
                )

    # -- the result -------------------------------------------------------------------------

    def made(self) -> pa.Table:
        query = self._query
        total = len(self._after) + len(self._before) + len(self._deleted)
        # Deletes alone may have no image: without the old row there is nothing to evaluate.
        if query.sql is None or not total or self._run is None:
            result = None
        else:
            result = self._run(query, self._batch())
        # Image -> its row in the result.
        place = np.full(total, _NOWHERE, np.int64)
        if result is None:
            place[:] = np.arange(total)
        else:
            numbers = _numbers(result[ROW])
            found = np.arange(len(numbers))
            if KEEP in result.column_names:
                found = np.flatnonzero(_numbers(result[KEEP]))
            place[numbers[found]] = found
        starts = np.cumsum([0, len(self._after), len(self._before)])
        after, before, deleted = (
            self._at(_Images(rows, int(start)), place)
            for rows, start in zip((self._after, self._before, self._deleted), starts, strict=True)
        )
        op, keep = self._outcome(after, before, deleted)
        if query.tells_change:
            gone = np.where(op == _DELETE, deleted, _NOWHERE)
        else:
            gone = before
        return self._table(op, keep, after, gone, result)

    def _at(self, images: _Images, place: np.ndarray) -> np.ndarray:
        """For each row of the log, the row of the result for its image; -1 if it has none."""
        places = images.places(self._count)
        return np.where(places >= 0, place[np.maximum(places, 0)] if len(place) else -1, _NOWHERE)

    def _outcome(
        self, after: np.ndarray, before: np.ndarray, deleted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The operation that each change becomes, and which changes are kept."""
        op = self._op.copy()
        query = self._query
        if query.of_changes:
            return op, np.where(self._deletes, deleted >= 0, after >= 0)
        if not query.filtered:
            return op, np.ones(self._count, bool)
        fits = after >= 0
        updates = op == _UPDATE
        if self._compares:
            # A row of which the image before is not known may have been there.
            fitted = (before >= 0) | (self._existed & ~self._had_before)
            op[updates & fits & ~fitted] = _INSERT
        else:
            fitted = self._existed
        op[updates & ~fits & fitted] = _DELETE
        if not self._superseded:
            return op, fits | fitted
        # The transaction made the row, and an earlier change of it may have fitted.
        undone = (op == _INSERT) & ~fits
        op[undone] = _DELETE
        return op, fits | fitted | undone

    def _table(
        self,
        op: np.ndarray,
        keep: np.ndarray,
        after: np.ndarray,
        before: np.ndarray,
        result: pa.Table | None,
    ) -> pa.Table:
        query = self._query
        kept = pa.array(np.flatnonzero(keep))
        rows = self._rows.take(kept)
        op, after, before = op[keep], after[keep], before[keep]
        deletes = op == _DELETE
        gone, fresh = pa.array(deletes), pa.array(op <= _READ)
        schema = query.schema.log_schema()
        made: dict[str, pa.Array] = {f.name: one_piece(rows[f.name]) for f in METADATA}
        made["op"] = pa.array(_OPS).take(pa.array(op))
        made["missing"] = self._missing(one_piece(rows["missing"]))
        known = set(query.schema.before_ordinals)
        for i, output in enumerate(query.outputs):
            column = query.schema.columns[i]
            if output.ordinal is None:
                values = None
                if result is not None:
                    values = log_text(column, one_piece(result[f"c{output.place}"]))
                made[f"a{i}"] = _taken(column, values, np.where(deletes, _NOWHERE, after))
                old = _taken(column, values, before) if i in known else None
            else:
                new = one_piece(rows[f"a{output.ordinal}"])
                made[f"a{i}"] = pc.if_else(gone, None, new)
                old = self._old(rows, output.ordinal) if i in known else None
                if old is not None and i in query.schema.key:
                    old = pc.if_else(gone, pc.coalesce(old, new), old)
            if old is not None:
                made[f"b{i}"] = pc.if_else(fresh, None, self._shown_before(i, old, gone))
        return pa.Table.from_arrays(
            [made[field.name].cast(field.type) for field in schema], schema=schema
        )

    def _old(self, rows: pa.Table, ordinal: int) -> pa.Array:
        name = f"b{ordinal}"
        if name in rows.column_names:
            return one_piece(rows[name])
        return pa.nulls(rows.num_rows, self._query.source.columns[ordinal].arrow)

    def _shown_before(self, i: int, old: pa.Array, gone: pa.Array) -> pa.Array:
        """In a delete with values of its own, plain columns are NULL except for the key."""
        query = self._query
        if not query.tells_change or i in query.schema.key:
            return old
        if query.outputs[i].ordinal is not None:
            return pc.if_else(gone, None, old)
        return old

    def _missing(self, missing: pa.Array) -> pa.Array:
        if missing.null_count == len(missing):
            return missing
        query = self._query
        names = {
            query.source.columns[o.ordinal].name: query.schema.columns[i].name
            for i, o in enumerate(query.outputs)
            if o.ordinal is not None
        }
        encoded = missing.dictionary_encode()
        renamed = []
        for text in encoded.dictionary.to_pylist():
            there = [names[name] for name in json.loads(text) if name in names]
            renamed.append(json.dumps(there) if there else None)
        return pa.array(renamed, pa.string()).take(encoded.indices)


def _taken(column: Column, values: pa.Array | None, places: np.ndarray) -> pa.Array:
    """Values at ``places`` of the result, in the log's form; NULL where negative."""
    if values is None:
        return pa.nulls(len(places), column.arrow)
    return values.take(pa.array(places, mask=places < 0)).cast(column.arrow)


def one_piece(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _numbers(values: pa.ChunkedArray) -> np.ndarray:
    numbers: np.ndarray = one_piece(values).to_numpy(zero_copy_only=False)
    return numbers
