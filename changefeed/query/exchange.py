"""CDC queries and compiled queries as texts: a process puts a query into the state, and another
one, which has Spark, compiles it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from changefeed.catalog.rows import Function
from changefeed.core.schema import TableSchema
from changefeed.query.model import CompiledQuery, LookupField, LookupTable, Output
from grammar import nodes


def query_text(schema: TableSchema, query: nodes.Query) -> str:
    """A query over a table of this shape as text, with the places of its words in the statement."""
    fields = asdict(query)
    return json.dumps({"schema": _shape(schema), "query": fields})


def query_of(text: str) -> tuple[TableSchema, nodes.Query]:
    """The inverse of :func:`query_text`."""
    data = json.loads(text)
    fields: dict[str, Any] = data["query"]
    fields["joins"] = tuple(_join(join) for join in fields["joins"])
    fields["spans"] = _spans(fields["spans"])
    return _schema(data["schema"]), nodes.Query(**fields)


def compiled_text(compiled: CompiledQuery) -> str:
    """A compiled query as text."""
    fields = {name: getattr(compiled, name) for name in _PLAIN}
    fields["source"] = _shape(compiled.source)
    fields["schema"] = _shape(compiled.schema)
    fields["outputs"] = [asdict(output) for output in compiled.outputs]
    fields["functions"] = [asdict(function) for function in compiled.functions]
    fields["lookups"] = [_lookup_fields(lookup) for lookup in compiled.lookups]
    return json.dumps(fields)


def compiled_of(text: str) -> CompiledQuery:
    """The inverse of :func:`compiled_text`."""
    fields: dict[str, Any] = json.loads(text)
    fields["source"] = _schema(fields["source"])
    fields["schema"] = _schema(fields["schema"])
    fields["outputs"] = tuple(Output(**output) for output in fields["outputs"])
    fields["functions"] = tuple(_function(each) for each in fields["functions"])
    fields["lookups"] = tuple(_lookup(each) for each in fields["lookups"])
    for name in ("inputs", "where_inputs"):
        fields[name] = tuple(fields[name])
    return CompiledQuery(**fields)


#: The fields that JSON can hold.
_PLAIN = (
    "text", "shown", "sql", "row_sql", "inputs", "filtered", "of_changes", "tells_change",
    "uses_prev", "where_inputs", "where_lookups", "feed", "window",
)  # fmt: skip


def _shape(schema: TableSchema) -> dict[str, Any]:
    return {"shape": schema.to_json(), "version": schema.version}


def _schema(data: dict[str, Any]) -> TableSchema:
    return TableSchema.from_json(data["shape"], data["version"])


def _spans(data: Sequence[dict[str, int]]) -> tuple[nodes.Span, ...]:
    return tuple(nodes.Span(**span) for span in data)


def _pairs(data: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(tuple(pair) for pair in data)


def _join(data: dict[str, Any]) -> nodes.LookupJoin:
    return nodes.LookupJoin(
        tuple(data["parts"]),
        data["alias"],
        _pairs(data["keys"]),
        data["left"],
        _spans(data["spans"]),
    )


def _function(data: dict[str, Any]) -> Function:
    return Function(**data | {"arguments": _pairs(data["arguments"])})


def _lookup_fields(lookup: LookupTable) -> dict[str, Any]:
    import pyarrow as pa  # a listing does without it

    kinds = pa.schema([pa.field(field.name, field.arrow) for field in lookup.fields])
    return {
        "parts": lookup.parts,
        "alias": lookup.alias,
        "keys": lookup.keys,
        "key_types": lookup.key_types,
        "left": lookup.left,
        "types": [field.spark_type for field in lookup.fields],
        "arrow": base64.b64encode(kinds.serialize().to_pybytes()).decode(),
    }


def _lookup(data: dict[str, Any]) -> LookupTable:
    import pyarrow as pa

    kinds = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["arrow"])))
    fields = tuple(
        LookupField(field.name, spark_type, field.type)
        for field, spark_type in zip(kinds, data["types"], strict=True)
    )
    return LookupTable(
        tuple(data["parts"]),
        data["alias"],
        _pairs(data["keys"]),
        tuple(data["key_types"]),
        data["left"],
        fields,
    )
