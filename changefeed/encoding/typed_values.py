"""Values of the log as values of their types, a column at a time.

The log holds text in the neutral log form (:mod:`changefeed.core.types`). What the type cannot
hold exactly is an error that names the column (CF4001), never another value; ``infinity`` has
numbers of its own. Only what Arrow cannot read, years beyond
9999 and before Christ, is read one by one.
"""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.types import FLOATS, INTEGERS, TEXT_NUMBERS, Kind, LogicalType

#: The numbers for ``infinity`` of the log form where moments are numbers: out of the range of
#: finite values, so they are unambiguous. Microseconds as Debezium writes them; days
#: as PostgreSQL keeps them itself.
INFINITE_MICROS = 9_223_372_036_825_200_000
MINUS_INFINITE_MICROS = -9_223_372_036_832_400_000
INFINITE_DAYS = 2**31 - 1
MINUS_INFINITE_DAYS = -(2**31)

_DAY = 86_400_000_000
_QUOTE = '"'


def typed_values(of: LogicalType, values: pa.Array, column: str) -> pa.Array:
    """A column of the log (or elements of its arrays) as values of its type in typed formats,
    ``of`` (:attr:`changefeed.core.types.LogicalType.typed`).

    Days are ``int32``, times and moments microseconds in ``int64``, integers ``int64``, floating
    point numbers what the source printed, in ``float64``. A decimal that is no number is NULL:
    :func:`not_numbers` has it. ``column`` names the values in errors.

    Raises:
        ChangefeedError: CF4001, a value does not fit.
    """
    with _fitting(column):
        if of.element is not None:
            return _lists(of.element, values, column)
        if of.precision:
            return _decimal(of, values)
        read = _READ.get(of.kind)
        return printed(of, values) if read is None else read(values)


def single_floats(values: pa.Array, column: str) -> pa.Array:
    """Numbers as ``float32``, read directly: rounded first to ``float64`` they may differ."""
    with _fitting(column):
        return _unquoted(values).cast(pa.float32())


def printed(of: LogicalType, values: pa.Array) -> pa.Array:
    """Values that the log has as text, as the source printed them."""
    return _unquoted(values) if of.kind in TEXT_NUMBERS else values


@contextmanager
def _fitting(column: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, ValueError, OverflowError) as cause:
        raise ChangefeedError(
            Code.VALUE_NOT_ENCODABLE,
            f"a value of column {column} does not fit the type it has in this format",
        ) from cause


def without_times(logical: LogicalType) -> LogicalType:
    """The type for readers that may have none for a time of day: text in its place."""
    typed = logical.typed
    if typed.element is not None:
        return LogicalType(Kind.ARRAY, element=without_times(typed.element))
    return LogicalType(Kind.TEXT) if typed.kind is Kind.TIME else typed


def not_numbers(values: pa.Array) -> pa.Array | None:
    """``NaN`` and ``Infinity`` among numerics, without quotes, and NULL for numbers; None if all
    are numbers."""
    odd = pc.fill_null(pc.starts_with(values, _QUOTE), False)
    if not pc.any(odd).as_py():
        return None
    return pc.if_else(odd, _unquoted(values), None)


def _unquoted(values: pa.Array) -> pa.Array:
    return pc.utf8_trim(values, _QUOTE)


def _boolean(values: pa.Array) -> pa.Array:
    return values.cast(pa.bool_())


def _integer(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64())


def _double(values: pa.Array) -> pa.Array:
    return _unquoted(values).cast(pa.float64())


def _decimal(of: LogicalType, values: pa.Array) -> pa.Array:
    odd = pc.starts_with(values, _QUOTE)
    if pc.any(odd).as_py():
        values = pc.if_else(odd, None, values)
    return values.cast(pa.decimal128(of.precision, of.scale))


