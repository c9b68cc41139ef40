"""The neutral log form: what is in it, and what is not."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from changefeed.core.log_form import problem
from changefeed.core.schema import Column
from changefeed.core.types import LogicalType


def column(logical: str) -> Column:
    return Column("c", logical, LogicalType.parse(logical))


@pytest.mark.parametrize(
    "logical, right, wrong",
    [
        ("float64", ["1.5", "-0", "1e+30", '"NaN"', '"-Infinity"'], ["NaN", "1.", "+1", "01"]),
        ("decimal(12,2)", ["1.50", "0", '"NaN"'], ["1e3", ".5", "nan", "1,5"]),
        ("bytes", ["\\x", "\\xdead00"], ["\\xDE", "\\xabc", "dead"]),
        (
            "date",
            ["2024-03-31", "12024-01-01", "0044-03-15 BC", "infinity"],
            ["24-3-1", "0-0-0 AD"],
        ),
        ("time", ["00:00:00", "23:59:59.123456", "24:00:00"], ["25:00:00", "1:02:03", "00:00:00."]),
        ("timetz", ["01:02:03+02", "01:02:03.5-03:30"], ["01:02:03", "01:02:03Z"]),
        ("timestamp", ["2024-03-31T01:02:03.5", "-infinity"], ["2024-03-31 01:02:03"]),
        (
            "timestamptz",
            ["2024-03-31T01:02:03Z", "0044-03-15T12:00:00+00 BC"],
            ["2024-03-31T01:02:03"],
        ),
        (
            "uuid",
            ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
            ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
        ),
        ("json", ['{"a": 1}', "null", "1e400"], ["{", "[1,\n2]", ""]),
        ("array<int32>", ["[1,null]", "[]"], ["{1,2}", "1"]),
        ("text", ["", "a\nb", "\x00"], []),
    ],
)
def test_texts(logical: str, right: list[str], wrong: list[str]) -> None:
    assert problem(column(logical), pa.array([None, *right], pa.string())) == ""
    for text in wrong:
        found = problem(column(logical), pa.array([*right, text], pa.string()))
        assert repr(text) in found, text


def test_what_a_column_is_kept_as() -> None:
    whole = column("int64")
    assert problem(whole, pa.array([1, None], pa.int64())) == ""
    assert "values are int32" in problem(whole, pa.array([1], pa.int32()))


@pytest.mark.parametrize("text", ["uuid", "decimal", "decimal(3,-2)", "array<array<decimal(2,5)>>"])
def test_a_logical_type_has_one_text(text: str) -> None:
    assert str(LogicalType.parse(text)) == text
    assert pickle.loads(pickle.dumps(LogicalType.parse(text))) == LogicalType.parse(text)


@pytest.mark.parametrize("text", ["money", "array", "decimal(3)", "array<money>", ""])
def test_a_text_that_is_no_logical_type(text: str) -> None:
    with pytest.raises(ValueError, match="no logical type"):
        LogicalType.parse(text)
