"""The Avro schemas of one feed in its registry: ids for rows, and marks with ids of their own.

Subjects are ``<avro_schema_prefix><topic>-key`` and ``-value``; the prefix is the schemas'
namespace too. Where ``topic_name`` sends several tables to one topic, subject and records are
called after the table, or their schemas would be versions of one another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from changefeed.clock import Timestamp
from changefeed.formats.avro import key_schema, mark, mark_schema, value_schema
from changefeed.formats.registry import SchemaRegistry, connect, parse_registry
from changefeed.formats.wire import header
from changefeed.messages.plan import MessagePlan, Registered
from changefeed.options import (
    AVRO_SCHEMA_PREFIX,
    CONFLUENT_SCHEMA_REGISTRY,
    ENVELOPE,
    FORMAT,
    FULL_TABLE_NAME,
    Options,
)
from changefeed.shapes import Format
from changefeed.uri import SinkURL

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
        self._envelope = options[ENVELOPE]
        self._full_names = options[FULL_TABLE_NAME]
        self._prefix = prefix
        self._by_table = by_table
        self._plans: dict[MessagePlan, MessagePlan] = {}
        self._marks: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()

    def registered(self, plan: MessagePlan) -> MessagePlan:
        """The plan with the ids of its schemas.

        Raises:
            ChangefeedError: what :meth:`SchemaRegistry.register` raises; CF1302, two columns
                have one name in Avro.
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
        key = self._id(name, "key", key_schema(named), str(table))
        schema = value_schema(named)
        value = 0 if schema is None else self._id(name, "value", schema, str(table))
        return replace(named, registered=Registered(key, value))

    def _id(self, name: str, part: str, schema: dict[str, object], about: str) -> int:
        return self._registry.register(f"{self._prefix}{name}-{part}", schema, about)

    def marks(self, topics: Sequence[str], member: str, at: Timestamp) -> dict[str, bytes]:
        """The value of a mark (``resolved``, ``truncate``) for each topic.

        Raises:
            ChangefeedError: as :meth:`registered`.
        """
        return {topic: self._mark(topic, member, at) for topic in dict.fromkeys(topics)}

    def _mark(self, topic: str, member: str, at: Timestamp) -> bytes:
        schema = mark_schema(self._envelope, topic, self._prefix, member)
        with self._lock:
            if (topic, member) not in self._marks:
                found = self._id(topic, "value", schema, f"the {member} marks of topic {topic}")
                self._marks[topic, member] = header(found)
            head = self._marks[topic, member]
        return head + mark(schema, self._envelope, member, at)


def feed_schemas(options: Options, sink_uri: str | None) -> FeedSchemas | None:
    """What registers the schemas of a feed; None for a feed without a registry.

    ``sink_uri`` is the real one, ``external://`` resolved. Connects to nothing.

    Raises:
        ChangefeedError: the registry's URL is wrong.
    """
    if options[FORMAT] is not Format.AVRO or sink_uri is None:
        return None
    url = SinkURL(sink_uri)
    address = options[CONFLUENT_SCHEMA_REGISTRY] or url.take_str(REGISTRY_PARAMETER)
    if not address:
        return None
    return FeedSchemas(
        connect(parse_registry(address)),
        options,
        prefix=options[AVRO_SCHEMA_PREFIX] or url.take_str(PREFIX_PARAMETER) or "",
        by_table=bool(url.take_str("topic_name")),
    )
