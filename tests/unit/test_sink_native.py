"""Arrow columns as pointers: every value where it is, every null a null pointer."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.kafka.channel import _pointers, parse_headers

KINDS = [pa.binary(), pa.large_binary()]


def values(column: pa.Array) -> list[bytes | None]:
    addresses, sizes = _pointers(column)
    return [
        ctypes.string_at(address, size) if address else None
        for address, size in zip(addresses.tolist(), sizes.tolist(), strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None)
@given(data=st.lists(st.none() | st.binary(max_size=20)), cut=st.integers(0, 5))
def test_pointers_read_back(kind: pa.DataType, data: list[bytes | None], cut: int) -> None:
    column = pa.array(data, kind)
    assert values(column) == data
    assert values(column.slice(cut)) == data[cut:]
    assert values(column.slice(0, cut)) == data[:cut]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_columns(kind: pa.DataType) -> None:
    assert values(pa.array(["ä", None, ""], kind)) == ["ä".encode(), None, b""]


def test_a_column_of_nothing() -> None:
    assert values(pa.nulls(3)) == [None, None, None]
    assert values(pa.nulls(2, pa.binary())) == [None, None]
    assert values(pa.array([], pa.binary())) == []


def test_only_empty_values_are_not_null() -> None:
    assert values(pa.array([b"", b""], pa.binary())) == [b"", b""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        ("{}", []),
        ('{"a": "x", "b": "ü"}', [("a", b"x"), ("b", "ü".encode())]),
        (
            '{"n": 1, "t": true, "o": {"k": null}}',
            [("n", b"1"), ("t", b"true"), ("o", b'{"k": null}')],
        ),
    ],
)
def test_headers(text: str | None, expected: list[tuple[str, bytes]]) -> None:
    assert parse_headers(text) == expected
