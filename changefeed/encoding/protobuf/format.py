"""``format = 'protobuf'``: messages, and their types for a registry or to be compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.encoding.binary_format import varint
from changefeed.encoding.binary_record import Filler
from changefeed.encoding.byte_columns import Piece
from changefeed.encoding.images import TokenRows
from changefeed.encoding.message_format import RecordFormat, SchemaWriter
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf import schema as protobuf
from changefeed.encoding.protobuf.values import field_pieces, message, numbers, texts
from changefeed.encoding.record_shape import Leaf
from changefeed.encoding.registry import RegistrySchema


class ProtobufMessages(Filler):
    """Fills :mod:`~changefeed.encoding.record_shape` with numbered fields; a NULL has none."""

    ABSENT = b""

    def head(self, schema_id: int) -> bytes:
        return protobuf.message_header(schema_id)

    def record(self, name: str, pieces: list[Piece]) -> list[Piece]:
        return message(protobuf.NUMBERS[name], pieces, self._rows.count)

    def column(self, leaf: Leaf, values: pa.Array) -> list[Piece]:
        schema = self._rows.plan.schema
        number = protobuf.column_number(schema, leaf.ordinal)
        return field_pieces(leaf.type, number, values, schema.columns[leaf.ordinal].name)

    def constant(self, name: str, value: str | int) -> bytes:
        number = protobuf.NUMBERS[name]
        if isinstance(value, str):
            return protobuf.text_field(number, value)
        return protobuf.tag(number, protobuf.WireType.VARINT) + varint(value)

    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        return texts(protobuf.NUMBERS[name], values)

    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        return numbers(protobuf.NUMBERS[name], values)


class ProtobufFormat(RecordFormat):
    """``format = 'protobuf'``."""

    def messages(self, rows: TokenRows) -> tuple[pa.Array, pa.Array]:
        made = ProtobufMessages(rows)
        return made.keys(), made.values()

    def metadata(self, plan: MessagePlan) -> dict[bytes, str]:
        proto = protobuf.value_proto(plan)
        return {} if proto is None else {protobuf.PROTO_KEY: proto}

    def schemas(self, envelope: Envelope) -> SchemaWriter:
        return _Schemas()

    def control(
        self,
        envelope: Envelope,
        member: str,
        at: Timestamp,
        table: TableName | None = None,
        *,
        schemas_enabled: bool = False,
    ) -> bytes:
        return protobuf.control(envelope, member, at, table)

    def types(self, plan: MessagePlan) -> Iterator[tuple[str, str]]:
        yield "key.proto", protobuf.key_proto(plan)
        value = protobuf.value_proto(plan)
        if value is not None:
            yield "value.proto", value


class _Schemas:
    # A type without the row's messages is no version of one that has them: registries call a
    # message that is gone incompatible.
    control_subject = "mark"

    def key(self, plan: MessagePlan) -> RegistrySchema:
        return self._written(protobuf.key_proto(plan))

    def value(self, plan: MessagePlan) -> RegistrySchema | None:
        text = protobuf.value_proto(plan)
        return None if text is None else self._written(text)

    def of_control(self, envelope: Envelope, name: str, prefix: str, member: str) -> RegistrySchema:
        return self._written(protobuf.control_proto(envelope, name, prefix))

    def control(
        self,
        schema: RegistrySchema,
        found: int,
        envelope: Envelope,
        member: str,
        at: Timestamp,
        table: TableName | None,
    ) -> bytes:
        return protobuf.message_header(found) + protobuf.control(envelope, member, at, table)

    @staticmethod
    def _written(text: str) -> RegistrySchema:
        return RegistrySchema("PROTOBUF", text)
