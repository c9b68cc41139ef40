"""``format = 'avro'``: messages, and their schemas for a registry or next to bare datums."""

from __future__ import annotations

import json

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.encoding.avro import schema as avro
from changefeed.encoding.avro.values import NULL, THERE, constant, numbers, strings, union_pieces
from changefeed.encoding.binary_format import header
from changefeed.encoding.binary_record import Filler
from changefeed.encoding.byte_columns import Piece
from changefeed.encoding.debezium import avro as debezium
from changefeed.encoding.images import TokenRows
from changefeed.encoding.message_format import RecordFormat, SchemaWriter
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.record_shape import Leaf
from changefeed.encoding.registry import RegistrySchema


class AvroMessages(Filler):
    """Fills :mod:`~changefeed.encoding.record_shape` with unions, in the order of the record."""

    ABSENT = NULL

    def head(self, schema_id: int) -> bytes:
        return header(schema_id)

    def record(self, name: str, pieces: list[Piece]) -> list[Piece]:
        return [THERE, *pieces]

    def column(self, leaf: Leaf, values: pa.Array) -> list[Piece]:
        name = self._rows.plan.schema.columns[leaf.ordinal].name
        return union_pieces(leaf.type, values, name)

    def constant(self, name: str, value: str | int) -> bytes:
        return constant(value) if isinstance(value, str) else THERE + avro.long_bytes(value)

    def texts(self, name: str, values: pa.Array) -> list[Piece]:
        return strings(values)

    def numbers(self, name: str, values: pa.Array) -> list[Piece]:
        return numbers(values)


class AvroFormat(RecordFormat):
    """``format = 'avro'``."""

    def messages(self, rows: TokenRows) -> tuple[pa.Array, pa.Array]:
        if rows.plan.envelope is Envelope.DEBEZIUM:
            as_debezium = debezium.DebeziumAvroMessages(rows)
            return as_debezium.keys(), as_debezium.values()
        made = AvroMessages(rows)
        return made.keys(), made.values()

    def metadata(self, plan: MessagePlan) -> dict[bytes, str]:
        schema = self.schemas(plan.envelope).value(plan)
        return {} if schema is None else {avro.SCHEMA_KEY: schema.text}

    def schemas(self, envelope: Envelope) -> SchemaWriter:
        return _DebeziumSchemas() if envelope is Envelope.DEBEZIUM else _Schemas()


class _Schemas:
    control_subject = "value"

    def key(self, plan: MessagePlan) -> RegistrySchema:
        return self._written(avro.key_schema(plan))

    def value(self, plan: MessagePlan) -> RegistrySchema | None:
        schema = avro.value_schema(plan)
        return None if schema is None else self._written(schema)

    def of_control(self, envelope: Envelope, name: str, prefix: str, member: str) -> RegistrySchema:
        return self._written(avro.control_schema(envelope, name, prefix, member))

    def control(
        self,
        schema: RegistrySchema,
        found: int,
        envelope: Envelope,
        member: str,
        at: Timestamp,
        table: TableName | None,
    ) -> bytes:
        return header(found) + avro.control(json.loads(schema.text), envelope, member, at, table)

    @staticmethod
    def _written(schema: avro.Schema) -> RegistrySchema:
        return RegistrySchema("AVRO", avro.schema_text(schema))


class _DebeziumSchemas(_Schemas):
    # A control message has none of the members that the envelope must have.
    control_subject = "mark"

    def key(self, plan: MessagePlan) -> RegistrySchema:
        return self._written(debezium.key_schema(plan))

    def value(self, plan: MessagePlan) -> RegistrySchema | None:
        return self._written(debezium.value_schema(plan))
