"""The values of options that are one of several words, and the features of sinks."""

from __future__ import annotations

from enum import StrEnum

from changefeed.core.formats import Format
from changefeed.core.shapes import Deletes, Envelope

__all__: list[str] = []
__all__ += ("Compression", "Deletes", "Envelope", "ExistingTarget", "Feature", "Format")
__all__ += ("Guarantee", "History", "InitialScan", "JsonType", "OnDrop", "OnError", "OnMaxDisk")
__all__ += ("OnPartitionChange", "OnRowError", "RowImages", "SchemaChangeEvents")
__all__ += ("SchemaChangePolicy",)


class InitialScan(StrEnum):
    """What happens to existing rows."""

    YES = "yes"
    NO = "no"
    ONLY = "only"


class SchemaChangeEvents(StrEnum):
    """What counts as a schema change."""

    DEFAULT = "default"
    COLUMN_CHANGES = "column_changes"


class SchemaChangePolicy(StrEnum):
    """What a schema change does."""

    BACKFILL = "backfill"
    NOBACKFILL = "nobackfill"
    STOP = "stop"
    IGNORE = "ignore"


class OnPartitionChange(StrEnum):
    """What happens to a table after a partition with rows was attached or detached."""

    RESCAN = "rescan"
    STOP = "stop"


class OnError(StrEnum):
    """What happens when retries are exhausted."""

    PAUSE = "pause"
    FAIL = "fail"


class OnRowError(StrEnum):
    """What happens to a row that cannot be encoded, or that the sink refuses."""

    STOP = "stop"
    DEAD_LETTER = "dead_letter"


class OnMaxDisk(StrEnum):
    """What happens to a feed that has reached a limit of disk space."""

    FAIL = "fail"
    WAIT = "wait"


class Guarantee(StrEnum):
    """How often a change may reach the target."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class History(StrEnum):
    """What a merged table keeps of the past."""

    OFF = "off"
    SCD2 = "scd2"
    APPEND = "append"


class ExistingTarget(StrEnum):
    """What happens to a target that has rows and was not made by the feed."""

    REFUSE = "refuse"
    MERGE = "merge"
    REPLACE = "replace"


class JsonType(StrEnum):
    """How a table keeps JSON."""

    STRING = "string"
    VARIANT = "variant"


class OnDrop(StrEnum):
    """What happens to a target table whose source table was dropped."""

    KEEP = "keep"
    DROP = "drop"


class Feature(StrEnum):
    """A property of sinks that some options need; the value describes it for users.

    A sink declares its features (``sinks.base.Capabilities``), and with them takes the options.
    """

    SCHEMA_REGISTRY = "a schema registry"
    MESSAGE_HEADERS = "headers of messages"
    TRANSACTIONS = "messages of transactions"
    EXTRA_HEADERS = "headers that all messages or requests get"
    KAFKA_PRODUCER = "a Kafka producer"
    WEBHOOK_REQUESTS = "requests to a webhook"
    MERGED_TABLES = "tables that are kept equal by merging"
    HISTORY = "tables that can keep the past"
    EXISTING_TARGETS = "targets that somebody else may have made"
    FILE_LAYOUT = "tables of partitioned files"
    FILE_UPKEEP = "tables of files that have to be kept up"
    COMPARISON = "targets that can be compared with the source"
    DEAD_LETTERS = "single rows that can be refused"


class PartitionAlgorithm(StrEnum):
    """Values of ``partition_alg``: the hash of a key, by which its partition is chosen."""

    FNV_1A = "fnv-1a"
    MURMUR2 = "murmur2"


class Compression(StrEnum):
    """How files or batches are compressed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    SNAPPY = "snappy"
    LZ4 = "lz4"


class RowImages(StrEnum):
    """Where a feed takes the row before a change from, and what the source did not send."""

    LOG = "log"
    STORE = "store"
