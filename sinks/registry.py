"""Scheme of a URI -> sink. Listing imports nothing; opening one sink imports one.

Sinks of other packages join by an entry point of the group ``changefeed.sinks``, whose name is
the scheme and whose value is ``module:Class``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, cast

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import DISTRIBUTION, lacking, needs_package
from changefeed.core.references import resolved_options, resolved_uri
from changefeed.core.settings import Parameter, of_scheme
from changefeed.core.uri import hint_of_scheme
from changefeed.options import Feature, is_hidden
from sinks.base import Capabilities, Sink

GROUP = "changefeed.sinks"

#: ``host:9092``: what somebody types who thinks of one kind of sink.
_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}/?")


@dataclass(frozen=True, slots=True)
class SchemeEntry:
    """One scheme: the class behind it and what has to be installed for it.

    Attributes:
        location: ``module:Class``.
        summary, example: for help and completion.
        packages: import names the sink needs when it opens.
        extra: the extra that brings them; empty when all installs have them.
        distribution: whose extra it is.
        hidden: not offered to users (sinkless feeds).
        lists: what is behind the scheme can be listed, so what was written can be read again.
    """

    location: str
    summary: str
    example: str = ""
    packages: tuple[str, ...] = ()
    extra: str = ""
    distribution: str = DISTRIBUTION
    hidden: bool = False
    lists: bool = True

    @property
    def target(self) -> str:
        """What the rows of a table go to, as a person says it before the target's name."""
        package = ".".join(self.location.split(".")[:2])
        return _TARGETS.get(package, "topic")


#: Package of sinks -> :attr:`SchemeEntry.target`.
_TARGETS = {
    "sinks.elasticsearch": "index",
    "sinks.files": "files of",
    "sinks.lake": "table",
    "sinks.warehouse": "table",
}

_FILES = "sinks.files.sink:FilesSink"
_KAFKA = "sinks.kafka.sink:KafkaSink"
_ELASTICSEARCH = "sinks.elasticsearch.sink:ElasticsearchSink"
_WEBHOOK = "sinks.webhook.sink:WebhookSink"

