"""Rows of a COPY found by their marks, against the protocol's own lengths."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from changefeed.sources.postgres.copyout import CopyBlock, blank, find_rows, parse_csv

#: Lengths whose own bytes hold a "d" and a zero, and those around them.
AWKWARD = [0, 1, 96, 95, 97, 0x6400 - 4, 0x6463, 0x6464 - 4, 0x10000, 0x640000 - 4, 0x64_0064]

rows = st.lists(
    st.one_of(
        st.integers(0, 200).map(lambda n: b"d" * n),
        st.sampled_from(AWKWARD).map(lambda n: b"x" * max(n - 1, 0)),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).map(
            str.encode
        ),
    ),
    max_size=12,
)


def framed(texts: list[bytes]) -> bytes:
    return b"".join(b"d" + struct.pack(">i", len(t) + 5) + t + b"\n" for t in texts)


@settings(deadline=None)  # one example is of 16 MB
@given(before=st.binary(max_size=10), texts=rows, cut=st.integers(0, 400))
@example(before=b"", texts=[b"x" * (0x6400 - 5)] * 3, cut=0)
@example(before=b"", texts=[b"a", b"y" * (1 << 24), b"b"], cut=0)
@example(before=b"Z", texts=[b"a"], cut=1)
def test_the_marks_are_the_rows(before: bytes, texts: list[bytes], cut: int) -> None:
    data = before + framed(texts)
    data = data[: max(len(before), len(data) - cut)]
    starts, place = [], len(before)
    while place + 5 <= len(data):
        following = place + 1 + int.from_bytes(data[place + 1 : place + 5])
        if following > len(data):
            break
        starts.append(place)
        place = following
    found, end = find_rows(np.frombuffer(data, np.uint8), len(before))
    assert found.tolist() == starts
    assert end == place


@given(
    texts=st.lists(st.binary(min_size=1, max_size=9).map(lambda b: b.hex().encode()), min_size=1)
)
def test_blanked_rows_parse_to_their_values(texts: list[bytes]) -> None:
    data = np.frombuffer(framed([t + b',"",' for t in texts]), np.uint8).copy()
    found, end = find_rows(data, 0)
    blank(data, found)
    values, empty, null = parse_csv(CopyBlock(data.data[:end], marked=True), 3)
    assert values.to_pylist() == [t.decode() for t in texts]
    assert empty.to_pylist() == [""] * len(texts)
    assert null.to_pylist() == [None] * len(texts)


def test_messages_that_follow_the_rows_are_left_alone() -> None:
    data = framed([b"a", b"b"]) + b"c\0\0\0\4"
    found, end = find_rows(np.frombuffer(data, np.uint8), 0)
    assert (len(found), end) == (2, len(data) - 5)


@pytest.mark.parametrize("data", [b"", b"d", b"d\0\0\0", b"c\0\0\0\4"])
def test_nothing_complete_is_no_row(data: bytes) -> None:
    found, end = find_rows(np.frombuffer(data, np.uint8), 0)
    assert (len(found), end) == (0, 0)
