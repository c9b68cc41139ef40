"""Values of the log as JSON and CSV tokens, a column at a time.

A text that is being built is a list of parts: constants, and Arrow arrays of strings of one
length. :func:`joined` puts them beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, Form
from changefeed.encoding.json_text import escaped

#: A constant, or one text for each row.
Part: TypeAlias = str | Any

#: A field that must be quoted in CSV (RFC 4180), and one that would read as NULL otherwise.
_MUST_QUOTE = r'[",\r\n]|^\s|\s\z|^\z'

_JSON_NULL = '{"__crdb_json_null__": true}'


def joined(parts: Iterable[Part], rows: int) -> pa.Array:
    """The parts beside each other, for ``rows`` rows. No array may hold nulls."""
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
        if null_as_object and column.logical == "json":
            is_null = pc.equal(pc.utf8_trim(values, " "), "null")
            values = pc.if_else(is_null, _JSON_NULL, values)
        return [_or(values, "null")]
    text = values if clean else escaped(values)
    if not text.null_count:
        return ['"', text, '"']
    return [_or(pc.binary_join_element_wise('"', text, '"', _NOTHING), "null")]


def csv_token(column: Column, values: pa.Array) -> pa.Array:
    """The CSV fields of a log column: nothing for NULL, ``""`` for an empty text.

    This is how PostgreSQL's own COPY tells them apart.
    """
    if column.form is Form.NATIVE:
        return _or(values.cast(pa.string()), "")
    if column.form is Form.RAW and column.logical.startswith(("decimal", "float")):
        return _or(pc.utf8_trim(values, '"'), "")  # "NaN" is quoted for JSON only
    must = pc.match_substring_regex(values, _MUST_QUOTE)
    if pc.any(must).as_py():
        doubled = pc.replace_substring(values, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', _NOTHING)
        values = pc.if_else(must, quoted, values)
    return _or(values, "")


def _or(values: pa.Array, otherwise: str) -> pa.Array:
    """The values, or a constant for NULL."""
    return pc.fill_null(values, otherwise) if values.null_count else values
