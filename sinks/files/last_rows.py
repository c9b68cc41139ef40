"""How files differ from their table: the last message of each key."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from sinks.base import SinkContext
from sinks.copies import BARE, exact, key_text
from sinks.files.names import MAX_LABEL, TRUNCATION, file_order, parse_name
from sinks.files.places.base import FilePlace, PublishedFile, ReadablePlace
from sinks.files.typed_rows import (
    KeyedMessage,
    avro_messages,
    parquet_messages,
    source_rows,
    unreadable,
)
from sinks.files.writers import FILE_FORMATS
from sinks.message_copies import JSON_VALUES, MessageComparison, require_envelope
from sinks.naming import shortened

#: Envelopes of whole rows that tell of deletes.
ENVELOPES = ("wrapped", "bare", "enriched")
#: What a packed file's name ends in, and how Arrow calls the packing.
_PACKINGS = {"gz": "gzip", "zst": "zstd", "lz4": "lz4"}


def require_comparable(place: FilePlace, shown: str, envelope: str) -> ReadablePlace:
    """The place, which can be read, of a feed whose files say which rows there are.

    Raises:
        ChangefeedError: CF1303.
    """
    if not isinstance(place, ReadablePlace):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{shown} cannot be verified: it accepts files but cannot list them",
        )
    refusal = f"files of envelope = '{envelope}' cannot be verified: they contain no deletes"
    require_envelope(envelope, ENVELOPES, refusal)
    return place


class FileComparison(MessageComparison):
    """The files of a feed compared with the rows that the source has."""

    def __init__(
        self, context: SinkContext, schema: TableSchema, format_name: str, envelope: str
    ) -> None:
        self._form = FILE_FORMATS[format_name]
        # A row of a Parquet file says in a column of its own what was done to it.
        replayed = "wrapped" if self._form.columnar else envelope
        super().__init__(context, schema, format_name, replayed, JSON_VALUES)

    def expect_source(self, messages: Iterable[pa.Table]) -> None:
        """Take the messages of the rows that the source has."""
        if not self._form.columnar:
            self.expect_messages(messages)
            return
        for table in messages:
            lacking = set(self.key_members) - {f.name for f in table.schema.field("value").type}
            if lacking:
                names = ", ".join(sorted(lacking))
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"files of format = 'parquet' without a column of the key ({names}) cannot be "
                    "verified: nothing in them identifies a row",
                )
            self.expect(source_rows(table.to_batches(), self.key_members))

    def replay_files(self, place: ReadablePlace, job: int, topic: str) -> None:
        """Apply the messages in the files of a table, in the order in which they were written.

        Raises:
            ChangefeedError: CF1303 a file of the feed is of another format, or has something that
                is no message of its envelope.
        """
        for path in data_files(place.every(), job, topic):
            self.replay(self._messages(place, path))

    def _messages(self, place: ReadablePlace, path: str) -> Iterator[KeyedMessage]:
        if path.endswith(f".{TRUNCATION}"):
            with place.open(path) as raw:
                return iter([(None, exact(raw.read()))])
        packing = _PACKINGS.get(path.rpartition(".")[2])
        plain_path = path if packing is None else path.rpartition(".")[0]
        if not plain_path.endswith(f".{self._form.extension}"):
            raise unreadable(path, "the feed had another format when it was written")
        if self._form.columnar:
            return parquet_messages(place, path, self.key_members)
        if self._form.container:
            return avro_messages(place, path, self._envelope, self.key_members)
        return _messages(place, path, packing, self._envelope)


def data_files(files: Iterable[PublishedFile], job: int, topic: str) -> list[str]:
    """The paths of a table's data files, and of those that tell of a TRUNCATE of it, in the order
    in which they were written."""
    label = shortened(topic, MAX_LABEL)
    ours = []
    for file in files:
        said = parse_name(file.path.rpartition("/")[2], truncations=True)
        if said is not None and (said.job, said.topic) == (job, label):
            ours.append((file.path, file.modified))
    return file_order(ours)


def _messages(
    place: ReadablePlace, path: str, packing: str | None, envelope: str
) -> Iterator[KeyedMessage]:
    with place.open(path) as raw:
        stream = raw if packing is None else pa.CompressedInputStream(raw, packing)
        for number, line in enumerate(io.BufferedReader(stream, 1 << 20), 1):
            try:
                value = exact(line)
            except ValueError as error:
                raise _no_message(path, number) from error
            if not isinstance(value, dict):
                raise _no_message(path, number)
            key, whole = _key_of(value, envelope)
            if key is not None and not whole:
                raise _no_message(path, number)  # of an envelope that the feed had before
            yield None if key is None else key_text(key), value


def _key_of(value: dict[str, Any], envelope: str) -> tuple[Any, bool]:
    """The key in a line, None in a control message; and whether the row is where the envelope puts
    it."""
    if envelope == BARE:
        meta = value.get("__crdb__")
        if not isinstance(meta, dict):
            return value, False
        return meta.get("key"), True
    payload = value.get("payload", value) if envelope == "enriched" else value
    if not isinstance(payload, dict):
        return value, False
    return payload.get("key", value.get("key")), "after" in payload


def _no_message(path: str, line: int) -> ChangefeedError:
    return unreadable(path, f"line {line} is no message of the feed as it is now")