#: Scheme -> entry, in the order help shows them.
BUILT_IN: dict[str, SchemeEntry] = {
    "kafka": SchemeEntry(
        _KAFKA,
        "Kafka topics: one per table, idempotent producer",
        "kafka://localhost:9092?topic_prefix=shop_",
        ("confluent_kafka",),
    ),
    "confluent-cloud": SchemeEntry(
        _KAFKA,
        "Kafka in Confluent Cloud, by API key",
        "confluent-cloud://pkc-1.region.provider.confluent.cloud:9092?api_key=K&api_secret=S",
        ("confluent_kafka",),
    ),
    "azure-event-hub": SchemeEntry(
        _KAFKA,
        "Azure Event Hubs through its Kafka protocol",
        "azure-event-hub://ns.servicebus.windows.net:9093"
        "?shared_access_key_name=N&shared_access_key=K",
        ("confluent_kafka",),
    ),
    "elasticsearch": SchemeEntry(
        _ELASTICSEARCH,
        "Elasticsearch indices: one per table, documents by key",
        "elasticsearch://localhost:9200/?index_prefix=shop_",
        ("elasticsearch",),
        extra="elasticsearch",
    ),
    "elasticsearch+https": SchemeEntry(
        _ELASTICSEARCH,
        "the same over TLS",
        "elasticsearch+https://search.example.com:443/?api_key=KEY",
        ("elasticsearch",),
        extra="elasticsearch",
    ),
    "file": SchemeEntry(
        _FILES,
        "files in a directory, sorted by name in time order",
        "file:///var/lib/feeds?partition_format=hourly",
    ),
    "s3": SchemeEntry(
        _FILES,
        "the same in Amazon S3 or a compatible store",
        "s3://bucket/prefix?AWS_ACCESS_KEY_ID=K&AWS_SECRET_ACCESS_KEY=S&AWS_REGION=eu-west-1",
    ),
    "gs": SchemeEntry(
        _FILES,
        "the same in Google Cloud Storage",
        "gs://bucket/prefix?AUTH=implicit",
    ),
    "azure": SchemeEntry(
        _FILES,
        "the same in Azure Blob Storage",
        "azure://container/prefix?AZURE_ACCOUNT_NAME=N&AZURE_ACCOUNT_KEY=S0VZ",
    ),
    "azure-blob": SchemeEntry(_FILES, "the same as azure", "", hidden=True),
    "azure-storage": SchemeEntry(_FILES, "the same as azure", "", hidden=True),
    "hdfs": SchemeEntry(_FILES, "the same in HDFS", "hdfs://namenode:8020/feeds"),
    "https": SchemeEntry(
        _FILES,
        "the same on a server that accepts files by PUT",
        "https://user:password@example.com/feeds",
        ("httpx",),
        lists=False,
    ),
    "http": SchemeEntry(
        _FILES,
        "the same without TLS",
        "http://localhost:8080/feeds",
        ("httpx",),
        lists=False,
    ),
    "file-https": SchemeEntry(
        _FILES, "the same as https", "", ("httpx",), hidden=True, lists=False
    ),
    "file-http": SchemeEntry(_FILES, "the same as http", "", ("httpx",), hidden=True, lists=False),
    "webhook-https": SchemeEntry(
        _WEBHOOK,
        "batches of messages to an HTTPS endpoint",
        "webhook-https://example.com/changes?parallel=4",
        ("httpx",),
    ),
    "webhook-http": SchemeEntry(
        _WEBHOOK,
        "the same without TLS, for a server on the same machine",
        "webhook-http://localhost:8080/changes",
        ("httpx",),
    ),
    "duckdb": SchemeEntry(
        "sinks.warehouse.duckdb:DuckDBSink",
        "tables of a DuckDB file, kept equal by staged merge",
        "duckdb:///var/lib/copy.duckdb?schema=shop",
        ("duckdb",),
        "duckdb",
    ),
    "postgresql": SchemeEntry(
        "sinks.warehouse.postgresql:PostgreSQLSink",
        "tables of a PostgreSQL database, kept equal by staged merge",
        "postgresql://user:password@host/database?schema=shop",
        ("psycopg",),
    ),
    "bigquery": SchemeEntry(
        "sinks.warehouse.bigquery.sink:BigQuerySink",
        "tables of a BigQuery dataset, kept equal by staged merge",
        "bigquery://project/dataset?location=EU",
        ("google.cloud.bigquery",),
        "bigquery",
    ),
    "snowflake": SchemeEntry(
        "sinks.warehouse.snowflake.sink:SnowflakeSink",
        "tables of a Snowflake schema, kept equal by staged merge",
        "snowflake://user:password@account/database/schema?warehouse=W&role=R",
        ("snowflake.connector",),
        "snowflake",
    ),
    "mysql": SchemeEntry(
        "sinks.warehouse.mysql:MySQLSink",
        "tables of a MySQL or MariaDB database, kept equal by staged merge",
        "mysql://user:password@host/database",
        ("pymysql",),
    ),
    "clickhouse": SchemeEntry(
        "sinks.warehouse.clickhouse.sink:ClickHouseSink",
        "tables of a ClickHouse database: versioned rows, and views of the current rows",
        "clickhouse://user:password@host:8123/database",
        ("clickhouse_connect",),
        "clickhouse",
    ),
    "spanner": SchemeEntry(
        "sinks.warehouse.spanner.sink:SpannerSink",
        "tables of a Spanner database, kept equal by transactions of mutations",
        "spanner://project/instance/database",
        ("google.cloud.spanner_v1",),
        "spanner",
    ),
    "redshift": SchemeEntry(
        "sinks.warehouse.redshift:RedshiftSink",
        "tables of an Amazon Redshift database (never tested with one)",
        "redshift://user:password@cluster:5439/database?schema=shop",
        ("psycopg",),
    ),
    "experimental-sql": SchemeEntry(
        "sinks.table.sink:MessageTableSink",
        "a table of messages in a SQL database",
        "experimental-sql:///postgresql://user@host/db",
        ("sqlalchemy",),
    ),
    "delta": SchemeEntry(
        "sinks.lake.sink:DeltaSink",
        "Delta tables merged by Spark, on any filesystem that Spark can reach",
        "delta:///srv/lake",
        ("pyspark",),
        "spark",
    ),
    "iceberg": SchemeEntry(
        "sinks.lake.sink:IcebergSink",
        "Iceberg tables merged by Spark, in a hadoop, REST or JDBC catalog",
        "iceberg://lake/shop?type=hadoop&warehouse=/srv/lake",
        ("pyspark",),
        "spark",
    ),
    "reader": SchemeEntry(
        "sinks.reader.sink:ReaderSink",
        "one table for a reader: Spark's changefeed source, or changefeed.subscribe",
        "reader:///var/lib/feeds/orders",
    ),
    "null": SchemeEntry("sinks.null.sink:NullSink", "nothing: for measuring", "null://"),
    "sinkless": SchemeEntry(
        "sinks.terminal:TerminalSink", "rows to the client", "sinkless://", hidden=True
    ),
}


