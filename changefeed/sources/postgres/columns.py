"""Many rows of one table at once: tuples walked column by column, values gathered by Arrow.

All tuples of a block are walked together: for each column one numpy step finds where every
row's value starts and ends and moves on to the next column. The values stay where they lie in
the receive buffer until :func:`~changefeed.sources.postgres.values.span_column` copies each
column in one go. :mod:`.rows` does the same row by row; tests hold both to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.decoded.spans import Bytes, Mask, Places, Spans, gather
from changefeed.sources.postgres.garbage import readable
from changefeed.sources.postgres.pgoutput import (
    AS_TEXT,
    DELETE,
    INSERT,
    NEW,
    NULL,
    OLD_KEY,
    OLD_ROW,
    TAG_OFFSET,
    UNCHANGED,
    UPDATE,
)
from changefeed.sources.postgres.values import span_column


class Block:
    """The bytes of a buffer, and big-endian numbers at any place in it."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        # Overlapping views with a stride of one byte: words[p] is the number at byte p.
        self.words = np.ndarray((len(data) - 3,), ">i4", data, strides=(1,))
        self.halves = np.ndarray((len(data) - 1,), ">i2", data, strides=(1,))

    def word(self, places: Places) -> Places:
        """Signed 32-bit numbers at ``places``."""
        return self.words[places].astype(np.intp)


@dataclass(slots=True)
class _Cells:
    """One column of many tuples. ``kinds`` is None when every value is there as text."""

    starts: Places
    ends: Places
    kinds: Bytes | None


def decode_columns(
    block: Block, tags: Places, schema: TableSchema, *, streamed: bool = False
) -> DecodedRows:
    """Decode the row messages at ``tags``, all of one table.

    Args:
        streamed: messages of a streamed transaction, with its number behind the tag.

    Raises:
        ChangefeedError: CF2105 a message does not fit the table's shape.
    """
    with readable(f"a row of table {schema.table}"):
        return _Decoder(block, tags, schema, 5 if streamed else 1).decode()


