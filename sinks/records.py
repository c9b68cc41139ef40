"""Messages that are records of a schema (Avro, protobuf), read for a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed.encoding.binary_format import Read
from changefeed.encoding.protobuf.schema import PROTO_KEY
from sinks.copies import key_text, of_record, plain


class RecordReader:
    """Reads keys and values of messages as :func:`sinks.copies.exact` gives JSON's."""

    def __init__(self, key: Read, value: Read, envelope: str) -> None:
        self._key, self._value, self._envelope = key, value, envelope

    def key(self, key: bytes) -> str:
        """A text that equal keys have alike."""
        return key_text(plain(list(self._key(key).values())))

    def value(self, value: bytes) -> object:
        """What :func:`sinks.copies.row_of` takes."""
        return of_record(plain(self._value(value)), self._envelope)


@dataclass(frozen=True, slots=True)
class SchemaReaders:
    """How messages are read in a format that has schemas.

    Attributes:
        beside: under what name the Arrow columns of messages have the text of their schema.
        module: its functions read the messages. It is loaded on use, as it may need a package of an
            extra.
    """

    beside: bytes
    module: str

    @property
    def _reading(self) -> Any:
        return import_module(self.module)

    def reader_of(self, schema: str) -> Read:
        """What reads messages of a schema's text."""
        read: Read = self._reading.reader_of(schema)
        return read

    def reader_by_id(self, schema_of: Callable[[int], str]) -> Read:
        """What reads messages that begin with the id of their schema."""
        read: Read = self._reading.reader_by_id(schema_of)
        return read

    def of_source(self, messages: pa.Schema, envelope: str) -> RecordReader:
        """What reads messages whose columns have their schemas beside them."""
        key, value = (self.reader_of(self._schema(messages, name)) for name in ("key", "value"))
        return RecordReader(key, value, envelope)

    def key_names(self, messages: pa.Schema) -> tuple[str, ...]:
        """What the key's columns are called in such messages."""
        names: tuple[str, ...] = self._reading.member_names(self._schema(messages, "key"))
        return names

    def _schema(self, messages: pa.Schema, column: str) -> str:
        metadata = messages.field(column).metadata or {}
        return str(metadata[self.beside], "utf-8")


AVRO = SchemaReaders(SCHEMA_KEY, "changefeed.encoding.avro.reading")
PROTOBUF = SchemaReaders(PROTO_KEY, "changefeed.encoding.protobuf.reading")
