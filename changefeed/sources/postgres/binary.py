"""PostgreSQL's binary form of a value -> the same log form its text gives.

With ``binary 'true'`` the server sends the output of a type's send function. Numbers and texts
are then cheaper to take; what the log keeps as text (floats, numerics, timestamps) has to be
printed here instead of by the server, which costs more than it saves: text is the default.

As in :mod:`.values` every rule exists for columns (:func:`binary_column`) and for one value
(:func:`binary_value`); arrays, and types without a row in the table below, have no binary form
here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.sources.decoded.spans import Bytes, Places, Spans, gather
from changefeed.sources.postgres.values import without_size

_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # 2000-01-01 in days since 1970-01-01
_INFINITE = {2**63 - 1: "infinity", -(2**63): "-infinity"}
_INFINITE_DAY = {2**31 - 1: "infinity", -(2**31): "-infinity"}
_HEX = np.array([ord(d) for b in range(256) for d in f"{b:02x}"], np.uint8).reshape(256, 2)

# ------------------------------------------------------------------------------- a value


def binary_value(column: Column, data: bytes | None) -> Any:
    """One binary value -> what :func:`~changefeed.sources.postgres.values.text_value` gives."""
    if data is None:
        return None
    if column.physical == "bool":
        return data != b"\0"
    if column.physical != "string":
        return _integer(data, column.logical)
    logical = without_size(column.logical)
    text = _PRINTED[logical](data)
    return f'"{text}"' if logical in _NUMBERS and text[-1].isalpha() else text


def has_binary(column: Column) -> bool:
    """Whether values of the column can be read in binary form."""
    if column.physical != "string":
        return True
    return without_size(column.logical) in _PRINTED


#: Bytes of a number by the type it becomes. Four for an int64: an oid.
_SIZES = {"int16": (2,), "int32": (4,), "int64": (4, 8)}


def _integer(data: bytes, logical: str) -> int:
    if len(data) not in _SIZES[logical]:
        raise ValueError("a number of another size than its type")
    # Four bytes for an int64: an oid, which has no sign.
    return int.from_bytes(data, signed=not (logical == "int64" and len(data) == 4))


def _text(data: bytes) -> str:
    return "" if data == b"\0" else data.decode()  # "char" sends its zero


def _json(data: bytes) -> str:
    # jsonb sends a version number first; json text never begins with that byte.
    text = data[1:] if data[:1] == b"\1" else data
    return text.decode().replace("\n", " ").replace("\r", " ")


def _uuid(data: bytes) -> str:
    if len(data) != 16:
        raise ValueError("a uuid that is not 16 bytes long")
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bytea(data: bytes) -> str:
    return "\\x" + data.hex()


def _float32(data: bytes) -> str:
    (value,) = struct.unpack(">f", data)
    return _shortest(value, str(np.float32(value)), 6)


def _float64(data: bytes) -> str:
    (value,) = struct.unpack(">d", data)
    return _shortest(value, repr(value), 15)


def _shortest(value: float, shown: str, fixed: int) -> str:
    """The server's layout of the shortest digits: exponents from ``fixed`` on are written."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(shown).normalize().as_tuple()
    assert isinstance(exponent, int)
    scale = len(digits) + exponent - 1
    text = "".join(map(str, digits))
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0"
    if scale < -4 or scale >= fixed:
        mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
        return f"{minus}{mantissa}e{'-' if scale < 0 else '+'}{abs(scale):02d}"
    if scale < 0:
        return f"{minus}0.{'0' * (-scale - 1)}{text}"
    whole = text[: scale + 1].ljust(scale + 1, "0")
    return minus + whole + ("." + text[scale + 1 :] if len(text) > scale + 1 else "")


