"""How a topic differs from its table: the last message of each key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.avro.reading import Read, reader_by_id, reader_of
from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed.encoding.registry import SchemaRegistry
from sinks.copies import CopyComparison, exact, plain

#: Envelopes of whole rows in which a delete can be told from a row.
ENVELOPES = ("wrapped", "row", "enriched", "debezium")

#: Key and value of a message.
Message = tuple[bytes | None, bytes | None]


def require_comparable(envelope: str) -> None:
    """Refuse an envelope whose messages do not say which rows there are.

    Raises:
        ChangefeedError: CF1303.
    """
    if envelope not in ENVELOPES:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"a topic of envelope = '{envelope}' cannot be verified",
            hint=f"these can: {', '.join(ENVELOPES)}.",
        )


class Reader(Protocol):
    """Reads keys and values of messages."""

    def key(self, key: bytes) -> str:
        """A text that equal keys have alike."""
        ...

    def value(self, value: bytes) -> object:
        """What :func:`sinks.copies.row_of` takes.

        Raises:
            ChangefeedError: CF1303 it is not in the feed's format.
        """
        ...


class JsonReader:
    """``format = 'json'``."""

    def key(self, key: bytes) -> str:
        return key.decode(errors="replace")

    def value(self, value: bytes) -> object:
        return exact(value)


class AvroReader:
    """``format = 'avro'``."""

    def __init__(self, key: Read, value: Read) -> None:
        self._key, self._value = key, value

    @classmethod
    def of_source(cls, messages: pa.Schema) -> AvroReader:
        """Of the messages of the rows at the source, which have their schemas beside them."""
        key, value = (
            reader_of((messages.field(name).metadata or {})[SCHEMA_KEY].decode())
            for name in ("key", "value")
        )
        return cls(key, value)

    @classmethod
    def of_topic(cls, registry: SchemaRegistry, topic: str) -> AvroReader:
        """Of messages that begin with the id of their schema."""
        read = reader_by_id(lambda number: registry.schema(number, f"topic {topic}").text)
        return cls(read, read)

    def key(self, key: bytes) -> str:
        return json.dumps(plain(list(self._key(key).values())), ensure_ascii=False)

    def value(self, value: bytes) -> object:
        return plain(self._value(value))


def expect(copy: CopyComparison, messages: Iterable[pa.Table], envelope: str, avro: bool) -> None:
    """Take the messages of the rows that the source has."""
    for table in messages:
        reader = AvroReader.of_source(table.schema) if avro else JsonReader()
        copy.expect_messages(table, envelope, reader.key, reader.value)


def hold(
    copy: CopyComparison,
    messages: Iterable[Message],
    envelope: str,
    partition: int,
    reader: Reader,
) -> None:
    """Take the messages of a partition, in its order."""
    read = (
        (
            None if key is None else reader.key(key),
            None if value is None else reader.value(value),
        )
        for key, value in messages
    )
    copy.replay(read, envelope, partition)
