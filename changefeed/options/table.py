"""The table of changefeed options, one row each. Adding an option is adding a row (:mod:`.row`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from changefeed.core import uri
from changefeed.core.clock import Timestamp
from changefeed.core.delays import Slo
from changefeed.core.engines import EngineOption
from changefeed.core.formats import Format
from changefeed.core.secret_names import is_secret
from changefeed.core.shapes import Deletes, Envelope, MessageValue, Unsent
from changefeed.core.types import LogicalType
from changefeed.options import sink_config
from changefeed.options.row import OPTIONS, OptionGroup
from changefeed.options.sink_config import KafkaSinkConfig, WebhookSinkConfig
from changefeed.options.types import (
    FOREVER,
    ByteSize,
    Choice,
    Count,
    Cursor,
    DebeziumOffset,
    DecimalType,
    Duration,
    Flag,
    Json,
    Moment,
    Promise,
    Share,
    Text,
    Words,
)
from changefeed.options.values import (
    Compression,
    ExistingTarget,
    Feature,
    Guarantee,
    History,
    InitialScan,
    JsonType,
    OnDrop,
    OnError,
    OnMaxDisk,
    OnPartitionChange,
    OnRowError,
    PartitionAlgorithm,
    RowImages,
    SchemaChangeEvents,
    SchemaChangePolicy,
)

__all__: list[str] = []
__all__ += ("AVRO_SCHEMA_PREFIX", "CLUSTER_BY", "COMPRESSION", "CONFLUENT_SCHEMA_REGISTRY")
__all__ += ("CURSOR", "DEAD_LETTER_LIMIT", "DEAD_LETTER_SHARE", "DELETES", "DELIVERY", "DIFF")
__all__ += ("ENCODE_JSON_VALUE_NULL_AS_OBJECT",)
__all__ += ("END_TIME", "ENGINE", "ENRICHED_PROPERTIES", "ENVELOPE", "EXISTING_TARGET", "EXPIRE")
__all__ += ("EXTRA_HEADERS", "FORMAT", "FULL_TABLE_NAME", "GC_SIZE", "GC_TTL")
__all__ += ("HEADERS_JSON_COLUMN_NAME", "HISTORY", "INITIAL_SCAN", "INITIAL_SCAN_CONCURRENCY")
__all__ += ("INITIAL_SCAN_MAX_RATE", "INITIAL_SCAN_ONLY", "JSON_TYPE")
__all__ += ("KAFKA_SINK_CONFIG", "KEY_COLUMN", "KEY_IN_VALUE", "LOOKUP_REFRESH", "MAX_DISK")
__all__ += ("MAX_MEMORY", "MESSAGE_VALUE", "MIN_CHECKPOINT_FREQUENCY", "MVCC_TIMESTAMP")
__all__ += ("NO_INITIAL_SCAN", "ON_DROP", "ON_ERROR", "ON_MAX_DISK", "ON_PARTITION_CHANGE")
__all__ += ("NUMERIC_TYPE", "ON_ROW_ERROR")
__all__ += ("OPTIMIZE", "PARTITION_ALG", "PARTITION_BY", "REDACTED", "RESOLVED", "RETRY_FOR")
__all__ += ("ROW_IMAGES",)
__all__ += ("ROW_IMAGES_MAX_DISK", "SCHEMAS_ENABLE", "SCHEMA_CHANGE_EVENTS")
__all__ += (
    "SCHEMA_CHANGE_POLICY",
    "SEQUENCE_COLUMN",
    "SLO",
    "TABLE_PROPERTIES",
    "TOPIC_IN_VALUE",
    "TRANSACTION_METADATA",
)
__all__ += ("TRANSACTION_TOPIC", "UNORDERED", "UNSENT_VALUES", "UPDATED", "VERIFY")
__all__ += ("VERIFY_MAX_RATE", "VERIFY_REPAIR", "WEBHOOK_AUTH_HEADER", "WEBHOOK_CLIENT_TIMEOUT")
__all__ += ("WEBHOOK_SIGNING_SECRET", "WEBHOOK_SINK_CONFIG", "is_hidden", "redact_option")

_MESSAGE = OptionGroup("Message")
_KEY = OptionGroup("Key and headers")
_TIME = OptionGroup("Time and scan")
_ERRORS = OptionGroup("Schema changes and errors")
_SINK = OptionGroup("Sink and resources")
_MERGED = OptionGroup("Merged tables")
_PROOF = OptionGroup("Proof")

# ------------------------------------------------------------------------------- message

ENVELOPE = _MESSAGE.option(
    "envelope",
    Choice(Envelope, also={"none": Envelope.ROW, "diff": Envelope.WRAPPED}),
    Envelope.WRAPPED,
    summary="Shape of the value. none is row, diff is wrapped with the option diff, changed holds "
    "only the columns whose value changed, debezium is "
    "Debezium's envelope.",
    example="envelope = 'enriched'",
    shown="wrapped",
)
FORMAT = _MESSAGE.option(
    "format",
    Choice(Format),
    Format.JSON,
    summary="How a message is written. csv holds rows only: files, with initial_scan = 'only'; "
    "parquet is for files, protobuf for Kafka.",
    example="format = 'avro'",
    shown="json",
)
CONFLUENT_SCHEMA_REGISTRY = _MESSAGE.option(
    "confluent_schema_registry",
    Text(kind="URL"),
    cast("str | None", None),
    summary="The schema registry for format = 'avro' and 'protobuf', also a parameter of the "
    "sink's URI. Its URL takes user and password, ca_cert, client_cert, client_key and timeout.",
    example="confluent_schema_registry = 'http://localhost:8081'",
    shown="none",
    feature=Feature.SCHEMA_REGISTRY,
)
AVRO_SCHEMA_PREFIX = _MESSAGE.option(
    "avro_schema_prefix",
    Text(),
    "",
    summary="Prefix of the subjects in the schema registry, namespace of Avro records and "
    "package of protobuf messages.",
    example="avro_schema_prefix = 'shop.'",
    shown="none",
)
DIFF = _MESSAGE.option(
    "diff",
    Flag(),
    False,
    summary="Adds before, the row before the change.",
)
UPDATED = _MESSAGE.option(
    "updated",
    Flag(),
    False,
    summary="Adds updated, the commit timestamp of the change.",
)
MVCC_TIMESTAMP = _MESSAGE.option(
    "mvcc_timestamp",
    Flag(),
    False,
    summary="Adds mvcc_timestamp, the commit timestamp of the row.",
)
KEY_IN_VALUE = _MESSAGE.option(
    "key_in_value",
    Flag(),
    False,
    summary="Adds the key to the value. Sinks without a separate key always do.",
)
TOPIC_IN_VALUE = _MESSAGE.option(
    "topic_in_value",
    Flag(),
    False,
    summary="Adds the topic to the value.",
)
FULL_TABLE_NAME = _MESSAGE.option(
    "full_table_name",
    Flag(),
    False,
    summary="Topics and messages carry database.schema.table instead of the table's name.",
)
ENRICHED_PROPERTIES = _MESSAGE.option(
    "enriched_properties",
    Words(("source",)),
    cast("frozenset[str]", frozenset()),
    summary="What envelope = 'enriched' adds: source, where the change came from.",
    example="enriched_properties = 'source'",
    shown="none of them",
)
SCHEMAS_ENABLE = _MESSAGE.option(
    "schemas_enable",
    Flag(),
    False,
    summary="Keys and values of envelope = 'debezium' carry their schema, as Kafka Connect's "
    "JsonConverter writes it.",
)
TRANSACTION_METADATA = _MESSAGE.option(
    "transaction_metadata",
    Flag(),
    False,
    summary="Adds the transaction to every message of a change, with the number of the message "
    "in it, and sends the begin and the end of each transaction to a separate topic.",
    feature=Feature.TRANSACTIONS,
)
TRANSACTION_TOPIC = _MESSAGE.option(
    "transaction_topic",
    Text(),
    "transaction",
    summary="The topic that gets the begin and the end of transactions; topic_prefix is its "
    "prefix.",
    example="transaction_topic = 'shop_transactions'",
    shown="transaction",
    feature=Feature.TRANSACTIONS,
)
MESSAGE_VALUE = _MESSAGE.option(
    "message_value",
    Choice(MessageValue),
    cast("MessageValue | None", None),
    summary="The value of a logical message (FOR MESSAGES): content is what the application "
    "wrote, byte for byte; row is a row with the prefix and the content, in the feed's "
    "envelope.",
    example="message_value = 'row'",
    shown="content with format = 'json', except with the envelopes debezium and key_only",
    feature=Feature.KAFKA_PRODUCER,
)
UNSENT_VALUES = _MESSAGE.option(
    "unsent_values",
    Choice(Unsent),
    Unsent.MARK,
    summary="What a message has instead of a value that an update did not touch and that "
    "the source did not send: mark is a placeholder, omit leaves the member out, fail "
    "stops the table.",
    example="unsent_values = 'omit'",
    shown="mark",
)
ROW_IMAGES = _MESSAGE.option(
    "row_images",
    Choice(RowImages),
    RowImages.LOG,
    summary="Where the row before a change comes from, and a value that an update did not "
    "touch: with log from the source's log, with store from a copy of each table's rows that is "
    "kept beside the change log.",
    example="row_images = 'store'",
    shown="log",
)
ROW_IMAGES_MAX_DISK = _MESSAGE.option(
    "row_images_max_disk",
    ByteSize(),
    cast("int | None", None),
    summary="The most that the row images of one table may take on disk. A table that needs more "
    "has none, and stops.",
    example="row_images_max_disk = '20GiB', row_images = 'store'",
    shown="the node's disk",
)
ENCODE_JSON_VALUE_NULL_AS_OBJECT = _MESSAGE.option(
    "encode_json_value_null_as_object",
    Flag(),
    False,
    summary='A JSON null inside a json column becomes {"__crdb_json_null__": true}, '
    "so that it differs from SQL NULL.",
)
DELETES = _MESSAGE.option(
    "deletes",
    Choice(Deletes, also={"hard": Deletes.YES}),
    Deletes.YES,
    summary="Deliver deletes, leave them out, or deliver only deletes. In merged tables a "
    "delete removes the row (hard, the same as yes) or marks it in _deleted "
    "(soft; Iceberg: _is_deleted).",
    example="deletes = 'no'",
    shown="yes",
)

# ------------------------------------------------------------------------------- key and headers

KEY_COLUMN = _KEY.option(
    "key_column",
    Text(kind="column"),
    cast("str | None", None),
    summary="The column whose value is the message key, instead of the primary key.",
    example="key_column = 'customer_id', unordered",
    shown="the primary key",
)
UNORDERED = _KEY.option(
    "unordered",
    Flag(),
    False,
    summary="Accepts that changes of a row may arrive out of order; key_column needs it.",
)
HEADERS_JSON_COLUMN_NAME = _KEY.option(
    "headers_json_column_name",
    Text(kind="column"),
    cast("str | None", None),
    summary="A json or jsonb column that becomes the message's headers and leaves the value.",
    example="headers_json_column_name = 'headers'",
    shown="none",
    feature=Feature.MESSAGE_HEADERS,
)
EXTRA_HEADERS = _KEY.option(
    "extra_headers",
    Json(sink_config.extra_headers),
    cast("tuple[tuple[str, str], ...]", ()),
    summary="Headers that every message (of a webhook: every request) gets.",
    example="""extra_headers = '{"origin": "shop"}'""",
    shown="none",
    feature=Feature.EXTRA_HEADERS,
    secret=True,
)

# ------------------------------------------------------------------------------- time and scan

RESOLVED = _TIME.option(
    "resolved",
    Duration(zero=True, empty=0.0),
    cast("float | None", None),
    summary="Emits resolved timestamps, at most this often; without a value, at every advance.",
    example="resolved = '10s'",
    shown="off",
)
MIN_CHECKPOINT_FREQUENCY = _TIME.option(
    "min_checkpoint_frequency",
    Duration(zero=True),
    30.0,
    summary="How often progress must be persisted.",
    example="min_checkpoint_frequency = '10s'",
    shown="30s",
)
CURSOR = _TIME.option(
    "cursor",
    Cursor(),
    cast("Timestamp | DebeziumOffset | None", None),
    summary="Starts after this instant, without an initial scan: an HLC timestamp, ns since 1970, "
    "a date and time, or a negative interval; or, with debezium:{..}, where the connector with "
    "this offset stopped. ALTER sets a paused feed back or forward (messages, at least once).",
    example="cursor = '-10m'",
    shown="now",
)
END_TIME = _TIME.option(
    "end_time",
    Moment(),
    cast("Timestamp | None", None),
    summary="Ends the feed as succeeded at this instant, or after this interval from now.",
    example="end_time = '1h'",
    shown="never",
    alterable=False,
)
INITIAL_SCAN = _TIME.option(
    "initial_scan",
    Choice(InitialScan, empty=InitialScan.YES),
    InitialScan.YES,
    summary="Whether existing rows are delivered first; with only, the feed ends after them.",
    example="initial_scan = 'only'",
    shown="yes, no with cursor",
    alterable=False,
)
NO_INITIAL_SCAN = _TIME.option(
    "no_initial_scan",
    Flag(),
    False,
    summary="The same as initial_scan = 'no'.",
    alterable=False,
)
INITIAL_SCAN_ONLY = _TIME.option(
    "initial_scan_only",
    Flag(),
    False,
    summary="The same as initial_scan = 'only'.",
    alterable=False,
)
INITIAL_SCAN_CONCURRENCY = _TIME.option(
    "initial_scan_concurrency",
    Count(32),
    4,
    summary="How many parts of a table a scan reads at the source at the same time. MySQL and "
    "MariaDB read with at most 4 sessions. If it is given, the node reads the tables, and not a "
    "Spark job.",
    example="initial_scan_concurrency = '1'",
    shown="4",
)
INITIAL_SCAN_MAX_RATE = _TIME.option(
    "initial_scan_max_rate",
    ByteSize(),
    cast("int | None", None),
    summary="The most bytes a second of rows that scans of the feed read at the source, all tables "
    "together. If it is given, the node reads the tables, and not a Spark job.",
    example="initial_scan_max_rate = '10MiB'",
    shown="no limit",
)
GC_TTL = _TIME.option(
    "gc_ttl",
    Duration(),
    25 * 3600.0,
    summary="How long the change log keeps changes for this feed while it is paused or behind.",
    example="gc_ttl = '72h'",
    shown="25h",
)
GC_SIZE = _TIME.option(
    "gc_size",
    ByteSize(),
    cast("int | None", None),
    summary="Limits the size of the change log: above it, changes that no feed needs are deleted "
    "even if they are younger than gc_ttl. The largest gc_size of the source's feeds "
    "applies, and only if all of them have one.",
    example="gc_size = '20GB'",
    shown="no limit",
)

# ------------------------------------------------------------------------------- schema, errors

SCHEMA_CHANGE_EVENTS = _ERRORS.option(
    "schema_change_events",
    Choice(SchemaChangeEvents),
    SchemaChangeEvents.DEFAULT,
    summary="What counts as a schema change.",
    example="schema_change_events = 'column_changes'",
    shown="default",
)
SCHEMA_CHANGE_POLICY = _ERRORS.option(
    "schema_change_policy",
    Choice(SchemaChangePolicy),
    SchemaChangePolicy.BACKFILL,
    summary="On a schema change: deliver the table again, continue, stop, or ignore it.",
    example="schema_change_policy = 'stop'",
    shown="backfill",
)
ON_PARTITION_CHANGE = _ERRORS.option(
    "on_partition_change",
    Choice(OnPartitionChange),
    OnPartitionChange.RESCAN,
    summary="When rows enter or leave a table without row events, as with DROP PARTITION or "
    "ATTACH PARTITION: read the table again, or stop it.",
    example="on_partition_change = 'stop'",
    shown="rescan",
)
ON_ERROR = _ERRORS.option(
    "on_error",
    Choice(OnError),
    OnError.FAIL,
    summary="What to do when retries are exhausted.",
    example="on_error = 'pause'",
    shown="fail",
)
ON_ROW_ERROR = _ERRORS.option(
    "on_row_error",
    Choice(OnRowError),
    OnRowError.STOP,
    summary="What happens to a row that cannot be encoded, or that the sink refuses: its table "
    "stops, or the row is kept as a dead letter and the feed goes on.",
    example="on_row_error = 'dead_letter'",
    shown="stop",
    feature=Feature.DEAD_LETTERS,
)
DEAD_LETTER_LIMIT = _ERRORS.option(
    "dead_letter_limit",
    Count(10_000),
    1_000,
    summary="How many dead letters a feed keeps; at one more it fails.",
    example="dead_letter_limit = '100'",
    shown="1000",
    feature=Feature.DEAD_LETTERS,
)
DEAD_LETTER_SHARE = _ERRORS.option(
    "dead_letter_share",
    Share(),
    1.0,
    summary="Which share of a table's rows may be dead letters, of all that were delivered or "
    "refused; above it the feed fails, once the table has more than 10.",
    example="dead_letter_share = '1%'",
    shown="100%",
    feature=Feature.DEAD_LETTERS,
)
RETRY_FOR = _ERRORS.option(
    "retry_for",
    Duration(zero=True, words=(FOREVER,)),
    24 * 3600.0,
    summary="How long a failing delivery is retried, with back-off, before on_error applies.",
    example="retry_for = '1h'",
    shown="24h",
)

# ------------------------------------------------------------------------------- sink, resources

DELIVERY = _SINK.option(
    "delivery",
    Choice(Guarantee),
    Guarantee.AT_LEAST_ONCE,
    summary="exactly_once: no change reaches the target twice, even after a crash. Merged "
    "tables, documents by key and Kafka (by transactions) support it.",
    example="delivery = 'exactly_once'",
    shown="at_least_once",
)
ENGINE = _SINK.option(
    "engine",
    Choice(EngineOption),
    EngineOption.AUTO,
    summary="Where scans and backlogs run: auto compares an estimate for the node with one for a "
    "Spark job, spark and driver force it. Lake tables are merged by Spark in any case. Of a "
    "query, spark makes every batch of 1,000 rows a job and driver none; windows and Python "
    "functions are always jobs.",
    example="engine = 'spark'",
    shown="auto",
)
LOOKUP_REFRESH = _SINK.option(
    "lookup_refresh",
    Duration(words=(FOREVER,)),
    3600.0,
    summary="How long a CDC query uses a look-up table before it reads it again. A refresh sends "
    "nothing again; only later changes get the new values.",
    example="lookup_refresh = '10m'",
    shown="1h",
)
COMPRESSION = _SINK.option(
    "compression",
    Choice(Compression),
    Compression.NONE,
    summary="Compression of files or batches, if the sink supports it.",
    example="compression = 'gzip'",
    shown="none",
)
KAFKA_SINK_CONFIG = _SINK.option(
    "kafka_sink_config",
    Json(sink_config.kafka_sink_config),
    KafkaSinkConfig(),
    summary="Tunes the Kafka producer: Flush {Messages, Bytes, Frequency, MaxMessages, MaxBytes}, "
    "Retry {Max, Backoff}, ClientID, Compression, CompressionLevel, RequiredAcks, Version.",
    example="""kafka_sink_config = '{"Flush": {"MaxMessages": 500}, "RequiredAcks": "ALL"}'""",
    shown="the client's defaults",
    feature=Feature.KAFKA_PRODUCER,
)
PARTITION_ALG = _SINK.option(
    "partition_alg",
    Choice(PartitionAlgorithm),
    PartitionAlgorithm.FNV_1A,
    summary="How the key of a message chooses its partition: fnv-1a as CockroachDB, murmur2 as "
    "Java's client.",
    example="partition_alg = 'murmur2'",
    shown="fnv-1a",
    feature=Feature.KAFKA_PRODUCER,
    alterable=False,
)
WEBHOOK_SINK_CONFIG = _SINK.option(
    "webhook_sink_config",
    Json(sink_config.webhook_sink_config),
    WebhookSinkConfig(),
    summary="Tunes the requests of a webhook: Flush {Messages, Bytes, Frequency}, "
    "Retry {Max, Backoff}.",
    example="""webhook_sink_config = '{"Flush": {"Messages": 100, "Frequency": "5s"}}'""",
    shown="up to 1,000 messages or 1 MB a request, 3 attempts, 500ms",
    feature=Feature.WEBHOOK_REQUESTS,
)
WEBHOOK_AUTH_HEADER = _SINK.option(
    "webhook_auth_header",
    Text(),
    cast("str | None", None),
    summary="The Authorization header of every request to a webhook.",
    example="webhook_auth_header = 'Bearer <token>'",
    shown="none",
    feature=Feature.WEBHOOK_REQUESTS,
    secret=True,
)
WEBHOOK_CLIENT_TIMEOUT = _SINK.option(
    "webhook_client_timeout",
    Duration(),
    3.0,
    summary="Read timeout of one request to a webhook; then it is retried.",
    example="webhook_client_timeout = '10s'",
    shown="3s",
    feature=Feature.WEBHOOK_REQUESTS,
)
WEBHOOK_SIGNING_SECRET = _SINK.option(
    "webhook_signing_secret",
    Text(),
    cast("str | None", None),
    summary="Signs every request to a webhook: HMAC-SHA256 in X-Changefeed-Signature.",
    example="webhook_signing_secret = '<secret>'",
    shown="not signed",
    feature=Feature.WEBHOOK_REQUESTS,
    secret=True,
)
# ------------------------------------------------------------------------------- merged tables

HISTORY = _MERGED.option(
    "history",
    Choice(History),
    History.OFF,
    summary="What a merged table keeps of the past: nothing, every version of a row with "
    "_valid_from, _valid_to and _is_current (scd2), or every change as a row (append).",
    example="history = 'scd2'",
    shown="off",
    feature=Feature.HISTORY,
    alterable=False,
)
SEQUENCE_COLUMN = _MERGED.option(
    "sequence_column",
    Text(kind="column"),
    "_sequence_num",
    summary="The column that holds the version of a row, so that no older version is merged. "
    "With none a side table holds it, if the sink supports that.",
    example="sequence_column = '_version'",
    shown="_sequence_num",
    feature=Feature.MERGED_TABLES,
    alterable=False,
)
ON_DROP = _MERGED.option(
    "on_drop",
    Choice(OnDrop),
    OnDrop.KEEP,
    summary="What happens to the target when a table is dropped at the source.",
    example="on_drop = 'drop'",
    shown="keep",
    feature=Feature.MERGED_TABLES,
)
EXISTING_TARGET = _MERGED.option(
    "existing_target",
    Choice(ExistingTarget),
    ExistingTarget.REFUSE,
    summary="What happens to a target that has rows and was not made by this feed: refuse stops "
    "the table, merge keeps rows of other keys, replace deletes its rows first.",
    example="existing_target = 'merge'",
    shown="refuse",
    feature=Feature.EXISTING_TARGETS,
)
PARTITION_BY = _MERGED.option(
    "partition_by",
    Text(kind="columns"),
    cast("str | None", None),
    summary="Partitions new tables by these columns; Iceberg takes transforms too, such as "
    "day(created_at) and bucket(16, id). A table without one of the columns has no partitions.",
    example="partition_by = 'region'",
    shown="none",
    feature=Feature.FILE_LAYOUT,
    alterable=False,
)
CLUSTER_BY = _MERGED.option(
    "cluster_by",
    Text(kind="columns"),
    cast("str | None", None),
    summary="Keeps rows with similar values of these columns in the same files (Delta: liquid "
    "clustering, Iceberg: sort order). A table without one of the columns is not clustered.",
    example="cluster_by = 'customer_id'",
    shown="none",
    feature=Feature.FILE_LAYOUT,
    alterable=False,
)
JSON_TYPE = _MERGED.option(
    "json_type",
    Choice(JsonType),
    JsonType.STRING,
    summary="How a table keeps JSON: as text, or as VARIANT, whose fields Spark reads without "
    "parsing. Keys, and tables without a key, have text. Iceberg tables are of format version 3.",
    example="json_type = 'variant'",
    shown="string",
    feature=Feature.FILE_LAYOUT,
    alterable=False,
)
NUMERIC_TYPE = _MERGED.option(
    "numeric_type",
    DecimalType(),
    cast("LogicalType | None", None),
    summary="How a table keeps numbers without declared digits, or with more than 38: as text, or "
    "as a decimal. A number that the decimal does not hold stops the table.",
    example="numeric_type = 'decimal(38,18)'",
    shown="string",
    feature=Feature.FILE_LAYOUT,
    alterable=False,
)
TABLE_PROPERTIES = _MERGED.option(
    "table_properties",
    Json(sink_config.table_properties),
    cast("Mapping[str, str]", MappingProxyType({})),
    summary="Properties of new tables, as the format knows them, such as Delta's change data feed. "
    "Those that the feed depends on are refused.",
    example="""table_properties = '{"delta.enableChangeDataFeed": true}'""",
    shown="none",
    feature=Feature.FILE_LAYOUT,
    alterable=False,
)
OPTIMIZE = _MERGED.option(
    "optimize",
    Duration(),
    cast("float | None", None),
    summary="How often small files of a table are merged into larger ones.",
    example="optimize = '1h'",
    shown="never",
    feature=Feature.FILE_UPKEEP,
)
EXPIRE = _MERGED.option(
    "expire",
    Duration(),
    cast("float | None", None),
    summary="How long older versions of a table can be read; files that only they need are "
    "removed after each optimize, and otherwise at most once a day.",
    example="expire = '7d'",
    shown="for ever",
    feature=Feature.FILE_UPKEEP,
)

# ------------------------------------------------------------------------------- resources

MAX_MEMORY = _SINK.option(
    "max_memory",
    ByteSize(),
    cast("int | None", None),
    summary="The most memory that the feed's buffers may take.",
    example="max_memory = '256MiB'",
    shown="the node's budget",
)
MAX_DISK = _SINK.option(
    "max_disk",
    ByteSize(),
    cast("int | None", None),
    summary="Limits the disk space of the feed: changes in the change log that it has not "
    "delivered, and rows staged for its sink. A feed above the limit is stalled, and fails if "
    "that does not become less for ten minutes; a paused or failed feed fails at once. Other feeds "
    "go on (see on_max_disk). The limit does not apply during a scan, and uncommitted transactions "
    "do not count.",
    example="max_disk = '20GiB'",
    shown="the node's budget",
)
ON_MAX_DISK = _SINK.option(
    "on_max_disk",
    Choice(OnMaxDisk),
    OnMaxDisk.FAIL,
    summary="What happens when the feed has reached its max_disk, or when the change log has "
    "reached --max-disk and keeps the most for this feed: with fail the feed fails and the change "
    "log no longer keeps changes for it; with wait nothing is read from the source, for any feed, "
    "until this one has delivered half of it.",
    example="on_max_disk = 'wait', max_disk = '20GiB'",
    shown="fail",
)

# ------------------------------------------------------------------------------- proof

SLO = _ERRORS.option(
    "slo",
    Promise(),
    cast("Slo | None", None),
    summary="The share of the rows that must be durable in the sink within a time after their "
    "commit. SHOW CHANGEFEED and the metrics say how much of it was kept and how much of the "
    "budget of late rows is burnt.",
    example="slo = '99% within 5m'",
    shown="none",
)
VERIFY = _PROOF.option(
    "verify",
    Duration(),
    cast("float | None", None),
    summary="How often the feed compares all rows of its targets with the source by itself, as "
    "VERIFY does: part by part, while it runs. SHOW CHANGEFEED says how much was proved and when; "
    "a difference is an event, and the feed is degraded until it is mended.",
    example="verify = '24h'",
    shown="never",
    feature=Feature.COMPARISON,
)
VERIFY_REPAIR = _PROOF.option(
    "verify_repair",
    Flag(),
    False,
    summary="Rows that verify finds to differ are made equal, as by VERIFY .. REPAIR.",
    feature=Feature.COMPARISON,
)
VERIFY_MAX_RATE = _PROOF.option(
    "verify_max_rate",
    ByteSize(),
    4 * 1024 * 1024,
    summary="The most bytes a second that verify reads at the source, and at the target.",
    example="verify_max_rate = '1MiB'",
    shown="4MiB",
    feature=Feature.COMPARISON,
)


#: The substitute for a secret.
REDACTED = uri.REDACTED


def is_hidden(name: str) -> bool:
    """Whether the value of an option is a secret."""
    row = OPTIONS.get(name)
    return is_secret(name) if row is None else row.secret


def redact_option(name: str, text: str) -> str:
    """An option's value as it may be shown: fit for ``grammar.printer.to_sql(redact_option=)``."""
    if is_hidden(name):
        return REDACTED if text else text
    return uri.redact(text) if "://" in text else text
