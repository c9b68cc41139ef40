"""The interface of a format: how it writes the messages of a plan, and control messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.encoding.images import TokenRows
from changefeed.encoding.json_tokens import joined
from changefeed.encoding.plan import MessagePlan, control_payload
from changefeed.encoding.registry import RegistrySchema


class SchemaWriter(Protocol):
    """How a format writes its schemas for a registry, and control messages with them."""

    #: End of the subject that control messages have their schema in.
    control_subject: str

    def key(self, plan: MessagePlan) -> RegistrySchema:
        """The schema of message keys."""
        ...

    def value(self, plan: MessagePlan) -> RegistrySchema | None:
        """The schema of message values; None where messages have none."""
        ...

    def of_control(self, envelope: Envelope, name: str, prefix: str, member: str) -> RegistrySchema:
        """The schema of control messages in the topic ``name``."""
        ...

    def control(
        self,
        schema: RegistrySchema,
        found: int,
        envelope: Envelope,
        member: str,
        at: Timestamp,
        table: TableName | None,
    ) -> bytes:
        """A control message in its schema, which has the id ``found``."""
        ...


class MessageFormat(ABC):
    """One format. It has no state: everything is in the plan and the rows."""

    def messages(self, rows: TokenRows) -> tuple[pa.Array, pa.Array]:
        """The message keys, and the values; null where a message has none."""
        return rows.choose(lambda side: joined(rows.key(side), rows.count)), self.values(rows)

    @abstractmethod
    def values(self, rows: TokenRows) -> pa.Array:
        """The message values alone.

        Raises:
            ChangefeedError: CF4001, a value cannot be written.
        """

    def value_field(self, plan: MessagePlan) -> pa.Field:
        """The Arrow column of values, with the metadata that a reader without a registry needs.

        Raises:
            ChangefeedError: CF1302, the columns' names do not go together in the format.
        """
        return MESSAGE_SCHEMA.field("value")

    def schemas(self, envelope: Envelope) -> SchemaWriter | None:
        """The writer of schemas for a registry; None if the format has no schemas."""
        return None

    def control(
        self,
        envelope: Envelope,
        member: str,
        at: Timestamp,
        table: TableName | None = None,
        *,
        schemas_enabled: bool = False,
    ) -> bytes:
        """The value of a message that is no row, without a registry: see
        :func:`~changefeed.encoding.plan.control_payload`."""
        return control_payload(envelope, member, at, table, schemas_enabled=schemas_enabled)

    def types(self, plan: MessagePlan) -> Iterator[tuple[str, str]]:
        """Files for a reader without a registry to compile: their names and texts."""
        yield from ()


class RecordFormat(MessageFormat):
    """A format whose messages have schemas.

    Keys and values are made together, because the columns of a key are encoded once for both.
    """

    def values(self, rows: TokenRows) -> pa.Array:
        return self.messages(rows)[1]

    def value_field(self, plan: MessagePlan) -> pa.Field:
        field = super().value_field(plan)
        return field if plan.registered is not None else field.with_metadata(self.metadata(plan))

    @abstractmethod
    def metadata(self, plan: MessagePlan) -> dict[bytes, str]:
        """The metadata of the Arrow column of values that has their schema; empty if they have
        none."""
