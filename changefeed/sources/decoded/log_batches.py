"""Rows of one table as a record batch of the change log, in the order of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch
from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.rows import Operations
from changefeed.sources.decoded.spans import Places
from changefeed.sources.decoded.superseded import CollapsedRows


class CommitFacts(Protocol):
    """What rows carry of their transaction."""

    @property
    def at(self) -> Timestamp:
        """Its timestamp in the log."""
        ...

    @property
    def xid(self) -> int:
        """Its number at the source."""
        ...

    @property
    def commit_us(self) -> int:
        """When it committed, in microseconds since 1970."""
        ...


class LogBatches:
    """Makes batches; keeps the Arrow schema of each table."""

    def __init__(self) -> None:
        self._schemas: dict[TableName, tuple[TableSchema, pa.Schema]] = {}

    def make(
        self,
        schema: TableSchema,
        after: Sequence[pa.Array],
        marked: CollapsedRows,
        commits: Sequence[CommitFacts],
        *,
        of: Places,
        number: Places,
        ordinal: Places,
        missing: pa.Array | None = None,
    ) -> ChangeBatch:
        """The batch of some rows.

        Args:
            after: the images after, column by column.
            marked: what the rows did, and the images before.
            commits: the transactions of the rows.
            of: for each row, the place of its transaction in ``commits``.
            number: of each row in the log.
            ordinal: of each row in its transaction.
            missing: names of columns that the source did not send, by row; None: it sent all.
        """
        walls = np.array([commit.at.wall for commit in commits], np.int64)
        logicals = np.array([commit.at.logical for commit in commits], np.int32)
        xids = np.array([commit.xid for commit in commits], np.int64)
        micros = np.array([commit.commit_us for commit in commits], np.int64)
        arrays = [
            _letters(marked.op),
            pa.array(walls[of]),
            pa.array(logicals[of]),
            pa.array(number.astype(np.int64)),
            pa.array(ordinal.astype(np.int32)),
            pa.array(xids[of]),
            pa.array(micros[of]),
            marked.last_column(),
            pa.nulls(len(of), pa.string()) if missing is None else missing,
            *after,
            *marked.before,
        ]
        return ChangeBatch(
            schema, pa.RecordBatch.from_arrays(arrays, schema=self._log_schema(schema))
        )

    def _log_schema(self, schema: TableSchema) -> pa.Schema:
        known = self._schemas.get(schema.table)
        if known is None or known[0] is not schema:
            known = (schema, schema.log_schema())
            self._schemas[schema.table] = known
        return known[1]


def _letters(op: Operations) -> pa.Array:
    offsets = np.arange(len(op) + 1, dtype=np.int32)
    return pa.StringArray.from_buffers(len(op), pa.py_buffer(offsets), pa.py_buffer(op))
