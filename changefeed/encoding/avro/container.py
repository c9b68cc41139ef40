"""Avro object containers read back: the files of ``format = 'avro'``, for a comparison.

Block by block, so that memory stays bounded for files of any size. Avro specification, Object
Container Files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, BinaryIO

import pyarrow as pa

from changefeed.encoding.arrow_schema import AVRO_MAGIC, SYNC_SIZE
from changefeed.encoding.avro.reading import records_of


class DamagedContainer(Exception):
    """The bytes are no Avro object container, or an incomplete one."""


def container_records(stream: BinaryIO) -> Iterator[Any]:
    """The records of a container, in their order.

    Raises:
        DamagedContainer: it ends too soon, or is none.
        ChangefeedError: CF1303 a record is not in the schema that the file names.
    """
    if stream.read(len(AVRO_MAGIC)) != AVRO_MAGIC:
        raise DamagedContainer("it does not begin as an Avro file")
    meta = _meta(stream)
    unpack = _UNPACK.get(meta.get("avro.codec", b"null"))
    if unpack is None:
        raise DamagedContainer("its codec is unknown")
    read = records_of(meta.get("avro.schema", b"").decode(errors="replace"))
    sync = _exactly(stream, SYNC_SIZE)
    while (count := _long(stream, at_end=True)) is not None:
        packed = _exactly(stream, _size(stream))
        if _exactly(stream, SYNC_SIZE) != sync:
            raise DamagedContainer("a block of it does not end with its marker")
        try:
            block = unpack(packed)
        except (ValueError, OSError, zlib.error) as error:
            raise DamagedContainer("a block of it cannot be unpacked") from error
        yield from read(BytesIO(block), count)


def _meta(stream: BinaryIO) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    while count := _long(stream):
        if count < 0:  # followed by its size in bytes
            _size(stream)
        for _ in range(abs(count)):
            name = _exactly(stream, _size(stream)).decode(errors="replace")
            found[name] = _exactly(stream, _size(stream))
    return found


def _size(stream: BinaryIO) -> int:
    size = _long(stream)
    if size is None or size < 0:
        raise DamagedContainer("a length in it is negative")
    return size


def _long(stream: BinaryIO, *, at_end: bool = False) -> int | None:
    """A zigzag number; None at the end of the stream if ``at_end`` allows it."""
    number = _varint(stream, at_end=at_end)
    return None if number is None else (number >> 1) ^ -(number & 1)


def _varint(stream: BinaryIO, *, at_end: bool = False) -> int | None:
    number = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            if at_end and not shift:
                return None
            raise DamagedContainer("it ends too soon")
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
        shift += 7
        if shift > 63:
            raise DamagedContainer("a number in it is too long")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise DamagedContainer("it ends too soon")
    return data


def _snappy(packed: bytes) -> bytes:
    body = packed[:-4]
    size = _varint(BytesIO(body)) or 0
    # The length may be damaged: no memory is asked for that a block of a feed does not need.
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
