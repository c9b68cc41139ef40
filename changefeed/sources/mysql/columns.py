"""Values of the binlog -> columns of the log, many rows at a time.

Each type's bytes are gathered by numpy and printed as a matrix of characters (dates, decimals)
or cut out by Arrow (text). Only binary JSON is read value by value. :mod:`.rows` does the same one
value at a time and shares no code with it: each is the other's proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column
from changefeed.core.types import Kind
from changefeed.sources.mysql.binlog import Misfit, column_unpacked, misfit
from changefeed.sources.mysql.characters import Characters
from changefeed.sources.mysql.characters import Numbers as Figures
from changefeed.sources.mysql.json_binary import json_text
from changefeed.sources.mysql.layout import DIGIT_BYTES
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, ColumnType, codec, decoded
from changefeed.sources.mysql.walk import PADDING, Block, Cells, Mask

Numbers = npt.NDArray[np.int64]
Packed = npt.NDArray[np.uint64]

#: So many values are decoded at once: all that is made on the way stays in the processor's cache.
AT_ONCE = 16_384

_ALL, _FIRST = np.uint64((1 << 64) - 1), np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class _Input:
    block: Block
    cells: Cells
    shape: ColumnShape
    column: Column
    charsets: Charsets

    def __len__(self) -> int:
        return len(self.cells.starts)

    @property
    def mask(self) -> Mask | None:
        """Where a value is null."""
        return None if self.cells.valid is None else ~self.cells.valid

    def little(self, size: int) -> Numbers:
        """Unsigned numbers of up to 7 bytes, low byte first."""
        at = self.cells.starts
        if size == 1:
            return self.block.data[at].astype(np.int64)
        if size == 2:
            return self.block.halves[at].astype(np.int64)
        if size <= 4:
            return self.block.words[at].astype(np.int64) & ((1 << 8 * size) - 1)
        found = self.block.longs[at] & np.uint64((1 << 8 * size) - 1)
        return found.astype(np.int64)

    def packed(self, size: int) -> Packed:
        """Unsigned numbers of up to 8 bytes, high byte first."""
        found = self.block.longs[self.cells.starts].byteswap()
        found >>= np.uint64(64 - 8 * size)
        return found

    def big(self, size: int) -> Numbers:
        """Unsigned numbers of up to 7 bytes, high byte first."""
        return self.packed(size).view(np.int64)


def decode_column(
    block: Block, cells: Cells, shape: ColumnShape, column: Column, charsets: Charsets
) -> pa.Array:
    """The values as an array of ``column.arrow``.

    Raises:
        ChangefeedError: CF2105 bytes that are no value of the type.
    """
    count = len(cells.starts)
    try:
        if count <= AT_ONCE:
            return _decoded(_Input(block, cells, shape, column, charsets))
        parts = [
            _decoded(_Input(block, cells.slice(first, first + AT_ONCE), shape, column, charsets))
            for first in range(0, count, AT_ONCE)
        ]
    except Misfit as error:
        raise error.of_column(column.name) from None
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowException:
        raise _too_large(column) from None


def _decoded(given: _Input) -> pa.Array:
    column = given.column
    if not len(given):
        return pa.array([], column.arrow)
    try:
        found = _READERS[given.shape.wire](given)
    except KeyError:
        raise misfit(f"type {given.shape.wire.name}, which cannot be read") from None
    return found if found.type == column.arrow else _cast(found, column)


def _cast(found: pa.Array, column: Column) -> pa.Array:
    try:
        return found.cast(column.arrow)
    except pa.ArrowException:
        raise misfit("a value is not of its type") from None


# ------------------------------------------------------------------------------- numbers


def _integer(size: int) -> Callable[[_Input], pa.Array]:
    kinds = {1: "i1", 2: "<i2", 4: "<i4", 8: "<i8"}

    def read(given: _Input) -> pa.Array:
        block, at = given.block, given.cells.starts
        if size == 3:
            values = block.words[at].astype(np.int64) & 0xFFFFFF
            if not given.shape.unsigned:
                values = (values ^ 0x800000) - 0x800000
            return pa.array(values, mask=given.mask)
        views = {1: block.data, 2: block.halves, 4: block.words, 8: block.longs}
        found = views[size][at]
        if not given.shape.unsigned:
            found = found.view(kinds[size])
        return pa.array(found, mask=given.mask)

    return read


def _float(given: _Input) -> pa.Array:
    return _real(given, given.block.words[given.cells.starts].view("<f4"))


def _double(given: _Input) -> pa.Array:
    return _real(given, given.block.longs[given.cells.starts].view("<f8"))


def _real(given: _Input, values: npt.NDArray[np.floating]) -> pa.Array:
    if given.cells.valid is not None:
        values = np.where(given.cells.valid, values, values.dtype.type(0))
    if not np.isfinite(values).all():
        raise misfit("a floating-point number that MySQL does not have")
    return pa.array(values, mask=given.mask).cast(pa.string())


def _year(given: _Input) -> pa.Array:
    years = given.little(1)
    return pa.array(np.where(years == 0, 0, years + 1900), mask=given.mask)


def _decimal(given: _Input) -> pa.Array:
    precision, scale = given.shape.meta >> 8, given.shape.meta & 0xFF
    whole = precision - scale
    point = 1 + max(whole, 1)
    texts = Characters(len(given), " " + "0" * (point - 1) + ("." + "0" * scale if scale else ""))
    at, longs = given.cells.starts, given.block.longs
    negative = given.block.data[at] < 0x80
    # All bytes of a negative one are inverted, and so is the first bit of any.
    inverted: Packed = np.where(negative, _ALL, np.uint64(0))
    packed: Packed = longs[at].byteswap() ^ inverted ^ _FIRST
    held, place, column = 0, 0, point - whole
    for digits in _digit_groups(whole, scale):
        size = DIGIT_BYTES[digits]
        if place + size > held + 8:
            held, packed = place, longs[at + place].byteswap() ^ inverted
        number = packed << np.uint64(8 * (place - held)) >> np.uint64(64 - 8 * size)
        if column == point:
            column += 1
        texts.digits(column, digits, number.astype(np.uint32))
        place, column = place + size, column + digits
    first = 1 + texts.leading_zeros(1, point - 2)
    return texts.signed(first, negative, given.cells.valid)


def _digit_groups(whole: int, scale: int) -> list[int]:
    """Digits of each number of a DECIMAL: the odd ones are at both ends."""
    left, right = divmod(whole, 9), divmod(scale, 9)
    groups = [left[1], *[9] * left[0], *[9] * right[0], right[1]]
    return [digits for digits in groups if digits]


# ------------------------------------------------------------------------ dates and times


def _without(valid: Mask | None, lost: Mask) -> Mask | None:
    """What is valid but for what is lost."""
    if not lost.any():
        return valid
    return ~lost if valid is None else valid & ~lost


def _behind(given: _Input) -> int:
    return (given.shape.meta + 1) // 2


def _fraction(texts: Characters, at: int, given: _Input, packed: Packed) -> None:
    """Print the fraction, which the last bytes of ``packed`` are, behind the column ``at``."""
    digits, size = given.shape.meta, _behind(given)
    if digits:
        # Two digits a byte; of an odd number of digits the last one says nothing.
        figures = _low(packed, 8 * size)
        texts.digits(at + 1, digits, figures // np.uint32(10) if digits % 2 else figures)


def _low(packed: Packed, bits: int) -> Figures:
    return (packed & np.uint64((1 << bits) - 1)).astype(np.uint32)


def _field(packed: Figures, shift: int, mask: int) -> Figures:
    return packed >> np.uint32(shift) & np.uint32(mask)


def _clock(texts: Characters, at: int, hours: Figures, minutes: Figures, seconds: Figures) -> None:
    for place, numbers in enumerate((hours, minutes, seconds)):
        texts.digits(at + 3 * place, 2, numbers)


def _calendar(texts: Characters, year: Figures, month: Figures, day: Figures) -> Mask:
    """Print a date in the first columns; where it is none."""
    texts.digits(0, 4, year)
    texts.digits(5, 2, month)
    texts.digits(8, 2, day)
    lost: Mask = (day == 0) | (month == 0) | (year == 0)
    return lost


def _moment(digits: int, zone: str = "") -> str:
    return "0000-00-00T00:00:00" + ("." + "0" * digits if digits else "") + zone


def _date(given: _Input) -> pa.Array:
    packed = given.little(3).astype(np.uint32)
    texts = Characters(len(given), "0000-00-00")
    lost = _calendar(texts, packed >> np.uint32(9), _field(packed, 5, 15), _field(packed, 0, 31))
    return texts.whole(_without(given.cells.valid, lost))


def _datetime2(given: _Input) -> pa.Array:
    size = _behind(given)
    packed = given.packed(5 + size)
    texts = Characters(len(given), _moment(given.shape.meta))
    _fraction(texts, 19, given, packed)
    packed >>= np.uint64(8 * size)
    months = _low(packed >> np.uint64(22), 17)
    year = months // np.uint32(13)
    low = _low(packed, 22)
    lost = _calendar(texts, year, months - year * np.uint32(13), low >> np.uint32(17))
    lost |= packed >> np.uint64(39) == 0  # a negative one
    _clock(texts, 11, _field(low, 12, 31), _field(low, 6, 63), _field(low, 0, 63))
    return texts.whole(_without(given.cells.valid, lost))


def _timestamp2(given: _Input) -> pa.Array:
    size = _behind(given)
    packed = given.packed(4 + size)
    texts = Characters(len(given), _moment(given.shape.meta, "Z"))
    _fraction(texts, 19, given, packed)
    seconds = (packed >> np.uint64(8 * size)).astype(np.uint32)
    return _seconds(given, texts, seconds, packed == 0)


def _timestamp(given: _Input) -> pa.Array:
    seconds = given.block.words[given.cells.starts]
    return _seconds(given, Characters(len(given), _moment(0, "Z")), seconds, seconds == 0)


def _seconds(given: _Input, texts: Characters, seconds: Figures, zero: Mask) -> pa.Array:
    days = seconds // np.uint32(86_400)
    rest = seconds - days * np.uint32(86_400)
    hours = rest // np.uint32(3600)
    rest -= hours * np.uint32(3600)
    minutes = rest // np.uint32(60)
    months, ends = _days()
    texts.words(0, months.take(days))
    texts.words(8, ends.take(days))
    _clock(texts, 11, hours, minutes, rest - minutes * np.uint32(60))
    return texts.whole(_without(given.cells.valid, zero))


@cache
def _days() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint16]]:
    """The days that a TIMESTAMP may have, from 1970 on: ``YYYY-MM-`` and ``DD`` of each."""
    days = np.arange((1 << 32) // 86_400 + 1).astype("datetime64[D]")
    printed = np.datetime_as_string(days).astype("S10").view("S1").reshape(-1, 10)
    months = np.ascontiguousarray(printed[:, :8]).view(np.uint64)[:, 0]
    return months, np.ascontiguousarray(printed[:, 8:]).view(np.uint16)[:, 0]


def _time2(given: _Input) -> pa.Array:
    size = _behind(given)
    # One number of all bytes: it keeps the sign right where there is a fraction.
    packed = given.big(3 + size) - (0x800000 << 8 * size)
    whole = np.abs(packed).view(np.uint64)
    upper = _low(whole >> np.uint64(8 * size), 24)
    clock = (_field(upper, 12, 0x3FF), _field(upper, 6, 63), _field(upper, 0, 63))
    return _duration(given, packed < 0, clock, whole)


def _time(given: _Input) -> pa.Array:
    packed = (given.little(3) ^ 0x800000) - 0x800000
    whole = np.abs(packed)
    return _duration(given, packed < 0, _parts(whole.astype(np.uint32)), whole.view(np.uint64))


def _parts(figures: Figures) -> tuple[Figures, Figures, Figures]:
    """What is before the last four decimal digits, and those two by two."""
    hundred = np.uint32(100)
    pairs = figures // hundred
    return pairs // hundred, pairs % hundred, figures % hundred


def _duration(
    given: _Input, negative: Mask, clock: tuple[Figures, Figures, Figures], packed: Packed
) -> pa.Array:
    hours, minutes, seconds = clock
    digits = given.shape.meta
    texts = Characters(len(given), " 0000:00:00" + ("." + "0" * digits if digits else ""))
    texts.digits(1, 4, hours)
    texts.digits(6, 2, minutes)
    texts.digits(9, 2, seconds)
    _fraction(texts, 11, given, packed)
    first = 3 - (hours >= 100).astype(np.intp) - (hours >= 1000)
    return texts.signed(first, negative, given.cells.valid)


def _datetime(given: _Input) -> pa.Array:
    packed = given.block.longs[given.cells.starts]
    date = packed // np.uint64(1_000_000)
    day, clock = _low(date, 32), (packed - date * np.uint64(1_000_000)).astype(np.uint32)
    texts = Characters(len(given), _moment(0))
    lost = _calendar(texts, *_parts(day))
    _clock(texts, 11, *_parts(clock))
    return texts.whole(_without(given.cells.valid, lost))


# --------------------------------------------------------------------------- text and bytes


def gather(block: Block, cells: Cells, *, text: bool) -> pa.Array:
    """The bytes of the cells as an Arrow array of their own.

    The cells and the gaps between them are read as one array over the whole buffer, and every
    second element is taken: the copy runs in Arrow.
    """
    count = len(cells.starts)
    offsets = np.empty(2 * count + 1, np.int64)
    offsets[0:-1:2] = cells.starts
    offsets[1:-1:2] = cells.ends
    offsets[-1] = max(offsets[0], offsets[-2])
    kind = pa.large_string() if text else pa.large_binary()
    laid_out = pa.Array.from_buffers(
        kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(block.data)]
    )
    mask = None if cells.valid is None else ~cells.valid
    return laid_out.take(pa.array(np.arange(0, 2 * count, 2), mask=mask))


def _too_large(column: Column) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED, f"values of column {column.name!r} above 2 GB together"
    )


def _text(given: _Input) -> pa.Array:
    if given.column.kind is Kind.BYTES:
        return _bytes(given)
    if given.shape.wire is ColumnType.STRING and given.column.type_name in _ADDRESSES:
        return _each(given, _ADDRESSES[given.column.type_name])
    if codec(given.shape.collation, given.charsets) != "utf-8":
        return _each(given, lambda data: decoded(data, given.shape.collation, given.charsets))
    texts = gather(given.block, given.cells, text=True)
    try:
        texts.validate(full=True)
    except pa.ArrowException:
        return _each(given, lambda data: data.decode("utf-8", "replace"))
    found = _narrow(texts, given)
    return _one_line(found) if given.column.kind is Kind.JSON else found


def _narrow(texts: pa.Array, given: _Input) -> pa.Array:
    try:
        return texts.cast(pa.string())
    except pa.ArrowException:
        raise _too_large(given.column) from None


def _one_line(texts: pa.Array) -> pa.Array:
    """MariaDB's JSON is text; line breaks between its tokens become spaces."""
    if not pc.any(pc.match_substring_regex(texts, r"[\r\n]")).as_py():
        return texts
    return pc.replace_substring_regex(texts, r"[\r\n]", " ")


