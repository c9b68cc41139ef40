"""The schemas of one feed in its registry: ids for rows, and control messages with their own ids.

Subjects are ``<avro_schema_prefix><topic>-key`` and ``-value``; the prefix is the schemas'
namespace too. Where ``topic_name`` sends several tables to one topic, subject and records are
named after the table, because their schemas would be versions of one another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from changefeed.core.clock import Timestamp
from changefeed.core.formats import TRAITS, Format
from changefeed.core.references import resolved_uri
from changefeed.core.schema import TableName
from changefeed.core.shapes import Envelope
from changefeed.core.uri import split_uri
from changefeed.encoding.formats import FORMATS
from changefeed.encoding.plan import MessagePlan, SchemaIds
from changefeed.encoding.registry import RegistrySchema, SchemaRegistry, connect, parse_registry
from changefeed.options import (
    AVRO_SCHEMA_PREFIX,
    CONFLUENT_SCHEMA_REGISTRY,
    ENVELOPE,
    FORMAT,
    FULL_TABLE_NAME,
    Options,
)

#: Parameters of a sink's URI that are options too.
REGISTRY_PARAMETER = "confluent_schema_registry"
PREFIX_PARAMETER = "avro_schema_prefix"


class FeedSchemas:
    """Registers what a feed needs, once. Safe to use from several threads."""

    def __init__(
        self,
        registry: SchemaRegistry,
        options: Options,
        *,
        prefix: str = "",
        by_table: bool = False,
    ) -> None:
        self._registry = registry
        self._envelope = Envelope(options[ENVELOPE].value)
        written = FORMATS[Format(options[FORMAT].value)].schemas(self._envelope)
        if written is None:
            raise ValueError(f"messages of format {options[FORMAT]} have no schemas")
        self._written = written
        self._full_names = options[FULL_TABLE_NAME]
        self._prefix = prefix
        self._by_table = by_table
        self._plans: dict[MessagePlan, MessagePlan] = {}
        self._control_ids: dict[tuple[str, RegistrySchema], int] = {}
        self._lock = threading.Lock()

    def registered(self, plan: MessagePlan) -> MessagePlan:
        """The plan with the ids of its schemas.

        Raises:
            ChangefeedError: what :meth:`SchemaRegistry.register` raises; CF1302, two columns
                have one name in the format.
        """
        with self._lock:
            if plan not in self._plans:
                self._plans[plan] = self._register(plan)
            return self._plans[plan]

    def _register(self, plan: MessagePlan) -> MessagePlan:
        table = plan.schema.table
        own = str(table) if self._full_names else table.name
        name = own if self._by_table else plan.topic
        named = replace(plan, avro_name=name, avro_namespace=self._prefix)
        key = self._id(name, "key", self._written.key(named), str(table))
        schema = self._written.value(named)
        value = 0 if schema is None else self._id(name, "value", schema, str(table))
        return replace(named, registered=SchemaIds(key, value))

    def _id(self, name: str, part: str, schema: RegistrySchema, about: str) -> int:
        return self._registry.register(f"{self._prefix}{name}-{part}", schema, about)

    def controls(
        self, topics: Sequence[str], member: str, at: Timestamp, table: TableName | None = None
    ) -> dict[str, bytes]:
        """The value of a control message (``resolved``, or ``truncate`` of ``table``) by topic.

        Raises:
            ChangefeedError: as :meth:`registered`.
        """
        return {topic: self._control(topic, member, at, table) for topic in dict.fromkeys(topics)}

    def _control(self, topic: str, member: str, at: Timestamp, table: TableName | None) -> bytes:
        schema = self._written.of_control(self._envelope, topic, self._prefix, member)
        with self._lock:
            if (topic, schema) not in self._control_ids:
                about = f"the {member} messages of topic {topic}"
                found = self._id(topic, self._written.control_subject, schema, about)
                self._control_ids[topic, schema] = found
            found = self._control_ids[topic, schema]
        return self._written.control(schema, found, self._envelope, member, at, table)


def feed_schemas(options: Options, sink_uri: str | None) -> FeedSchemas | None:
    """The registered schemas of a feed; None for a feed without a registry.

    ``sink_uri`` is the real one, ``external://`` resolved. Does not connect.

    Raises:
        ChangefeedError: the registry's URL is wrong.
    """
    if not TRAITS[Format(options[FORMAT].value)].schemas or sink_uri is None:
        return None
    parameters = dict(split_uri(sink_uri).parameters)
    address = options[CONFLUENT_SCHEMA_REGISTRY] or parameters.get(REGISTRY_PARAMETER)
    if not address:
        return None
    return FeedSchemas(
        connect(parse_registry(resolved_uri(address))),
        options,
        prefix=options[AVRO_SCHEMA_PREFIX] or parameters.get(PREFIX_PARAMETER) or "",
        by_table=bool(parameters.get("topic_name")),
    )
