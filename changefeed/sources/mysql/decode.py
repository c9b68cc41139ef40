"""Row events of one table -> rows of the log, without what belongs to their transactions.

Two ways, for many rows and for few; the result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.mysql.binlog import HEADER_SIZE, ByteReader, EventType, misfit
from changefeed.sources.mysql.columns import decode_column
from changefeed.sources.mysql.layout import Layout, layout_of
from changefeed.sources.mysql.rows import Row, RowReader, arrays
from changefeed.sources.mysql.tablemap import Charsets, TableShape
from changefeed.sources.mysql.values import unusable_key
from changefeed.sources.mysql.walk import (
    PADDING,
    Block,
    Images,
    Mask,
    Offsets,
    cells,
    walk,
    walk_in_turn,
)
from changefeed.sources.mysql.wire import EventBytes

#: Below so many bytes of rows the decoder of single values is cheaper.
SMALL_BYTES = 4096

INSERT, UPDATE, DELETE = ord("i"), ord("u"), ord("d")
_OPERATIONS = {
    EventType.WRITE_ROWS: INSERT,
    EventType.WRITE_ROWS_V1: INSERT,
    EventType.MARIA_WRITE_ROWS_COMPRESSED: INSERT,
    EventType.MARIA_WRITE_ROWS_COMPRESSED_V1: INSERT,
    EventType.UPDATE_ROWS: UPDATE,
    EventType.UPDATE_ROWS_V1: UPDATE,
    EventType.MARIA_UPDATE_ROWS_COMPRESSED: UPDATE,
    EventType.MARIA_UPDATE_ROWS_COMPRESSED_V1: UPDATE,
    EventType.DELETE_ROWS: DELETE,
    EventType.DELETE_ROWS_V1: DELETE,
    EventType.MARIA_DELETE_ROWS_COMPRESSED: DELETE,
    EventType.MARIA_DELETE_ROWS_COMPRESSED_V1: DELETE,
}
#: Kinds of row events, with the operation of each.
OPERATIONS: dict[int, int] = {int(kind): operation for kind, operation in _OPERATIONS.items()}
_FIRST_VERSION = frozenset(int(kind) for kind in _OPERATIONS if kind.name.endswith("_V1"))


def _usual_head(kind: int, shape: TableShape) -> bytes:
    """What stands between the flags and the rows when images are whole and nothing is added."""
    count = len(shape.stored)
    if count > 250:
        return b""
    bitmap = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
    # Of the bits behind the last column MySQL sets all, MariaDB none.
    extra = b"" if kind in _FIRST_VERSION else b"\x02\x00"
    return extra + bytes([count]) + bitmap * (2 if OPERATIONS[kind] == UPDATE else 1)


@dataclass(frozen=True, slots=True)
class PartialImages:
    """Which columns the images of a row event have, where it is not all of them
    (``binlog_row_image`` is ``MINIMAL`` or ``NOBLOB``).

    Attributes:
        before: positions of the columns of the row before; none where there is no such image.
        after: the same of the row after.
        hidden: positions behind them of the hidden columns that the two images have.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    hidden: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


def find_rows(
    raw: EventBytes, kind: int, shape: TableShape, heads: dict[int, bytes]
) -> tuple[int, int, PartialImages | None]:
    """The operation of a row event, where its rows begin, and which columns they have (None: all).

    ``heads`` remembers, for one table, how the event of a kind usually begins.
    """
    data, start, end = raw
    start += HEADER_SIZE + 8  # the table's number and flags
    head = heads.get(kind)
    if head is None:
        head = heads[kind] = _usual_head(kind, shape)
    if head and start + len(head) <= end and data[start : start + len(head)] == head:
        return OPERATIONS[kind], start + len(head), None
    cursor = ByteReader(data, start, end)
    if kind not in _FIRST_VERSION:
        cursor.take(cursor.number(2) - 2)
    count = cursor.packed()
    if count != len(shape.stored):
        raise misfit("rows with another number of columns than their table")
    operation = OPERATIONS[kind]
    found = [_present(cursor, count) for _ in range(2 if operation == UPDATE else 1)]
    if all(len(columns) == count for columns in found):
        return operation, cursor.offset, None
    before = () if operation == INSERT else found[0]
    after = () if operation == DELETE else found[-1]
    return operation, cursor.offset, _partial_images(before, after, len(shape.columns))


def _partial_images(before: tuple[int, ...], after: tuple[int, ...], columns: int) -> PartialImages:
    """The images with these stored columns of a table that has so many for its users."""
    old, new = (tuple(place for place in image if place < columns) for image in (before, after))
    return PartialImages(old, new, (before[len(old) :], after[len(new) :]))


