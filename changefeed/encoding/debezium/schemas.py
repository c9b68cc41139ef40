"""The schemas of Debezium's messages, as Kafka Connect's ``JsonConverter`` writes them.

Names are Debezium's, made of the topic: ``orders.Envelope``, ``orders.Value`` and ``orders.Key``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from changefeed.encoding.debezium.fields import ConnectType, Conversion, field_of
from changefeed.encoding.plan import MessagePlan

Schema = dict[str, Any]


def key_schema(plan: MessagePlan, base: str) -> Schema:
    """The schema of a message key; the names that are made of the table begin with ``base``."""
    return _struct(f"{base}.Key", _columns(plan, plan.message_key), optional=False)


def value_schema(plan: MessagePlan, base: str) -> Schema:
    """The schema of a message value; ``base`` as in :func:`key_schema`."""
    row = _struct(f"{base}.Value", _columns(plan, plan.columns), optional=True)
    fields = [
        row | {"field": "before"},
        row | {"field": "after"},
        _source(plan) | {"field": "source"},
        _transaction() | {"field": "transaction"},
        _plain("string", optional=False) | {"field": "op"},
        *(_plain("int64", optional=True) | {"field": name} for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return _struct(f"{base}.Envelope", fields, optional=False) | {"version": 2}


def with_schema(schema: Schema) -> str:
    """The beginning of a message that carries its schema, up to the payload."""
    return f'{{"schema":{json.dumps(schema, ensure_ascii=False, separators=(",", ":"))},"payload":'


def _struct(name: str, fields: Sequence[Schema], *, optional: bool) -> Schema:
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name}


def _plain(kind: str, *, optional: bool) -> Schema:
    return {"type": kind, "optional": optional}


def _columns(plan: MessagePlan, columns: Sequence[int]) -> list[Schema]:
    made = []
    for i in columns:
        column = plan.schema.columns[i]
        made.append(_of(field_of(column), optional=column.nullable) | {"field": column.name})
    return made


def _of(field: ConnectType, *, optional: bool) -> Schema:
    made: Schema = {"type": field.type}
    if field.items is not None:
        made["items"] = _of(field.items, optional=True)
    if field.way is Conversion.SCALED:
        made["fields"] = [
            _plain("int32", optional=False) | {"field": "scale"},
            _plain("bytes", optional=False) | {"field": "value"},
        ]
    made["optional"] = optional
    if field.name:
        made |= {"name": field.name, "version": 1}
    if field.parameters:
        made["parameters"] = dict(field.parameters)
    return made


def _source(plan: MessagePlan) -> Schema:
    fields = [
        _plain(kind, optional=not required) | {"field": name}
        for name, kind, required in SOURCE
        if name != "schema" or not plan.origin.schema_is_database
    ]
    connector = plan.origin.connector
    name = f"io.debezium.connector.{connector}.Source"
    return _struct(name, fields, optional=False) | {"version": 1}


#: Members of ``source``: name, type, always there.
SOURCE = (
    ("version", "string", True),
    ("connector", "string", True),
    ("name", "string", True),
    ("ts_ms", "int64", True),
    ("snapshot", "string", False),
    ("db", "string", True),
    ("sequence", "string", False),
    ("ts_us", "int64", False),
    ("ts_ns", "int64", False),
    ("schema", "string", True),
    ("table", "string", True),
    ("txId", "int64", False),
)


def _transaction() -> Schema:
    fields = [
        _plain("string", optional=False) | {"field": "id"},
        _plain("int64", optional=False) | {"field": "total_order"},
        _plain("int64", optional=False) | {"field": "data_collection_order"},
    ]
    return _struct("event.block", fields, optional=True) | {"version": 1}