def _each(given: _Input, convert: Callable[[bytes], str]) -> pa.Array:
    """A rule for single values, run once for each value that differs."""
    encoded = gather(given.block, given.cells, text=False).dictionary_encode()
    texts = pa.array([convert(value) for value in encoded.dictionary.to_pylist()], pa.string())
    if given.column.kind is Kind.JSON:
        texts = _one_line(texts)
    return texts.take(encoded.indices)


def _uuid(data: bytes) -> str:
    from changefeed.sources.mysql.rows import uuid_text

    return uuid_text(data)


def _inet4(data: bytes) -> str:
    import ipaddress

    return str(ipaddress.IPv4Address(data.ljust(4, b"\0")[:4]))


def _inet6(data: bytes) -> str:
    from changefeed.sources.mysql.rows import inet6_text

    return inet6_text(data)


_ADDRESSES: dict[str, Callable[[bytes], str]] = {"uuid": _uuid, "inet4": _inet4, "inet6": _inet6}

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def _bytes(given: _Input) -> pa.Array:
    values = gather(given.block, given.cells, text=False)
    # BINARY(n) is stored without its zeros at the end.
    fixed = given.shape.meta if given.shape.wire is ColumnType.STRING else 0
    return _hex(values, fixed, given)


def _hex(values: pa.Array, fixed: int, given: _Input) -> pa.Array:
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(values) + 1)
    held = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    bits = None if given.cells.valid is None else pa.array(given.cells.valid).buffers()[1]
    digits = pa.Array.from_buffers(
        pa.large_string(),
        len(values),
        [bits, pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(_HEX[held])],
    )
    if fixed:
        digits = pc.ascii_rpad(digits, 2 * fixed, "0")
    prefix = pa.scalar("\\x", pa.large_string())
    empty = pa.scalar("", pa.large_string())
    return _narrow(pc.binary_join_element_wise(prefix, digits, empty), given)


