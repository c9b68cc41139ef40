"""What a feed does when the schema of one of its tables changes."""

from __future__ import annotations

from changefeed.catalog.model import TableProgress
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.core.schema import BeforeImage, TableSchema
from changefeed.core.table_errors import TableError
from changefeed.core.types import INTEGERS, Kind, LogicalType
from changefeed.options import (
    KEY_COLUMN,
    ON_PARTITION_CHANGE,
    SCHEMA_CHANGE_EVENTS,
    SCHEMA_CHANGE_POLICY,
    OnPartitionChange,
    Options,
    SchemaChangeEvents,
    SchemaChangePolicy,
)


def scan_has(event: SchemaChange, table: TableProgress) -> bool:
    """Whether the feed's scan has read the table with its new schema, or a coming RESCAN will. A
    repair reads single rows only.

    The log announces a schema change to the feeds that existed before; a scan may have seen it.
    Where the event is about rows and changes no shape, the version of the scan does not say so.
    """
    rescan = table.rescan_owed and table.repair is None
    reshaped = event.new.version != event.old.version
    return rescan or (reshaped and event.new.version == table.schema_version)


def check_readable(event: SchemaChange) -> None:
    """Stop a table of which the source's log has changes that cannot be read.

    Raises:
        TableError: CF2108 the event says so.
    """
    if event.unreadable:
        error = ChangefeedError(Code.TABLE_NOT_READABLE, event.why)
        raise TableError(event.new.table, error)


def needs_backfill(
    event: SchemaChange, options: Options, *, scanned: bool = False, by_name: bool = False
) -> bool:
    """Whether the table must be scanned again.

    ``scanned``: as :func:`scan_has` says; there is nothing to stop for then. ``by_name``: what was
    delivered is known by the names of its columns alone, as messages are.

    Raises:
        TableError: the policy is to stop.
    """
    if event.moved:
        return _needs_rescan(event, options, scanned=scanned)
    rewritten = event.rewritten or (by_name and _takes_names(event))
    every = options[SCHEMA_CHANGE_EVENTS] is SchemaChangeEvents.COLUMN_CHANGES
    policy = options[SCHEMA_CHANGE_POLICY]
    if policy is SchemaChangePolicy.IGNORE or not (every or rewritten or event.dropped):
        return False
    if policy is SchemaChangePolicy.STOP and not scanned:
        table = event.new.table
        raise TableError(
            table,
            ChangefeedError(
                Code.SCHEMA_CHANGE_STOPS,
                f"schema of {table} changed at {event.at}: {difference(event)}",
                hint="ALTER CHANGEFEED .. RESCAN the table reads it again in its new shape; SET "
                "schema_change_policy = 'nobackfill', then RESUME, goes on without.",
            ),
        )
    if policy is not SchemaChangePolicy.BACKFILL:
        return False
    return rewritten or (every and _columns(event.old) != _columns(event.new))


def _needs_rescan(event: SchemaChange, options: Options, *, scanned: bool) -> bool:
    """As :func:`needs_backfill`, for rows that entered or left the table: its columns may be as
    before."""
    if options[ON_PARTITION_CHANGE] is OnPartitionChange.STOP and not scanned:
        table = event.new.table
        raise TableError(
            table,
            ChangefeedError(
                Code.SCHEMA_CHANGE_STOPS,
                f"rows of {table} came or went without row events at {event.at}: {event.why}",
                hint="ALTER CHANGEFEED .. RESCAN the table makes the copy equal again; SET "
                "on_partition_change = 'rescan' does so by itself from now on.",
            ),
        )
    return True


def check_message_key(event: SchemaChange, options: Options) -> None:
    """Refuse to send the rows of a table under other message keys than before.

    Consumers could not know that two keys are one row, and a compacted topic would keep the
    messages under the old keys for ever.

    Raises:
        TableError: the key has other columns now, or its values are written differently.
    """
    column = options[KEY_COLUMN]
    if column is not None or options[SCHEMA_CHANGE_POLICY] is SchemaChangePolicy.IGNORE:
        return
    keyless = event.old.keyless and event.new.keyless
    if keyless or (event.same_key and _key(event.old) == _key(event.new)):
        return
    table = event.new.table
    raise TableError(
        table,
        ChangefeedError(
            Code.SCHEMA_CHANGE_STOPS,
            f"the key of {table} changed at {event.at}: {difference(event)}; its messages "
            "would get other keys",
            detail="messages under the old keys stay where they are and get no delete",
            hint="ALTER CHANGEFEED .. RESCAN the table sends every row under its new key; SET "
            "schema_change_policy = 'ignore', then RESUME, goes on without.",
        ),
    )


def check_images(schema: TableSchema, options: Options) -> None:
    """Refuse rows whose before images have only the key, if the feed needs complete ones.

    Raises:
        TableError: CF2003 the source sends less of old rows than when the feed was created.
    """
    if not options.needs_before or schema.before_image is BeforeImage.FULL:
        return
    table = schema.table
    raise TableError(
        table,
        ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the old values of all columns are needed (diff, changed), and table "
            f"{table} logs only its key now",
            hint="make the source log whole old rows (PostgreSQL: ALTER TABLE "
            f"{table.schema}.{table.name} REPLICA IDENTITY FULL; MySQL: binlog_row_image = FULL), "
            "then ALTER CHANGEFEED .. RESCAN the table. With row_images = 'store' RESCAN is "
            "enough: the images are made again first.",
        ),
    )


def _columns(schema: TableSchema) -> list[tuple[int | str, str, str]]:
    return [(column.ref, column.name, column.type_name) for column in schema.columns]


def _key(schema: TableSchema) -> list[LogicalType]:
    """What decides how the values of the key's columns are written."""
    whole = LogicalType(Kind.INT64)  # of any width, the same text
    return [whole if c.kind in INTEGERS else c.logical for c in schema.key_columns]


def _takes_names(event: SchemaChange) -> bool:
    """A column has a name that was another one's."""
    named = {column.name: column for column in event.old.columns}
    return any(
        column.name in named and event.was(column) is not named[column.name]
        for column in event.new.columns
    )


def difference(event: SchemaChange) -> str:
    """What changed, as text for users: ``column "x" added (text)``."""
    parts = [f'column "{column.name}" dropped' for column in event.dropped]
    for after in event.new.columns:
        before = event.was(after)
        if before is None:
            parts.append(f'column "{after.name}" added ({after.type_name})')
            continue
        if before.name != after.name:
            parts.append(f'column "{before.name}" renamed to "{after.name}"')
        if before.type_name != after.type_name:
            parts.append(f'type of "{after.name}" changed to {after.type_name}')
    if _names(event.old) != _names(event.new):
        parts.append(f"key changed from {_names(event.old)} to {_names(event.new)}")
    if event.old.before_image is not event.new.before_image:
        whole = event.new.before_image is BeforeImage.FULL
        parts.append(f"old rows hold {'every column' if whole else 'only the key'} now")
    if event.why:
        parts.append(event.why)
    elif event.old == event.new and event.rewritten:
        return "a table that was made or renamed has its name, or the log lacks values of its rows"
    return "; ".join(sorted(parts)) or "old rows or key changed"


def _names(schema: TableSchema) -> str:
    if schema.keyless:
        return "none"
    return f"({', '.join(column.name for column in schema.key_columns)})"
