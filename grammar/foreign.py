"""Words of other change feed products, each with one sentence that says how it is written here.

Without them the nearest of our own words would be suggested, which is misleading.
"""

from __future__ import annotations

import re

_CONNECTION = "write CREATE EXTERNAL CONNECTION name AS 'uri'"
_MIRROR = "write CREATE CHANGEFEED name FOR table, ... INTO 'uri'"
_ROLES = "rights are CHANGEFEED on tables and USAGE on external connections; \\h GRANT"
_TYPES = "it cannot be set; docs/from-debezium.md lists how each type is written"
_URI = "write it in the URI of CREATE EXTERNAL CONNECTION"
_BUFFERS = "changefeed start --max-memory limits memory; kafka_sink_config sets Kafka's batches"
_TABLES = "name the tables: FOR t1, t2 or FOR SCHEMA s INCLUDE TABLES a*"
_RETRIES = "retry_for says how long a feed retries, and on_error what follows"
_SCAN = "initial_scan = 'yes', 'no' or 'only' says whether the table is read first"
_RETENTION = "gc_ttl says how long changes are kept for a feed that is paused or behind"
_BACKUPS = "schedules are for changefeeds: write CREATE SCHEDULE name FOR CHANGEFEED ..."
_SCHEDULES = "write the names: PAUSE SCHEDULE a, b; SHOW SCHEDULES lists them"
_RUNS = (
    "SHOW SCHEDULES has the job of the last run: write PAUSE JOB id, RESUME JOB id, CANCEL JOB id"
)
_IDS = "write the ids: PAUSE JOBS 1, 2; SHOW JOBS WHERE status = 'failed' lists them"
_WHERE = "write the condition: SHOW JOBS WHERE status = 'failed' ORDER BY created"
_COMMENT = "changefeeds have no comments: keep yours in the .sql file that creates them"
_LINEAGE = "write SHOW CHANGEFEED name LINEAGE"
_GOAL = "write slo = '99% within 5m' (docs/operating.md); verify checks rows"
_SLOT = "the URI of CREATE EXTERNAL CONNECTION takes publication=name and slot=name"

#: Option of another product, with ``_`` for each ``.`` and ``-`` -> what to write here.
_OPTIONS = {
    "binary_handling_mode": _TYPES,
    "bigint_unsigned_handling_mode": _TYPES,
    "column_exclude_list": "name the columns that you want: FOR orders (id, total)",
    "column_include_list": "name the columns: FOR orders (id, total)",
    "comment": _COMMENT,
    "connector": f"{_MIRROR}; the scheme of the URI chooses the sink",
    "converter_schemas_enable": "write schemas_enable with envelope = 'debezium'",
    "database_dbname": _URI,
    "database_hostname": _URI,
    "database_password": _URI,
    "database_port": _URI,
    "database_sslmode": _URI,
    "database_user": _URI,
    "decimal_handling_mode": _TYPES,
    "errors_max_retries": _RETRIES,
    "errors_retry_timeout": _RETRIES,
    "errors_tolerance": "a table with a value that does not fit stops; the other tables continue",
    "exactly_once_source_support": "write delivery = 'exactly_once'",
    "exactly_once_support": "write delivery = 'exactly_once'",
    "execution_locality": "it is not supported: nodes that share a log share the feeds out",
    "gc_protect_expires_after": _RETENTION,
    "heartbeat_interval_ms": "write resolved = '10s'",
    "ignore_disable_changefeed_replication": "it is not supported: a feed has every change",
    "interval_handling_mode": _TYPES,
    "lagging_ranges_threshold": "it is not supported: SHOW CHANGEFEED name shows the lag",
    "max_batch_size": _BUFFERS,
    "max_lag": _GOAL,
    "max_queue_size": _BUFFERS,
    "message_key_columns": "write key_column = 'c', unordered (one column)",
    "metrics_label": "it is not needed: each metric has the name of the feed as a label",
    "plugin_name": "it is always pgoutput",
    "protect_data_from_gc_on_pause": _RETENTION,
    "provide_transaction_metadata": "write transaction_metadata",
    "publication_autocreate_mode": _SLOT,
    "publication_name": _SLOT,
    "pubsub_sink_config": "Pub/Sub is not supported; kafka_sink_config is for Kafka",
    "scan_startup_mode": _SCAN,
    "schema_include_list": _TABLES,
    "skipped_operations": "deletes = 'no' leaves deletes out",
    "slot_drop_on_stop": "the slot is dropped with the last feed of the connection",
    "slot_name": _SLOT,
    "snapshot_mode": _SCAN,
    "split_column_families": "it is not supported: a row is one message",
    "table_exclude_list": "write FOR SCHEMA s EXCLUDE TABLES tmp_*",
    "table_include_list": _TABLES,
    "tasks_max": "there is no such setting: one reader per source, one thread per feed",
    "time_precision_mode": _TYPES,
    "tombstones_on_delete": "envelope = 'debezium' always has tombstones",
    "topic_prefix": "it is a parameter of the URI: INTO 'kafka://host:9092?topic_prefix=shop_'",
    "transforms": "a CDC query makes other rows: INTO 'uri' AS SELECT ...; envelope the messages",
    "topic_transaction": "write transaction_topic",
    "unavailable_value_placeholder": _TYPES,
    "virtual_columns": "it is not supported: the source sends no virtual columns",
}

