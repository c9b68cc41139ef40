"""Schemas as the table formats write them down, in the words of Spark's SQL."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

#: Names of Delta's types that are others in SQL.
_DELTA = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}

#: Names of Iceberg's types that are others in SQL.
_ICEBERG = {
    "long": "bigint",
    "uuid": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}


def delta_type(kind: Any) -> str:
    """A type of Delta's schema: a name, or a mapping where it is nested."""
    if isinstance(kind, str):
        return _DELTA.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{delta_type(kind['elementType'])}>"
    return str(kind["type"])


def metadata_of(content: bytes) -> dict[str, Any]:
    """Iceberg's metadata of a table."""
    plain = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    found: dict[str, Any] = json.loads(plain)
    return found


def columns_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The columns of its present schema."""
    number = metadata.get("current-schema-id", 0)
    schemas = metadata.get("schemas") or [metadata["schema"]]
    schema = next((s for s in schemas if s.get("schema-id", 0) == number), schemas[-1])
    return {field["name"]: _iceberg_type(field["type"]) for field in schema["fields"]}


def properties_of(metadata: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """The properties of an Iceberg table, and whether its present snapshot holds rows."""
    number = metadata.get("current-snapshot-id")
    snapshots = metadata.get("snapshots") or []
    current = next((s for s in snapshots if s.get("snapshot-id") == number), None)
    files = ((current or {}).get("summary") or {}).get("total-data-files")
    return dict(metadata.get("properties") or {}), current is not None and files != "0"


def _iceberg_type(kind: Any) -> str:
    if isinstance(kind, str):
        plain = kind.replace(" ", "")
        return "binary" if plain.startswith("fixed") else _ICEBERG.get(plain, plain)
    if kind["type"] == "list":
        return f"array<{_iceberg_type(kind['element'])}>"
    return str(kind["type"])
