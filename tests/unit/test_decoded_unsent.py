"""Values that were not sent: what a transaction tells of them, and their names in the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows
from changefeed.sources.decoded.unsent import fill_from_transaction, missing_column

SCHEMA = TableSchema(
    TableName("s", "d", "t"),
    tuple(Column(name, "int", LogicalType.parse("int32")) for name in ("id", "n", 'w"')),
    (0,),
)

#: Message, operation, key, then ``n`` and ``w``; ``...`` was not sent.
Row = tuple[int, int, int, object, object]


def decoded(*rows: Row) -> DecodedRows:
    message, op, key, *values = zip(*rows, strict=True)
    unsent = {i: np.array([v is ... for v in some]) for i, some in enumerate(values, start=1)}
    keys = pa.array(key, pa.int32())
    after = [pa.array([None if v is ... else v for v in some], pa.int32()) for some in values]
    return DecodedRows(
        np.array(message), np.array(op, np.uint8), [keys, *after], [keys], [keys], unsent
    )


def filled(rows: DecodedRows, transaction: list[int]) -> list[tuple[object, object]]:
    found = fill_from_transaction(SCHEMA, rows, np.array(transaction))
    columns = [
        [... if gone else value for gone, value in zip(found.unchanged[i], values, strict=True)]
        for i, values in ((i, found.after[i].to_pylist()) for i in (1, 2))
    ]
    return list(zip(*columns, strict=True))


def test_the_nearest_earlier_row_that_has_the_value_tells_it() -> None:
    rows = decoded(
        (0, CREATED, 1, 10, None),
        (1, UPDATED, 1, ..., 2),
        (2, UPDATED, 2, 5, ...),
        (3, UPDATED, 1, ..., ...),
        (4, UPDATED, 2, ..., ...),
    )
    assert filled(rows, [0] * 5) == [(10, None), (10, 2), (5, ...), (10, 2), (5, ...)]


def test_another_transaction_tells_nothing() -> None:
    rows = decoded((0, CREATED, 1, 10, 1), (1, UPDATED, 1, ..., 2), (2, UPDATED, 1, 3, ...))
    assert filled(rows, [0, 1, 1]) == [(10, 1), (..., 2), (3, 2)]


def test_a_changed_key_goes_on_from_the_row_under_the_old_one() -> None:
    rows = decoded(
        (0, CREATED, 1, 10, 11),
        (1, DELETED, 1, None, None),
        (1, CREATED, 2, ..., 12),
        (2, DELETED, 2, None, None),
        (2, CREATED, 1, ..., ...),
    )
    assert filled(rows, [0] * 5)[2::2] == [(10, 12), (10, 12)]


def test_a_row_that_was_deleted_tells_nothing_of_the_next_one() -> None:
    rows = decoded(
        (0, UPDATED, 1, 10, 11), (1, DELETED, 1, None, None), (2, CREATED, 1, ..., 1),
    )  # fmt: skip
    assert filled(rows, [0, 0, 0])[2] == (..., 1)


def test_the_log_names_what_is_missing() -> None:
    unsent = {
        1: np.array([False, True, True, False]),
        2: np.array([False, False, True, True]),
    }
    names = missing_column(SCHEMA, unsent, 4).to_pylist()
    assert names == [None, '["n"]', '["n", "w\\""]', '["w\\""]']
    assert missing_column(SCHEMA, {1: np.zeros(2, np.bool_)}, 2).to_pylist() == [None, None]
    assert missing_column(SCHEMA, {}, 2).to_pylist() == [None, None]
