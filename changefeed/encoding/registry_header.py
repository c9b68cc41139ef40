"""What messages of Avro and of protobuf have in common, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from changefeed.core.errors import ChangefeedError

#: Reads one message from its bytes.
Read = Callable[[bytes], Any]


def varint(number: int) -> bytes:
    """A number of 0 or more in seven bits a byte, the lowest first.

    https://protobuf.dev/programming-guides/encoding/#varints; Avro adds the zigzag of its signed
    numbers (Specification, Binary Encoding).
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def header(schema_id: int) -> bytes:
    """What Confluent's wire format begins with: a zero byte and the schema's id.

    https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
    """
    return b"\0" + schema_id.to_bytes(4, "big")


def reader_of_registered(
    beginning: Callable[[int], bytes],
    reader: Callable[[int], Read],
    refusal: Callable[[], ChangefeedError],
) -> Read:
    """What reads messages that begin with the id of their schema.

    Args:
        beginning: of a message whose schema has this id: :func:`header`, and what the format adds
            to it. It has one length for all ids.
        reader: reads the rest of such a message; asked for once for each id.
        refusal: what is raised when a message begins otherwise.
    """
    readers: dict[int, Read] = {}
    ids, size = len(header(0)), len(beginning(0))

    def read(message: bytes) -> Any:
        found = int.from_bytes(message[1:ids], "big")
        if message[:size] != beginning(found):
            raise refusal()
        if found not in readers:
            readers[found] = reader(found)
        return readers[found](message[size:])

    return read
