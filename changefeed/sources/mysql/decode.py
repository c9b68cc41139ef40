"""Row events of one table -> rows of the log, without what belongs to their transactions.

Two ways, for many rows and for few; the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows, Operations
from changefeed.sources.mysql.binlog import HEADER_SIZE, ByteReader, EventType, misfit
from changefeed.sources.mysql.columns import decode_column
from changefeed.sources.mysql.layout import layout_of
from changefeed.sources.mysql.rows import Row, RowReader, arrays
from changefeed.sources.mysql.tablemap import Charsets, TableShape
from changefeed.sources.mysql.walk import PADDING, Block, Mask, Offsets, cells, walk
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
    count = len(shape.columns)
    if count > 250:
        return b""
    bitmap = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
    # Of the bits behind the last column MySQL sets all, MariaDB none.
    extra = b"" if kind in _FIRST_VERSION else b"\x02\x00"
    return extra + bytes([count]) + bitmap * (2 if OPERATIONS[kind] == UPDATE else 1)


def find_rows(
    raw: EventBytes, kind: int, shape: TableShape, heads: dict[int, bytes]
) -> tuple[int, int]:
    """The operation of a row event, and where its rows begin.

    ``heads`` remembers, for one table, how the event of a kind usually begins.

    Raises:
        ChangefeedError: CF2003 the row images are not whole.
    """
    data, start, end = raw
    start += HEADER_SIZE + 8  # the table's number and flags
    head = heads.get(kind)
    if head is None:
        head = heads[kind] = _usual_head(kind, shape)
    if head and start + len(head) <= end and data[start : start + len(head)] == head:
        return OPERATIONS[kind], start + len(head)
    cursor = ByteReader(data, start, end)
    if kind not in _FIRST_VERSION:
        cursor.take(cursor.number(2) - 2)
    count = cursor.packed()
    if count != len(shape.columns):
        raise misfit("rows with another number of columns than their table")
    operation = OPERATIONS[kind]
    for _ in range(2 if operation == UPDATE else 1):
        present = int.from_bytes(cursor.take((count + 7) // 8), "little")
        if present & ((1 << count) - 1) != (1 << count) - 1:
            raise ChangefeedError(
                Code.SOURCE_NOT_SET_UP,
                f"the binlog has only parts of the rows of {shape.database}.{shape.table}",
                hint="SET GLOBAL binlog_row_image = 'FULL'; sessions that are open keep the old"
                " setting until they end. Then RESCAN the feeds of this source.",
            )
    return operation, cursor.offset


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
    small: int = SMALL_BYTES,
) -> DecodedRows:
    """Decode the events; ``data`` ends with :data:`~changefeed.sources.mysql.walk.PADDING`.

    Raises:
        ChangefeedError: CF2105 bytes that are no rows of the table.
    """
    if int((events.ends - events.starts).sum()) < small:
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
    values = [
        decode_column(block, some, told, column, charsets)
        for some, told, column in zip(
            cells(block, images, layout), shape.columns, schema.columns, strict=True
        )
    ]
    return _rows(values, images.event, events, schema)


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


def _rows(
    values: Sequence[pa.Array], event: Offsets, events: RowEvents, schema: TableSchema
) -> DecodedRows:
    """Images -> rows: an update is two images, and two rows where it changes the key."""
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
    """Rows that an update moves to another key."""
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