_SPECIAL_NUMERIC = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def _numeric(data: bytes) -> str:
    """Base-10000 digits, the weight of the first, a sign, and decimals to show."""
    count, weight, sign, scale = struct.unpack_from(">hhHH", data)
    if sign in _SPECIAL_NUMERIC:
        return _SPECIAL_NUMERIC[sign]
    groups = struct.unpack_from(f">{count}H", data, 8)
    whole = "".join(f"{groups[i] if i < count else 0:04d}" for i in range(weight + 1))
    text = ("-" if sign else "") + (whole.lstrip("0") or "0")
    if not scale:
        return text
    places = range(weight + 1, weight + 1 + (scale + 3) // 4 + 1)
    decimals = "".join(f"{groups[i] if 0 <= i < count else 0:04d}" for i in places)
    return f"{text}.{decimals[:scale]}"


def _date(data: bytes) -> str:
    (days,) = struct.unpack(">i", data)
    return _INFINITE_DAY.get(days) or "{}-{:02d}-{:02d}{}".format(*_civil(days + _EPOCH_DAYS))


def _timestamp(data: bytes) -> str:
    (micros,) = struct.unpack(">q", data)
    return _INFINITE.get(micros) or _moment(micros, "")


def _timestamptz(data: bytes) -> str:
    (micros,) = struct.unpack(">q", data)
    return _INFINITE.get(micros) or _moment(micros, "+00")


def _moment(micros: int, zone: str) -> str:
    days, rest = divmod(micros, _DAY_US)
    year, month, day, era = _civil(days + _EPOCH_DAYS)
    seconds, fraction = divmod(rest, 1_000_000)
    shown = f".{fraction:06d}".rstrip("0") if fraction else ""
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{shown}"
    # As the rule for text: a final +00 is a Z; before "BC" it stays.
    end = f"{zone}{era}" if era else "Z" if zone else ""
    return f"{year}-{month:02d}-{day:02d}T{clock}{end}"


def _civil(days: int) -> tuple[str, int, int, str]:
    """Year (four digits at least), month, day, and ``" BC"`` or nothing."""
    # Days since 0000-03-01 in the proleptic Gregorian calendar, 400 years at a time.
    days += 719_468
    cycle, day = divmod(days, 146_097)
    year_of_cycle = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year_of_cycle + year_of_cycle // 4 - year_of_cycle // 100
    shifted = (5 * day + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_cycle + 400 * cycle + (month <= 2)
    date = day - (153 * shifted + 2) // 5 + 1
    return (f"{year:04d}", month, date, "") if year > 0 else (f"{1 - year:04d}", month, date, " BC")


_PRINTED: dict[str, Callable[[bytes], str]] = {
    "text": _text,
    "json": _json,
    "uuid": _uuid,
    "bytes": _bytea,
    "float32": _float32,
    "float64": _float64,
    "decimal": _numeric,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
}
_NUMBERS = frozenset({"float32", "float64", "decimal"})


# ------------------------------------------------------------------------------ a column


def binary_column(column: Column, spans: Spans) -> pa.Array:
    """Binary values where they lie -> an Arrow array of ``column.arrow``."""
    logical = without_size(column.logical)
    if column.physical == "bool":
        return pa.array(spans.data[spans.starts] != 0, mask=_nulls(spans))
    if column.physical != "string":
        return _integers(column, spans)
    quick = _COLUMNS.get(logical)
    _check_sizes(logical, spans)
    found = quick(spans) if quick else None
    return _each(column, spans) if found is None else found


#: Bytes of a value, where all are of one size and are read all at once.
_FIXED = {"uuid": 16, "date": 4, "timestamp": 8, "timestamptz": 8}


def _check_sizes(logical: str, spans: Spans) -> None:
    wanted = _FIXED.get(logical)
    if wanted is None:
        return
    wrong = spans.ends - spans.starts != wanted
    if spans.valid is not None:
        wrong &= spans.valid
    if wrong.any():
        raise ValueError("a value of another size than its type")


def _nulls(spans: Spans) -> Any:
    return None if spans.valid is None else ~spans.valid


def _each(column: Column, spans: Spans) -> pa.Array:
    data = spans.data.tobytes()
    valid = [True] * len(spans) if spans.valid is None else spans.valid.tolist()
    places = zip(spans.starts.tolist(), spans.ends.tolist(), valid, strict=True)
    values = [binary_value(column, data[s:e]) if v else None for s, e, v in places]
    return pa.array(values, column.arrow)


def _at(data: Bytes, places: Places, kind: str, size: int) -> Any:
    """Big-endian numbers at any place."""
    view = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
    return view[places]


def _integers(column: Column, spans: Spans) -> pa.Array:
    sizes = spans.ends - spans.starts
    if spans.valid is not None:
        sizes = sizes[spans.valid]
    if not len(sizes):
        return pa.nulls(len(spans), column.arrow)
    size = int(sizes[0])
    if size not in _SIZES[column.physical] or (sizes != size).any():
        raise ValueError("a number of another size than its type")
    values = _at(spans.data, spans.starts, f">i{size}", size).astype(np.int64)
    if size == 4 and column.physical == "int64":
        values &= 0xFFFFFFFF
    return pa.array(values, pa.int64(), mask=_nulls(spans)).cast(column.arrow, safe=False)


def _text_column(spans: Spans) -> pa.Array | None:
    zeros = (spans.ends - spans.starts == 1) & (spans.data[spans.starts] == 0)
    return None if zeros.any() else gather(spans)


def _json_column(spans: Spans) -> pa.Array | None:
    versioned = spans.data[spans.starts] == 1
    if spans.valid is not None:
        versioned &= spans.valid
    texts = gather(Spans(spans.data, spans.starts + versioned, spans.ends, spans.valid))
    return pc.replace_substring_regex(texts, "[\r\n]", " ") if _broken(texts) else texts


def _broken(texts: pa.Array) -> bool:
    buffer = texts.buffers()[2]
    if buffer is None:
        return False
    data = np.frombuffer(buffer, np.uint8)
    return bool(((data == 10) | (data == 13)).any())


_UUID_PLACES = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


def _uuid_column(spans: Spans) -> pa.Array:
    count = len(spans)
    starts = spans.starts if spans.valid is None else np.where(spans.valid, spans.starts, 0)
    raw = spans.data[starts[:, None] + np.arange(16)]
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _UUID_PLACES] = _HEX[raw].reshape(count, 32)
    offsets = np.arange(count + 1, dtype=np.int32) * 36
    made = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
    return made if spans.valid is None else pc.if_else(pa.array(spans.valid), made, None)


#: 0001-01-01 and 10000-01-01 in microseconds since 2000: between them every year has four
#: digits and no era.
_FIRST_US, _END_US = -63_082_281_600_000_000, 252_455_616_000_000_000


def _moments(zone: str) -> Callable[[Spans], pa.Array | None]:
    def convert(spans: Spans) -> pa.Array | None:
        micros = _at(spans.data, spans.starts, ">i8", 8).astype(np.int64)
        if spans.valid is not None:
            micros[~spans.valid] = 0
        if ((micros < _FIRST_US) | (micros >= _END_US)).any():
            return None
        micros += _EPOCH_DAYS * _DAY_US
        shown = np.datetime_as_string(micros.view("datetime64[us]"))
        texts = pa.array(shown.astype(object), pa.string(), mask=_nulls(spans))
        texts = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")  # six decimals are always there
        return pc.binary_join_element_wise(texts, zone, "") if zone else texts

    return convert


_FIRST_DAY, _END_DAY = -730_119, 2_921_940


def _date_column(spans: Spans) -> pa.Array | None:
    days = _at(spans.data, spans.starts, ">i4", 4).astype(np.int64)
    if spans.valid is not None:
        days[~spans.valid] = 0
    if ((days < _FIRST_DAY) | (days >= _END_DAY)).any():
        return None
    shown = np.datetime_as_string((days + _EPOCH_DAYS).view("datetime64[D]"))
    return pa.array(shown.astype(object), pa.string(), mask=_nulls(spans))


_COLUMNS: dict[str, Callable[[Spans], pa.Array | None]] = {
    "text": _text_column,
    "json": _json_column,
    "uuid": _uuid_column,
    "date": _date_column,
    "timestamp": _moments(""),
    "timestamptz": _moments("Z"),
}
