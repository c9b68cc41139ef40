"""What a feed does when the schema of one of its tables changes."""

from __future__ import annotations

from changefeed.core.errors import ChangefeedError
from changefeed.core.events import SchemaChange
from changefeed.core.table_errors import TableError
from changefeed.options import (
    SCHEMA_CHANGE_EVENTS,
    SCHEMA_CHANGE_POLICY,
    Options,
    SchemaChangeEvents,
    SchemaChangePolicy,
)


def needs_backfill(event: SchemaChange, options: Options) -> bool:
    """Whether the table must be scanned again.

    Raises:
        TableError: the policy is to stop.
    """
    policy = options[SCHEMA_CHANGE_POLICY]
    if policy is SchemaChangePolicy.IGNORE or not _counts(event, options):
        return False
    if policy is SchemaChangePolicy.STOP:
        table = event.new.table
        raise TableError(
            table,
            ChangefeedError(
                "CF4101",
                f"schema of {table} changed at {event.at}: {difference(event)}",
                hint="ALTER CHANGEFEED .. SET schema_change_policy = 'nobackfill', then RESUME; "
                "or CREATE it anew.",
            ),
        )
    return policy is SchemaChangePolicy.BACKFILL and event.rewritten


def _counts(event: SchemaChange, options: Options) -> bool:
    """Whether this is a schema change by ``schema_change_events``."""
    if options[SCHEMA_CHANGE_EVENTS] is SchemaChangeEvents.COLUMN_CHANGES:
        return True
    dropped = {c.number for c in event.old.columns} - {c.number for c in event.new.columns}
    return event.rewritten or bool(dropped)


def difference(event: SchemaChange) -> str:
    """What changed, for people: ``column "x" added (text)``."""
    old = {c.number: c for c in event.old.columns}
    new = {c.number: c for c in event.new.columns}
    parts = [f'column "{new[n].name}" added ({new[n].type_name})' for n in new.keys() - old.keys()]
    parts += [f'column "{old[n].name}" dropped' for n in old.keys() - new.keys()]
    for number in old.keys() & new.keys():
        before, after = old[number], new[number]
        if before.name != after.name:
            parts.append(f'column "{before.name}" renamed to "{after.name}"')
        if before.type_name != after.type_name:
            parts.append(f'type of "{after.name}" changed to {after.type_name}')
    return "; ".join(sorted(parts)) or "replica identity or key changed"
