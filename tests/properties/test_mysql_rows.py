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
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows
from changefeed.sources.mysql.binlog import HEADER_SIZE, EventType
from changefeed.sources.mysql.decode import (
    DELETE,
    INSERT,
    OPERATIONS,
    UPDATE,
    PartialImages,
    PartialRows,
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
    columns = [Column(f"c{n}", "int", LogicalType.parse("int32"), True) for n in range(count)]
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


@dataclass(frozen=True)
class PartialCase:
    """Events of one operation, of which the log has some columns of the rows."""

    schema: TableSchema
    operation: int
    events: tuple[tuple[tuple[Image, Image], ...], ...]
    partial: PartialRows


@st.composite
def partial_cases(draw: st.DrawFn) -> PartialCase:
    count = draw(st.integers(2, 18))
    key = draw(st.sampled_from([(0,), (count - 1,), (0, count - 1)]))
    some = st.sets(st.integers(0, count - 1))
    before = draw(some) | {*key}
    operation = draw(st.sampled_from([INSERT, UPDATE, DELETE]))
    image = st.tuples(*[VALUES] * count)
    size = draw(st.sampled_from([1, 3, 12]))
    pair = st.tuples(image, image)
    events = [
        tuple(draw(st.lists(pair, min_size=1, max_size=3))) for _ in range(draw(st.just(size)))
    ]
    after = draw(some) | ({*key} if operation == INSERT else {0})
    images = PartialImages(
        () if operation == INSERT else tuple(sorted(before)),
        () if operation == DELETE else tuple(sorted(after)),
    )
    defaults = {place: 7 for place in draw(some) - after} if operation == INSERT else {}
    schema = schema_of(count, key, BeforeImage.KEY)
    return PartialCase(schema, operation, tuple(events), PartialRows(images, defaults))


def meant_by_parts(case: PartialCase) -> list[tuple[int, int, list[int | None], Image, set[int]]]:
    """Number of the event, operation, row after, key, and the columns that are not known."""
    images, count = case.partial.images, len(case.schema.columns)
    rows: list[tuple[int, int, list[int | None], Image, set[int]]] = []
    for number, pairs in enumerate(case.events):
        for old, new in pairs:
            known: dict[int, int | None] = {**case.partial.defaults}
            known |= {i: old[i] for i in images.before}
            known |= {i: new[i] for i in images.after}
            row = [known.get(i) for i in range(count)]
            unknown = {i for i in range(count) if i not in known}
            key = tuple(known[i] for i in case.schema.key)
            was = tuple(old[i] for i in case.schema.key)
            if case.operation == INSERT:
                rows.append((number, CREATED, row, key, unknown))
            elif case.operation == DELETE:
                rows.append((number, DELETED, [None] * count, was, set()))
            elif key == was:
                rows.append((number, UPDATED, row, key, unknown))
            else:
                rows.append((number, DELETED, [None] * count, was, set()))
                rows.append((number, CREATED, row, key, unknown))
    return rows


@settings(deadline=None)
@given(partial_cases())
def test_rows_of_which_the_log_has_some_columns(case: PartialCase) -> None:
    """One by one and by columns: an update's other columns are those of the row before, where the
    log has them; what it does not have is named, and never made up."""
    images = case.partial.images
    data, starts, ends = bytearray(b"before"), [], []
    for pairs in case.events:
        starts.append(len(data))
        for old, new in pairs:
            for image, places in ((old, images.before), (new, images.after)):
                if places:
                    data += written(tuple(image[i] for i in places))
        ends.append(len(data))
    data += bytes(PADDING)
    events = RowEvents(
        np.arange(len(starts)) * 10,
        np.full(len(starts), case.operation, np.int64),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
    )
    expected = meant_by_parts(case)
    for small in (0, 10**9):
        found = decode(
            data, events, shape_of(len(case.schema.columns)), case.schema, cast(Any, None),
            partial=case.partial, small=small,
        )  # fmt: skip
        assert list(found.message) == [10 * number for number, *_ in expected]
        assert list(found.op) == [op for _, op, *_ in expected]
        for i, column in enumerate(found.after):
            assert column.to_pylist() == [row[i] for _, _, row, *_ in expected]
            unsent = found.unchanged.get(i, np.zeros(len(expected), np.bool_))
            assert list(unsent) == [i in unknown for *_, unknown in expected]
        for place, column in enumerate(found.key):
            assert column.to_pylist() == [key[place] for *_, key, _ in expected]


@pytest.mark.parametrize("small", [0, 10**9])
def test_an_update_in_parts_whose_rows_do_not_pair_is_an_error(small: int) -> None:
    schema = schema_of(2, (0,), BeforeImage.KEY)
    one = written((1,))
    partial = PartialRows(PartialImages((0,), (1,)))
    for count in (1, 20):
        data = bytearray((one * 3) * count + bytes(PADDING))
        starts = np.arange(count) * 3 * len(one)
        events = RowEvents(np.arange(count), np.full(count, UPDATE), starts, starts + 3 * len(one))
        with pytest.raises(ChangefeedError, match="second row image") as caught:
            decode(data, events, shape_of(2), schema, cast(Any, None), partial=partial, small=small)
        assert caught.value.code.number == "CF2105"


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
        operation, start, images = find_rows(cast(Any, place), kind, shape_of(count), heads)
        assert (operation, data[start:], images) == (OPERATIONS[kind], b"rows", None)
    missing = bytearray(data)
    missing[-5] &= ~(1 << (count - 1) % 8)
    _, start, images = find_rows(cast(Any, (bytes(missing), *place[1:])), kind, shape_of(count), {})
    every, fewer = tuple(range(count)), tuple(range(count - 1))
    assert (bytes(missing[start:]), images) == (
        b"rows",
        {
            INSERT: PartialImages((), fewer),
            UPDATE: PartialImages(every, fewer),
            DELETE: PartialImages(fewer, ()),
        }[OPERATIONS[kind]],
    ), "the last image has not all columns"
    with pytest.raises(ChangefeedError) as caught:
        find_rows(cast(Any, (data, place[1], len(data) - 5)), kind, shape_of(count), {})
    assert caught.value.code.number == "CF2105", "the event ends before its rows begin"
    with pytest.raises(ChangefeedError) as caught:
        find_rows(cast(Any, place), kind, shape_of(count + 1), {})
    assert caught.value.code.number == "CF2105"
