"""The Arrow columns of messages, and what sinks of typed formats do with them.

Messages have :data:`changefeed.core.arrow.MESSAGE_SCHEMA` in every format but for ``value``:

* ``format = 'avro'`` without a schema registry: bare datums; the field's metadata has their
  schema under :data:`~changefeed.encoding.avro.schema.SCHEMA_KEY`. :func:`avro_header` and
  :func:`avro_block` make an Avro object container of them without reading them.
* ``format = 'protobuf'`` without a schema registry: bare messages; the field's metadata has the
  ``.proto`` text of their type under :data:`~changefeed.encoding.protobuf.schema.PROTO_KEY`.
* ``format = 'parquet'``: a struct, whose fields are the columns of the file
  (:func:`parquet_rows`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.avro.schema import SCHEMA_KEY, long_bytes

_ARROW = {
    Kind.BOOL: pa.bool_(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.FLOAT32: pa.float64(),
    Kind.FLOAT64: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
}


def arrow_type(of: LogicalType) -> pa.DataType:
    """The Arrow type of a type of typed formats."""
    if of.precision:
        return pa.decimal128(of.precision, of.scale)
    if of.element is not None:
        return pa.list_(arrow_type(of.element))
    return _ARROW.get(of.kind, pa.string())


# ------------------------------------------------------------------------------- for sinks


def parquet_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Messages of ``format = 'parquet'`` as the rows of a file."""
    return pa.RecordBatch.from_struct_array(rows.column("value"))


#: ``compression`` of the options -> codec of the container.
AVRO_CODECS = {"none": "null", "gzip": "deflate", "zstd": "zstandard", "snappy": "snappy"}

#: The first bytes of a container, and the size of the marker that ends each block.
AVRO_MAGIC = b"Obj\x01"
SYNC_SIZE = 16


def avro_header(rows_schema: pa.Schema, sync: bytes, compression: str = "none") -> bytes:
    """The head of an Avro object container for messages of this Arrow schema.

    ``sync`` is the file's marker, 16 random bytes (Avro specification, Object Container Files).
    """
    schema = (rows_schema.field("value").metadata or {}).get(SCHEMA_KEY)
    if schema is None:
        raise ValueError("these messages are not bare Avro datums")
    meta = {"avro.codec": AVRO_CODECS[compression].encode(), "avro.schema": schema}
    entries = b"".join(
        long_bytes(len(name)) + name.encode() + long_bytes(len(value)) + value
        for name, value in meta.items()
    )
    return AVRO_MAGIC + long_bytes(len(meta)) + entries + long_bytes(0) + sync


def avro_block(values: pa.Array, sync: bytes, compression: str = "none") -> bytes:
    """A block of the container: datums (binary, no nulls) one after the other."""
    data = _joined(values)
    packed = _COMPRESS[compression](data)
    return long_bytes(len(values)) + long_bytes(len(packed)) + packed + sync


def _joined(values: pa.Array) -> bytes:
    """One copy for all values: their bytes are contiguous in Arrow."""
    whole = pa.ListArray.from_arrays([0, len(values)], values.cast(pa.binary()))
    joined: bytes = pc.binary_join(whole, b"")[0].as_buffer().to_pybytes()
    return joined


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _snappy(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return packed + zlib.crc32(data).to_bytes(4, "big")


def _zstandard(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": _deflate,
    "zstd": _zstandard,
    "snappy": _snappy,
}