#: Scheme of another product -> what to write here.
_SCHEMES = {
    "cloudstorage": "write s3://bucket/folder, gs://bucket/folder or azure://container/folder.",
    "gcpubsub": "Pub/Sub is not supported; kafka:// and webhook-https:// send messages.",
    "gcs": "write gs://bucket/folder.",
    "jdbc": "write the URI without jdbc: in front of it.",
    "nodelocal": "write file:///folder.",
    "pulsar": "Pulsar is not supported; kafka:// and webhook-https:// send messages.",
    "userfile": "write file:///folder.",
}

#: A statement of another product, from its begin or from FOR on -> what to write here.
_STATEMENTS = tuple(
    (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), sentence)
    for pattern, sentence in (
        (r"CREATE (OR REPLACE )?CONNECTION\b", _CONNECTION),
        (r"DROP CONNECTION\b", "write DROP EXTERNAL CONNECTION name"),
        (r"ALTER CONNECTION\b", "write ALTER EXTERNAL CONNECTION name AS 'uri'"),
        (r"SHOW CONNECTIONS\b", "write SHOW EXTERNAL CONNECTIONS"),
        (r"CREATE (PEER|SOURCE)\b", f"a source is an external connection: {_CONNECTION}"),
        (r"CREATE (MIRROR|SINK|STREAM|PIPE)\b", f"a copy of tables is a changefeed: {_MIRROR}"),
        (r"CREATE TABLE\b", f"the sink creates its tables: {_MIRROR}"),
        (r"DROP (MIRROR|SINK|STREAM|PIPE)\b", "write DROP CHANGEFEED name"),
        (r"DROP (PEER|SOURCE)\b", "write DROP EXTERNAL CONNECTION name"),
        (
            r"(CREATE|DROP|ALTER) PUBLICATION\b",
            f"run it at the source: {_SLOT}; without them changefeed makes its own",
        ),
        (
            r"(SET|SHOW( ALL)?) CLUSTER SETTINGS?\b",
            "it is not needed here; the options of a feed are its settings",
        ),
        (r"(COMMENT ON|ALTER CHANGEFEED \S+ COMMENT)\b", _COMMENT),
        (r"(SHOW )?LINEAGE\b", _LINEAGE),
        (r"(CREATE|ALTER|DROP|SHOW) SLOS?\b", _GOAL),
        (r"(GRANT|REVOKE) (ALL|PRIVILEGES|SELECT|INSERT|UPDATE|DELETE|CREATE|[, ])+ON\b", _ROLES),
        (r"CREATE SCHEDULE [^;]*?FOR (?!CHANGEFEED)\w+", _BACKUPS),
        (r"(SHOW ((PAUSED|RUNNING) )?SCHEDULES FOR|ALTER) BACKUP( SCHEDULE)?\b", _BACKUPS),
        (r"ALTER SCHEDULE\b", "write DROP SCHEDULE name, and CREATE it as it is to be"),
        (r"(DROP|PAUSE|RESUME) SCHEDULES? \(*\s*(SELECT|VALUES|WITH)\b[^;]*", _SCHEDULES),
        (r"(EXPLAIN )?(CANCEL|PAUSE|RESUME|SHOW) JOBS FOR SCHEDULES?\b", _RUNS),
        (r"(CANCEL|PAUSE|RESUME) JOBS \(*\s*(SELECT|VALUES|WITH)\b", _IDS),
        (r"SHOW (CHANGEFEED )?JOBS? (WHEN COMPLETE )?\(*\s*(SELECT|VALUES|WITH \w+ AS)\b", _WHERE),
        (r"SELECT [^;]+ FROM \[\s*SHOW\b", _WHERE),
        (r"SHOW JOBS WHEN COMPLETE\b", "write SHOW JOB WHEN COMPLETE id, one job at a time"),
        (r"SHOW (CHANGEFEED )?JOBS? \(", _WHERE),
        (
            r"SHOW CHANGEFEED JOBS WITH\b",
            "full_table_names is always listed: write SHOW CHANGEFEED JOBS",
        ),
        (r"SHOW AUTOMATIC JOBS\b", "there are none here: SHOW JOBS lists every job"),
        (
            r"(PAUSE|RESUME|CANCEL) ALL \w+ JOBS\b",
            "the only jobs are changefeeds: write ALL CHANGEFEED JOBS",
        ),
        (
            r"PAUSE (JOBS?|CHANGEFEED) [^;]+ WITH\b",
            "a reason is not supported: write PAUSE CHANGEFEED name or PAUSE JOB id",
        ),
        (
            r"ALTER EXTERNAL CONNECTION IF NOT\b",
            "write ALTER EXTERNAL CONNECTION IF EXISTS name AS 'uri'",
        ),
        (
            r"CHECK EXTERNAL CONNECTION \S+ WITH\b",
            "nothing is transferred, so there are no options: CHECK EXTERNAL CONNECTION name "
            "reaches the server and logs in",
        ),
        (r"STOP\b", "write PAUSE CHANGEFEED name"),
        (r"START\b", "write RESUME CHANGEFEED name"),
        (r"DESC(RIBE)?\b", "\\d table shows the columns of a table"),
        (r"SHOW STATUS\b", "write SHOW CHANGEFEEDS"),
        (r"SHOW COLUMNS\b", "\\d table shows the columns of a table"),
        (
            r"EXPLAIN (CANCEL|DROP|PAUSE|RESUME|SHOW|SYNC|VERIFY)\b",
            "EXPLAIN shows what CREATE CHANGEFEED would do; this statement has no plan",
        ),
        (r"RETRY\b", "write RESUME CHANGEFEED name, or RETRY CHANGEFEED name DEAD LETTERS"),
    )
)


def option(name: str) -> str | None:
    """What to write here in place of an option of another product; None for any other name."""
    return _OPTIONS.get(re.sub(r"[.-]", "_", name.casefold()))


def scheme(name: str) -> str | None:
    """What to write here in place of a scheme of another product; None for any other scheme."""
    return _SCHEMES.get(name.casefold())


def statement(text: str, at: int) -> str | None:
    """What to write here in place of a statement of another product, of which the word at ``at``
    is the first that is not ours; None for any other statement."""
    begin = len(text) - len(text.lstrip())
    matches = ((known.match(text, begin), hint) for known, hint in _STATEMENTS)
    return next((hint for match, hint in matches if match and match.end() > at), None)
