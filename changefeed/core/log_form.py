r"""The neutral log form: how a value is written in the change log, whatever its source prints.

Every source converts to it, in the stream and in the initial scan alike, and every encoder reads
it. A value of one column has one text, so that equal values are equal bytes.

==========================  ===========  ========  ===========================================
logical type                physical     form      text
==========================  ===========  ========  ===========================================
``bool``                    ``bool``     native
``int16 int32 int64``       the same     native
``float32 float64``         ``string``   raw       a JSON number of the fewest digits that
                                                   read back the same; ``"NaN"``,
                                                   ``"Infinity"``, ``"-Infinity"`` in quotes
``decimal decimal(p,s)``    ``string``   raw       ``-12.50``: no exponent, zeros of the scale
                                                   kept; not a number as for floats
``text``                    ``string``   text      any text
``bytes``                   ``string``   text      ``\xdead``: two digits a byte, lower case
``date``                    ``string``   text      ``2024-03-31``, years of four digits or
                                                   more, `` BC`` after those before Christ;
                                                   ``infinity``, ``-infinity``
``time``                    ``string``   text      ``01:02:03.5``, one to six digits after the
                                                   point; up to ``24:00:00``
``timetz``                  ``string``   text      a time and its offset: ``+02``, ``-03:30``
``timestamp``               ``string``   text      date, ``T`` and time; `` BC`` and infinity
                                                   as for dates
``timestamptz``             ``string``   text      the same in UTC with ``Z``; before Christ
                                                   with ``+00 BC``
``uuid``                    ``string``   text      8-4-4-4-12 digits, lower case
``json``                    ``string``   raw       one JSON value in one line
``array<x>``                ``string``   raw       a JSON array; elements as JSON has them. Where
                                                   its bounds do not begin at 1, a JSON string
                                                   of the source's text: ``"[0:1]={1,2}"``
``interval other``          ``string``   text      as the source prints it
==========================  ===========  ========  ===========================================

:func:`problem` finds values that are not in this form, for the conformance tests of sources.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column, Form

_DATE = r"\d{4,}-\d\d-\d\d"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?|24:00:00"
_OFFSET = r"[+-]\d\d(?::\d\d(?::\d\d)?)?"
_NO_NUMBER = r'"NaN"|"Infinity"|"-Infinity"'
_INFINITE = "infinity|-infinity"

#: Logical type -> what its text looks like.
_TEXTS: dict[str, str] = {
    "float32": rf"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|{_NO_NUMBER}",
    "float64": rf"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|{_NO_NUMBER}",
    "decimal": rf"-?(?:0|[1-9]\d*)(?:\.\d+)?|{_NO_NUMBER}",
    "bytes": r"\\x(?:[0-9a-f]{2})*",
    "date": rf"{_DATE}(?: BC)?|{_INFINITE}",
    "time": _TIME,
    "timetz": rf"(?:{_TIME}){_OFFSET}",
    "timestamp": rf"{_DATE}T(?:{_TIME})(?: BC)?|{_INFINITE}",
    "timestamptz": rf"{_DATE}T(?:{_TIME})(?:Z|\+00 BC)|{_INFINITE}",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}

#: Logical types of a fixed width: physical type and form.
_NATIVE = frozenset({"bool", "int16", "int32", "int64"})
_RAW = frozenset({"float32", "float64", "decimal", "json"})
_TEXT = frozenset(
    {
        *("text", "bytes", "date", "time", "timetz", "timestamp", "timestamptz"),
        *("uuid", "interval", "other"),
    }
)


def form_of(logical: str) -> tuple[str, Form]:
    """Physical type and form of the columns of a logical type.

    Raises:
        ValueError: there is no such logical type.

    >>> form_of("decimal(12,2)")
    ('string', <Form.RAW: 'raw'>)
    """
    if logical in _NATIVE:
        return logical, Form.NATIVE
    kind = _kind(logical)
    if kind in _RAW or kind == "array":
        return "string", Form.RAW
    if kind in _TEXT:
        return "string", Form.TEXT
    raise ValueError(f"no logical type: {logical}")


def problem(column: Column, values: pa.Array) -> str:
    """The first violation of the neutral log form in a column or its values; empty if none."""
    if (column.physical, column.form) != form_of(column.logical):
        return f"{column.name}: {column.logical} is kept as {column.physical}, {column.form}"
    if values.type != column.arrow:
        return f"{column.name}: values are {values.type}, not {column.arrow}"
    known = values.drop_null()
    kind = _kind(column.logical)
    if kind in ("json", "array"):
        return next((f"{column.name}: {t!r} is no {kind}" for t in _no_json(known, kind)), "")
    if kind not in _TEXTS:
        return ""
    right = pc.match_substring_regex(known, f"^(?:{_TEXTS[kind]})$")
    wrong = known.filter(pc.invert(right))
    return f"{column.name}: {wrong[0].as_py()!r} is no {column.logical}" if len(wrong) else ""


def _kind(logical: str) -> str:
    if logical.startswith("array<") and logical.endswith(">"):
        return "array"
    return "decimal" if re.fullmatch(r"decimal\(\d+,-?\d+\)", logical) else logical


def _no_json(values: pa.Array, kind: str) -> list[str]:
    wrong = []
    for text in values.to_pylist():
        try:
            value = json.loads(text)
        except ValueError:
            wrong.append(text)
        else:
            if "\n" in text or (kind == "array" and not isinstance(value, list | str)):
                wrong.append(text)
    return wrong
