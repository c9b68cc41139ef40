"""Values of the log as those that Debezium's connectors give Kafka Connect, a column at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.byte_columns import binary
from changefeed.encoding.debezium.fields import ConnectType, Conversion
from changefeed.encoding.typed_values import list_items, typed_values

_NOTHING = pa.scalar("", pa.string())
_MICROS_PER_DAY = 86_400_000_000
#: Digits that every decimal of 128 bits can have.
_DIGITS = 38
_SECOND = 1_000_000


@contextmanager
def fitting(column: str) -> Iterator[None]:
    """Turns the exceptions of a value that does not fit its type into an error of the column.

    Raises:
        ChangefeedError: CF4001.
    """
    try:
        yield
    except (pa.ArrowInvalid, ValueError, OverflowError) as cause:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column} does not fit the type it has in Debezium's messages",
        ) from cause


def connect_values(field: ConnectType, values: pa.Array, name: str) -> pa.Array:
    """The values in Arrow's types: integers, booleans, ``string`` and ``binary``.

    Floating point numbers stay the log's text; a ``SCALED`` number is its digits, and
    :func:`scales` has its scale. For arrays see :func:`items`.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
        ValueError: likewise, see :func:`fitting`.
    """
    way = field.way
    if way in (Conversion.AS_IS, Conversion.TEXT):
        return values
    if way is Conversion.BIT:
        return pc.equal(values, "1")
    if way is Conversion.DIGITS:
        return _packed(values, field.digits)
    if way is Conversion.LONG:
        return _signed(values)
    if way in (Conversion.BYTES, Conversion.BITS):
        data = typed_values(LogicalType(Kind.BYTES), values, name)
        return _reversed(data) if way is Conversion.BITS else data
    if way in (Conversion.UNSCALED, Conversion.SCALED):
        _refuse_no_number(values, name)
        return unscaled(values)
    if way is Conversion.ZONED:
        return _zoned(values, field.digits)
    if way is Conversion.ZONED_TIME:
        return _in_utc(values)
    if way is Conversion.DURATION:
        return _duration(values)
    if way is Conversion.CLOCK:
        return _clock(values)
    return _units(field, values, name)


def items(element: LogicalType, values: pa.Array, name: str) -> pa.ListArray:
    """Arrays of the log as lists of the log's values of their elements.

    Raises:
        ChangefeedError: CF4001, an array has several dimensions.
    """
    return list_items(element.typed, values, name)


def joined(*parts: str | pa.Array) -> pa.Array:
    """The concatenation of the parts; NULL where one is NULL."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, pa.string()) if isinstance(part, str) else part for part in parts),
        _NOTHING,
    )


# ------------------------------------------------------------------------------- numbers


def _signed(values: pa.Array) -> pa.Array:
    """The 64 bits of an unsigned number, read as a signed one."""
    return values.cast(pa.uint64()).view(pa.int64())


def _refuse_no_number(values: pa.Array, name: str) -> None:
    if pc.any(pc.starts_with(values, '"')).as_py():
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"column {name} holds NaN or infinity, which the decimals of envelope=debezium cannot",
            hint="leave the column out with a column list, or use another envelope.",
        )


def scales(values: pa.Array) -> pa.Array:
    """The number of digits after the point."""
    point = pc.find_substring(values, ".")
    return pc.if_else(
        pc.less(point, 0), 0, pc.subtract(pc.subtract(pc.binary_length(values), point), 1)
    )


def unscaled(values: pa.Array) -> pa.Array:
    """Decimals without their point, in two's complement: big-endian, in as few bytes as possible
    (as Java's ``BigInteger.toByteArray``)."""
    digits = pc.replace_substring(values, ".", "")
    long = pc.greater(pc.binary_length(digits), _DIGITS)
    if not pc.any(long).as_py():
        return _big_endian(digits)
    # Such long numbers are rare, and Arrow has no type for them.
    rare = [_bytes(int(text)) for text in digits.filter(long).to_pylist()]
    short = _big_endian(pc.if_else(long, None, digits))
    return pc.replace_with_mask(short, pc.fill_null(long, False), pa.array(rare, pa.binary()))


def _bytes(number: int) -> bytes:
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _big_endian(digits: pa.Array) -> pa.Array:
    numbers = pc.fill_null(digits, "0").cast(pa.decimal128(_DIGITS, 0))
    rows = len(numbers)
    little = np.frombuffer(numbers.buffers()[1], np.uint8, rows * 16, numbers.offset * 16)
    big = little.reshape(-1, 16)[:, ::-1]
    sign = (big[:, :1] >> 7) * np.uint8(0xFF)
    # A byte is not needed when it repeats the sign and so does the top bit of the next one.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] >> 7) * np.uint8(0xFF) == sign)
    kept = 16 - np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    made = binary(big[np.arange(16) >= (16 - kept)[:, None]], kept)
    return pc.if_else(digits.is_valid(), made, None) if digits.null_count else made


def _packed(values: pa.Array, width: int) -> pa.Array:
    """Zeros and ones as bits; the last character is the lowest bit of the first byte."""
    text = pc.fill_null(values, "0" * width).cast(pa.binary(width)).cast(pa.binary())
    ones = np.frombuffer(text.buffers()[2], np.uint8)[-width * len(text) :] == ord("1")
    bits = np.packbits(ones.reshape(-1, width)[:, ::-1], axis=1, bitorder="little")
    made = binary(bits.reshape(-1), np.full(len(bits), bits.shape[1], dtype=np.int64))
    return pc.if_else(values.is_valid(), made, None) if values.null_count else made


