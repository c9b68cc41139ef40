"""Whatever a server sends, the outcome is rows or a ChangefeedError, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import psycopg
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.postgres.columns import Block, decode_columns
from changefeed.sources.postgres.pgoutput import Inbox, read_truncate
from changefeed.sources.postgres.rows import decode_rows
from changefeed.sources.postgres.types import schema_of
from tests.helpers import garbage_child
from tests.helpers.postgres_messages import Table, frame, row, truncate

TEXT = Table(1, "notes", {"id": 23, "word": 25}, ("id",))


def scanned(data: bytes) -> Inbox:
    inbox = Inbox(1 << 20)
    inbox.data[: len(data)] = data
    inbox.filled = len(data)
    inbox.scan()
    return inbox


@pytest.mark.parametrize(("kind", "seeds"), [("messages", 50), ("copy", 80), ("conversation", 20)])
def test_changed_conversations_are_read_or_refused(kind: str, seeds: int) -> None:
    """More seeds by hand: ``python -m tests.helpers.garbage_child messages 0 10000``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.garbage_child", kind, "0", str(seeds)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_announced_length_takes_no_memory_until_the_bytes_are_there() -> None:
    inbox = Inbox(1 << 20)
    header = b"d" + (900 << 20).to_bytes(4)
    inbox.fill(lambda view: _copy(view, header))
    inbox.scan()
    for _ in range(12):  # until the buffer has to grow
        inbox.fill(lambda view: _copy(view, b"x" * 100_000))
    assert 1 << 20 < len(inbox.data) < 8 << 20


def _copy(view: memoryview, data: bytes) -> int:
    view[: len(data)] = data
    return len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"d\xff\xff\xff\xffw" + bytes(60),
        b"d\0\0\0\3w" + bytes(60),
        b"d\0\0\0\x10k" + bytes(60),
        b"N\0\0\0\0" + bytes(60),
    ],
)
def test_lengths_that_no_message_has_are_refused(data: bytes) -> None:
    with pytest.raises(ChangefeedError) as caught:
        scanned(data)
    assert caught.value.code.number == "CF2105"
    assert "bytes" in caught.value.message


def test_a_truncate_names_as_many_tables_as_it_counts() -> None:
    good = scanned(truncate([TEXT]))
    assert read_truncate(good.data, good.marks[0].place, streamed=False) == [1]
    bad = scanned(frame(b"T" + b"\xff\xff\xff\xff\0" + bytes(4)))
    with pytest.raises(ChangefeedError, match="TRUNCATE of 4294967295 tables"):
        read_truncate(bad.data, bad.marks[0].place, streamed=False)


def decoders(table: Table, *messages: bytes) -> list[Callable[[], DecodedRows]]:
    """Both, for these messages."""
    inbox, schema = scanned(b"".join(messages)), schema_of(table.details(), "shop")
    tags = np.array(inbox.rows, np.intp)
    return [
        lambda: decode_rows(inbox.data, inbox.rows, schema),
        lambda: decode_columns(Block(inbox.bytes()), tags, schema),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"h\xc3\xa9", b"h\xff\xa9"), "column 'word' .* not valid UTF-8"),
        ((b"t\0\0\0\3h", b"t\xff\xff\xff\xf0h"), "value"),
        ((b"t\0\0\0\3h", b"x\0\0\0\3h"), "unknown kind"),
        ((b"t\0\0\0\3h", b"b\0\0\0\3h"), "unknown kind"),
        ((b"t\0\0\0\x017", b"t\0\0\0\x01q"), "cannot be read"),
    ],
)
def test_both_decoders_refuse_values_that_cannot_be(
    change: tuple[bytes, bytes], message: str
) -> None:
    data = row("I", TEXT, ["7", "hé"])
    assert change[0] in data
    for decode in decoders(TEXT, data.replace(*change)):
        with pytest.raises(ChangefeedError, match=message) as caught:
            decode()
        assert caught.value.code.number == "CF2105"


def test_a_value_may_end_where_the_bytes_end() -> None:
    data = bytearray(row("I", TEXT, ["7", "last"]))
    found = decode_rows(data, scanned(bytes(data)).rows, schema_of(TEXT.details(), "shop"))
    assert found.after[1].to_pylist() == ["last"]


@pytest.mark.parametrize("length", [0, 3, 2**31, 2**32 - 1])
def test_copy_refuses_a_message_of_no_length(length: int) -> None:
    raw = garbage_child.raw_copy(b"d" + length.to_bytes(4) + b"1,a\n" * 20_000)
    with pytest.raises(psycopg.OperationalError, match=r"message of|closed"):
        list(raw)


def test_copy_ends_where_the_rows_do_not_lead_to_the_end() -> None:
    """It looped for ever on a last row that is longer than the answer."""
    row_ = garbage_child.message(b"d", b"1,a\n")
    longer = b"d" + (500).to_bytes(4) + b"2,b\n"
    raw = garbage_child.raw_copy(row_ + longer + garbage_child.READY)
    with pytest.raises(psycopg.OperationalError, match="do not add up"):
        list(raw)
