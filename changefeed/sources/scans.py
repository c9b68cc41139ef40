"""What initial scans share: the columns that are read, and why a scan starts again."""

from __future__ import annotations

from collections.abc import Sequence

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName, TableSchema


def chosen_columns(table: TableSchema, columns: Sequence[int] | None) -> tuple[int, ...]:
    """The positions that a part reads: ``columns`` (None: all) and those of the key."""
    if columns is None:
        return tuple(range(len(table.columns)))
    key = () if table.keyless else table.key
    return tuple(sorted({*columns, *key}))


def table_changed(table: TableName, why: str) -> ChangefeedError:
    """CF2201: the scan of the table must start again under a new snapshot."""
    return ChangefeedError(
        Code.SCAN_INTERRUPTED,
        f"table {table} changed during its initial scan: {why}",
        hint="the scan of the table is repeated automatically.",
    )


def snapshot_gone(why: str) -> ChangefeedError:
    """CF2201: the image is not there any longer."""
    return ChangefeedError(
        Code.SCAN_INTERRUPTED,
        "the snapshot of the initial scan is gone",
        detail=why,
        hint="the scan of the table is repeated automatically.",
    )
