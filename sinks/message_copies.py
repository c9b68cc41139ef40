"""Copies kept as keyed messages, compared with the source: the last message of each key.

Messages of JSON, and records of a schema (Avro, protobuf). Only VERIFY loads this, and with it
what reads all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.encoding.avro.schema import SCHEMA_KEY
from changefeed.encoding.binary_format import Read
from changefeed.encoding.protobuf.schema import PROTO_KEY
from sinks.base import SinkContext
from sinks.comparison_file import ROWS_AT_ONCE
from sinks.copies import (
    BARE,
    CopyComparison,
    Row,
    exact,
    key_text,
    of_record,
    plain,
    row_of,
    whole_row,
)


class MessageReader(NamedTuple):
    """Reads messages of one format.

    Attributes:
        key: of a key: a text that equal keys have alike.
        value: of a value: what :func:`row_of` takes. Raises CF1303: it is not in the format.
    """

    key: Callable[[bytes], str]
    value: Callable[[bytes], object]


#: Messages of JSON whose keys are compared as they are written, and by their values.
JSON = MessageReader(lambda key: key.decode(errors="replace"), exact)
JSON_VALUES = MessageReader(lambda key: key_text(exact(key)), exact)

#: Formats of records: what their schemas are called beside Arrow columns, and what reads them.
#: A reader is loaded on use, as it may need a package of an extra.
_RECORDS = {
    "avro": (SCHEMA_KEY, "changefeed.encoding.avro.reading"),
    "protobuf": (PROTO_KEY, "changefeed.encoding.protobuf.reading"),
}


def _record_reader(key: Read, value: Read, envelope: str) -> MessageReader:
    return MessageReader(
        lambda data: key_text(plain(list(key(data).values()))),
        lambda data: of_record(plain(value(data)), envelope),
    )


def require_envelope(envelope: str, these: Sequence[str], message: str) -> None:
    """Refuse an envelope that is not among ``these``.

    Raises:
        ChangefeedError: CF1303, with ``message``.
    """
    if envelope not in these:
        hint = f"these can: {', '.join(these)}."
        raise ChangefeedError(Code.NOT_SUPPORTED, message, hint=hint)


class MessageComparison(CopyComparison):
    """What the source has and what messages say, by their keys. What the target does with a row
    follows from these, whatever the row itself says.

    A context manager: at its end the file is gone.
    """

    def __init__(
        self,
        context: SinkContext,
        schema: TableSchema,
        form: str,
        envelope: str,
        json: MessageReader = JSON,
    ) -> None:
        """
        Args:
            context: of VERIFY.
            schema: of the rows at the source.
            form, envelope: of the messages.
            json: reads messages that are no records.
        """
        super().__init__(context.scratch, schema, read=context.read, keyed=True)
        self._envelope = envelope
        self._beside, module = _RECORDS.get(form, (b"", ""))
        self._records: Any = import_module(module) if module else None
        self._reader = json

    def expect_messages(self, tables: Iterable[pa.Table]) -> None:
        """The messages of rows of the source: at least one table, maybe without rows.

        Raises:
            ChangefeedError: CF1303 no row can be distinguished from its delete.
        """
        for table in tables:
            if self._records is not None:
                self._read_records(table.schema)
            key, value = self._reader
            for batch in table.to_batches():
                pairs = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
                self.expect((key(k), whole_row(self._envelope, value(v))) for k, v in pairs)
        if self._envelope == BARE and self.names and set(self.names) <= set(self.key_members):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "messages of envelope = 'bare' without a column beside the key cannot be verified: "
                "a row looks like its delete",
            )

    def _read_records(self, messages: pa.Schema) -> None:
        """Records of the source have the texts of their schemas beside them."""
        key, value = (
            str(messages.field(name).metadata[self._beside], "utf-8") for name in ("key", "value")
        )
        self.key_members = self._records.member_names(key)
        read = self._records.reader_of(key), self._records.reader_of(value)
        self._reader = _record_reader(*read, self._envelope)

    def read_registered(self, text_of: Callable[[int], str]) -> None:
        """Records of the target begin with the id of their schema; ``text_of`` returns its text."""
        if self._records is not None:
            read = self._records.reader_by_id(text_of)
            self._reader = _record_reader(read, read, self._envelope)

    def replay_bytes(
        self, messages: Iterable[tuple[bytes | None, bytes | None]], part: int
    ) -> None:
        """Messages of the target in their order: keys and values as they are there."""
        key, value = self._reader
        self.replay(
            ((None if k is None else key(k), None if v is None else value(v)) for k, v in messages),
            part,
        )

    def replay(self, messages: Iterable[tuple[str | None, object]], part: int = 0) -> None:
        """Messages in their order: a key as text, and what :func:`row_of` takes.

        A message without a key is a resolved timestamp, or that of a TRUNCATE: what came before
        it with ``part`` is gone.
        """
        waiting: list[tuple[str, Row | None]] = []
        for key, value in messages:
            if key is not None:
                waiting.append((key, None if value is None else row_of(self._envelope, value)))
            elif value is not None and _truncates(value):
                waiting.clear()
                self.clear(part)
            if len(waiting) >= ROWS_AT_ONCE:
                self.hold(waiting, part, doubt=self._envelope == BARE)
                waiting.clear()
        self.hold(waiting, part, doubt=self._envelope == BARE)


def _truncates(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    # Where it stands depends on the envelope. Avro's records have all their members, some empty.
    places = (found, found.get("payload"), found.get("__crdb__"))
    return any(isinstance(place, dict) and place.get("truncate") is not None for place in places)