def decode_keys(
    block: Block, tags: Places, schema: TableSchema, *, streamed: bool = False
) -> tuple[Places, Operations, list[pa.Array]]:
    """``message``, ``op`` and ``key`` of what :func:`decode_columns` makes of the same messages."""
    with readable(f"a row of table {schema.table}"):
        decoder = _Decoder(block, tags, schema, 5 if streamed else 1)
        return decoder.message, decoder.op, decoder.keys()


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which tuple each output row reads: ``at`` where ``present`` (None: everywhere)."""

    at: Places
    present: Mask | None


class _Decoder:
    def __init__(self, block: Block, tags: Places, schema: TableSchema, header: int) -> None:
        self.block = block
        self.schema = schema
        self.count = len(tags)
        data = block.data
        kinds = data[tags]
        #: Where the first tuple's letter is; also where empty spans point.
        self.body = tags + (header + 4)
        lead = data[self.body]
        self.update = kinds == UPDATE
        self.delete = kinds == DELETE
        self.insert = kinds == INSERT
        self.has_old = (lead == OLD_KEY) | (lead == OLD_ROW)
        self.has_row = lead == OLD_ROW
        self.old_rows = np.flatnonzero(self.has_old)
        self.new_rows = np.flatnonzero(~self.delete)
        self._walk(tags)
        self.split = self._changed_keys()
        self._lay_out()

    # ------------------------------------------------------------------------ walking

    def _walk(self, tags: Places) -> None:
        after = self.body.copy()
        self.old, after[self.old_rows] = self._tuples(self.body[self.old_rows] + 1)
        if (self.block.data[after[self.new_rows]] != NEW).any():
            raise self._misfit("a row message without a new row")
        self.new, after[self.new_rows] = self._tuples(after[self.new_rows] + 1)
        length = tags - TAG_OFFSET + 1
        if (after != length + self.block.word(length)).any():
            raise self._misfit("a tuple does not fill its message")

    def _tuples(self, places: Places) -> tuple[list[_Cells], Places]:
        """The cells of tuples that begin (with their column count) at ``places``."""
        width = len(self.schema.columns)
        if not len(places):
            return [], places
        if (self.block.halves[places] != width).any():
            raise self._misfit("another number of columns than announced")
        places = places + 2
        data, words = self.block.data, self.block.words
        cells = []
        for _ in range(width):
            kinds = data[places]
            if (kinds == AS_TEXT).all():
                starts = places + 5
                ends = starts + words[places + 1]
                cells.append(_Cells(starts, ends, None))
            else:
                valued = kinds == AS_TEXT
                if not (valued | (kinds == NULL) | (kinds == UNCHANGED)).all():
                    raise self._misfit("a value of unknown kind")
                starts = places + np.where(valued, 5, 1)
                ends = starts + np.where(valued, words[places + 1], 0)
                cells.append(_Cells(starts, ends, kinds))
            if (ends < starts).any():
                raise self._misfit("a value of negative length")
            places = ends
            if places.max() >= len(data) - 8:
                raise self._misfit("a value ends behind its message")
        return cells, places

    def _misfit(self, what: str) -> ChangefeedError:
        return ChangefeedError(Code.UNEXPECTED_MESSAGE, f"{what} (table {self.schema.table})")

    # ------------------------------------------------------------------- changed keys

    def _changed_keys(self) -> Mask | None:
        """Messages that move a row to another key; None when there is none."""
        both = self.update & self.has_old
        if not both.any():
            return None
        # Cells are kept per tuple: of the old tuples those of updates, of the new ones those
        # with an old one.
        old = np.flatnonzero(self.update[self.old_rows])
        new = np.flatnonzero(self.has_old[self.new_rows])
        changed = np.zeros(len(old), np.bool_)
        for ordinal in self.schema.key:
            changed |= self._differ(self.old[ordinal], old, self.new[ordinal], new)
        if not changed.any():
            return None
        split = np.zeros(self.count, np.bool_)
        split[self.old_rows[old[changed]]] = True
        return split

    def _differ(self, old: _Cells, old_at: Places, new: _Cells, new_at: Places) -> Mask:
        """Where the values differ as they were sent; an unchanged value never does."""
        before = self._spans(old, old_at)
        after = self._spans(new, new_at)
        same_null = _validity(before) == _validity(after)
        differ: Mask = (before.ends - before.starts) != (after.ends - after.starts)
        candidates = np.flatnonzero(~differ)
        if len(candidates):
            unequal = pc.not_equal(
                gather(_pick(before, candidates)), gather(_pick(after, candidates))
            )
            differ[candidates] = pc.fill_null(unequal, False).to_numpy(zero_copy_only=False)
        differ |= ~same_null
        if new.kinds is not None:
            differ &= new.kinds[new_at] != UNCHANGED
        return differ

    def _spans(self, cells: _Cells, at: Places) -> Spans:
        valid = None
        if cells.kinds is not None:
            valid = cells.kinds[at] == AS_TEXT
        return Spans(self.block.data, cells.starts[at], cells.ends[at], valid)

    # ------------------------------------------------------------------------- layout

    def _lay_out(self) -> None:
        """Output rows: one for each message, two where the key changed."""
        op = np.where(self.insert, CREATED, np.where(self.delete, DELETED, UPDATED))
        op = op.astype(np.uint8)
        message = np.arange(self.count)
        if self.split is not None:
            message = np.repeat(message, 1 + self.split)
            op = op[message]
            second = np.zeros(len(message), np.bool_)
            second[1:] = message[1:] == message[:-1]
            op[second] = CREATED
            op[np.flatnonzero(second) - 1] = DELETED
        self.message, self.op = message, op
        self.deleted = op == DELETED
        self.created = op == CREATED
        #: Which tuple an output row reads its new and its old values from, -1 for none.
        self.here = self.body[message]
        self.new_at = self._choice(self._tuple_of(self.new_rows), ~self.deleted)
        self.old_at = self._choice(self._tuple_of(self.old_rows), ~self.created)

    def _tuple_of(self, rows: Places) -> Places:
        """For each output row its tuple among those of the messages ``rows``, -1 for none."""
        at = np.full(self.count, -1, np.intp)
        at[rows] = np.arange(len(rows))
        tuples: Places = at[self.message]
        return tuples

    def _choice(self, at: Places, wanted: Mask) -> _Choice:
        present = wanted & (at >= 0)
        if present.all():
            return _Choice(at, None)
        return _Choice(np.where(present, at, 0), present)

    # ------------------------------------------------------------------------- values

    def keys(self) -> list[pa.Array]:
        """The key that each row is about."""
        return [self._key_column(ordinal, {}) for ordinal in self.schema.key]

    def decode(self) -> DecodedRows:
        unchanged: dict[int, Mask] = {}
        key = [self._key_column(ordinal, unchanged) for ordinal in self.schema.key]
        of_key = dict(zip(self.schema.key, key, strict=True))
        after = [
            masked(of_key[i], ~self.deleted) if i in of_key else self._after(i, unchanged)
            for i in range(len(self.schema.columns))
        ]
        before = [
            masked(of_key[i], self._has_before()) if i in of_key else self._before(i)
            for i in self.schema.before_ordinals
        ]
        return DecodedRows(self.message, self.op, after, before, key, unchanged)

    def _has_before(self) -> Mask:
        """Rows that were there before. The key of an update without an old tuple is known: it
        did not change; but where whole old rows are promised, one that is missing is null."""
        before: Mask = ~self.created
        return before

    def _key_column(self, ordinal: int, unchanged: dict[int, Mask]) -> pa.Array:
        """The key each row is about: the old one of deletes, else the new one."""
        cells = self._new_cells(ordinal, unchanged)
        if self.deleted.any():
            cells = _merged(cells, self._cells(self.old, ordinal, self.old_at), self.deleted)
        return self._column(ordinal, cells)

    def _after(self, ordinal: int, unchanged: dict[int, Mask]) -> pa.Array:
        return self._column(ordinal, self._new_cells(ordinal, unchanged))

    def _before(self, ordinal: int) -> pa.Array:
        return self._column(ordinal, self._cells(self.old, ordinal, self._whole_old))

    @cached_property
    def _whole_old(self) -> _Choice:
        """Old tuples that are whole rows: an old key vouches for the key alone."""
        wanted = self.has_row[self.message] & ~self.created
        return self._choice(self._tuple_of(self.old_rows), wanted)

    def _new_cells(self, ordinal: int, unchanged: dict[int, Mask]) -> _Cells:
        """New values; one that did not change is taken from the old row where it was sent."""
        cells = self._cells(self.new, ordinal, self.new_at)
        if cells.kinds is None:
            return cells
        same = cells.kinds == UNCHANGED
        if not same.any():
            return cells
        has_old = self.has_old if ordinal in self.schema.key else self.has_row
        filled = same & has_old[self.message]
        if filled.any():
            # The message's own old tuple, also for the second row of a changed key.
            choice = self._choice(self._tuple_of(self.old_rows), filled)
            cells = _merged(cells, self._cells(self.old, ordinal, choice), filled)
        left = same & ~filled
        if left.any():
            unchanged[ordinal] = left
        return cells

    def _cells(self, cells: Sequence[_Cells], ordinal: int, choice: _Choice) -> _Cells:
        """The chosen tuples' cells; where there is none, an empty null inside the message."""
        if not cells:
            none = np.full(len(self.here), NULL, np.uint8)
            return _Cells(self.here, self.here, none)
        cell, at, present = cells[ordinal], choice.at, choice.present
        if present is None:
            if len(cell.starts) == len(at):
                return cell  # every tuple, in order
            kinds = None if cell.kinds is None else cell.kinds[at]
            return _Cells(cell.starts[at], cell.ends[at], kinds)
        if cell.kinds is None:
            kinds = np.where(present, np.uint8(AS_TEXT), np.uint8(NULL))
        else:
            kinds = np.where(present, cell.kinds[at], np.uint8(NULL))
        starts = np.where(present, cell.starts[at], self.here)
        return _Cells(starts, np.where(present, cell.ends[at], starts), kinds)

    def _column(self, ordinal: int, cells: _Cells) -> pa.Array:
        """The values of a column.

        Text is checked to be UTF-8: the server does not do it where its database has no encoding.
        """
        column: Column = self.schema.columns[ordinal]
        valid = None if cells.kinds is None else cells.kinds == AS_TEXT
        spans = Spans(self.block.data, cells.starts, cells.ends, valid)
        return valid_text(self.schema, column, span_column(column, spans))


