"""Rows of the log as merged tables need them; whole Arrow columns, no row in Python."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sinks.merged.applied import AppliedVersion


def table_of(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The rows of a batch as a table."""
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def versions_of(rows: pa.Table) -> pa.ChunkedArray:
    """The version of each row in one number: nanoseconds and the logical part of its timestamp."""
    return pc.add(rows["wall"], rows["logical"].cast(pa.int64()))


def unapplied(rows: pa.Table, applied: AppliedVersion) -> pa.Table:
    """The changes that a target does not have."""
    if not applied.version:
        return rows
    version = versions_of(rows)
    later = pc.greater(version, applied.version)
    if applied.seq is not None:
        same = pc.equal(version, applied.version)
        later = pc.or_(later, pc.and_(same, pc.greater(rows["seq"], applied.seq)))
    return rows.filter(later)


def key_value(rows: pa.Table, place: int) -> pa.ChunkedArray:
    """Values of a column of the key: of a deleted row those that it had."""
    gone = pc.equal(rows["op"], "d")
    return pc.if_else(gone, rows[f"b{place}"], rows[f"a{place}"])


def last_of(versions: pa.ChunkedArray, numbers: pa.ChunkedArray) -> AppliedVersion:
    """The last change of some: numbers rise through the whole log of a source, as versions do."""
    return AppliedVersion(pc.max(versions).as_py(), pc.max(numbers).as_py())
