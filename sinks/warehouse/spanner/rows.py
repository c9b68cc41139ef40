"""Values of the log as Spanner's protocol has them, and rounds cut into commits.

A value travels as a JSON value: ``INT64``, ``NUMERIC``, dates, times and JSON as text, ``BYTES`` as
base 64, ``FLOAT64`` as a number. Columns are made by Arrow; only what the client library takes row
by row, a list of values each, is made in Python.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column
from sinks.merged.history import ORDER
from sinks.merged.rows import plain_decimals
from sinks.warehouse.spanner.sql import SpannerDialect
from sinks.warehouse.staging import SEQUENCE, TargetShape

#: A value on the wire.
Value = str | bool | float | None
Key = tuple[Value, ...]

_ZEROS = r"\.?0+$"


def wire(sql: str, values: pa.ChunkedArray | pa.Array) -> list[Value]:
    """Values of a column in log form, as the protocol has them.

    Keys are compared as texts, so times and numbers are written as Spanner itself writes them
    (:func:`canonical`).
    """
    kind = sql.partition("(")[0]
    if kind == "BOOL":
        found = values
    elif kind == "INT64":
        found = values.cast(pa.string())
    elif kind == "FLOAT64":
        numbers = values.cast(pa.float64())
        odd = pc.invert(pc.is_finite(numbers))
        listed: list[Value] = numbers.to_pylist()
        for place in np.flatnonzero(pc.fill_null(odd, False).to_numpy(zero_copy_only=False)):
            listed[place] = _odd(listed[place])
        return listed
    elif kind == "TIMESTAMP":
        plain = pc.replace_substring_regex(values, "Z$", "")
        broken = pc.match_substring(plain, ".")
        short = pc.replace_substring_regex(plain, _ZEROS, "")
        found = pc.binary_join_element_wise(pc.if_else(broken, short, plain), "Z", "")
    elif kind == "NUMERIC":
        found = plain_decimals(values)
    elif kind == "BYTES":
        return [
            None if text is None else base64.b64encode(bytes.fromhex(text[2:])).decode()
            for text in values.to_pylist()
        ]
    else:
        found = values
    return found.to_pylist()  # type: ignore[no-any-return]


def _odd(value: Value) -> str:
    assert isinstance(value, float)
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


_TIME = re.compile(r"\.(\d*?)0*Z$")


def canonical(sql: str, value: Value) -> Value:
    """A value as Spanner answered it, in the one writing that :func:`wire` has."""
    if not isinstance(value, str):
        return value
    if sql == "TIMESTAMP":
        return _TIME.sub(lambda m: f".{m[1]}Z" if m[1] else "Z", value)
    if sql == "NUMERIC" and "." in value:
        return value.rstrip("0").rstrip(".")
    return value


@dataclass(frozen=True)
class RowWire:
    """How the rows of a shape travel: names and SQL types of its columns."""

    shape: TargetShape
    types: tuple[str, ...]

    @classmethod
    def of(cls, shape: TargetShape, d: SpannerDialect) -> RowWire:
        """Of a shape as the dialect keeps it."""
        return cls(shape, tuple(rule.sql for rule in shape.rules(d)))

    @property
    def key_types(self) -> tuple[str, ...]:
        """SQL types of the key's columns, in the key's order."""
        place = {name: i for i, name in enumerate(self.shape.names)}
        return tuple(self.types[place[name]] for name in self.shape.key)

    def columns(self, rows: pa.Table) -> list[list[Value]]:
        """The values of all columns."""
        return [wire(t, rows[n]) for t, n in zip(self.types, self.shape.names, strict=True)]

    def canonical(self, key: Sequence[Value]) -> Key:
        """A key that Spanner answered, as keys of rows are here."""
        return tuple(canonical(t, v) for t, v in zip(self.key_types, key, strict=True))


def digests(columns: Sequence[Column], values: Sequence[Sequence[Value]]) -> list[str]:
    """What distinguishes rows of a table without a key, 128 bits in hexadecimal each.

    NULLs have no part in it and columns go by their number at the source, so that the digest of a
    row outlives a new column and a new name.
    """
    marks = [f"{c.ref}:".encode() for c in columns]
    found = []
    for row in zip(*values, strict=True):
        made = hashlib.blake2b(digest_size=16)
        for mark, value in zip(marks, row, strict=True):
            if value is not None:
                text = str(value).encode()
                made.update(b"%b%d:" % (mark, len(text)))
                made.update(text)
        found.append(made.hexdigest())
    return found


# ------------------------------------------------------------------------------- commits


class TooLarge(ChangefeedError):
    """A commit had too many mutations: Spanner counts entries of indexes, which are not known
    here. Less at once may be taken."""


@dataclass(frozen=True, slots=True)
class RowStretch:
    """Consecutive rows of one part of a round."""

    part: int
    rows: npt.NDArray[np.int64]


def cut(
    parts: Sequence[tuple[pa.Table, int]], most_cells: int, most_bytes: int
) -> Iterator[list[RowStretch]]:
    """A round as commits, in the order of the log.

    ``parts`` are staged rows and how many mutations a row of them is at most. A commit ends between
    two transactions of the source, unless one alone is too large: then it is several commits.
    """
    if not parts:
        return
    sizes = [rows.num_rows for rows, _ in parts]
    version = np.concatenate([rows[SEQUENCE].to_numpy() for rows, _ in parts])
    order = np.concatenate([rows[ORDER].to_numpy() for rows, _ in parts])
    part = np.repeat(np.arange(len(parts)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    cells = np.repeat([most for _, most in parts], sizes)
    weight = np.concatenate([_bytes(rows) for rows, _ in parts])
    sorted_ = np.lexsort((order, version))
    version, part, row = version[sorted_], part[sorted_], row[sorted_]
    cost = np.maximum(cells[sorted_] / most_cells, weight[sorted_] / most_bytes).cumsum()
    ends = np.append(np.flatnonzero(version[1:] != version[:-1]) + 1, len(version))
    for begin, end in _commits(cost, ends):
        yield [
            RowStretch(number, row[begin:end][part[begin:end] == number])
            for number in range(len(parts))
            if (part[begin:end] == number).any()
        ]


def _bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    found = np.full(rows.num_rows, 16 * rows.num_columns, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            found += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return found


def _commits(
    cost: npt.NDArray[np.float64], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Begin and end of each commit: ``cost`` is summed up, 1 is a full commit."""
    begin, spent, total = 0, 0.0, len(cost)
    while begin < total:
        room = int(np.searchsorted(cost, spent + 1.0 + 1e-9, side="right"))
        room = max(room, begin + 1)
        place = int(np.searchsorted(ends, room, side="right")) - 1
        end = int(ends[place]) if place >= 0 and ends[place] > begin else room
        yield begin, end
        begin, spent = end, float(cost[end - 1])
