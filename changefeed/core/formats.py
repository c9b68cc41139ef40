"""The formats of messages: one row for each.

A new format is a member of :class:`Format`, a row of :data:`TRAITS`, and the module that the row
names, with a class for how messages are written (:mod:`changefeed.encoding.message_format`).
Options, planner, encoding, VERIFY and sinks read the row; no code compares a format's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from changefeed.core.shapes import Envelope


class Format(StrEnum):
    """How a message is written.

    CSV has no envelope and no key: it is for scans to files. Parquet is for files too; its
    messages have a struct of typed columns for a value. Protobuf is for sinks of messages,
    because a protobuf file does not describe its content.
    """

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class FormatTraits:
    """The abilities of a format.

    Attributes:
        meaning: a few words, for completion.
        written_by: ``module:class`` of a
        :class:`~changefeed.encoding.message_format.MessageFormat`. A name, because this package
        must not import encoding.
        text: messages are JSON text: a member may be left out, have a schema, or be a JSON null.
        schemas: messages have schemas, which a registry may store; a record has all its fields.
        unreadable_alone: a message cannot be read without the schema with which it was written.
        debezium: Debezium's connectors write it.
        row_alone: why a message is only the row, without a place for key or topic; empty if not.
        read_back: messages can be read again, to compare them with their source.
        columnar: the sink makes files of rows, there are no messages.
        line: a message has no key, and cannot say that a row was changed or deleted.
        packages: import names of what its writer needs.
        extra: the extra of our distribution that brings them.
        never: envelopes that the format does not support.
        because: the reason for ``never``.
    """

    meaning: str
    written_by: str
    text: bool = False
    schemas: bool = False
    unreadable_alone: bool = False
    debezium: bool = False
    row_alone: str = ""
    read_back: bool = False
    columnar: bool = False
    line: bool = False
    packages: tuple[str, ...] = ()
    extra: str = ""
    never: tuple[Envelope, ...] = ()
    because: str = ""


_LINE = "a line of csv is the row and nothing else"

TRAITS: Mapping[Format, FormatTraits] = {
    Format.JSON: FormatTraits(
        "JSON, with every digit",
        "changefeed.encoding.json_envelope:JsonFormat",
        text=True,
        read_back=True,
        debezium=True,
    ),
    Format.AVRO: FormatTraits(
        "Avro, with a schema registry or in files",
        "changefeed.encoding.avro.format:AvroFormat",
        packages=("fastavro",),
        extra="avro",
        schemas=True,
        unreadable_alone=True,
        read_back=True,
        debezium=True,
        never=(Envelope.CHANGED,),
        because="a record has all its fields: an omitted one could not be distinguished from NULL",
    ),
    Format.PROTOBUF: FormatTraits(
        "a protobuf message type for each table",
        "changefeed.encoding.protobuf.format:ProtobufFormat",
        schemas=True,
        read_back=True,
        never=(Envelope.CHANGED,),
        because="a record has all its fields: an omitted one could not be distinguished from NULL",
    ),
    Format.PARQUET: FormatTraits(
        "columnar files",
        "changefeed.encoding.parquet:ParquetFormat",
        columnar=True,
        row_alone="the row contains the key's columns, and a file belongs to one topic",
        read_back=True,
        never=(Envelope.ROW, Envelope.KEY_ONLY, Envelope.ENRICHED, Envelope.CHANGED),
        because="a row of a Parquet file is the table's row with added metadata columns",
    ),
    Format.CSV: FormatTraits(
        "rows only, of an initial scan",
        "changefeed.encoding.json_envelope:CsvFormat",
        row_alone=_LINE,
        line=True,
        never=(Envelope.BARE, Envelope.KEY_ONLY, Envelope.ENRICHED, Envelope.CHANGED),
        because=_LINE,
    ),
}


def formats_with(trait: Callable[[FormatTraits], object]) -> tuple[Format, ...]:
    """The formats for which a condition is true."""
    return tuple(name for name, traits in TRAITS.items() if trait(traits))


def traits_of(name: str) -> FormatTraits | None:
    """The traits of the format with a name, if there is one."""
    return TRAITS[Format(name)] if name in TRAITS else None
