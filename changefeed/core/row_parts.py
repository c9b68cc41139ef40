"""A file format for rows that another process reads: a sequence of parts, each with a header.

::

    length of the header u32 | length of the rows u64 | header, JSON | rows, an Arrow stream

A part without rows has the length 0. Rows are compressed. Writer and reader agree on the
headers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa

_LENGTHS = struct.Struct("<IQ")
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))


def put_part(file: BinaryIO, header: Mapping[str, Any], rows: pa.Table | None = None) -> None:
    """Write a part.

    Raises:
        OSError: no room.
    """
    text, body = json.dumps(header).encode(), pa.BufferOutputStream()
    if rows is not None:
        with pa.ipc.new_stream(body, rows.schema, options=_OPTIONS) as stream:
            stream.write_table(rows)
    content = body.getvalue()
    file.write(_LENGTHS.pack(len(text), content.size) + text)
    file.write(content)


def parts_of(content: pa.Buffer) -> Iterator[tuple[dict[str, Any], pa.Table | None]]:
    """The parts in the order in which they were written."""
    at = 0
    while at < content.size:
        header_length, length = _LENGTHS.unpack(content.slice(at, _LENGTHS.size))
        at += _LENGTHS.size
        header = json.loads(content.slice(at, header_length).to_pybytes())
        at += header_length
        rows = pa.ipc.open_stream(content.slice(at, length)).read_all() if length else None
        yield header, rows
        at += length
