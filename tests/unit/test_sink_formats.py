"""Avro containers and Parquet files as the files sink writes them, read back by other programs."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed_testing.sinks.feed import FeedDouble, at, table_schema
from changefeed_testing.sinks.readers import visible_files
from sinks.base import Batch, Sink
from sinks.files.writers import FILE_FORMATS
from sinks.registry import open_sink

SCHEMA = {
    "type": "record",
    "name": "t_envelope",
    "fields": [{"name": "after", "type": ["null", "string"], "default": None}],
}
COLUMNS = pa.struct(
    [("a", pa.int32()), ("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string()))]
)


def opened(out: Path, form: str, compression: str, size: str = "16MB") -> tuple[Sink, FeedDouble]:
    sink = open_sink(f"file://{out}?file_size={size}", {"format": form, "compression": compression})
    feed = FeedDouble({"t": "t"}, key_in_value=True)
    feed.open(sink)
    return sink, feed


def deliver(
    sink: Sink, feed: FeedDouble, values: pa.Array, field: pa.Field, steps: int = 1
) -> None:
    """The values as messages of one epoch in ``steps`` batches; a null is a tombstone."""
    epoch = feed.epoch(at(1))
    receipts = []
    size = -(-len(values) // steps)
    for start in range(0, len(values), size):
        part = values.slice(start, size)
        columns = {
            "key": pa.nulls(len(part), pa.binary()),
            "value": part,
            "wall": pa.repeat(pa.scalar(at(1).wall, pa.int64()), len(part)),
            "logical": pa.repeat(pa.scalar(0, pa.int32()), len(part)),
            "seq": pa.repeat(pa.scalar(0, pa.int64()), len(part)),
            "op": pa.nulls(len(part), pa.string()),
            "headers": pa.nulls(len(part), pa.string()),
        }
        schema = MESSAGE_SCHEMA.set(1, field)
        rows = pa.table([columns[f.name] for f in schema], schema=schema)
        batch = Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows)
        receipts.append(sink.write(batch))
    sink.commit(epoch, receipts)


def datum(text: str | None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(SCHEMA)), {"after": text})
    return out.getvalue()


HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
        ],
    }
)


def read_avro(content: bytes) -> list[Any]:
    """The rows of a container. fastavro reads two of its codecs only with more packages: their
    blocks are unpacked here, by the specification."""
    source = io.BytesIO(content)
    header: Any = fastavro.schemaless_reader(source, HEADER, None)
    codec = header["meta"]["avro.codec"].decode()
    if codec in ("null", "deflate"):
        return list(fastavro.reader(io.BytesIO(content)))
    schema = fastavro.parse_schema(json.loads(header["meta"]["avro.schema"]))
    rows: list[Any] = []
    while source.tell() < len(content):
        count: Any = fastavro.schemaless_reader(source, "long", None)
        size: Any = fastavro.schemaless_reader(source, "long", None)
        block = io.BytesIO(_unpacked(source.read(size), codec))
        assert source.read(16) == header["sync"]
        rows += [fastavro.schemaless_reader(block, schema, None) for _ in range(count)]
        assert not block.read()
    return rows


def _unpacked(packed: bytes, codec: str) -> bytes:
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            return bytes(stream.read())
    size, shift = 0, 0
    for byte in packed:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    data = pa.decompress(packed[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    assert zlib.crc32(data) == int.from_bytes(packed[-4:], "big")
    return bytes(data)


AVRO_FIELD = pa.field("value", pa.binary()).with_metadata({SCHEMA_KEY: json.dumps(SCHEMA)})


@pytest.mark.parametrize("compression", FILE_FORMATS["avro"].packings)
def test_avro(tmp_path: Path, compression: str) -> None:
    texts = ["x" * 300_000, "", None, *(f"row {n}" for n in range(2000))]
    values = pa.array([*(datum(text) for text in texts), None], pa.binary())
    sink, feed = opened(tmp_path, "avro", compression)
    deliver(sink, feed, values, AVRO_FIELD, steps=3)
    feed.resolve(sink, at(1))
    feed.truncate(sink, "t", at(2))
    sink.close()
    data, mark, truncate = visible_files(tmp_path)
    assert data.suffix == ".avro"
    assert [row["after"] for row in read_avro(data.read_bytes())] == texts
    assert json.loads(mark.read_text()) == {"resolved": str(at(1))}
    assert (truncate.suffix, json.loads(truncate.read_text())) == (
        ".TRUNCATE",
        {"table": "shop.public.t", "truncate": str(at(2))},
    )


@pytest.mark.parametrize("compression", FILE_FORMATS["parquet"].packings)
def test_parquet(tmp_path: Path, compression: str) -> None:
    rows = [{"a": n, "price": None, "tags": ["x", None]} for n in range(3000)]
    values = pa.array([*rows, None], COLUMNS)
    sink, feed = opened(tmp_path, "parquet", compression)
    deliver(sink, feed, values, pa.field("value", COLUMNS), steps=4)
    sink.close()
    (data,) = visible_files(tmp_path)
    table = pq.read_table(data)
    assert table.to_pylist() == rows
    assert table.schema.field("price").type == pa.decimal128(10, 2)
    file = pq.ParquetFile(data)
    assert file.metadata.num_row_groups == 1, "small batches share a row group"
    codec = file.metadata.row_group(0).column(0).compression
    names = {"none": "UNCOMPRESSED", "lz4": "LZ4"}
    assert codec == names.get(compression, compression.upper())


@pytest.mark.parametrize("form", ["avro", "parquet"])
def test_files_close_at_their_size(tmp_path: Path, form: str) -> None:
    sink, feed = opened(tmp_path, form, "none", "10kB")
    if form == "avro":
        values, field = pa.array([datum("x" * 90) for _ in range(1000)], pa.binary()), AVRO_FIELD
    else:
        kind = pa.struct([("b", pa.string())])
        values = pa.array([{"b": f"{n:090d}"} for n in range(1000)], kind)
        field = pa.field("value", kind)
    deliver(sink, feed, values, field, steps=5)
    sink.close()
    paths = visible_files(tmp_path)
    assert 8 < len(paths) < 15
    if form == "parquet":
        whole = [row for path in paths for row in pq.read_table(path).to_pylist()]
        assert whole == values.to_pylist()


def test_two_shapes_of_a_version_are_two_files(tmp_path: Path) -> None:
    """ALTER may change the envelope without a change of the table."""
    sink, feed = opened(tmp_path, "parquet", "none")
    for name in ("a", "b"):
        kind = pa.struct([(name, pa.int32())])
        deliver(sink, feed, pa.array([{name: 1}], kind), pa.field("value", kind))
    sink.close()
    assert [pq.read_schema(path).names for path in visible_files(tmp_path)] == [["a"], ["b"]]


def test_a_crash_leaves_no_half_file(tmp_path: Path) -> None:
    sink, feed = opened(tmp_path, "parquet", "none")
    epoch = feed.epoch(at(1))
    kind = pa.struct([("a", pa.int32())])
    rows = pa.table(
        {"value": pa.array([{"a": 1}], kind), "wall": pa.array([1]), "logical": pa.array([0])}
    )
    sink.write(Batch("f", epoch, 0, feed.targets["t"], table_schema("t"), rows))
    sink.close()
    assert visible_files(tmp_path) == []
