"""Tables of which the binlog has only parts of rows (``binlog_row_image`` MINIMAL and NOBLOB).

Which of them lack values that nothing else shows, and what is said of the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.decoded.rows import CREATED, DecodedRows
from changefeed.sources.decoded.spans import Mask
from changefeed.sources.decoded.superseded import CollapsedRows
from changefeed.sources.decoded.unsent import missing_column
from changefeed.sources.mysql.decode import INSERT
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.tablemap import TableShape
from changefeed.sources.mysql.waiting import WatchedTable

#: Rows before a change count as whole again when the binlog had no part of one for so long.
CALM_SECONDS = 10


class PartialTables:
    """Tables with rows that have values which neither the binlog nor an older row has."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._found: dict[TableName, TableSchema] = {}
        #: Tables of a transaction that was stored: with unsent values, with keys written twice.
        self._unsent: dict[TableName, TableSchema] = {}
        self._twice: set[TableName] = set()

    def add(
        self,
        schema: TableSchema,
        unsent: Mapping[int, Mask],
        marked: CollapsedRows,
        *,
        together: bool,
    ) -> None:
        """Rows of a table, all of their transactions ``together`` or a part of one."""
        stays = marked.stays
        if not together and stays is not None and not stays.all():
            self._twice.add(schema.table)
        lacks = np.zeros(len(marked.op), np.bool_)
        for where in unsent.values():
            lacks |= where
        if not lacks.any() or self._shapes.completed(schema):
            return
        if not together:
            self._unsent[schema.table] = schema
        made = lacks & (marked.op == CREATED)
        if (made if stays is None else made & stays).any():
            self._found[schema.table] = schema

    @property
    def lacking(self) -> list[TableSchema]:
        """The tables: a row was made with such values, or the last of several changes of a key
        has some that an earlier one may have had."""
        twice = {name: s for name, s in self._unsent.items() if name in self._twice}
        return list({**self._found, **twice}.values())


def may_be_raised(table: WatchedTable, operation: int) -> bool:
    """Whole rows may show that a table's rows before a change are whole again."""
    return table.schema.before_image is BeforeImage.KEY and operation != INSERT


def missing_names(schema: TableSchema, rows: DecodedRows) -> pa.Array | None:
    """The names of the unsent columns of each row; None: all were sent."""
    return missing_column(schema, rows.unchanged, len(rows)) if rows.unchanged else None


def parts_only(shape: TableShape, why: str) -> ChangefeedError:
    """CF2003 for rows that cannot be completed."""
    return ChangefeedError(
        Code.SOURCE_NOT_SET_UP,
        f"the binlog has only parts of the rows of {shape.database}.{shape.table}, {why}",
        hint="SET GLOBAL binlog_row_image = 'FULL'; sessions that are open keep the old"
        " setting until they end. Then RESCAN the feeds of this source.",
    )
