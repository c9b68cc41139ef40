"""The repair of single rows: a scan of those keys of a table that differ in the target.

The rows that the source has are read at one instant and delivered as rows of a scan. A row that the
target has and the source does not is deleted with the scan's timestamp. All other rows of the
target stay as they are, so the sink gets no end of the scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from changefeed.catalog.model import RowRepair, TableProgress
from changefeed.core.schema import RowKey, TableSchema
from changefeed.options import History

if TYPE_CHECKING:
    from changefeed.encoding.plan import MessagePlan
    from changefeed.sources.base import Source
    from sinks.base import Capabilities


def why_rescan(
    table: TableProgress,
    schema: TableSchema,
    plan: MessagePlan,
    *,
    source: Source,
    sink: Capabilities,
    history: History,
    has_query: bool,
) -> str:
    """Why single rows of a table cannot be repaired in a feed, so that all are read again; empty if
    they can.

    Args:
        schema: the table at the source.
        plan: what the feed delivers of it.
        history: what the feed's tables keep of the past.
        has_query: the feed delivers the result of a CDC query.
    """
    if schema.keyless:
        return "it has no key"
    if has_query:
        return "the feed delivers the result of a query"
    if table.values_from or table.values_to or table.partition is not None:
        return "the feed delivers a part of it"
    if plan.transactions:
        return "its messages name their transactions"
    if not sink.repairs:
        return "this target takes no single rows"
    if sink.takes_rows and history is not History.OFF:
        return f"the target has history = '{history}'"
    if not source.reads_keys(schema):
        return "the source does not find its rows by the values of the key"
    return ""


def keys_to_delete(schema: TableSchema, found: pa.Table, repair: RowRepair) -> list[RowKey]:
    """Keys of rows that only the target has. ``found``: the rows that the source has."""
    columns = [found[f"a{i}"].to_pylist() for i in schema.key]
    there = set(zip(*columns, strict=True))
    return [key for key in repair.extra if key not in there]
