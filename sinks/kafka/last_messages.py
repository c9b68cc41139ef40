"""How a topic differs from its table: the last message of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.encoding.registry import SchemaRegistry
from sinks.copies import CopyComparison, exact
from sinks.records import AVRO, PROTOBUF, RecordReader

#: Envelopes of whole rows.
ENVELOPES = ("wrapped", "row", "bare", "enriched", "debezium")

#: Key and value of a message.
KeyAndValue = tuple[bytes | None, bytes | None]


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


class MessageReader(Protocol):
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


#: Formats whose messages are records of a schema.
RECORD_FORMATS = {"avro": AVRO, "protobuf": PROTOBUF}


class Comparison:
    """The messages of a topic compared with the rows that the source has."""

    def __init__(self, copy: CopyComparison, format_name: str, envelope: str) -> None:
        """``copy``: empty; ``format_name``: the feed's."""
        self._copy = copy
        self._envelope = envelope
        self._format = RECORD_FORMATS.get(format_name)
        self._source: MessageReader = JsonReader()

    def expect(self, messages: Iterable[pa.Table]) -> None:
        """Take the messages of the rows that the source has; at least one batch, maybe empty."""
        for table in messages:
            if self._format is not None:
                self._source = self._format.of_source(table.schema, self._envelope)
                self._copy.call_key(self._format.key_names(table.schema))
            self._copy.expect_messages(table, self._envelope, self._source.key, self._source.value)

    def reader(self, registry: Callable[[], SchemaRegistry] | None, topic: str) -> MessageReader:
        """What reads the topic; without a registry the messages are bare, of the schema that
        those of the source have."""
        if self._format is None or registry is None:
            return self._source
        known = registry()
        read = self._format.reader_by_id(lambda number: known.schema(number, f"topic {topic}").text)
        return RecordReader(read, read, self._envelope)


def hold(
    copy: CopyComparison,
    messages: Iterable[KeyAndValue],
    envelope: str,
    partition: int,
    reader: MessageReader,
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
