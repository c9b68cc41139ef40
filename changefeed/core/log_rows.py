"""Rows of a scan in the columns of the change log."""

from __future__ import annotations

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableSchema


def scan_rows(schema: TableSchema, batch: pa.RecordBatch | pa.Table, at: Timestamp) -> pa.Table:
    """Rows read by a scan (``a0..an``) as rows of the log, read at ``at``."""
    rows = batch.num_rows
    fixed = {
        "op": "r",
        "wall": at.wall,
        "logical": at.logical,
        "seq": 0,
        "ord": 0,
        "xid": 0,
        "commit_us": at.wall // 1_000,
        "last": True,
    }
    columns = []
    for field in schema.log_schema():
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(pa.repeat(pa.scalar(fixed.get(field.name), field.type), rows))
    return pa.table(columns, schema=schema.log_schema())
