"""Avro messages read back, one by one, to compare a target with its source.

Both sides are read by these functions, so equal values must give equal results, and every value
must be possible in Python: dates and times stay the numbers that Avro writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import fastavro

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.binary_format import Read, header, reader_of_registered


def reader_of(schema: str) -> Read:
    """A function that reads one datum of a schema (its JSON text), without a header.

    Raises:
        ChangefeedError: CF1303 the text is no Avro schema.
    """
    parsed = _parsed(schema)
    return lambda datum: _record(BytesIO(datum), parsed)


def member_names(schema: str) -> tuple[str, ...]:
    """The names of the members of a record's schema."""
    return tuple(field["name"] for field in json.loads(schema)["fields"])


def records_of(schema: str) -> Callable[[BytesIO, int], Iterator[Any]]:
    """A function that reads a number of consecutive datums of a schema.

    Raises:
        ChangefeedError: CF1303 the text is no Avro schema.
    """
    parsed = _parsed(schema)
    return lambda data, count: (_record(data, parsed) for _ in range(count))


def _parsed(schema: str) -> Any:
    try:
        return fastavro.parse_schema(_numbers(json.loads(schema)))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise _unreadable(error) from error


def _record(data: BytesIO, parsed: Any) -> Any:
    try:
        return fastavro.schemaless_reader(data, parsed, None)
    except (ValueError, TypeError, KeyError, IndexError, EOFError) as error:
        raise _unreadable(error) from error


def reader_by_id(schema_of: Callable[[int], str]) -> Read:
    """A function that reads messages that begin with the id of their schema in a registry.

    ``schema_of`` is called once for each schema.

    Raises:
        ChangefeedError: CF1303 by the reader: a message that has no such beginning, or is not in
            its schema.
    """
    return reader_of_registered(
        header, lambda found: reader_of(schema_of(found)), lambda: _unreadable(None)
    )


def _numbers(schema: Any) -> Any:
    """Without the logical types that fastavro turns into Python objects, except decimals."""
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
        "a message cannot be verified: it is not in the Avro that the feed writes",
        detail="" if error is None else type(error).__name__,
        hint="another program may have written there.",
    )
