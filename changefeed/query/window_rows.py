"""Windows of changes: from rows of a table's log to a batch for Spark, and to rows of the result.

A batch has one row for each change: the row after it, or the key of a deleted row. The groups that
Spark computes for whole windows become rows of the log of the result: inserts, committed in the
last instant of their window.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.arrow import METADATA
from changefeed.query.changes import change_images, one_piece
from changefeed.query.grouped import END
from changefeed.query.model import CompiledQuery
from changefeed.query.types import log_text
from changefeed.query.windows import WINDOW_FIELD, through, windows_of

#: The column of a batch that has the sequence number of each change.
SEQ: Final = "__cf_seq"


def window_batch(query: CompiledQuery, rows: pa.Table) -> pa.Table:
    """The changes of a table with the window and the sequence number of each.

    Args:
        query: with GROUP BY, compiled for the schema of ``rows``.
        rows: of the table's log.

    Raises:
        ChangefeedError: CF4001 a value that the query reads is missing or does not fit.
    """
    images, order = change_images(query, rows)
    wall, seq = (one_piece(rows[name]).take(order) for name in ("wall", "seq"))
    with_windows = images.append_column(WINDOW_FIELD, windows_of(wall, _length(query)))
    return with_windows.append_column(SEQ, seq)


def result_rows(query: CompiledQuery, groups: pa.Table, last_seq: int) -> pa.Table:
    """The groups of whole windows as rows of the log of the result, in the order of windows.

    Args:
        groups: Spark's result: when the window of each ends, and the columns ``c<i>``.
        last_seq: sequence number of the last change in the windows. No group is without a change,
            so numbers up to it rise from window to window.
    """
    count = groups.num_rows
    schema = query.schema.log_schema()
    values = [
        log_text(column, one_piece(groups[f"c{i}"])).cast(column.arrow)
        for i, column in enumerate(query.schema.columns)
    ]
    ends = one_piece(groups[END])
    table = pa.table({END: ends} | {f"a{i}": each for i, each in enumerate(values)})
    # The order must not depend on the job's tasks: a repeated window must give the same rows.
    by = [(END, "ascending"), *((f"a{i}", "ascending") for i in query.schema.key)]
    table = table.take(pc.sort_indices(table, sort_keys=by))
    ends = one_piece(table[END])
    places = np.arange(count, dtype=np.int64)
    _, first, sizes = np.unique(ends.to_numpy(), return_index=True, return_counts=True)
    made: dict[str, pa.Array] = {
        "op": pa.array(np.full(count, "c", object), pa.string()),
        "wall": pc.add(pc.multiply(ends, 1_000), through(0).wall),
        "logical": pa.array(np.zeros(count, np.int32)),
        "seq": pa.array(last_seq - count + 1 + places),
        "ord": pa.array((places - np.repeat(first, sizes)).astype(np.int32)),
        "xid": pa.array(np.zeros(count, np.int64)),
        "commit_us": pc.subtract(ends, 1),
        "last": pa.array(np.ones(count, bool)),
        "missing": pa.nulls(count, pa.string()),
    }
    if made.keys() != {field.name for field in METADATA}:
        raise AssertionError("the log has other columns of its own")
    made |= {f"a{i}": one_piece(table[f"a{i}"]) for i in range(len(values))}
    return pa.Table.from_arrays(
        [made[f.name].cast(f.type) if f.name in made else pa.nulls(count, f.type) for f in schema],
        schema=schema,
    )


def _length(query: CompiledQuery) -> int:
    if query.window is None:
        raise AssertionError("the query groups nothing")
    return query.window
