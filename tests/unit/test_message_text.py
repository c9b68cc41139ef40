"""Text made ready for JSON by Arrow: exact, whatever the array's layout."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from changefeed.encoding.json_tokens import clean_columns, escaped, is_clean
from tests.helpers.message_model import json_string

VALUES = st.lists(
    st.none() | st.text(max_size=8) | st.text(st.sampled_from('"\\\n\x00\x1fé\x7f'), max_size=8),
    max_size=8,
)


@settings(deadline=None)
@given(VALUES, st.integers(0, 3), st.booleans())
def test_escaped_is_exact(values: list[str | None], skip: int, large: bool) -> None:
    array = pa.array(values, pa.large_string() if large else pa.string())[skip:]
    wanted = [None if v is None else json_string(v)[1:-1] for v in values[skip:]]
    assert escaped(array).to_pylist() == wanted


@settings(deadline=None)
@given(VALUES, st.integers(0, 3))
def test_clean_means_nothing_to_escape(values: list[str | None], skip: int) -> None:
    array = pa.array(values, pa.string())[skip:]
    wanted = all(v is None or json_string(v)[1:-1] == v for v in values[skip:])
    assert is_clean(array) == wanted
    assert is_clean(pa.chunked_array([array, array])) == wanted


def test_clean_columns_of_a_table() -> None:
    table = pa.table({"a0": ["x", None], "a1": ["x", '"'], "a2": ["\n", "x"]})
    assert clean_columns(table, ["a0", "a1"]) == {"a0"}
    assert clean_columns(table.slice(0, 1), ["a0", "a1"]) == {"a0", "a1"}
