"""Rows that a target cannot hold, among the differences of their table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.verify.unfit import UnfitRows
from sinks.base import Batch, Difference, Target
from sinks.null.sink import NullSink

T = TableName("shop", "public", "t")
COLUMNS = (
    Column("a", "text", LogicalType(Kind.TEXT)),
    Column("n", "numeric", LogicalType(Kind.DECIMAL)),
)


class NoNumbers(NullSink):
    """Takes no NaN."""

    def examine(self, batch: Batch) -> None:
        if '"NaN"' in batch.rows["a1"].to_pylist():
            raise ChangefeedError(Code.SINK_CANNOT_TAKE_TABLE, "NaN", about_row=True)


def unfit(*, keyless: bool = False, most: int = 9) -> tuple[UnfitRows, list[str]]:
    """The rows of ``é"``, ``b`` and ``c`` of which the first two do not fit, and those left."""
    schema = TableSchema(T, COLUMNS, (0, 1) if keyless else (0,), keyless=keyless)
    rows = pa.table({"a0": ['é"', "b", "c"], "a1": ['"NaN"', '"NaN"', "1.50"]})
    made = UnfitRows(NoNumbers("null://"), "f", Target(T, "t"), schema, most)
    left = list(made.but_these([scan_rows(schema, rows, Timestamp(9))]))
    return made, [key for batch in left for key in batch["a0"].to_pylist()]


def test_an_older_version_makes_a_missing_row_a_changed_one() -> None:
    made, left = unfit()
    assert left == ["c"]
    older = Difference("extra", '["é\\""]', None, '{"a": "é\\"", "n": "1"}', ('é"',))
    other = Difference("extra", '["d"]', None, "{}", ("d",))
    assert made.among([older, other]) == [
        Difference("changed", older.key, '{"a": "é\\"", "n": "NaN"}', older.target, ('é"',)),
        Difference("missing", '["b"]', '{"a": "b", "n": "NaN"}', None, ("b",)),
        other,
    ]


@pytest.mark.parametrize("keyless", [False, True])
def test_no_more_are_named_than_asked_for(keyless: bool) -> None:
    made, left = unfit(keyless=keyless, most=1)
    (found,) = made.among([Difference("extra", '["d"]', None, "{}", ("d",))])
    assert (left, found.kind, found.values) == (["c"], "missing", () if keyless else ('é"',))