def _present(cursor: ByteReader, count: int) -> tuple[int, ...]:
    bitmap = int.from_bytes(cursor.take((count + 7) // 8), "little")
    return tuple(column for column in range(count) if bitmap >> column & 1)


@dataclass(frozen=True, slots=True)
class PartialRows:
    """How to read rows of which the binlog has only some columns.

    Attributes:
        images: the columns that it has.
        defaults: for columns that an INSERT left out, by position, the value of the log that the
            server gave them.
    """

    images: PartialImages
    defaults: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowEvents:
    """Row events of one table and shape: which of the stretch, what they do, where rows are."""

    message: Offsets
    operation: Offsets
    starts: Offsets
    ends: Offsets


def decode(
    data: bytearray,
    events: RowEvents,
    shape: TableShape,
    schema: TableSchema,
    charsets: Charsets,
    *,
    partial: PartialRows | None = None,
    small: int = SMALL_BYTES,
) -> DecodedRows:
    """Decode the events; ``data`` ends with :data:`~changefeed.sources.mysql.walk.PADDING`.

    ``partial``: which columns the rows have, if not all; the events then have one operation.

    Raises:
        ChangefeedError: CF2105 bytes that are no rows of the table.
    """
    few = int((events.ends - events.starts).sum()) < small
    if partial is not None:
        return _decode_partial(data, events, shape, schema, charsets, partial, few=few)
    if few:
        return decode_few(data, events, shape, schema, charsets)
    return decode_many(data, events, shape, schema, charsets)


def decode_many(
    data: bytearray,
    events: RowEvents,
    shape: TableShape,
    schema: TableSchema,
    charsets: Charsets,
) -> DecodedRows:
    """By columns."""
    block, layout = Block(data), layout_of(shape)
    images = walk(block, events.starts, events.ends, layout)
    values = _columns(block, images, layout, shape, schema, charsets)
    return _rows(values, images.event, events, schema)


def _columns(
    block: Block,
    images: Images,
    layout: Layout,
    shape: TableShape,
    schema: TableSchema,
    charsets: Charsets,
) -> list[pa.Array]:
    found = cells(block, images, layout)[: len(shape.columns)]
    return [
        decode_column(block, some, sent, column, charsets)
        for some, sent, column in zip(found, shape.columns, schema.columns, strict=True)
    ]


def decode_few(
    data: bytearray,
    events: RowEvents,
    shape: TableShape,
    schema: TableSchema,
    charsets: Charsets,
) -> DecodedRows:
    """Value by value."""
    reader = RowReader(shape, schema, charsets)
    limit = len(data) - PADDING
    rows: list[Row] = []
    of: list[int] = []
    bounds = zip(events.starts.tolist(), events.ends.tolist(), strict=True)
    for number, (start, end) in enumerate(bounds):
        if end > limit:
            raise misfit("rows behind the end")
        found = reader.read(data, start, end)
        rows += found
        of += [number] * len(found)
    return _rows(arrays(rows, schema), np.array(of, np.intp), events, schema)


def _decode_partial(
    data: bytearray,
    events: RowEvents,
    shape: TableShape,
    schema: TableSchema,
    charsets: Charsets,
    partial: PartialRows,
    *,
    few: bool,
) -> DecodedRows:
    """Rows with only some columns: each image is one of a table of these columns. A column that the
    row after lacks has the value of the row before, where that one has it.
    """
    images, count = partial.images, len(schema.columns)
    parts = [
        (
            shape.some(at + hidden),
            replace(schema, columns=tuple(schema.columns[place] for place in at), key=()),
        )
        for at, hidden in zip((images.before, images.after), images.hidden, strict=True)
        if at or hidden
    ]
    event, found = (_few_in_turn if few else _many_in_turn)(data, events, parts, charsets)
    before = dict(zip(images.before, found[0], strict=True)) if images.before else {}
    after = dict(zip(images.after, found[-1], strict=True)) if images.after else {}
    if before and after:
        wanted = [
            _alternating(before.get(i), after.get(i, before.get(i)), column, len(event))
            for i, column in enumerate(schema.columns)
        ]
        event = np.repeat(event, 2)
    else:
        wanted = [
            before.get(i, after.get(i, _constant(partial.defaults.get(i), column, len(event))))
            for i, column in enumerate(schema.columns)
        ]
    rows = _rows(wanted, event, events, schema)
    known = {*images.before, *images.after, *partial.defaults}
    unsent = [i for i in range(count) if i not in known] if images.after else []
    there = rows.op != DELETED
    return replace(rows, unchanged={i: there for i in unsent})


def _constant(value: Any, column: Column, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, column.arrow), count)


def _alternating(
    first: pa.Array | None, second: pa.Array | None, column: Column, count: int
) -> pa.Array:
    """The values of a column in the images before and after, in turn; null where it is missing."""
    nothing = pa.nulls(count, column.arrow)
    both = pa.concat_arrays(
        [nothing if first is None else first, nothing if second is None else second]
    )
    return both.take(pa.array(np.arange(2 * count).reshape(2, count).T.reshape(-1)))


#: The images of a table's columns, or of some of them, as they are in the binlog and in the log.
ImageShape = tuple[TableShape, TableSchema]


def _many_in_turn(
    data: bytearray, events: RowEvents, parts: Sequence[ImageShape], charsets: Charsets
) -> tuple[Offsets, list[list[pa.Array]]]:
    """By columns: of each turn the event, and of each part the columns."""
    block, layouts = Block(data), [layout_of(shape) for shape, _ in parts]
    walked = walk_in_turn(block, events.starts, events.ends, layouts)
    found = [
        _columns(block, images, layout, shape, schema, charsets)
        for images, layout, (shape, schema) in zip(walked, layouts, parts, strict=True)
    ]
    return walked[0].event, found


def _few_in_turn(
    data: bytearray, events: RowEvents, parts: Sequence[ImageShape], charsets: Charsets
) -> tuple[Offsets, list[list[pa.Array]]]:
    readers = [RowReader(shape, schema, charsets) for shape, schema in parts]
    limit = len(data) - PADDING
    found: list[list[Row]] = [[] for _ in parts]
    of: list[int] = []
    bounds = zip(events.starts.tolist(), events.ends.tolist(), strict=True)
    for number, (place, end) in enumerate(bounds):
        if end > limit:
            raise misfit("rows behind the end")
        while place < end:
            for reader, rows in zip(readers, found, strict=True):
                if place >= end:
                    raise misfit("an update without its second row image")
                row, place = reader.row(data, place, end)
                rows.append(row)
            of.append(number)
    columns = [arrays(rows, schema) for rows, (_, schema) in zip(found, parts, strict=True)]
    return np.array(of, np.intp), columns


def _rows(
    values: Sequence[pa.Array], event: Offsets, events: RowEvents, schema: TableSchema
) -> DecodedRows:
    """Images -> rows: an update is two images, and two rows where it changes the key."""
    if problem := unusable_key(schema, values):
        raise misfit(problem)
    operation = events.operation[event]
    if (operation == INSERT).all():
        nothing = [pa.nulls(len(event), schema.columns[i].arrow) for i in schema.before_ordinals]
        created: Operations = np.full(len(event), CREATED, np.uint8)
        key = [values[i] for i in schema.key]
        return DecodedRows(events.message[event], created, list(values), nothing, key)
    old_at, new_at, event = _images(operation, event)
    op: Operations = np.where(old_at < 0, CREATED, np.where(new_at < 0, DELETED, UPDATED)).astype(
        np.uint8
    )
    changed = _changed_keys(values, old_at, new_at, op, schema)
    if changed is not None:
        old_at, new_at, event, op = _split(changed, old_at, new_at, event, op)
    new, old = _taker(new_at), _taker(old_at)
    about = _taker(np.where(new_at < 0, old_at, new_at))
    return DecodedRows(
        events.message[event],
        op,
        [column.take(new) for column in values],
        [values[i].take(old) for i in schema.before_ordinals],
        [values[i].take(about) for i in schema.key],
    )


def _images(operation: Offsets, event: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """For each row its image before and after (-1: none) and its event."""
    update = operation == UPDATE
    if int(update.sum()) % 2:
        raise misfit("an update without its second row image")
    # Within the images of updates every second one is the row after; events have whole pairs.
    second = np.zeros(len(update), np.bool_)
    places = np.flatnonzero(update)
    second[places[1::2]] = True
    if (event[places[::2]] != event[places[1::2]]).any():
        raise misfit("an update without its second row image")
    first = np.flatnonzero(~second)
    kind = operation[first]
    old_at = np.where(kind == INSERT, -1, first)
    new_at = np.where(kind == INSERT, first, np.where(kind == UPDATE, first + 1, -1))
    return old_at, new_at, event[first]


def _taker(places: Offsets) -> pa.Array:
    return pa.array(places, mask=places < 0)


def _changed_keys(
    values: Sequence[pa.Array],
    old_at: Offsets,
    new_at: Offsets,
    op: Operations,
    schema: TableSchema,
) -> Mask | None:
    updates = np.flatnonzero(op == UPDATED)
    if not len(updates):
        return None
    before, after = pa.array(old_at[updates]), pa.array(new_at[updates])
    changed = np.zeros(len(op), np.bool_)
    for ordinal in schema.key:
        old, new = values[ordinal].take(before), values[ordinal].take(after)
        differ = pc.fill_null(pc.not_equal(old, new), False)
        if old.null_count or new.null_count:
            differ = pc.or_(differ, pc.xor(old.is_null(), new.is_null()))
        changed[updates] |= differ.to_numpy(zero_copy_only=False)
    return changed if changed.any() else None


def _split(
    changed: Mask, old_at: Offsets, new_at: Offsets, event: Offsets, op: Operations
) -> tuple[Offsets, Offsets, Offsets, Operations]:
    rows = np.repeat(np.arange(len(op)), 1 + changed)
    second = np.zeros(len(rows), np.bool_)
    second[1:] = rows[1:] == rows[:-1]
    first = np.zeros(len(rows), np.bool_)
    first[:-1] = second[1:]
    op, old_at, new_at = op[rows].copy(), old_at[rows].copy(), new_at[rows].copy()
    op[first], new_at[first] = DELETED, -1
    op[second], old_at[second] = CREATED, -1
    return old_at, new_at, event[rows], op
