"""What messages of Avro and of protobuf have in common, byte for byte."""

from __future__ import annotations


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