def _blob(given: _Input) -> pa.Array:
    return _bytes(given) if given.column.kind is Kind.BYTES else _text(given)


def _compressed(given: _Input) -> pa.Array:
    """MariaDB's COMPRESSED: the values behind their first byte, or unpacked into another block."""
    cells, data = given.cells, given.block.data
    there = cells.ends > cells.starts
    if not data[cells.starts[there]].any():
        return _blob(replace(given, cells=replace(cells, starts=cells.starts + there)))
    values = gather(given.block, cells, text=False).to_pylist()
    unpacked = [b"" if value is None else column_unpacked(value) for value in values]
    bounds = np.cumsum([0, *map(len, unpacked)])
    block = Block(bytearray(b"".join([*unpacked, bytes(PADDING)])))
    return _blob(replace(given, block=block, cells=Cells(bounds[:-1], bounds[1:], cells.valid)))


def _json(given: _Input) -> pa.Array:
    return _each(given, json_text)


def _bit(given: _Input) -> pa.Array:
    bits = (given.shape.meta >> 8) * 8 + (given.shape.meta & 0xFF)
    if given.column.physical == "bool":
        return pa.array(given.block.data[given.cells.starts] & 1 == 1, mask=given.mask)
    size = (bits + 7) // 8
    texts = Characters(len(given), "\\x" + "00" * size)
    for byte in range(size):
        texts.words(2 + 2 * byte, _HEX[given.block.data[given.cells.starts + byte]])
    return texts.whole(given.cells.valid)


