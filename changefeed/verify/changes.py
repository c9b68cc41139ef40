"""Rows of a source that changed after they were read, as the change log has it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import RowKey, TableSchema
from changefeed.log import LogReader

#: What is looked at in one go.
_ROWS, _BYTES = 200_000, 64 * 1024 * 1024


def changed_since(
    log: Path, schema: TableSchema, position: Position, keys: Collection[RowKey]
) -> frozenset[RowKey] | None:
    """Those of the keys whose rows changed after ``position``, up to the end of the log.

    No target can have more than the log: a row that is not among them is in the target as it was
    at the source at ``position``, if the feed has delivered everything up to there.

    Args:
        log: folder of the source's change log.
        schema: the table as it was read.
        keys: as the log has them; none: every key that changed.

    Returns:
        None if the log cannot say it: all rows may have changed (TRUNCATE, another shape), or it
        does not reach back to ``position``.
    """
    found: set[RowKey] = set()
    with LogReader(log) as reader:
        try:
            since = reader.timestamp_at(position)
        except ValueError:
            return None
        frontier = reader.frontier
        while since is not None and frontier is not None and since < frontier.at:
            try:
                piece = reader.slice({schema.table: since}, frontier.at, _ROWS, _BYTES)
            except ChangefeedError as error:
                if error.code is Code.POSITION_TOO_OLD:
                    return None
                raise
            if piece.control_events or any(
                [c.name for c in p.schema.key_columns] != [c.name for c in schema.key_columns]
                for p in piece.pieces
            ):
                return None
            for part in piece.pieces:
                found |= _keys(part.load(), part.schema, keys)
            since = piece.upto
    return None if since is None else frozenset(found)


def _keys(rows: pa.Table, schema: TableSchema, keys: Collection[RowKey]) -> set[RowKey]:
    """Keys of the changed rows. That of a delete is in the image before it."""
    columns: list[pa.ChunkedArray] = []
    for place, i in enumerate(schema.key):
        column = rows[f"a{i}"]
        if f"b{i}" in rows.column_names:
            column = pc.if_else(pc.equal(rows["op"], "d"), rows[f"b{i}"], column)
        if keys:
            # One column after the other: few rows reach Python.
            wanted = pc.is_in(column, pa.array([key[place] for key in keys], column.type))
            rows, column = rows.filter(wanted), column.filter(wanted)
            columns = [each.filter(wanted) for each in columns]
        columns.append(column)
    found = set(zip(*(column.to_pylist() for column in columns), strict=True))
    return found & set(keys) if keys else found
