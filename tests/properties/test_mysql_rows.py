"""Row events of MySQL: what the images of a statement's rows mean, however many there are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import BeforeImage, Column, Form, TableName, TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows
from changefeed.sources.mysql.binlog import HEADER_SIZE, EventType
from changefeed.sources.mysql.decode import (
    DELETE,
    INSERT,
    OPERATIONS,
    UPDATE,
    RowEvents,
    decode,
    find_rows,
)
from changefeed.sources.mysql.tablemap import ColumnShape, ColumnType, TableShape
from changefeed.sources.mysql.walk import PADDING

Image = tuple[int | None, ...]
VALUES = st.none() | st.sampled_from([0, 1, 2, -1, 2**31 - 1])


@dataclass(frozen=True)
class Statement:
    """One row event: what it does, and the images of its rows; of an update pairs."""

    operation: int
    images: tuple[Image, ...]


def shape_of(count: int) -> TableShape:
    columns = [ColumnShape(f"c{n}", ColumnType.LONG, 0, True) for n in range(count)]
    return TableShape("shop", "t", tuple(columns))


def schema_of(count: int, key: Sequence[int], images: BeforeImage) -> TableSchema:
    columns = [Column(f"c{n}", "int", "int32", Form.NATIVE, "int32", True) for n in range(count)]
    table = TableName("shop", "shop", "t")
    return TableSchema(table, tuple(columns), tuple(key), images, len(key) == count)


def written(image: Image) -> bytes:
    """A row image of INT columns: which are NULL, and the others, little end first."""
    nulls = sum(1 << n for n, value in enumerate(image) if value is None)
    bitmap = nulls.to_bytes((len(image) + 7) // 8, "little")
    return bitmap + b"".join(struct.pack("<i", v) for v in image if v is not None)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableSchema, list[Statement]]:
    count = draw(st.integers(1, 9))
    key = draw(st.just(tuple(range(count))) | st.just((0,)) | st.just((count - 1,)))
    schema = schema_of(count, key, draw(st.sampled_from([*BeforeImage])))
    image = st.tuples(*[VALUES] * count)
    found = []
    for operation in draw(st.lists(st.sampled_from([INSERT, UPDATE, DELETE]), max_size=4)):
        pairs = 2 if operation == UPDATE else 1
        images = [draw(image) for _ in range(pairs * draw(st.integers(1, 3)))]
        if operation == UPDATE and draw(st.booleans()):
            images[1] = tuple(
                old if n in key else new
                for n, (old, new) in enumerate(zip(images[0], images[1], strict=True))
            )
        found.append(Statement(operation, tuple(images)))
    return schema, found


Row = tuple[int, int, Image | None, Image | None]


def meant(schema: TableSchema, statements: Sequence[Statement]) -> list[Row]:
    """Number of the event, operation, row before and after. NULL is like NULL in a key here."""
    rows: list[Row] = []
    for number, statement in enumerate(statements):
        if statement.operation == INSERT:
            rows += [(number, CREATED, None, image) for image in statement.images]
        elif statement.operation == DELETE:
            rows += [(number, DELETED, image, None) for image in statement.images]
        else:
            for old, new in zip(statement.images[::2], statement.images[1::2], strict=True):
                if [old[i] for i in schema.key] == [new[i] for i in schema.key]:
                    rows.append((number, UPDATED, old, new))
                else:
                    rows += [(number, DELETED, old, None), (number, CREATED, None, new)]
    return rows


def decoded(
    schema: TableSchema, statements: Sequence[Statement], small: int, padding: int = PADDING
) -> DecodedRows:
    data, starts, ends = bytearray(b"before"), [], []
    for statement in statements:
        starts.append(len(data))
        data += b"".join(written(image) for image in statement.images)
        ends.append(len(data))
    data += bytes(padding)
    events = RowEvents(
        np.arange(len(starts)) * 10,
        np.array([s.operation for s in statements], np.int64),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
    )
    shape = shape_of(len(schema.columns))
    return decode(data, events, shape, schema, cast(Any, None), small=small)


@settings(deadline=None)
@given(cases())
def test_rows_are_what_their_images_say(case: tuple[TableSchema, list[Statement]]) -> None:
    """One by one and by columns. A table without a key has all columns for one, with NULLs."""
    schema, statements = case
    if not statements:
        return
    expected = meant(schema, statements)
    for small in (0, 10**9):
        found = decoded(schema, statements, small)
        assert list(found.message) == [10 * number for number, *_ in expected]
        assert list(found.op) == [op for _, op, _, _ in expected]
        for i, column in enumerate(found.after):
            assert column.to_pylist() == [new[i] if new else None for *_, new in expected]
        for i, column in zip(schema.before_ordinals, found.before, strict=True):
            assert column.to_pylist() == [old[i] if old else None for *_, old, _ in expected]
        for i, column in zip(schema.key, found.key, strict=True):
            assert column.to_pylist() == [(new or old or ())[i] for *_, old, new in expected]


@pytest.mark.parametrize("small", [0, 10**9])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_each_column_has_a_bit_that_says_whether_it_is_null(count: int, small: int) -> None:
    schema = schema_of(count, (0,), BeforeImage.KEY)
    image = tuple(None if n % 3 else n for n in range(count))
    found = decoded(schema, [Statement(INSERT, (image, image))], small)
    assert [column.to_pylist() for column in found.after] == [[value] * 2 for value in image]


@pytest.mark.parametrize("small", [0, 10**9])
def test_an_update_whose_rows_do_not_pair_is_an_error(small: int) -> None:
    schema = schema_of(1, (0,), BeforeImage.KEY)
    for statements in (
        [Statement(UPDATE, ((1,),))],
        [Statement(UPDATE, ((1,), (2,), (3,))), Statement(UPDATE, ((4,),))],
    ):
        with pytest.raises(ChangefeedError, match="second row image") as caught:
            decoded(schema, statements, small)
        assert caught.value.code.number == "CF2105"


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_rows_do_not_reach_into_the_padding(small: int) -> None:
    schema = schema_of(1, (0,), BeforeImage.FULL)
    statements = [Statement(INSERT, ((1,), (2,)))]
    assert len(decoded(schema, statements, small).op) == 2
    with pytest.raises(ChangefeedError, match="behind the end") as caught:
        decoded(schema, statements, small, PADDING - 1)
    assert caught.value.code.number == "CF2105"


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 250, 251, 300])
@pytest.mark.parametrize("usual", [True, False])
def test_where_the_rows_of_an_event_begin(kind: int, count: int, usual: bool) -> None:
    """As servers write it most of the time, and with something added, or the spare bits of the
    bitmap set."""
    first_version = EventType(kind).name.endswith("_V1")
    if usual or first_version:
        extra = b"" if first_version else b"\x02\x00"
    else:
        extra = b"\x07\x00added"
    bits = (1 << count) - 1 if usual else (1 << (count + 7) // 8 * 8) - 1
    bitmap = bits.to_bytes((count + 7) // 8, "little")
    packed = bytes([count]) if count < 251 else b"\xfc" + count.to_bytes(2, "little")
    twice = 2 if OPERATIONS[kind] == UPDATE else 1
    head = extra + packed + bitmap * twice
    data = b"before" + bytes(HEADER_SIZE + 8) + head + b"rows"
    place = (data, len(b"before"), len(data))
    heads: dict[int, bytes] = {}
    for _ in range(2):
        operation, start = find_rows(cast(Any, place), kind, shape_of(count), heads)
        assert (operation, data[start:]) == (OPERATIONS[kind], b"rows")
    missing = bytearray(data)
    missing[-5] &= ~(1 << (count - 1) % 8)
    with pytest.raises(ChangefeedError) as caught:
        find_rows(cast(Any, (bytes(missing), *place[1:])), kind, shape_of(count), {})
    assert caught.value.code.number == "CF2003", "the last image has not all columns"
    with pytest.raises(ChangefeedError) as caught:
        find_rows(cast(Any, (data, place[1], len(data) - 5)), kind, shape_of(count), {})
    assert caught.value.code.number == "CF2105", "the event ends before its rows begin"
    with pytest.raises(ChangefeedError) as caught:
        find_rows(cast(Any, place), kind, shape_of(count + 1), {})
    assert caught.value.code.number == "CF2105"