def _enum(given: _Input) -> pa.Array:
    index = given.little(given.shape.meta)
    if given.cells.valid is not None:
        index = np.where(given.cells.valid, index, 0)
    names = ["", *_names(given)]
    if int(index.max()) >= len(names):
        raise misfit("an ENUM value that its column does not have")
    return pa.array(names, pa.string()).take(pa.array(index, mask=given.mask))


def _set(given: _Input) -> pa.Array:
    size = given.shape.meta
    at = given.cells.starts
    members = given.block.longs[at] if size == 8 else given.little(size).view(np.uint64)
    if given.cells.valid is not None:
        members = np.where(given.cells.valid, members, np.uint64(0))
    names = _names(given)
    distinct, inverse = np.unique(members, return_inverse=True)
    if int(distinct[-1]) >> len(names):
        raise misfit("a SET value that its column does not have")
    texts = [
        ",".join(name for bit, name in enumerate(names) if value >> bit & 1)
        for value in distinct.tolist()
    ]
    return pa.array(texts, pa.string()).take(pa.array(inverse, mask=given.mask))


def _names(given: _Input) -> list[str]:
    shape = given.shape
    return [decoded(value, shape.collation, given.charsets) for value in shape.values]


def _null(given: _Input) -> pa.Array:
    return pa.nulls(len(given), given.column.arrow)


