"""Values of the log as JSON and CSV tokens, a column at a time.

A text that is being built is a list of parts: constants, and Arrow arrays of strings of one
length. :func:`joined` concatenates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.core.types import TEXT_NUMBERS, Form, Kind

#: A constant, or one text for each row.
Part: TypeAlias = str | Any

#: Fields that must be quoted in CSV (RFC 4180), or would be read as NULL without quotes.
_MUST_QUOTE = r'[",\r\n]|^\s|\s\z|^\z'

_MUST_ESCAPE = np.zeros(256, dtype=bool)
_MUST_ESCAPE[:0x20] = True
_MUST_ESCAPE[[0x22, 0x5C]] = True

_JSON_NULL = '{"__crdb_json_null__": true}'


def joined(parts: Iterable[Part], rows: int) -> pa.Array:
    """The concatenation of the parts, for ``rows`` rows. No array may contain nulls."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        only = merged[0]
        return pa.repeat(_constant(only), rows) if isinstance(only, str) else only
    return pc.binary_join_element_wise(*map(_constant, merged), _NOTHING)


_NOTHING = pa.scalar("", pa.string())


def _constant(part: Part) -> pa.Array | pa.Scalar:
    return pa.scalar(part, pa.string()) if isinstance(part, str) else part


def separated(groups: Sequence[Sequence[Part]], opening: str, closing: str) -> list[Part]:
    """``{a, b}``: the groups of parts with ``", "`` between them."""
    out: list[Part] = [opening]
    for i, group in enumerate(groups):
        if i:
            out.append(", ")
        out += group
    out.append(closing)
    return out


def chosen(
    groups: Sequence[tuple[Sequence[Part], pa.Array | None]], opening: str, closing: str, rows: int
) -> list[Part]:
    """:func:`separated`, each group without the rows where its mask is true; None masks none."""
    if all(mask is None for _, mask in groups):
        return separated([group for group, _ in groups], opening, closing)
    texts = [
        joined([", ", *group], rows)
        if mask is None
        else pc.if_else(mask, "", joined([", ", *group], rows))
        for group, mask in groups
    ]
    return [opening, pc.utf8_slice_codeunits(joined(texts, rows), 2), closing]


@lru_cache(maxsize=4096)
def string(text: str) -> str:
    """A constant as a JSON string, escaped like the values are."""
    return f'"{escaped(pa.array([text]))[0].as_py()}"'


def json_token(
    column: Column, values: pa.Array, *, clean: bool, null_as_object: bool = False
) -> list[Part]:
    """The JSON tokens of a log column; ``null`` for NULL.

    ``clean`` promises that no value has a character JSON must escape.
    """
    if column.form is Form.NATIVE:
        return [_or(values.cast(pa.string()), "null")]
    if column.form is Form.RAW:
        if null_as_object and column.kind is Kind.JSON:
            is_null = pc.equal(pc.utf8_trim(values, " "), "null")
            values = pc.if_else(is_null, _JSON_NULL, values)
        return [_or(values, "null")]
    text = values if clean else escaped(values)
    if not text.null_count:
        return ['"', text, '"']
    return [_or(pc.binary_join_element_wise('"', text, '"', _NOTHING), "null")]


def csv_token(column: Column, values: pa.Array) -> pa.Array:
    """The CSV fields of a log column: nothing for NULL, ``""`` for an empty text.

    PostgreSQL's own COPY distinguishes the two in the same way.
    """
    if column.form is Form.NATIVE:
        return _or(values.cast(pa.string()), "")
    if column.kind in TEXT_NUMBERS:
        return _or(pc.utf8_trim(values, '"'), "")  # "NaN" is quoted for JSON only
    must = pc.match_substring_regex(values, _MUST_QUOTE)
    if pc.any(must).as_py():
        doubled = pc.replace_substring(values, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', _NOTHING)
        values = pc.if_else(must, quoted, values)
    return _or(values, "")


def _or(values: pa.Array, null: str) -> pa.Array:
    return pc.fill_null(values, null) if values.null_count else values


# ------------------------------------------------------------------------------- escaping


def is_clean(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether no value has a character that a JSON string must escape."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return not any(_MUST_ESCAPE[_bytes(chunk)].any() for chunk in chunks)


def clean_columns(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> frozenset[str]:
    """Those of the text columns ``names`` that are clean."""
    return frozenset(name for name in names if is_clean(table[name]))


def escaped(column: pa.Array) -> pa.Array:
    """The values as JSON writes them inside quotes (RFC 8259, section 7).

    A clean column is returned unchanged. Only the characters that occur in the bytes are replaced;
    escapes without a short form are written ``\\u001F``.
    """
    data = _bytes(column)
    for code in np.unique(data[_MUST_ESCAPE[data]])[::-1]:  # the backslash before all that add some
        column = pc.replace_substring(column, chr(code), _escape(int(code)))
    return column


_SHORT = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def _escape(code: int) -> str:
    return _SHORT.get(code) or f"\\u{code:04X}"


def _bytes(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all values as one array, perhaps with some of NULLs."""
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return np.empty(0, dtype=np.uint8)
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    bounds = np.frombuffer(offsets, dtype=width)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
