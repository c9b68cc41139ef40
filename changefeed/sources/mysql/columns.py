"""Values of the binlog -> columns of the log, many rows at a time.

Each type's bytes are gathered by numpy and printed as a matrix of characters (dates, decimals)
or cut out by Arrow (text). Only binary JSON is read value by value. :mod:`.rows` does the same one
value at a time and shares no code with it: each is the other's proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column
from changefeed.sources.mysql.binlog import misfit
from changefeed.sources.mysql.json_binary import json_text
from changefeed.sources.mysql.layout import DIGIT_BYTES
from changefeed.sources.mysql.tablemap import Charsets, ColumnShape, ColumnType, codec, decoded
from changefeed.sources.mysql.walk import Block, Bytes, Cells, Mask

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Input:
    """The cells of one column and what is known of it."""

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

    def bytes(self, size: int) -> Bytes:
        """The first ``size`` bytes of each cell (nulls: of anything), a row each."""
        places = self.cells.starts[:, None] + np.arange(size)
        found: Bytes = self.block.data[np.minimum(places, len(self.block.data) - 1)]
        return found

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

    def big(self, size: int) -> Numbers:
        """Unsigned numbers of up to 7 bytes, high byte first."""
        found = self.block.longs[self.cells.starts].byteswap() >> np.uint64(64 - 8 * size)
        return found.astype(np.int64)


def decode_column(
    block: Block, cells: Cells, shape: ColumnShape, column: Column, charsets: Charsets
) -> pa.Array:
    """The values as an array of ``column.arrow``.

    Raises:
        ChangefeedError: CF2105 bytes that are no value of the type.
    """
    given = _Input(block, cells, shape, column, charsets)
    if not len(given):
        return pa.array([], column.arrow)
    try:
        found = _READERS[shape.wire](given)
    except KeyError:
        raise misfit(f"a column of type {shape.wire.name}, which cannot be read") from None
    return found if found.type == column.arrow else _cast(found, column)


def _cast(found: pa.Array, column: Column) -> pa.Array:
    try:
        return found.cast(column.arrow)
    except pa.ArrowException:
        raise misfit(f"a value of column {column.name!r} is not of its type") from None


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
    sizes = _digit_groups(whole, scale)
    data = given.bytes(sum(DIGIT_BYTES[digits] for digits in sizes))
    negative = data[:, 0] & 0x80 == 0
    data[:, 0] ^= 0x80
    data[negative] ^= 0xFF
    parts, place = [], 0
    for digits in sizes:
        size = DIGIT_BYTES[digits]
        number = np.zeros(len(data), np.int64)
        for byte in range(place, place + size):
            number = number << 8 | data[:, byte]
        place += size
        parts.append(_digits(number, digits))
    figures = np.concatenate(parts, axis=1)
    left, right = figures[:, :whole], figures[:, whole:]
    if not whole:
        left = np.full((len(data), 1), ord("0"), np.uint8)
    keep = np.maximum.accumulate(left != ord("0"), axis=1)
    keep[:, -1] = True
    columns = [_letter("-", len(data)), left]
    kept = [negative[:, None], keep]
    if scale:
        columns += [_letter(".", len(data)), right]
        kept.append(np.ones((len(data), 1 + scale), np.bool_))
    return _printed(np.concatenate(columns, axis=1), np.concatenate(kept, axis=1), given)


def _digit_groups(whole: int, scale: int) -> list[int]:
    """Digits of each number of a DECIMAL: the odd ones are at both ends."""
    left, right = divmod(whole, 9), divmod(scale, 9)
    groups = [left[1], *[9] * left[0], *[9] * right[0], right[1]]
    return [digits for digits in groups if digits]


# ------------------------------------------------------------------- matrices of characters


_TWO = np.frombuffer(b"".join(b"%02d" % n for n in range(100)), np.uint8).reshape(100, 2)
_FOUR = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint8).reshape(10_000, 4)


def _digits(numbers: Numbers, width: int) -> Bytes:
    """The last ``width`` digits of each number."""
    if width == 2:
        return _TWO[numbers % 100]
    if width == 4:
        return _FOUR[numbers % 10_000]
    found = np.empty((len(numbers), width), np.uint8)
    # Numbers of up to nine digits: divisions of 32 bits are several times faster.
    rest = numbers.astype(np.uint32) if width <= 9 else numbers
    place = width
    while place > 4:
        high = rest // 10_000
        found[:, place - 4 : place] = _FOUR[rest - high * 10_000]
        rest, place = high, place - 4
    found[:, :place] = _FOUR[rest % 10_000][:, 4 - place :]
    return found


def _letter(letter: str, count: int) -> Bytes:
    return np.full((count, 1), ord(letter), np.uint8)


def _printed(matrix: Bytes, keep: Mask | None, given: _Input, lost: Mask | None = None) -> pa.Array:
    """Rows of characters as texts; nulls, and what is ``lost``, are null."""
    valid = given.cells.valid
    if lost is not None and lost.any():
        valid = ~lost if valid is None else valid & ~lost
    count, width = matrix.shape
    if keep is None:
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
        data = np.ascontiguousarray(matrix).reshape(-1)
    else:
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(keep.sum(axis=1), out=offsets[1:])
        data = matrix[keep]
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data), bits)


def _clock(hours: Numbers, minutes: Numbers, seconds: Numbers) -> list[Bytes]:
    count = len(hours)
    colon = _letter(":", count)
    return [_digits(hours, 2), colon, _digits(minutes, 2), colon, _digits(seconds, 2)]


def _fraction(given: _Input, micros: Numbers) -> list[Bytes]:
    digits = given.shape.meta
    if not digits:
        return []
    return [_letter(".", len(given)), _digits(micros, 6)[:, :digits]]


def _calendar(years: Numbers, months: Numbers, days: Numbers) -> list[Bytes]:
    dash = _letter("-", len(years))
    return [_digits(years, 4), dash, _digits(months, 2), dash, _digits(days, 2)]


def _date(given: _Input) -> pa.Array:
    packed = given.little(3)
    day, month, year = packed & 31, packed >> 5 & 15, packed >> 9
    matrix = np.concatenate(_calendar(year, month, day), axis=1)
    return _printed(matrix, None, given, (day == 0) | (month == 0) | (year == 0))


def _micros(given: _Input, seconds_bytes: int) -> Numbers:
    """The fraction behind the seconds, as microseconds."""
    digits = given.shape.meta
    size = (digits + 1) // 2
    if not size:
        return np.zeros(len(given), np.int64)
    behind = given.block.longs[given.cells.starts + seconds_bytes].byteswap()
    total = (behind >> np.uint64(64 - 8 * size)).astype(np.int64)
    micros: Numbers = total * 10 ** (6 - 2 * size)
    return micros


def _datetime2(given: _Input) -> pa.Array:
    packed = given.big(5) - 0x8000000000
    months, day = packed >> 22, packed >> 17 & 31
    year, month = np.divmod(months, 13)
    clock = _clock(packed >> 12 & 31, packed >> 6 & 63, packed & 63)
    return _moment(given, (year, month, day), clock, _micros(given, 5))


def _moment(
    given: _Input,
    date: tuple[Numbers, Numbers, Numbers],
    clock: list[Bytes],
    micros: Numbers,
    zone: str = "",
    zero: Mask | None = None,
) -> pa.Array:
    year, month, day = date
    parts = [*_calendar(year, month, day), _letter("T", len(given)), *clock]
    parts += _fraction(given, micros)
    if zone:
        parts.append(_letter(zone, len(given)))
    lost = (day == 0) | (month == 0) | (year <= 0)
    if zero is not None:
        lost |= zero
    return _printed(np.concatenate(parts, axis=1), None, given, lost)


def _timestamp2(given: _Input) -> pa.Array:
    return _seconds(given, given.big(4), _micros(given, 4))


def _timestamp(given: _Input) -> pa.Array:
    return _seconds(given, given.little(4), np.zeros(len(given), np.int64))


def _seconds(given: _Input, seconds: Numbers, micros: Numbers) -> pa.Array:
    days, rest = np.divmod(seconds, 86_400)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    clock = _clock(rest // 3600, rest // 60 % 60, rest % 60)
    return _moment(given, (year, month, day), clock, micros, "Z", (seconds == 0) & (micros == 0))


def _time2(given: _Input) -> pa.Array:
    size = (given.shape.meta + 1) // 2
    # One number of all bytes: it keeps the sign right where there is a fraction.
    packed = given.big(3 + size) - (0x800000 << 8 * size)
    whole = np.abs(packed)
    upper = whole >> 8 * size
    micros = (whole & ((1 << 8 * size) - 1)) * 10 ** (6 - 2 * size)
    return _duration(given, packed < 0, upper >> 12 & 0x3FF, upper >> 6 & 63, upper & 63, micros)


def _time(given: _Input) -> pa.Array:
    packed = (given.little(3) ^ 0x800000) - 0x800000
    whole = np.abs(packed)
    none = np.zeros(len(given), np.int64)
    return _duration(given, packed < 0, whole // 10_000, whole // 100 % 100, whole % 100, none)


def _duration(
    given: _Input,
    negative: Mask,
    hours: Numbers,
    minutes: Numbers,
    seconds: Numbers,
    micros: Numbers,
) -> pa.Array:
    count = len(given)
    clock = _clock(hours % 100, minutes, seconds)
    parts = [_letter("-", count), _digits(hours // 100, 2), *clock, *_fraction(given, micros)]
    matrix = np.concatenate(parts, axis=1)
    keep = np.ones(matrix.shape, np.bool_)
    keep[:, 0] = negative
    keep[:, 1] = hours >= 1000
    keep[:, 2] = hours >= 100
    return _printed(matrix, keep, given)


def _datetime(given: _Input) -> pa.Array:
    packed = given.block.longs[given.cells.starts].astype(np.int64)
    date, clock = np.divmod(packed, 1_000_000)
    year, month, day = date // 10_000, date // 100 % 100, date % 100
    parts = _clock(clock // 10_000, clock // 100 % 100, clock % 100)
    return _moment(given, (year, month, day), parts, np.zeros(len(given), np.int64))


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
    if given.column.logical == "bytes":
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
    return _one_line(found) if given.column.logical == "json" else found


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
    if given.column.logical == "json":
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
    return _bytes(given) if given.column.logical == "bytes" else _text(given)


def _json(given: _Input) -> pa.Array:
    return _each(given, json_text)


def _bit(given: _Input) -> pa.Array:
    bits = (given.shape.meta >> 8) * 8 + (given.shape.meta & 0xFF)
    if given.column.physical == "bool":
        return pa.array(given.block.data[given.cells.starts] & 1 == 1, mask=given.mask)
    data = given.bytes((bits + 7) // 8)
    pairs = np.concatenate(
        [np.broadcast_to(np.frombuffer(b"\\x", np.uint16), (len(data), 1)), _HEX[data]], axis=1
    )
    return _printed(np.ascontiguousarray(pairs).view(np.uint8), None, given)


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
    ColumnType.GEOMETRY: _bytes,
    ColumnType.VECTOR: _bytes,
    ColumnType.JSON: _json,
    ColumnType.BIT: _bit,
    ColumnType.ENUM: _enum,
    ColumnType.SET: _set,
    ColumnType.NULL: _null,
}
