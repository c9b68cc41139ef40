"""Rows of the log as merged tables need them. Works on whole Arrow columns: no Python per row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from sinks.merged.applied import AppliedVersion


def table_of(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The rows of a batch as a table."""
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def versions_of(rows: pa.Table) -> pa.ChunkedArray:
    """The version of each row: one number of the nanoseconds and logical part of its timestamp."""
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
    """The values of a key column; for a deleted row, the value before the delete."""
    gone = pc.equal(rows["op"], "d")
    return pc.if_else(gone, rows[f"b{place}"], rows[f"a{place}"])


def require_key_values(rows: pa.Table, schema: TableSchema, topic: str) -> None:
    """Check that each row can be found by its key. A delete without one finds none, rightly: the
    row never got there.

    Raises:
        ChangefeedError: CF5006, a column of the key is NULL.
    """
    for place in () if schema.keyless else schema.key:
        values = rows[f"a{place}"]
        if not values.null_count:
            continue
        lost = pc.sum(pc.and_not(pc.is_null(values), pc.equal(rows["op"], "d"))).as_py()
        if lost:
            column = schema.columns[place]
            raise ChangefeedError(
                Code.SINK_CANNOT_TAKE_TABLE,
                f"{schema.table}: column {column.name} is in the key, and has no value in a row",
                detail=f"target {topic}, source type {column.type_name}, {lost} of {len(rows)} "
                "rows",
                hint="give these rows a value at the source, or leave the table out of the feed, "
                "then RESUME.",
                target=topic,
                about_row=True,
            )


def last_of(versions: pa.ChunkedArray, numbers: pa.ChunkedArray) -> AppliedVersion:
    """The last of some changes. Sequence numbers rise through a source's log, as versions do."""
    return AppliedVersion(pc.max(versions).as_py(), pc.max(numbers).as_py())


def plain_decimals(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Decimals in log form without digits that mean nothing, so that equal ones are equal texts."""
    broken = pc.match_substring(values, ".")
    short = pc.if_else(broken, pc.replace_substring_regex(values, r"\.?0+$", ""), values)
    bare = pc.replace_substring_regex(short, r"^(-?)0*(\d)", r"\1\2")
    return pc.if_else(pc.equal(bare, "-0"), "0", bare)
