"""PostgreSQL's text of a value -> the log's form of it, a column at a time.

The server prints values under the session settings of :mod:`.connect`. What the log wants
(see :mod:`changefeed.core.types`) differs from that text in few places:

* bool and integers become Arrow values;
* ``2024-03-31 01:02:03+00`` becomes ``2024-03-31T01:02:03Z``: the first space is a ``T``, a
  ``+00`` at the end a ``Z``; ``infinity`` has neither, ``... BC`` keeps its end;
* ``NaN`` and ``Infinity`` of numbers get quotes, since JSON has no such numbers;
* line breaks between the tokens of a ``json`` value become spaces: a log value is one line;
* ``{1,NULL,"a b"}`` becomes ``[1,null,"a b"]``; an array with bounds of its own becomes a JSON
  string of its text, ``"[0:1]={1,2}"``, since a JSON array has none.

Every rule exists twice: over columns with numpy and Arrow (:func:`text_column`,
:func:`span_column`), where the rare forms cost only batches that hold them, and over one value
in plain Python (:func:`text_value`). Tests hold them to be equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.core.types import INTEGERS, TEXT_NUMBERS, Kind, LogicalType
from changefeed.sources.decoded.spans import Bytes, Mask, Places, Spans, gather, spans_of


def _own_bytes(values: pa.StringArray) -> Bytes:
    """The bytes of an array this module has just made, open for changes of the same length."""
    buffer = values.buffers()[2]
    if buffer is None:
        return np.empty(0, np.uint8)
    data: Bytes = np.frombuffer(buffer, np.uint8)
    if not data.flags.writeable:
        raise ValueError("the array is not ours to change")
    return data


def _own_offsets(values: pa.StringArray) -> Places:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1).astype(np.intp)


# ------------------------------------------------------------------------------- per kind


def _plain(spans: Spans) -> pa.Array:
    return gather(spans)


def _cast(target: pa.DataType) -> Callable[[Spans], pa.Array]:
    def convert(spans: Spans) -> pa.Array:
        return gather(spans).cast(target)

    return convert


def _boolean(spans: Spans) -> pa.Array:
    mask = None if spans.valid is None else ~spans.valid
    return pa.array(spans.data[spans.starts] == ord("t"), mask=mask)


def _number(spans: Spans) -> pa.Array:
    """Numbers end in a digit; ``NaN``, ``Infinity`` and ``-Infinity`` in a letter."""
    texts = gather(spans)
    letters = spans.data[spans.ends - 1] > ord("9")
    if spans.valid is not None:
        letters &= spans.valid
    if letters.any():
        quoted = pc.binary_join_element_wise('"', texts, '"', "")
        texts = pc.if_else(pa.array(letters), quoted, texts)
    return texts


def _json(spans: Spans) -> pa.Array:
    texts = gather(spans)
    data = _own_bytes(texts)
    breaks = (data == 10) | (data == 13)
    if breaks.any():
        data[breaks] = ord(" ")
    return texts


def _timestamp(spans: Spans) -> pa.Array:
    texts = gather(spans)
    if _all_long(spans, 19) and _all_are(spans, spans.starts + 10, " "):
        starts = _own_offsets(texts)[:-1]
        _own_bytes(texts)[_valid(spans, starts) + 10] = ord("T")
        return texts
    return pc.replace_substring(texts, " ", "T", max_replacements=1)


def _timestamptz(spans: Spans) -> pa.Array:
    ends = spans.ends
    usual = (
        _all_long(spans, 22)
        and _all_are(spans, spans.starts + 10, " ")
        and _all_are(spans, ends - 3, "+")
        and _all_are(spans, ends - 2, "0")
        and _all_are(spans, ends - 1, "0")
    )
    if not usual:  # infinity, BC, years above 9999
        texts = pc.replace_substring(gather(spans), " ", "T", max_replacements=1)
        return pc.replace_substring_regex(texts, r"\+00$", "Z")
    shorter = ends - 2 if spans.valid is None else np.where(spans.valid, ends - 2, ends)
    texts = gather(Spans(spans.data, spans.starts, shorter, spans.valid))
    offsets = _own_offsets(texts)
    data = _own_bytes(texts)
    data[_valid(spans, offsets[:-1]) + 10] = ord("T")
    data[_valid(spans, offsets[1:]) - 1] = ord("Z")
    return texts


def _valid(spans: Spans, places: Places) -> Places:
    return places if spans.valid is None else places[spans.valid]


def _all_long(spans: Spans, length: int) -> bool:
    lengths = _valid(spans, spans.ends - spans.starts)
    return bool((lengths >= length).all())


def _all_are(spans: Spans, places: Places, letter: str) -> bool:
    return bool((spans.data[_valid(spans, places)] == ord(letter)).all())


# --------------------------------------------------------------------------------- arrays

_ARRAY_BYTES = np.arange(256, dtype=np.uint8)
_ARRAY_BYTES[np.frombuffer(b"{}NUL", np.uint8)] = np.frombuffer(b"[]nul", np.uint8)

#: What sends an array of numbers the slow way: NaN, Infinity, lower bounds (``[0:1]={..}``).
_NUMBERS_RARE = "[aI=]"
#: The same for arrays of texts: bounds, several dimensions, escapes, nulls, control characters.
_TEXTS_RARE = r"^\[|^\{\{|\\|NULL|[\x00-\x1f]"
_BOOLEANS_RARE = "="


def _number_array(spans: Spans) -> pa.Array:
    texts = gather(spans)
    rare = pc.match_substring_regex(texts, _NUMBERS_RARE)
    slow = texts.filter(rare)
    data = _own_bytes(texts)
    data[:] = _ARRAY_BYTES[data]
    return _patched(texts, rare, slow, Kind.FLOAT64)


def _boolean_array(spans: Spans) -> pa.Array:
    texts = gather(spans)
    rare = pc.match_substring_regex(texts, _BOOLEANS_RARE)
    slow = texts.filter(rare)
    for old, new in (("t", "true"), ("f", "false"), ("NULL", "null"), ("{", "["), ("}", "]")):
        texts = pc.replace_substring(texts, old, new)
    return _patched(texts, rare, slow, Kind.BOOL)


def _text_array(spans: Spans) -> pa.Array:
    texts = gather(spans)
    rare = pc.match_substring_regex(texts, _TEXTS_RARE)
    slow = texts.filter(rare)
    offsets = _own_offsets(texts)
    data = _own_bytes(texts)
    inner = pc.replace_substring_regex(
        # The outer braces become empty names for the pattern, the inner ones are quoted.
        _bracketed(texts, data, offsets, spans.valid),
        r'"([^"]*)"|([^",\x01\x02]+)',
        r'"\1\2"',
    )
    inner = pc.replace_substring(pc.replace_substring(inner, "\x01", "["), "\x02", "]")
    return _patched(inner, rare, slow, Kind.TEXT)


def _bracketed(texts: pa.Array, data: Bytes, offsets: Places, valid: Mask | None) -> pa.Array:
    """The outermost braces as bytes 1 and 2, which no usual value holds."""
    first, last = offsets[:-1], offsets[1:] - 1
    if valid is not None:
        first, last = first[valid], last[valid]
    data[first] = 1
    data[last] = 2
    return texts


def _slow_array(element: Kind) -> Callable[[Spans], pa.Array]:
    def convert(spans: Spans) -> pa.Array:
        texts = gather(spans).to_pylist()
        return pa.array(
            [None if text is None else array_json(text, element) for text in texts], pa.string()
        )

    return convert


def _patched(texts: pa.Array, rare: pa.Array, slow: pa.Array, element: Kind) -> pa.Array:
    if not len(slow):
        return texts
    mended = pa.array([array_json(text, element) for text in slow.to_pylist()], pa.string())
    return pc.replace_with_mask(texts, pc.fill_null(rare, False), mended)


# ------------------------------------------------------------------------------ a column

_CONVERTERS: dict[Kind, Callable[[Spans], pa.Array]] = {
    Kind.BOOL: _boolean,
    Kind.INT16: _cast(pa.int16()),
    Kind.INT32: _cast(pa.int32()),
    Kind.INT64: _cast(pa.int64()),
    Kind.FLOAT32: _number,
    Kind.FLOAT64: _number,
    Kind.DECIMAL: _number,
    Kind.JSON: _json,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
}
_NUMBERS = INTEGERS | TEXT_NUMBERS
_CHANGED_ELEMENTS = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.JSON})


@lru_cache(maxsize=4096)
def _converter(logical: LogicalType) -> Callable[[Spans], pa.Array]:
    if logical.element is None:
        return _CONVERTERS.get(logical.kind, _plain)
    element = logical.element.kind
    if element in _NUMBERS:
        return _number_array
    if element is Kind.BOOL:
        return _boolean_array
    return _slow_array(element) if element in _CHANGED_ELEMENTS else _text_array


def span_column(column: Column, spans: Spans) -> pa.Array:
    """Texts as the server printed them -> an Arrow array of ``column.arrow``."""
    return _converter(column.logical)(spans)


def text_column(column: Column, values: pa.Array) -> pa.Array:
    """The same for an Arrow string (or large_string) array, e.g. a column read from COPY.

    Raises:
        pyarrow.ArrowInvalid: a text is not of the column's type.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    convert = _converter(column.logical)
    if convert is _plain:
        return values if pa.types.is_string(values.type) else values.cast(pa.string())
    if not len(values):
        return pa.array([], column.arrow)
    return convert(spans_of(values))


