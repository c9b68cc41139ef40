"""Rows of a scan, and deletes at its instant, in the columns of the change log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.schema import RowKey, TableSchema


def scan_rows(schema: TableSchema, batch: pa.RecordBatch | pa.Table, at: Timestamp) -> pa.Table:
    """Rows read by a scan (``a0..an``) as rows of the log, read at ``at``."""
    values = {name: batch.column(name) for name in batch.schema.names}
    return _rows(schema, "r", values, batch.num_rows, at)


def but_of_transaction(rows: pa.Table, at: Timestamp) -> pa.Table:
    """The rows of the log that do not belong to the transaction at ``at``."""
    there = pc.and_(pc.equal(rows["wall"], at.wall), pc.equal(rows["logical"], at.logical))
    return rows.filter(pc.invert(pc.and_(there, pc.not_equal(rows["op"], "r"))))


def delete_rows(schema: TableSchema, keys: Sequence[RowKey], at: Timestamp) -> pa.Table:
    """Deletes at ``at`` of rows of which only the key is known, as rows of the log."""
    values = {
        f"b{i}": pa.array([key[place] for key in keys], schema.columns[i].arrow)
        for place, i in enumerate(schema.key)
    }
    return _rows(schema, "d", values, len(keys), at)


def _rows(
    schema: TableSchema,
    op: str,
    values: Mapping[str, pa.Array | pa.ChunkedArray],
    rows: int,
    at: Timestamp,
) -> pa.Table:
    fixed = {
        "op": op,
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
        if field.name in values:
            columns.append(values[field.name])
        else:
            columns.append(pa.repeat(pa.scalar(fixed.get(field.name), field.type), rows))
    return pa.table(columns, schema=schema.log_schema())
