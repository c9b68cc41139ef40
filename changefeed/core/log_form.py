"""Finds values that are not in the neutral log form (:mod:`changefeed.core.types`), for the
conformance tests of sources."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.schema import Column
from changefeed.core.types import Kind


def problem(column: Column, values: pa.Array) -> str:
    """The first value of a column that is not in the neutral log form; empty if all are."""
    if values.type != column.arrow:
        return f"{column.name}: values are {values.type}, not {column.arrow}"
    known, kind = values.drop_null(), column.kind
    if kind in (Kind.JSON, Kind.ARRAY):
        return next((f"{column.name}: {t!r} is no {kind}" for t in _no_json(known, kind)), "")
    if not kind.pattern:
        return ""
    wrong = known.filter(pc.invert(pc.match_substring_regex(known, f"^(?:{kind.pattern})$")))
    return f"{column.name}: {wrong[0].as_py()!r} is no {column.logical}" if len(wrong) else ""


def _no_json(values: pa.Array, kind: Kind) -> list[str]:
    wrong = []
    for text in values.to_pylist():
        try:
            value = json.loads(text)
        except ValueError:
            wrong.append(text)
        else:
            if "\n" in text or (kind is Kind.ARRAY and not isinstance(value, list | str)):
                wrong.append(text)
    return wrong
