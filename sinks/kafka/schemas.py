"""``schema_topic``: a topic that gets every schema, statement of DDL and drop of a feed's tables.

A schema comes before the first row that has it, a statement or a drop after the last row that it
concerns. A message is JSON, and its key is the table. A reader that builds tables of its own reads
this topic first; the newest message of a table with columns is how it is now. A schema may come
again (after a restart, and from the workers of a large scan), and so may a statement.
"""

from __future__ import annotations

import json

from changefeed.core.clock import Timestamp
from changefeed.core.events import Ddl
from changefeed.core.schema import Column, TableSchema
from sinks.base import SinkContext, Target

#: What worker processes have announced, by (run of the node, job, table): a worker opens the sink
#: for each part of a scan that it reads.
_announced_by_workers: dict[tuple[str, int, str], str] = {}


class Announcements:
    """The last schema of each table that one sink object has announced."""

    def __init__(self) -> None:
        self._announced: dict[tuple[str, int, str], str] = {}

    def message(
        self, context: SinkContext, target: Target, schema: TableSchema, at: Timestamp
    ) -> tuple[bytes, bytes] | None:
        """Key and value of the message that is due before a row of ``schema``; None when that
        schema was the last one announced. Call :meth:`delivered` afterwards.
        """
        if self._memory(context).get(_place(context, target)) == schema.fingerprint():
            return None
        return announcement(target, schema, at)

    def delivered(self, context: SinkContext, target: Target, schema: TableSchema) -> None:
        """Record that the schema is in the topic."""
        self._memory(context)[_place(context, target)] = schema.fingerprint()

    def gone(self, context: SinkContext, target: Target) -> None:
        """Announce the schema again before the next row of the table, because the table was
        dropped or a message about something else came after its schema.
        """
        self._memory(context).pop(_place(context, target), None)

    def forget(self) -> None:
        """Announce all schemas again, because messages may be lost."""
        self._announced.clear()

    def _memory(self, context: SinkContext) -> dict[tuple[str, int, str], str]:
        return _announced_by_workers if context.spark is None else self._announced


def _place(context: SinkContext, target: Target) -> tuple[str, int, str]:
    return context.node, context.job_id, str(target.table)


def announcement(target: Target, schema: TableSchema, at: Timestamp) -> tuple[bytes, bytes]:
    """Key and value of the message with a schema.

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
    """Key and value of the message that a table was dropped."""
    return _message(target, {**_of(target), "dropped": True})


def ddl_announcement(target: Target, event: Ddl) -> tuple[bytes, bytes]:
    """Key and value of the message with a statement."""
    ddl = {"kind": event.kind, "statement": event.statement, "position": event.position}
    return _message(target, {**_of(target), "ddl": ddl, "at": str(event.at)})


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
