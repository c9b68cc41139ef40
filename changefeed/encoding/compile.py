"""How the changes of one table of a feed become messages: the job's options, made exact."""

from __future__ import annotations

from changefeed.catalog.model import Job, TableProgress
from changefeed.core.formats import Format
from changefeed.core.logical_messages import PREFIX
from changefeed.core.schema import TableSchema
from changefeed.core.shapes import Deletes, Envelope, MessageValue, Unsent
from changefeed.core.uri import split_uri
from changefeed.encoding.plan import MessagePlan, Origin, QueryShape
from changefeed.options import (
    AVRO_SCHEMA_PREFIX,
    DELETES,
    DIFF,
    ENCODE_JSON_VALUE_NULL_AS_OBJECT,
    ENRICHED_PROPERTIES,
    ENVELOPE,
    EXTRA_HEADERS,
    FORMAT,
    HEADERS_JSON_COLUMN_NAME,
    KEY_COLUMN,
    KEY_IN_VALUE,
    MVCC_TIMESTAMP,
    SCHEMAS_ENABLE,
    TOPIC_IN_VALUE,
    TRANSACTION_METADATA,
    UNSENT_VALUES,
    UPDATED,
    Options,
)

#: The origin of messages that do not name one.
NOWHERE = Origin()

#: Schemes of one source under one name, Debezium's.
_CONNECTORS = {"postgres": "postgresql"}

#: Sources whose tables lie in databases, without schemas between.
_SCHEMA_IS_DATABASE = frozenset({"mysql", "mariadb"})

#: Members of the enriched envelope's ``source`` that come from the feed.
SourceMembers = tuple[tuple[str, str | int | bool | None], ...]


def message_plan(
    job: Job,
    options: Options,
    progress: TableProgress,
    schema: TableSchema,
    query: QueryShape | None = None,
    origin: Origin = NOWHERE,
) -> MessagePlan:
    """The messages of one version of one table of ``job``; ``schema`` is a query's result where
    there is a query.

    Raises:
        ChangefeedError: CF1101 a column that an option or the target names is not in
            ``schema``, CF1302 VALUES has more columns than the key.
    """
    sink = (job.redacted_sink_uri or "sinkless").partition(":")[0]
    return table_messages(
        options, progress, schema, source_members(job.source, job.id, sink), query, origin
    )


def names_origin(options: Options) -> bool:
    """Whether the messages of a feed say which database they come from."""
    envelope = Envelope(options[ENVELOPE].value)
    return envelope is Envelope.DEBEZIUM or (
        envelope is Envelope.ENRICHED and "source" in options[ENRICHED_PROPERTIES]
    )


def origin_of(uri: str, database: str) -> Origin:
    """The origin that messages name for a source.

    Args:
        uri: of its connection.
        database: the one that it is connected to.

    Raises:
        ChangefeedError: CF1201, the URI is malformed.
    """
    scheme = split_uri(uri).scheme
    connector = _CONNECTORS.get(scheme, scheme)
    return Origin(connector, database, connector in _SCHEMA_IS_DATABASE)


def source_members(source: str, job_id: int, sink: str) -> SourceMembers:
    """The ``source`` members that all messages of a feed have."""
    return (("changefeed_sink", sink), ("job_id", str(job_id)), ("source_name", source))


def table_messages(
    options: Options,
    progress: TableProgress,
    schema: TableSchema,
    source: SourceMembers = (),
    query: QueryShape | None = None,
    origin: Origin = NOWHERE,
) -> MessagePlan:
    """As :func:`message_plan`, for a feed that has no job yet."""
    logical = progress.partition is not None and progress.partition.of_messages
    # Options name columns of tables. A row of a target is found by its own key.
    headers = None if logical else options[HEADERS_JSON_COLUMN_NAME]
    key = options[KEY_COLUMN]
    if logical:
        key = None if options.keeps_rows else PREFIX
    return MessagePlan(
        schema=schema,
        topic=progress.topic,
        envelope=Envelope(options[ENVELOPE].value),
        format=Format(options[FORMAT].value),
        diff=options[DIFF],
        updated=options[UPDATED],
        mvcc_timestamp=options[MVCC_TIMESTAMP],
        key_in_value=options[KEY_IN_VALUE],
        topic_in_value=options[TOPIC_IN_VALUE],
        projection=progress.columns or None,
        key_from=progress.values_from,
        key_to=progress.values_to,
        within=progress.partition.conditions if progress.partition else (),
        deletes=Deletes(options[DELETES].value),
        headers_column=headers,
        extra_headers=options[EXTRA_HEADERS],
        key_column=key,
        json_null_as_object=options[ENCODE_JSON_VALUE_NULL_AS_OBJECT],
        source=source if "source" in options[ENRICHED_PROPERTIES] else None,
        avro_namespace=options[AVRO_SCHEMA_PREFIX],
        query=query,
        schemas_enabled=options[SCHEMAS_ENABLE],
        unsent=Unsent(options[UNSENT_VALUES].value),
        transactions=options[TRANSACTION_METADATA],
        logical=logical,
        content=logical and options.message_value is MessageValue.CONTENT,
        origin=origin if names_origin(options) else NOWHERE,
    )