_READERS: dict[ColumnType, Callable[[_Input], pa.Array]] = {
    ColumnType.TINY: _integer(1),
    ColumnType.SHORT: _integer(2),
    ColumnType.INT24: _integer(3),
    ColumnType.LONG: _integer(4),
    ColumnType.LONGLONG: _integer(8),
    ColumnType.FLOAT: _float,
    ColumnType.DOUBLE: _double,
    ColumnType.YEAR: _year,
    ColumnType.NEWDECIMAL: _decimal,
    ColumnType.DATE: _date,
    ColumnType.NEWDATE: _date,
    ColumnType.TIME: _time,
    ColumnType.TIME2: _time2,
    ColumnType.DATETIME: _datetime,
    ColumnType.DATETIME2: _datetime2,
    ColumnType.TIMESTAMP: _timestamp,
    ColumnType.TIMESTAMP2: _timestamp2,
    ColumnType.VARCHAR: _text,
    ColumnType.VAR_STRING: _text,
    ColumnType.STRING: _text,
    ColumnType.BLOB: _blob,
    ColumnType.MARIA_VARCHAR_COMPRESSED: _compressed,
    ColumnType.MARIA_BLOB_COMPRESSED: _compressed,
    ColumnType.GEOMETRY: _bytes,
    ColumnType.VECTOR: _bytes,
    ColumnType.JSON: _json,
    ColumnType.BIT: _bit,
    ColumnType.ENUM: _enum,
    ColumnType.SET: _set,
    ColumnType.NULL: _null,
}