def schemes() -> tuple[str, ...]:
    """The schemes a sink URI can have. Imports nothing."""
    shown = [scheme for scheme, entry in BUILT_IN.items() if not entry.hidden]
    return (*shown, *(name for name in _plugins() if name not in BUILT_IN))


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """A scheme as completion and help show it."""

    scheme: str
    summary: str
    example: str


def offers() -> list[SinkEntry]:
    """Every scheme a sink URI can have, with what it does. Imports nothing."""
    return [SinkEntry(name, entry(name).summary, entry(name).example) for name in schemes()]


def entry(scheme: str) -> SchemeEntry:
    """What is known of a scheme without importing its sink.

    Raises:
        ChangefeedError: CF1201 for an unknown scheme, with the nearest one.
    """
    found = BUILT_IN.get(scheme) or _plugins().get(scheme)
    if found is not None:
        return found
    near = difflib.get_close_matches(scheme, schemes(), n=1)
    listed = f'did you mean "{near[0]}://"?' if near else f"known are {', '.join(schemes())}."
    hint = hint_of_scheme(scheme) or listed
    raise ChangefeedError(Code.INVALID_URI, f"unsupported sink: {scheme}", hint=hint)


def scheme_of(uri: str) -> str:
    """The scheme of a sink URI, in lower case.

    Raises:
        ChangefeedError: CF1201 when there is none.
    """
    if not uri:
        raise ChangefeedError(Code.INVALID_URI, "omit the SINK clause", hint="leave INTO out.")
    if _ADDRESS.fullmatch(uri):
        raise ChangefeedError(
            Code.INVALID_URI,
            f"no scheme found for sink URL: {uri} is an address alone",
            hint=f"write the kind of server in front, for example kafka://{uri}",
        )
    scheme, colon, _ = uri.partition(":")
    if not colon or not scheme:
        raise ChangefeedError(
            Code.INVALID_URI,
            "no scheme found for sink URL",
            hint="a sink URI looks like kafka://host:9092",
        )
    return scheme.lower()


def capabilities(scheme: str) -> Capabilities:
    """What the sink of a scheme can do; imports its module, not the client it uses."""
    able = _load(scheme).capabilities
    return (
        able
        if entry(scheme).lists
        else replace(able, features=able.features - {Feature.COMPARISON})
    )


def appends(scheme: str) -> bool:
    """The sink only adds messages: it has no rows of its own that a scan could put right."""
    return not capabilities(scheme).ends_scans


def open_sink(uri: str, options: Mapping[str, object] | None = None) -> Sink:
    """The sink of ``uri``, checked but not yet connected: the caller calls ``open``. Reads the
    secrets that the URI and the options refer to.

    Raises:
        ChangefeedError: the URI or an option is wrong, a package is missing (CF5005), or a secret
            cannot be read (CF1208).
    """
    scheme = scheme_of(uri)
    kind = _load(scheme)
    missing = _missing(scheme)
    if missing is not None:
        raise missing
    return kind(resolved_uri(uri), resolved_options(options or {}, is_hidden))


