"""``schema_topic``: every schema a feed delivers, told before the first row that has it, every
statement of DDL that the source tells, and every table that was dropped, told after its last.

One JSON message a schema, its key the table: at a feed's first row of a table and at every
change. A reader that builds tables of its own reads this topic first; the newest message of a
key with columns is how the table is now. The same schema may be told more than once (after a
restart, and by the workers of a large scan), and so may a statement.
"""

from __future__ import annotations

import json

from changefeed.core.clock import Timestamp
from changefeed.core.events import Ddl
from changefeed.core.schema import Column, TableSchema
from sinks.base import SinkContext, Target

#: What worker processes have told, by (run of the node, job, table): a worker opens the sink for
#: each part of a scan it reads.
_told_by_workers: dict[tuple[str, int, str], str] = {}


class Announcements:
    """What one sink object has told."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int, str], str] = {}

    def message(
        self, context: SinkContext, target: Target, schema: TableSchema, at: Timestamp
    ) -> tuple[bytes, bytes] | None:
        """Key and value of the message that is due before a row of ``schema``; None when that
        schema was the table's last to be told. Call :meth:`told` once it is delivered.
        """
        if self._memory(context).get(_place(context, target)) == schema.fingerprint():
            return None
        return announcement(target, schema, at)

    def told(self, context: SinkContext, target: Target, schema: TableSchema) -> None:
        """The table's schema is out."""
        self._memory(context)[_place(context, target)] = schema.fingerprint()

    def gone(self, context: SinkContext, target: Target) -> None:
        """The table's schema is to be told before its next row, whatever was told: the table was
        dropped, or a message about something else came behind its schema."""
        self._memory(context).pop(_place(context, target), None)

    def forget(self) -> None:
        """Messages may be lost: tell everything again."""
        self._told.clear()

    def _memory(self, context: SinkContext) -> dict[tuple[str, int, str], str]:
        return _told_by_workers if context.spark is None else self._told


def _place(context: SinkContext, target: Target) -> tuple[str, int, str]:
    return context.node, context.job_id, str(target.table)


def announcement(target: Target, schema: TableSchema, at: Timestamp) -> tuple[bytes, bytes]:
    """Key and value of the message that tells a schema.

    ``at`` is the smallest timestamp of rows that have it, as far as is known.
    """
    value = {
        **_of(target),
        "version": schema.version,
        "columns": [_column(column) for column in schema.columns],
        "key": [] if schema.keyless else [column.name for column in schema.key_columns],
        "at": str(at),
    }
    return _message(target, value)


def drop_announcement(target: Target) -> tuple[bytes, bytes]:
    """Key and value of the message that tells that a table was dropped."""
    return _message(target, {**_of(target), "dropped": True})


def ddl_announcement(target: Target, event: Ddl) -> tuple[bytes, bytes]:
    """Key and value of the message that tells a statement."""
    told = {"kind": event.kind, "statement": event.statement, "position": event.position}
    return _message(target, {**_of(target), "ddl": told, "at": str(event.at)})


def _of(target: Target) -> dict[str, object]:
    table = target.table
    return {
        "table": {"source": table.source, "schema": table.schema, "name": table.name},
        "topic": target.topic,
    }


def _message(target: Target, value: dict[str, object]) -> tuple[bytes, bytes]:
    return (
        json.dumps([str(target.table)], ensure_ascii=False).encode(),
        json.dumps(value, ensure_ascii=False).encode(),
    )


def _column(column: Column) -> dict[str, object]:
    return {"name": column.name, "type": column.type_name, "nullable": column.nullable}
