"""What a new index knows about a table's columns.

The document is kept as it came, so no mapping loses a digit; a mapping decides what can be
searched and sorted. A value that a field cannot index (``NaN``, ``infinity``, a year above 9999)
does not stop the document: the field is listed under ``_ignored``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import DATES, INTEGERS, TEXT_NUMBERS, Kind, LogicalType

FieldMapping = dict[str, Any]

#: Integers of all widths are long and floats double: what is stored is as small as the values
#: are, and a column that becomes wider still fits its field.
_LONG: FieldMapping = {"type": "long"}
_DOUBLE: FieldMapping = {"type": "double", "ignore_malformed": True}
_KEYWORD: FieldMapping = {"type": "keyword", "ignore_above": 8191}
_TEXT: FieldMapping = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": 256}},
}
_DATE: FieldMapping = {
    "type": "date",
    "format": "strict_date_optional_time",
    "ignore_malformed": True,
}
#: A ``date`` has milliseconds and every year; the sub-field has nanoseconds, from 1970 to 2262.
_TIMESTAMP: FieldMapping = {
    **_DATE,
    "fields": {
        "nanos": {
            "type": "date_nanos",
            "format": "strict_date_optional_time_nanos",
            "ignore_malformed": True,
        }
    },
}
_STORED: FieldMapping = {"type": "object", "enabled": False}
_JSON: dict[str, FieldMapping] = {
    "flattened": {"type": "flattened", "ignore_above": 8191},
    "object": {"type": "object", "dynamic": True},
    "stored": _STORED,
}
_FIELDS: dict[Kind, FieldMapping] = {
    Kind.BOOL: {"type": "boolean"},
    Kind.INT16: _LONG,
    Kind.INT32: _LONG,
    Kind.INT64: _LONG,
    Kind.FLOAT32: _DOUBLE,
    Kind.FLOAT64: _DOUBLE,
    Kind.TEXT: _TEXT,
    # Hexadecimal digits: nobody searches them, and they may be long.
    Kind.BYTES: {"type": "keyword", "index": False, "doc_values": False},
    Kind.DATE: _DATE,
    Kind.TIMESTAMP: _TIMESTAMP,
    Kind.TIMESTAMPTZ: _TIMESTAMP,
}
_EXACT_DOUBLE_DIGITS, _EXACT_LONG_DIGITS = 15, 18

#: Field types that index the values of a logical type; other types (keyword, text, and what a
#: person chose: ip, geo_point ...) are left to Elasticsearch, document by document.
_TAKEN_BY: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(("long", "integer", "short", "byte", "unsigned_long"), INTEGERS),
    **dict.fromkeys(("double", "float", "half_float", "scaled_float"), INTEGERS | TEXT_NUMBERS),
    "boolean": frozenset({Kind.BOOL}),
    "date": DATES,
    "date_nanos": DATES,
    "flattened": frozenset({Kind.JSON}),
}

#: Members of a document that are Elasticsearch's own: a field cannot be called so.
RESERVED = frozenset(
    {
        *("_data_stream_timestamp", "_doc_count", "_feature", "_field_names", "_id", "_ignored"),
        *("_ignored_source", "_index", "_index_mode", "_nested_path", "_routing", "_seq_no"),
        *("_size", "_source", "_tier", "_tsid", "_version"),
    }
)


def field_of(column: Column, json_mapping: str) -> FieldMapping:
    # Elasticsearch has no arrays: a field holds one value or several of a type.
    logical = column.logical.innermost
    if logical.kind is Kind.JSON:
        return _JSON[json_mapping]
    return (
        _decimal(logical) if logical.kind is Kind.DECIMAL else _FIELDS.get(logical.kind, _KEYWORD)
    )


def _decimal(logical: LogicalType) -> FieldMapping:
    digits, scale = logical.precision, logical.scale
    if digits and scale <= 0 and digits - scale <= _EXACT_LONG_DIGITS:
        return _LONG
    if 0 < digits <= _EXACT_DOUBLE_DIGITS:
        return _DOUBLE
    # Ranges and sums by the nearest double, equality by the digits.
    return {**_DOUBLE, "fields": {"exact": {"type": "keyword", "ignore_above": 8191}}}


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """The members that the feed's envelope gives a document, as one document shows them.

    Attributes:
        columns: names of the row's columns that are in the document (a feed may leave some out).
        rows: where the row is: ``()`` the document itself, else names of its members.
        meta: other members.
    """

    columns: frozenset[str]
    rows: tuple[str, ...]
    meta: frozenset[str]


#: Of a batch that says nothing about documents.
NO_ROWS = DocumentShape(frozenset(), (), frozenset())


def shape_of(value: bytes, envelope: str) -> DocumentShape:
    """The shape of documents like ``value``, which is no delete."""
    members = json.loads(value)
    if envelope == "wrapped":
        images = tuple(name for name in ("after", "before") if name in members)
        return DocumentShape(frozenset(members["after"]), images, frozenset(members) - set(images))
    return DocumentShape(frozenset(members) - {META}, (), frozenset(members) & {META})


META = "__crdb__"

_META_FIELDS: dict[str, FieldMapping] = {
    "updated": _KEYWORD,
    "mvcc_timestamp": _KEYWORD,
    "topic": _KEYWORD,
    "key": _STORED,
}


def properties(
    schema: TableSchema, shape: DocumentShape, json_mapping: str
) -> dict[str, FieldMapping]:
    """The fields of documents of that shape, by name."""
    row = {
        column.name: field_of(column, json_mapping)
        for column in schema.columns
        if column.name in shape.columns
    }
    meta = {n: f for n, f in _META_FIELDS.items() if n in shape.meta}
    if META in shape.meta:
        meta[META] = {"properties": _META_FIELDS}
    images = {image: {"properties": row} for image in shape.rows}
    return {**images, **meta} if shape.rows else {**row, **meta}


def missing(
    wanted: Mapping[str, FieldMapping], there: Mapping[str, Any]
) -> dict[str, FieldMapping]:
    """The part of ``wanted`` that an index with the fields ``there`` does not have."""
    found: dict[str, FieldMapping] = {}
    for name, field in wanted.items():
        have = lookup(there, name)
        if have is None:
            found[name] = field
        elif "properties" in field and isinstance(have.get("properties"), dict):
            inner = missing(field["properties"], have["properties"])
            if inner:
                found[name] = {"properties": inner}
    return found


def lookup(there: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The field ``name``; Elasticsearch keeps ``a.b`` as ``b`` inside ``a``."""
    if name in there:
        found: Mapping[str, Any] = there[name]
        return found
    first, dot, rest = name.partition(".")
    inner = there.get(first)
    return lookup(inner.get("properties") or {}, rest) if dot and inner else None


