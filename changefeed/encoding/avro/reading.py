"""Avro messages read back, one by one: for a comparison of what a topic holds with its source.

The values of both sides go through here, so what matters is that equal values come out alike, and
that none is out of Python's reach: dates and times stay the numbers that Avro writes them as.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.registry_header import header

#: A message of a registry's format begins with so many bytes that name its schema.
_HEADER = len(header(0))

Read = Callable[[bytes], Any]


def reader_of(schema: str) -> Read:
    """What reads datums of a schema (its JSON text), without a header.

    Raises:
        ChangefeedError: CF1303 the text is no Avro schema.
    """
    try:
        parsed = fastavro.parse_schema(_numbers(json.loads(schema)))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise _unreadable(error) from error

    def read(datum: bytes) -> Any:
        try:
            return fastavro.schemaless_reader(BytesIO(datum), parsed, None)
        except (ValueError, TypeError, KeyError, IndexError, EOFError) as error:
            raise _unreadable(error) from error

    return read


def reader_by_id(schema_of: Callable[[int], str]) -> Read:
    """What reads messages that begin with the id of their schema, as a registry gives it.

    ``schema_of`` is asked once for each schema.

    Raises:
        ChangefeedError: CF1303 by the reader: a message that has no such beginning, or is not in
            its schema.
    """
    readers: dict[int, Read] = {}

    def read(message: bytes) -> Any:
        found = int.from_bytes(message[1:_HEADER], "big")
        if len(message) < _HEADER or message[:_HEADER] != header(found):
            raise _unreadable(None)
        if found not in readers:
            readers[found] = reader_of(schema_of(found))
        return readers[found](message[_HEADER:])

    return read


def _numbers(schema: Any) -> Any:
    """The schema without the types that Python has a class for, but for decimals."""
    if isinstance(schema, dict):
        return {
            name: _numbers(part)
            for name, part in schema.items()
            if name != "logicalType" or part == "decimal"
        }
    return [_numbers(part) for part in schema] if isinstance(schema, list) else schema


def _unreadable(error: Exception | None) -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        "a message of the topic cannot be verified: it is not in Avro with a schema's id before it",
        detail="" if error is None else type(error).__name__,
        hint="another program may have written to the topic.",
    )
