"""What Avro and protobuf have in common: names, numbers, and the registry's header."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from changefeed.core.errors import ChangefeedError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")

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
    """The beginning of a message in Confluent's wire format: a zero byte and the schema's id.

    https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
    """
    return b"\0" + schema_id.to_bytes(4, "big")


def reader_of_registered(
    beginning: Callable[[int], bytes],
    reader: Callable[[int], Read],
    refusal: Callable[[], ChangefeedError],
) -> Read:
    """A function that reads messages that begin with the id of their schema.

    Args:
        beginning: of a message whose schema has this id: :func:`header`, and what the format adds
            to it. It has one length for all ids.
        reader: returns the reader of the rest of such a message; called once for each id.
        refusal: the error of a message with another beginning.
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


def identifier(text: str) -> str:
    """``text`` as an identifier, as CockroachDB escapes it: forbidden characters are ``_uXXXX_``.

    Avro (Specification, Names) and protobuf (Language Specification, Identifiers) both allow
    ``[A-Za-z_][A-Za-z0-9_]*``.

    >>> identifier("public.my-table")
    'public_u002e_my_u002d_table'
    """
    escaped = _NOT_IN_NAMES.sub(lambda match: _escape(match[0]), text)
    return _escape(escaped[0]) + escaped[1:] if escaped[:1].isdigit() else escaped or "_"


def namespace(prefix: str) -> str:
    """``avro_schema_prefix`` as a namespace: names with dots between them."""
    return ".".join(identifier(part) for part in prefix.split(".") if part)


def _escape(character: str) -> str:
    return f"_u{ord(character):04x}_"
