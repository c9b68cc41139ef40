"""Avro files and protobuf messages read back: all codecs, every damage an error, none endless."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.arrow_schema import AVRO_CODECS, avro_block, avro_header
from changefeed.encoding.avro.reading import DamagedContainer, container_records
from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed.encoding.protobuf.reading import reader_by_id, reader_of

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'
SYNC = b"0123456789abcdef"


def container(compression: str) -> bytes:
    """The numbers 0 to 59 in three blocks."""
    schema = pa.schema([pa.field("value", pa.binary(), metadata={SCHEMA_KEY: SCHEMA})])
    datums = pa.array([bytes([2 * n]) for n in range(60)], pa.binary())
    blocks = [avro_block(datums.slice(i, 20), SYNC, compression) for i in (0, 20, 40)]
    return avro_header(schema, SYNC, compression) + b"".join(blocks)


@pytest.mark.parametrize("compression", list(AVRO_CODECS))
def test_a_container_of_every_codec_is_read(compression: str) -> None:
    read = list(container_records(io.BytesIO(container(compression))))
    assert read == [{"a": n} for n in range(60)]


@pytest.mark.parametrize("compression", list(AVRO_CODECS))
def test_a_container_that_was_cut_anywhere_is_an_error(compression: str) -> None:
    whole = container(compression)
    ends = {len(whole)}
    for size in range(len(whole)):
        try:
            read = list(container_records(io.BytesIO(whole[:size])))
        except DamagedContainer:
            continue
        # Between two blocks nobody can tell; a file appears as a whole.
        assert len(read) in (0, 20, 40)
        ends.add(size)
    assert len(ends) == 4


def test_a_block_with_a_wrong_checksum_says_so() -> None:
    damaged = bytearray(container("snappy"))
    damaged[-len(SYNC) - 1] ^= 1
    with pytest.raises(DamagedContainer, match="the checksum of a block is wrong"):
        list(container_records(io.BytesIO(damaged)))


PROTO = """
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
// what a registry may keep
message t_row {
  optional int64 id = 1; // id bigint NOT NULL
  optional string name = 2 [deprecated = true];
  google.protobuf.Timestamp at = 3;
  t_string_array tags = 4;
}
message t_string_array {
  message element { optional string value = 1; }
  repeated element items = 1;
}
"""


def test_protobuf_is_read_by_the_text_of_its_type() -> None:
    read = reader_of(PROTO)
    tags = b"\x0a\x03\x0a\x01x\x0a\x00"
    message = b"\x08" + b"\xff" * 9 + b"\x01" + b"\x12\x00" + b"\x1a\x04\x08\x01\x10\x64"
    assert read(message + b"\x22" + bytes([len(tags)]) + tags + b"\x2d\x00\x00\x00\x00") == {
        "id": -1,
        "name": "",
        "at": 1_000_000,
        "tags": ["x", None],
    }
    assert read(b"") == {"id": None, "name": None, "at": None, "tags": None}


@pytest.mark.parametrize(
    "read",
    [
        lambda: reader_of(PROTO)(b"\x12\x05ab"),
        lambda: reader_of(PROTO)(b"\xff" * 30),
        lambda: reader_of(PROTO)(b"\x0a\x00"),
        lambda: reader_of(PROTO)(b"\x0b"),
        lambda: reader_of("enum e { A = 0; }"),
        lambda: reader_of("message t { oneof o { int32 a = 1; } }"),
        lambda: reader_of("message t { int32 a = 1;"),
        lambda: reader_of(""),
        lambda: reader_of("message t { other a = 1; }")(b"\x0a\x00"),
        lambda: reader_by_id(lambda _: PROTO)(b"\0\0\0"),
        lambda: reader_by_id(lambda _: PROTO)(b"\0\0\0\0\x01\x02\x08"),
    ],
)
def test_what_the_feed_does_not_write_is_refused(read: Callable[[], object]) -> None:
    with pytest.raises(ChangefeedError, match="not in the protobuf") as refused:
        read()
    assert refused.value.code is Code.NOT_SUPPORTED


def test_without_protobuf_s_runtime_the_error_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ChangefeedError, match=r"needs changefeed\[protobuf\]") as refused:
        reader_of(PROTO)
    assert refused.value.code is Code.SINK_NEEDS_EXTRA
    assert refused.value.hint == "pip install 'changefeed[protobuf]'"
