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
from sinks.copies import BARE, CopyComparison, exact, plain

#: Envelopes of whole rows.
ENVELOPES = ("wrapped", "row", "bare", "enriched", "debezium")

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

    def __init__(self, key: Read, value: Read, envelope: str) -> None:
        self._key, self._value, self._envelope = key, value, envelope

    @classmethod
    def of_source(cls, messages: pa.Schema, envelope: str) -> AvroReader:
        """Of the messages of the rows at the source, which have their schemas beside them."""
        key, value = (reader_of(schema_of(messages, name)) for name in ("key", "value"))
        return cls(key, value, envelope)

    @classmethod
    def of_topic(cls, registry: SchemaRegistry, topic: str, envelope: str) -> AvroReader:
        """Of messages that begin with the id of their schema."""
        read = reader_by_id(lambda number: registry.schema(number, f"topic {topic}").text)
        return cls(read, read, envelope)

    def key(self, key: bytes) -> str:
        return json.dumps(plain(list(self._key(key).values())), ensure_ascii=False)

    def value(self, value: bytes) -> object:
        return of_record(plain(self._value(value)), self._envelope)


def of_record(value: object, envelope: str) -> object:
    """The value of a typed message as JSON has it: in ``bare``, whose row is a record of its own
    there, the columns stand at the top."""
    if envelope != BARE or not isinstance(value, dict):
        return value
    row = value.get("record")
    return {"__crdb__": value} if row is None else row


def schema_of(messages: pa.Schema, column: str) -> str:
    """The schema of the keys or the values of messages that have it beside them."""
    found: bytes = (messages.field(column).metadata or {})[SCHEMA_KEY]
    return found.decode()


def expect(copy: CopyComparison, messages: Iterable[pa.Table], envelope: str, avro: bool) -> None:
    """Take the messages of the rows that the source has."""
    for table in messages:
        reader: Reader = JsonReader()
        if avro:
            reader = AvroReader.of_source(table.schema, envelope)
            copy.call_key(
                field["name"] for field in json.loads(schema_of(table.schema, "key"))["fields"]
            )
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