@dataclass(frozen=True, slots=True)
class Clash:
    """A column whose values the index's field of its name cannot index."""

    column: str
    type_name: str
    field_type: str


def clashes(schema: TableSchema, columns: Collection[str], there: Mapping[str, Any]) -> list[Clash]:
    """Columns that the fields ``there`` would refuse, or index as something else."""
    found = []
    for column in schema.columns:
        field = lookup(there, column.name) if column.name in columns else None
        kind = str(field.get("type") or "") if field else ""
        if kind in _TAKEN_BY and not _takes(kind, column.logical.innermost):
            found.append(Clash(column.name, column.type_name, kind))
    return found


def _takes(field: str, logical: LogicalType) -> bool:
    whole = logical.precision and logical.scale <= 0
    return logical.kind in _TAKEN_BY[field] or bool(whole and Kind.INT64 in _TAKEN_BY[field])


def settings(fields: Mapping[str, FieldMapping]) -> dict[str, Any]:
    """Settings of a new index.

    Elasticsearch forgets the version of a deleted document after a minute; with five a request
    that was on its way when the feed broke off cannot bring an old row back. Shards, replicas
    and the rest come from the cluster's index templates.
    """
    found: dict[str, Any] = {"index.gc_deletes": "5m"}
    count = _count(fields)
    if count > 900:  # Elasticsearch's own limit is 1000
        found["index.mapping.total_fields.limit"] = 2 * count
    return found


def _count(fields: Mapping[str, FieldMapping]) -> int:
    inner = ("properties", "fields")
    return len(fields) + sum(
        _count(f[name]) for f in fields.values() for name in inner if name in f
    )
