"""Avro messages and files read back, one by one, to compare a target with its source.

Both sides are read by these functions, so equal values must give equal results, and every value
must be possible in Python: dates and times stay the numbers that Avro writes.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.arrow_schema import AVRO_MAGIC, SYNC_SIZE
from changefeed.encoding.binary_format import Read, header, reader_of_registered


def reader_of(schema: str) -> Read:
    """A function that reads one datum of a schema (its JSON text), without a header.

    Raises:
        ChangefeedError: CF1303 the text is no Avro schema.
    """
    parsed = _parsed(schema)
    return lambda datum: _record(io.BytesIO(datum), parsed)


def member_names(schema: str) -> tuple[str, ...]:
    """The names of the members of a record's schema."""
    return tuple(field["name"] for field in json.loads(schema)["fields"])


def _parsed(schema: str) -> Any:
    try:
        return fastavro.parse_schema(_numbers(json.loads(schema)))
    except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise _unreadable(error) from error


def _record(data: io.BytesIO, parsed: Any) -> Any:
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


# ------------------------------------------------------------------------------- files

#: The parts of a file are data of Avro's, too (Specification, Object Container Files).
_SYNC = {"type": "fixed", "name": "sync", "size": SYNC_SIZE}
_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(AVRO_MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
_BLOCK = fastavro.parse_schema(
    {
        "type": "record",
        "name": "block",
        "fields": [
            {"name": "count", "type": "long"},
            {"name": "data", "type": "bytes"},
            {"name": "sync", "type": _SYNC},
        ],
    }
)


class DamagedContainer(Exception):
    """The bytes are no Avro object container, or an incomplete one."""


def container_records(file: BinaryIO) -> Iterator[Any]:
    """The records of an Avro object container, in their order; a block at a time is in memory.

    Raises:
        DamagedContainer: it ends too soon, or is none.
        ChangefeedError: CF1303 a record is not in the schema that the file names.
    """
    stream = io.BufferedReader(file, 1 << 20)  # type: ignore[type-var]
    if stream.peek(len(AVRO_MAGIC))[: len(AVRO_MAGIC)] != AVRO_MAGIC:
        raise DamagedContainer("it does not begin as an Avro file")
    header = _part(stream, _HEADER)
    unpack = _UNPACK.get(header["meta"].get("avro.codec", b"null"))
    if unpack is None:
        raise DamagedContainer("its codec is unknown")
    schema = _parsed(header["meta"].get("avro.schema", b"").decode(errors="replace"))
    while stream.peek(1):
        block = _part(stream, _BLOCK)
        if block["sync"] != header["sync"]:
            raise DamagedContainer("a block of it does not end with its marker")
        try:
            records = io.BytesIO(unpack(block["data"]))
        except (ValueError, OSError, zlib.error) as error:
            raise DamagedContainer("a block of it cannot be unpacked") from error
        for _ in range(block["count"]):
            yield _record(records, schema)


def _part(stream: BinaryIO, schema: Any) -> Any:
    try:
        return fastavro.schemaless_reader(stream, schema, None)
    except (ValueError, IndexError, EOFError, OverflowError, MemoryError) as error:
        raise DamagedContainer("it ends too soon") from error


def _snappy(packed: bytes) -> bytes:
    body, size = packed[:-4], 0
    for place, byte in enumerate(body[:5]):  # the size of the data before the data
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    # It may be damaged: no memory is asked for that a block of a feed does not need.
    if size > 1 << 30:
        raise DamagedContainer("a block of it is too large")
    data: bytes = pa.decompress(body, size, codec="snappy", asbytes=True)
    if zlib.crc32(data).to_bytes(4, "big") != packed[-4:]:
        raise DamagedContainer("the checksum of a block is wrong")
    return data


def _zstandard(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data: bytes = stream.read()
    return data


_UNPACK: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"null": lambda data: data,
    b"deflate": lambda data: zlib.decompress(data, -15),
    b"snappy": _snappy,
    b"zstandard": _zstandard,
}
