"""Everything that shapes a message, as one frozen value.

Two feeds with equal plans get equal messages, so their rows are encoded once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.formats import TRAITS, Format
from changefeed.core.partition import PartitionCondition
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.core.shapes import Deletes, Envelope, Unsent


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The ids that a schema registry gave the schemas of a plan's keys and values."""

    key: int
    value: int


@dataclass(frozen=True, slots=True)
class QueryShape:
    """The properties of the CDC query whose result is ``schema`` that concern messages.

    Attributes:
        text: the query; messages of two queries differ.
        hidden: positions of key columns that make the message key and are not in the value.
        whole_deletes: a delete has values of its own (``event_op()``, ``cdc_prev``): the flat
            envelopes show them instead of NULL.
        feed: the job whose messages no other feed with the same query may share, because it reads
            look-up tables at times of its own or says when the feed was made.
    """

    text: str
    hidden: tuple[int, ...] = ()
    whole_deletes: bool = False
    feed: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a feed, as messages name it.

    Attributes:
        connector: the scheme of its URI.
        database: the database that it is connected to.
        schema_is_database: the source knows databases and no schemas in them.
    """

    connector: str = ""
    database: str = ""
    schema_is_database: bool = False

    def database_of(self, table: TableName) -> str:
        """The database of a table; empty if the source is unknown."""
        return table.schema if self.schema_is_database else self.database


@dataclass(frozen=True)
class MessagePlan:
    """How the changes of one table version become messages of one feed.

    Attributes:
        schema: the rows' shape.
        topic: finished name, as the sink and ``topic_in_value`` show it (with what
            ``full_table_name`` and a topic prefix made of it).
        envelope, format: the value's shape and writing.
        diff: add the row before the change (wrapped, enriched). Where the table's replica
            identity is not FULL the image holds the key columns alone.
        updated, mvcc_timestamp: add the commit timestamp.
        key_in_value, topic_in_value: add them to the value; ``bare`` always has its key.
        projection: names of the columns wanted, None for all. Key columns are kept always,
            and columns come in the table's order.
        key_from, key_to: range ``[from, to)`` of the key, each a prefix of its columns, as the
            texts of literals.
        within: what holds for the rows of the partition that is wanted; empty: all rows.
        deletes: which changes are messages.
        collapse: a key written several times in one transaction is one message.
        headers_column: a JSON column that becomes the headers and leaves the value.
        extra_headers: further headers of every message; the column's win.
        key_column: this column alone is the message key.
        json_null_as_object: a JSON ``null`` in a column becomes ``{"__crdb_json_null__": true}``,
            so that it differs from a NULL.
        source: the enriched envelope's ``source`` member, in addition to what the schema has;
            None leaves the member out.
        registered: schema ids, for Avro and protobuf in Confluent's wire format; None writes bare
            datums and messages.
        avro_name: what Avro's records and protobuf's messages are named after; the topic if
            empty.
        avro_namespace: their namespace.
        query: the CDC query that made the rows, if one did.
        schemas_enabled: keys and values carry their schema (Debezium's envelope).
        origin: for the ``source`` member of Debezium's envelope and of the enriched one.
        unsent: what is done about a value that the log does not have.
        transactions: changes name their transaction and their place in it.
        logical: the rows are logical messages (:mod:`changefeed.core.logical_messages`): those of
            one message key stay in their order.
        content: the value is the content of the logical message alone.
    """

    schema: TableSchema
    topic: str
    envelope: Envelope = Envelope.WRAPPED
    format: Format = Format.JSON
    diff: bool = False
    updated: bool = False
    mvcc_timestamp: bool = False
    key_in_value: bool = False
    topic_in_value: bool = False
    projection: tuple[str, ...] | None = None
    key_from: tuple[str, ...] = ()
    key_to: tuple[str, ...] = ()
    within: tuple[PartitionCondition, ...] = ()
    deletes: Deletes = Deletes.YES
    collapse: bool = True
    headers_column: str | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()
    key_column: str | None = None
    json_null_as_object: bool = False
    source: tuple[tuple[str, str | int | bool | None], ...] | None = None
    registered: SchemaIds | None = None
    avro_name: str = ""
    avro_namespace: str = ""
    query: QueryShape | None = None
    schemas_enabled: bool = False
    origin: Origin = Origin()
    unsent: Unsent = Unsent.MARK
    transactions: bool = False
    logical: bool = False
    content: bool = False

    def __post_init__(self) -> None:
        for name in (*(self.projection or ()), self.headers_column, self.key_column):
            if name is not None:
                self.ordinal(name)
        if max(len(self.key_from), len(self.key_to)) > len(self.schema.key):
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"VALUES names more columns than the key of {self.schema.table.name} has",
                detail=f"the key has {len(self.schema.key)}",
            )

    def ordinal(self, name: str) -> int:
        """Position of the column of this name.

        Raises:
            ChangefeedError: CF1101 there is none.
        """
        for i, column in enumerate(self.schema.columns):
            if column.name == name:
                return i
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f"required column {name} not present on table {self.schema.table.name}",
        )

    def numbered(self, number: int) -> int:
        """Position of the column with the source's number ``number``.

        Raises:
            ChangefeedError: CF1101 the table no longer has one.
        """
        for i, column in enumerate(self.schema.columns):
            if column.column_id == number:
                return i
        raise ChangefeedError(
            Code.NAME_UNKNOWN,
            f"table {self.schema.table.name} has no column of number {number} any more,"
            " which its partitions were told by",
        )

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Positions of the value's columns, in the table's order."""
        every = range(len(self.schema.columns))
        wanted = set(every) if self.projection is None else set(map(self.ordinal, self.projection))
        wanted |= set(self.schema.key)
        if self.headers_column is not None:
            wanted -= {self.ordinal(self.headers_column)}
        if self.query is not None:
            wanted -= set(self.query.hidden)
        return tuple(i for i in every if i in wanted)

    @cached_property
    def message_key(self) -> tuple[int, ...]:
        """Positions of the columns that make the message key, in key order."""
        return self.schema.key if self.key_column is None else (self.ordinal(self.key_column),)

    @cached_property
    def headers_ordinal(self) -> int | None:
        """Position of the column that becomes headers."""
        return None if self.headers_column is None else self.ordinal(self.headers_column)

    @cached_property
    def before_columns(self) -> tuple[int, ...]:
        """Positions of the value's columns that have a before value in the log."""
        known = set(self.schema.before_ordinals)
        return tuple(i for i in self.columns if i in known)

    @property
    def ordered_by(self) -> tuple[int, ...]:
        """Positions of columns; rows with equal values in them must stay in their order."""
        return self.message_key if self.logical else self.schema.key

    @property
    def whole_deletes(self) -> bool:
        """Whether a delete shows more than its key in the flat envelopes."""
        return self.query is not None and self.query.whole_deletes

    @property
    def shows_before(self) -> bool:
        """Whether the value has a ``before`` member."""
        if self.envelope is Envelope.DEBEZIUM:
            return self.schema.before_image is BeforeImage.FULL
        return self.diff and self.envelope in (Envelope.WRAPPED, Envelope.ENRICHED)

    @property
    def key_is_object(self) -> bool:
        """Whether the message key is an object instead of an array."""
        return self.envelope in (Envelope.ENRICHED, Envelope.DEBEZIUM)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the log's row columns that the messages are made of, in log order."""
        after = set(self.message_key) | set(self.schema.key)
        if self.content or self.envelope is not Envelope.KEY_ONLY or TRAITS[self.format].row_alone:
            after |= set(self.columns)
        if self.headers_ordinal is not None:
            after.add(self.headers_ordinal)
        known = set(self.schema.before_ordinals)
        before = (set(self.message_key) | set(self.schema.key)) & known
        if self.shows_before or self.envelope is Envelope.CHANGED or self.whole_deletes:
            before |= set(self.before_columns)
        if self.headers_ordinal in known:
            before.add(self.headers_ordinal or 0)
        return (*(f"a{i}" for i in sorted(after)), *(f"b{i}" for i in sorted(before)))

    @cached_property
    def fingerprint(self) -> str:
        """A digest: equal plans have equal fingerprints, in every process."""
        fields = {**asdict(self), "schema": self.schema.to_json()}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.fingerprint)

    def __getstate__(self) -> dict[str, object]:
        # Hashes of str differ from process to process: the cached one is not pickled.
        state = dict(self.__dict__)
        state.pop("_hash", None)
        return state


def control_payload(
    envelope: Envelope,
    member: str,
    at: Timestamp,
    table: TableName | None = None,
    *,
    schemas_enabled: bool = False,
) -> bytes:
    """The value of a message that is no row: ``member`` is ``resolved`` or ``truncate``.

    ``table`` is the truncated one: tables may share a topic. With ``schemas_enabled`` the value is
    a payload without a schema, for readers of messages that carry schemas.
    """
    members = {"table": str(table)} if table is not None else {}
    text = json.dumps({**members, member: str(at)}, ensure_ascii=False)
    if schemas_enabled:
        text = f'{{"schema":null,"payload":{text}}}'
    if envelope not in (Envelope.WRAPPED, Envelope.ENRICHED, Envelope.DEBEZIUM):
        text = f'{{"__crdb__": {text}}}'
    return text.encode()