_HEX = np.full(256, 0xFF, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


def _bytes(values: pa.Array) -> pa.Array:
    digits = pc.utf8_slice_codeunits(pc.fill_null(values, ""), 2)
    _, offsets, data = digits.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(digits) + 1, digits.offset * 4)
    codes = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    nibbles = _HEX[codes]
    if (nibbles > 15).any() or (np.diff(bounds) % 2).any():
        raise ValueError("not hexadecimal")
    decoded = nibbles[0::2] << 4 | nibbles[1::2]
    places = ((bounds - bounds[0]) // 2).astype(np.int32)
    made = pa.BinaryArray.from_buffers(
        pa.binary(), len(digits), [None, pa.py_buffer(places), pa.py_buffer(decoded)]
    )
    return made if not values.null_count else pc.if_else(values.is_valid(), made, None)


# ------------------------------------------------------------------------------- moments


def _time(values: pa.Array) -> pa.Array:
    """Microseconds of the day; in the log form a time may be ``24:00:00``."""
    last = pc.equal(values, "24:00:00")
    clocks = pc.if_else(last, "00:00:00", values)
    moments = pc.binary_join_element_wise("1970-01-01T", clocks, "").cast(pa.timestamp("us"))
    return pc.if_else(last, pa.scalar(_DAY, pa.int64()), moments.cast(pa.int64()))


#: Moments that Arrow reads: years of four digits, no era, not infinity.
_USUAL = r"^\d{4}-[^B]*$"


def _date(values: pa.Array) -> pa.Array:
    return _moments(values, pa.date32(), pa.int32(), _days)


def _timestamp(values: pa.Array) -> pa.Array:
    return _moments(values, pa.timestamp("us"), pa.int64(), _micros)


def _timestamptz(values: pa.Array) -> pa.Array:
    return _moments(values, pa.timestamp("us", tz="UTC"), pa.int64(), _micros)


def _moments(
    values: pa.Array, to: pa.DataType, number: pa.DataType, read: Callable[[str], int]
) -> pa.Array:
    # Arrow reads only what is usual; to check that first takes as long again.
    with suppress(pa.ArrowInvalid):
        return values.cast(to).cast(number)
    usual = pc.fill_null(pc.match_substring_regex(values, _USUAL), True)
    if pc.all(usual).as_py():
        return values.cast(to).cast(number)
    rare = pa.array([read(text) for text in values.filter(pc.invert(usual)).to_pylist()], number)
    numbers = pc.if_else(usual, values, None).cast(to).cast(number)
    return pc.replace_with_mask(numbers, pc.invert(usual), rare)


_RARE = re.compile(
    r"(\d+)-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|\+00)?)?( BC)?"
)


def _days(text: str) -> int:
    if text == "infinity":
        return INFINITE_DAYS
    return MINUS_INFINITE_DAYS if text == "-infinity" else _parts(text)[0]


def _micros(text: str) -> int:
    if text == "infinity":
        return INFINITE_MICROS
    if text == "-infinity":
        return MINUS_INFINITE_MICROS
    days, micros = _parts(text)
    return days * _DAY + micros


def _parts(text: str) -> tuple[int, int]:
    """Days since 1970 and microseconds of the day of a moment in any year."""
    match = _RARE.fullmatch(text)
    if match is None:
        raise ValueError("not a moment")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    # ISO has a year 0 where the log form has 1 BC. The calendar repeats after 400 years.
    year = 1 - year if match[8] else year
    cycles, place = divmod(year, 400)
    days = dt.date(place + 400, month, day).toordinal() - dt.date(1970, 1, 1).toordinal()
    micros = int((match[7] or "").ljust(6, "0"))
    return (
        days + (cycles - 1) * 146_097,
        ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros,
    )


# ------------------------------------------------------------------------------- arrays

#: Elements of these kinds hold no comma and no escape in the log's text.
_SIMPLE = INTEGERS | TEXT_NUMBERS | {Kind.BOOL}


def _lists(element: LogicalType, values: pa.Array, column: str) -> pa.Array:
    items = list_items(element, values, column)
    return lists_of(items, typed_values(element, items.values, column))


def lists_of(items: pa.ListArray, values: pa.Array) -> pa.Array:
    """Lists like ``items`` with other values in place of theirs."""
    parts = [items.buffers()[0], items.buffers()[1]]
    return pa.Array.from_buffers(pa.list_(values.type), len(items), parts, children=[values])


def list_items(element: LogicalType, values: pa.Array, column: str) -> pa.ListArray:
    """Arrays of the log (JSON text) as lists of the log's texts of their elements.

    Raises:
        ChangefeedError: CF4001, an array has several dimensions, or bounds of its own.
    """
    for start, what in (("[[", "of several dimensions"), ('"', "whose bounds do not begin at 1")):
        if pc.any(pc.starts_with(values, start)).as_py():
            raise ChangefeedError(
                Code.VALUE_NOT_ENCODABLE,
                f"column {column} holds an array {what}, which this format cannot",
            )
    if element.kind in _SIMPLE:
        return _split(values)
    return _texts(values)


def _split(values: pa.Array) -> pa.ListArray:
    inner = pc.utf8_slice_codeunits(values, 1, -1)
    lists = pc.split_pattern(inner, ",")
    items = lists.flatten()
    # The split of an empty list is an empty text, and no number is one.
    items = items.filter(pc.not_equal(items, ""))
    items = pc.if_else(pc.equal(items, "null"), None, items)
    sizes = pc.if_else(pc.equal(inner, ""), 0, pc.list_value_length(lists))
    return _listed(sizes, items)


def _texts(values: pa.Array) -> pa.ListArray:
    if not len(values):
        return pa.array([], pa.list_(pa.string()))
    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(values, "null"), "}\n", "")
    whole = pa.ListArray.from_arrays([0, len(lines)], lines)
    text = pc.binary_join(whole, "")[0].as_buffer()
    schema = pa.schema([pa.field("v", pa.list_(pa.string()))])
    table = pa.json.read_json(
        io.BytesIO(text),
        read_options=pa.json.ReadOptions(block_size=max(1 << 20, 2 * text.size)),
        parse_options=pa.json.ParseOptions(explicit_schema=schema),
    )
    lists = table["v"].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0)
    return _listed(pc.list_value_length(lists), lists.flatten())


def _listed(sizes: pa.Array, items: pa.Array) -> pa.ListArray:
    """Lists of ``sizes`` over ``items``; a NULL size is a NULL list."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False), out=offsets[1:])
    mask = sizes.is_null() if sizes.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=mask)


_READ: dict[Kind, Callable[[pa.Array], pa.Array]] = {
    Kind.BOOL: _boolean,
    **dict.fromkeys(INTEGERS, _integer),
    **dict.fromkeys(FLOATS, _double),
    Kind.BYTES: _bytes,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
}