def _merged(cells: _Cells, other: _Cells, where: Mask) -> _Cells:
    return _Cells(
        np.where(where, other.starts, cells.starts),
        np.where(where, other.ends, cells.ends),
        np.where(where, _kinds(other), _kinds(cells)),
    )


def _kinds(cells: _Cells) -> Bytes:
    return np.full(len(cells.starts), AS_TEXT, np.uint8) if cells.kinds is None else cells.kinds


def _validity(spans: Spans) -> Mask:
    return np.ones(len(spans), np.bool_) if spans.valid is None else spans.valid


def _pick(spans: Spans, at: Places) -> Spans:
    valid = None if spans.valid is None else spans.valid[at]
    return Spans(spans.data, spans.starts[at], spans.ends[at], valid)


def masked(values: pa.Array, keep: Mask) -> pa.Array:
    """``values`` with nulls where ``keep`` is false, sharing the values themselves."""
    if keep.all():
        return values
    if values.offset:
        return pc.if_else(pa.array(keep), values, pa.scalar(None, values.type))
    if values.null_count:
        keep = keep & values.is_valid().to_numpy(zero_copy_only=False)
    bits = pa.py_buffer(np.packbits(keep, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bits, *values.buffers()[1:]])


def valid_text(schema: TableSchema, column: Column, values: pa.Array) -> pa.Array:
    """``values``, where they are UTF-8.

    Raises:
        ChangefeedError: CF2105 they are not.
    """
    if pa.types.is_string(values.type):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise not_utf8(schema, column) from None
    return values


def not_utf8(schema: TableSchema, column: Column) -> ChangefeedError:
    """CF2105 for text that a database without an encoding let in."""
    return ChangefeedError(
        Code.UNEXPECTED_MESSAGE,
        f"column {column.name!r} of table {schema.table} holds text that is not valid UTF-8",
        hint="the database's encoding is SQL_ASCII or its text was damaged: repair the rows, then"
        " ALTER CHANGEFEED .. RESCAN.",
    )