# ------------------------------------------------------------------------------- a value

_NOT_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})
_TOKEN = re.compile(r'[{},]|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BRACKETS = {"{": "[", "}": "]", ",": ","}


def text_value(column: Column, text: str | None) -> Any:
    """One text -> the value :func:`text_column` gives, as a Python object."""
    if text is None:
        return None
    if column.kind is Kind.BOOL:
        return text == "t"
    if column.kind in INTEGERS:
        return int(text)
    if column.logical.element is not None:
        return array_json(text, column.logical.element.kind)
    return _text(text, column.kind)


def _text(text: str, kind: Kind) -> str:
    if kind in _NUMBERS:
        return f'"{text}"' if text in _NOT_NUMBERS else text
    if kind is Kind.JSON:
        return text.replace("\n", " ").replace("\r", " ")
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        text = text.replace(" ", "T", 1)
        if kind is Kind.TIMESTAMPTZ and text.endswith("+00"):
            text = text[:-3] + "Z"
    return text


def array_json(text: str, element: Kind) -> str:
    """A PostgreSQL array literal as one JSON token without spaces.

    >>> array_json('{1,NULL,3}', Kind.INT32), array_json('[0:1]={1,2}', Kind.INT32)
    ('[1,null,3]', '"[0:1]={1,2}"')
    """
    if text.startswith("["):
        return json.dumps(text, ensure_ascii=False)
    out: list[str] = []
    for token in _TOKEN.finditer(text):
        quoted, bare = token.groups()
        if quoted is not None:
            out.append(element_json(_ESCAPED.sub(r"\1", quoted), element))
        elif bare is not None:
            out.append("null" if bare == "NULL" else element_json(bare, element))
        else:
            out.append(_BRACKETS[token[0]])
    return "".join(out)


def element_json(text: str, kind: Kind) -> str:
    """One element of an array, printed, as a JSON token."""
    if kind is Kind.BOOL:
        return "true" if text == "t" else "false"
    value = _text(text, kind)
    if kind in _NUMBERS or kind is Kind.JSON:
        return value
    return json.dumps(value, ensure_ascii=False)