def _reversed(values: pa.Array) -> pa.Array:
    return pc.binary_reverse(values) if len(values) else values


# ------------------------------------------------------------------------------- moments

_KINDS = {
    Conversion.DAYS: Kind.DATE,
    Conversion.TIME: Kind.TIME,
    Conversion.MOMENT: Kind.TIMESTAMP,
}


def _units(field: ConnectType, values: pa.Array, name: str) -> pa.Array:
    numbers = typed_values(LogicalType(_KINDS[field.way]), values, name)
    return numbers if field.divisor == 1 else _floor(numbers, field.divisor)


def _floor(numbers: pa.Array, divisor: int) -> pa.Array:
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))
    down = pc.if_else(pc.less(rest, 0), 1, 0)
    return pc.subtract(pc.divide(numbers, divisor), down)


def _zoned(values: pa.Array, digits: int) -> pa.Array:
    """``2024-03-31T01:02:03.500000Z``: with as many digits as the column has."""
    if not digits:
        return values
    usual = pc.fill_null(pc.match_substring_regex(values, r"^\d{4}-[^B+]*Z$"), False)
    point = pc.find_substring(values, ".")
    whole = pc.utf8_slice_codeunits(values, 0, 19)
    fraction = pc.if_else(pc.less(point, 0), "", pc.utf8_slice_codeunits(values, 20, -1))
    padded = joined(whole, ".", pc.utf8_rpad(fraction, digits, "0"), "Z")
    return pc.if_else(usual, padded, values)


_WITH_OFFSET = (
    r"^(?P<hours>\d\d):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<micros>\d+))?"
    r"(?P<sign>[+-])(?P<east_hours>\d\d)(?::(?P<east_minutes>\d\d)(?::(?P<east_seconds>\d\d))?)?\z"
)


def _in_utc(values: pa.Array) -> pa.Array:
    """``01:02:03.5+02`` as ``23:02:03.5Z``: as Java writes a time of day in UTC."""
    parts = _parts(values, _WITH_OFFSET)
    east = {name: parts[f"east_{name}"] for name in ("hours", "minutes", "seconds")}
    offset = _time_of({**east, "micros": pa.scalar(0), "sign": parts["sign"]})
    local = _time_of({**parts, "sign": pa.scalar(1)})
    moved = pc.add(pc.subtract(local, offset), 2 * _MICROS_PER_DAY)
    days = pc.multiply(pc.divide(moved, _MICROS_PER_DAY), _MICROS_PER_DAY)
    text = pc.subtract(moved, days).cast(pa.time64("us")).cast(pa.string())  # six digits
    return joined(pc.replace_substring_regex(text, r"\.?0*\z", ""), "Z")


_INTERVAL = (
    r"^(?:(?P<years>-?\d+) years? ?)?(?:(?P<months>-?\d+) mons? ?)?(?:(?P<days>-?\d+) days? ?)?"
    r"(?:(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<micros>\d+))?)?\z"
)
_DAYS_OF_MONTH = 365.25 / 12


def _duration(values: pa.Array) -> pa.Array:
    """PostgreSQL's intervals (``1 year 2 mons -3 days 04:05:06.5``) in microseconds."""
    parts = _parts(pc.replace_substring(values, "+", ""), _INTERVAL)
    months = pc.add(pc.multiply(parts["years"], 12), parts["months"])
    days = pc.add(pc.multiply(months.cast(pa.float64()), _DAYS_OF_MONTH), parts["days"])
    whole = pc.multiply(days, float(_MICROS_PER_DAY)).cast(pa.int64(), safe=False)
    return pc.add(whole, _time_of(parts))


_CLOCK = r"^(?P<sign>-?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<micros>\d+))?\z"


def _clock(values: pa.Array) -> pa.Array:
    """MySQL's times (``-838:59:59.5``) in microseconds."""
    return _time_of(_parts(values, _CLOCK))


def _parts(values: pa.Array, pattern: str) -> dict[str, pa.Array]:
    """The groups of a pattern as numbers, 0 for a missing one, and ``sign`` as -1 or 1.

    Raises:
        ValueError: a value does not match.
    """
    found = pc.extract_regex(values, pattern)
    if found.null_count > values.null_count:
        raise ValueError("not of this form")
    parts = {}
    for field in found.type:
        text = pc.struct_field(found, field.name)
        if field.name == "micros":
            text = pc.utf8_rpad(pc.utf8_slice_codeunits(text, 0, 6), 6, "0")
        if field.name == "sign":
            parts["sign"] = pc.if_else(pc.equal(text, "-"), -1, 1)
        else:
            filled = pc.if_else(pc.equal(text, ""), "0", text)
            parts[field.name] = filled.cast(pa.int64())
    return parts


def _time_of(parts: dict[str, pa.Array]) -> pa.Array:
    minutes = pc.add(pc.multiply(parts["hours"], 60), parts["minutes"])
    seconds = pc.add(pc.multiply(minutes, 60), parts["seconds"])
    micros = pc.add(pc.multiply(seconds, _SECOND), parts["micros"])
    return pc.multiply(micros, parts["sign"])