def check(uri: str, options: Mapping[str, object] | None = None) -> list[ChangefeedError]:
    """Every problem of a URI and its options that shows without connecting."""
    found: list[ChangefeedError] = []
    try:
        scheme = scheme_of(uri)
        kind = _load(scheme)
        missing = _missing(scheme)
        if missing is not None:
            found.append(missing)
        kind(resolved_uri(uri), resolved_options(options or {}, is_hidden))
    except ChangefeedError as error:
        found += getattr(error, "problems", None) or [error]
    except ImportError:
        if not found:  # else the constructor has loaded the client that is missing
            raise
    return found


def parameters(scheme: str) -> tuple[Parameter, ...]:
    """The parameters that a URI of this scheme takes; imports its module, not the client it uses.

    Raises:
        ChangefeedError: CF1201, there is no such scheme.
    """
    return of_scheme(_load(scheme).parameters, scheme)


def takers(feature: Feature) -> tuple[str, ...]:
    """The schemes of the sinks with a feature, but ``null``, which has all; imports every sink that
    can be imported here."""
    found = []
    for scheme in schemes():
        try:
            able = scheme != "null" and feature in capabilities(scheme).features
        except ChangefeedError as error:
            if error.code is not Code.SINK_NEEDS_EXTRA:
                raise
            continue
        found += [scheme] * able
    return tuple(found)


def topic_namer(uri: str, options: Mapping[str, object] | None = None) -> Callable[[str], str]:
    """Table name -> finished topic name (file label, ...) in this sink.

    Applies the URI's ``topic_prefix`` and ``topic_name`` and the sink's escaping.
    """
    return open_sink(uri, options).topic


def owner_of_targets(uri: str, options: Mapping[str, object] | None = None) -> Sink | None:
    """The sink of a URI where it keeps one target per source table; None where targets may be
    shared."""
    sink = open_sink(uri, options)
    return sink if sink.capabilities.owns_targets else None


#: Parameters of URIs that say where targets are.
_PLACING = frozenset(
    {"schema", "warehouse", "uri", "endpoint", "api_endpoint", "AZURE_ACCOUNT_NAME"}
    | {f"{store}_ENDPOINT" for store in ("AWS", "AZURE", "GCS")}
)


def place_of(uri: str) -> str:
    """Where the targets of a sink are, so that two URIs of one place are equal: without login and
    parameters but those that say where. Two names of one host are two places. Not to be shown."""
    scheme, _, rest = uri.partition(":")
    address, _, query = rest.partition("?")
    authority, slash, path = address.removeprefix("//").partition("/")
    hosts = ",".join(sorted(authority.rpartition("@")[2].lower().split(",")))
    placing = sorted(word for word in query.split("&") if word.partition("=")[0] in _PLACING)
    location = entry(scheme.lower()).location
    return f"{location} {hosts}{slash}{path.rstrip('/')} {'&'.join(placing)}"


class _Kind(Protocol):
    """The class of a sink: makes a sink of a URI and options."""

    capabilities: Capabilities
    parameters: tuple[Parameter, ...]

    def __call__(self, uri: str, options: Mapping[str, object]) -> Sink: ...


def _load(scheme: str) -> _Kind:
    found = entry(scheme)
    module, _, name = found.location.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise needs_package(
            f"{scheme}://", error.name or module, found.extra, distribution=found.distribution
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Sink) and hasattr(kind, "capabilities")):
        raise ChangefeedError(
            Code.INVALID_URI,
            f"unsupported sink: {scheme} is {found.location}, which is no sink",
            hint="its class has to be a subclass of sinks.base.Sink with capabilities.",
        )
    return cast(_Kind, kind)


def _missing(scheme: str) -> ChangefeedError | None:
    found = entry(scheme)
    return lacking(f"{scheme}://", found.packages, found.extra)


@cache
def _plugins() -> dict[str, SchemeEntry]:
    return {point.name: _foreign(point) for point in importlib.metadata.entry_points(group=GROUP)}


def _foreign(point: importlib.metadata.EntryPoint) -> SchemeEntry:
    """What the entry point and its package say; nothing of the package is loaded."""
    location = point.value.partition("[")[0].strip()
    name, summary = location, ""
    if point.dist is not None:
        name, said = point.dist.name, point.dist.metadata
        summary = f": {said['Summary']}" if "Summary" in said else ""
    return SchemeEntry(
        location,
        f"from {name}{summary}",
        extra=next(iter(point.extras), ""),
        distribution=name,
    )
