"""The receive buffer of a replication stream: what it finds, what it keeps, how much it takes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.decoded.spans import PADDING
from changefeed.sources.postgres import pgoutput
from changefeed.sources.postgres.garbage import LONGEST_MESSAGE
from changefeed.sources.postgres.pgoutput import Cut, Inbox, ServerFailed
from tests.helpers.postgres_messages import (
    Table,
    begin,
    commit,
    frame,
    keepalive,
    logical,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
)

T = Table(7, "t", {"id": 23, "word": 25}, ("id",))
INSERT = row("I", T, ["1", "a"])
LIMIT = 1 << 20
#: Microseconds of a commit in 2024.
NOW = 1_704_067_200_000_000


def put(inbox: Inbox, data: bytes) -> None:
    """Receive all of it, in as many pieces as there is room for."""
    left = memoryview(data)

    def receive(into: memoryview) -> int:
        count = min(len(into), len(left))
        into[:count] = left[:count]
        return count

    while left:
        count = inbox.fill(receive)
        assert count, "there is always room"
        left = left[count:]


def scanned(
    *pieces: bytes, limit: int = LIMIT, takes_logical: bool = False, kept: bool = False
) -> Inbox:
    inbox = Inbox(limit, logical=takes_logical, kept=kept)
    for piece in pieces:
        put(inbox, piece)
        inbox.scan()
    return inbox


def tags(inbox: Inbox) -> tuple[list[int], list[tuple[int, str]]]:
    """Places of the rows, and the marks: after how many rows, and the letter."""
    return inbox.rows, [(mark.rows, chr(mark.tag)) for mark in inbox.marks]


def refused(data: bytes) -> str:
    with pytest.raises(ChangefeedError) as caught:
        scanned(data)
    return f"{caught.value.code.number} {caught.value.message}"


STREAM = b"".join(
    (
        begin(90, NOW, 5),
        relation(T),
        INSERT,
        row("U", T, ["1", "b"]),
        row("D", T, None, ["1", None]),
        keepalive(91, NOW),
        truncate([T]),
        commit(90, 98, NOW),
        stream_start(6, True),
        row("I", T, ["2", "a"], xid=6),
        relation(T, xid=6),
        keepalive(99, NOW),
        stream_stop(),
        stream_commit(6, 110, 118, NOW),
        stream_abort(8, 9),
        begin(120, NOW, 7),
        INSERT,
    )
)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_stream_is_what_it_is_however_it_arrives(piece: int) -> None:
    """What lies between Stream Start and Stop is looked at later: nothing of it is found here."""
    whole = scanned(STREAM)
    rows, marks = tags(whole)
    assert [chr(whole.data[place]) for place in rows] == list("IUDI")
    assert marks == list(zip((0, 0, 3, 3, 3, 3, 3, 3, 3, 3), "BRkTCSEcAB", strict=True))
    assert all(whole.data[mark.place] == mark.tag for mark in whole.marks)
    parted = scanned(*(STREAM[i : i + piece] for i in range(0, len(STREAM), piece)))
    assert tags(parted) == (rows, marks)
    assert parted.place == parted.filled == len(STREAM)
    assert (parted.cut(), parted.inside_stream) == (whole.cut(), False)


def test_a_scan_may_end_inside_a_streamed_transaction() -> None:
    inbox = scanned(stream_start(6, True) + row("I", T, ["2", "a"], xid=6))
    assert inbox.inside_stream and not inbox.rows
    put(inbox, row("I", T, ["2", "a"], xid=6) + stream_stop() + INSERT)
    inbox.scan()
    assert not inbox.inside_stream and len(inbox.rows) == 1


@pytest.mark.parametrize("around", [INSERT, b""])
def test_an_answer_is_given_where_one_is_asked_for(around: bytes) -> None:
    """Whatever lies before and behind the keepalive, or is inside of a stream with it."""
    assert scanned(around + keepalive(2**64 - 1, NOW, reply=True) + bytes(2)).reply_wanted
    assert not scanned(around + keepalive(2**64 - 1, -1) + INSERT).reply_wanted
    asked = scanned(around + keepalive(1, NOW, reply=True) + keepalive(2, NOW))
    assert asked.reply_wanted, "the next keepalive takes nothing back"
    assert scanned(stream_start(6, True) + keepalive(1, NOW, reply=True)).reply_wanted


# ------------------------------------------------------------------------------- lengths


def message(kind: bytes, length: int, body: bytes) -> bytes:
    return kind + struct.pack(">I", length) + body


@pytest.mark.parametrize(
    ("inner", "shortest", "what"), [(b"w", 30, "a message"), (b"k", 22, "a keepalive")]
)
def test_a_message_is_as_long_as_its_fields(inner: bytes, shortest: int, what: str) -> None:
    """One that is shorter would be read out of the next."""
    body = inner + bytes(shortest - 5)
    assert len(scanned(message(b"d", shortest, body)).marks) == 1
    shorter = message(b"d", shortest - 1, body[:-1])
    assert refused(shorter) == f"CF2105 the server sent {what} of {shortest - 1} bytes"


def test_a_message_is_as_long_as_the_server_can_build_one() -> None:
    inbox = scanned(message(b"d", LONGEST_MESSAGE, b"w"))
    assert inbox.place == 0, "it is waited for"
    assert "bytes" in refused(message(b"d", LONGEST_MESSAGE + 1, b"w"))


def test_a_length_counts_itself() -> None:
    assert scanned(message(b"N", 4, b"")).place == 5
    assert refused(message(b"N", 3, b"")) == "CF2105 the server sent a message of 3 bytes"


def test_an_error_of_the_server_says_whether_decoding_failed() -> None:
    fields = b"CXX000\0SERROR\0Mcould not read\0\0"
    with pytest.raises(ServerFailed, match="could not read") as caught:
        scanned(INSERT + message(b"E", len(fields) + 4, fields) + INSERT)
    assert caught.value.in_decoding
    ended = b"SFATAL\0C57P01\0Mterminating\0\0"
    with pytest.raises(ServerFailed, match="terminating") as caught:
        scanned(message(b"E", len(ended) + 4, ended))
    assert not caught.value.in_decoding


def test_what_nobody_knows_is_named() -> None:
    assert refused(message(b"d", 40, b"x" + bytes(35))) == (
        "CF2105 unknown replication message 'x'"
    )
    assert refused(message(b"!", 4, b"")) == "CF2105 unexpected protocol message '!' in the stream"


def test_the_end_of_a_stream_is_seen_where_nothing_follows_it() -> None:
    """CopyDone has no byte behind its length."""
    assert refused(message(b"c", 4, b"")) == "CF2101 the server ended the replication stream"


# -------------------------------------------------------------------------------- memory


def test_an_inbox_is_full_when_as_much_as_its_limit_was_scanned() -> None:
    one = frame(b"Y" + bytes(100))
    inbox = Inbox(len(one) * 3)
    for _ in range(3):
        assert not inbox.full
        put(inbox, one)
        inbox.scan()
    assert inbox.full


@pytest.mark.parametrize("limit", [1 << 10, LIMIT, 3 * LIMIT])
def test_a_message_larger_than_the_limit_fits(limit: int) -> None:
    """It is read as it came, with what was there before; memory is for what arrives."""
    word = "x" * (5 * LIMIT)
    large = row("I", T, ["1", word])
    inbox = scanned(INSERT, limit=limit)
    most = 0
    for i in range(0, len(large), 100_000):
        put(inbox, large[i : i + 100_000])
        inbox.scan()
        most = max(most, len(inbox.data))
        assert len(inbox.data) <= max(2 * limit, 2 * inbox.filled + LIMIT) + PADDING
    assert bytes(inbox.data[: inbox.filled]) == INSERT + large
    assert len(inbox.rows) == 2
    grown = len(inbox.data)
    inbox.drop(inbox.cut())
    put(inbox, INSERT)
    inbox.scan()
    assert len(inbox.data) == grown, "room that is there is used again"
    assert (inbox.rows, inbox.filled) == ([pgoutput.TAG_OFFSET], len(INSERT))


def test_a_buffer_is_no_larger_than_its_limit_to_begin_with() -> None:
    assert len(Inbox(1000).data) == 1000 + PADDING
    inbox = Inbox(1 << 30)
    put(inbox, INSERT)
    assert len(inbox.data) <= (1 << 20) + PADDING


def grown(inbox: Inbox, data: bytes) -> int:
    """How many sizes the buffer has while ``data`` comes in pieces: it is copied into each."""
    sizes = {len(inbox.data)}
    for i in range(0, len(data), 100_000):
        put(inbox, data[i : i + 100_000])
        inbox.scan()
        sizes.add(len(inbox.data))
    return len(sizes)


@pytest.mark.parametrize("megabytes", [3, 17])
def test_the_length_of_a_message_says_how_much_room_it_needs(megabytes: int) -> None:
    inbox = Inbox(1000)
    large = row("I", T, ["1", "x" * (megabytes << 20)])
    assert grown(inbox, large) <= 7
    assert len(inbox.rows) == 1
    assert len(inbox.data) <= len(large) + LIMIT + PADDING


def test_a_buffer_that_fills_up_is_copied_a_few_times() -> None:
    inbox = Inbox(16 * LIMIT)
    assert grown(inbox, INSERT * (16 * LIMIT // len(INSERT) + 1)) <= 6
    assert inbox.full


def test_decoders_may_read_a_little_behind_what_was_received() -> None:
    inbox = Inbox(1000)
    assert inbox.fill(len) == inbox.filled == 1000
    assert len(inbox.data) == 1000 + PADDING


@pytest.mark.parametrize("limit", [1 << 16, 4 * LIMIT])
def test_messages_that_are_taken_out_at_once_leave_the_memory_small(limit: int) -> None:
    """Small messages never need more than twice the limit, and a first room."""
    inbox = Inbox(limit)
    many = INSERT * (30_000 // len(INSERT))
    for _ in range(8 * limit // len(many) + 8):
        put(inbox, many)
        inbox.scan()
        if inbox.full:
            inbox.drop(inbox.cut(everything=True))
        assert len(inbox.data) <= max(2 * limit, limit + 2 * LIMIT) + PADDING


def test_bytes_are_those_that_were_received() -> None:
    inbox = scanned(INSERT)
    assert inbox.bytes()[: inbox.filled].tobytes() == INSERT
    assert len(inbox.bytes()) >= inbox.filled + PADDING


# ---------------------------------------------------------------------------------- cuts


def after(*pieces: bytes) -> int:
    return sum(map(len, pieces))


def test_a_cut_leaves_an_open_transaction_whole() -> None:
    first = (begin(90, NOW, 5), INSERT, commit(90, 98, NOW))
    second = (begin(100, NOW, 6), relation(T), INSERT)
    inbox = scanned(*first, *second)
    assert inbox.cut() == Cut(after(*first), 1, 2)
    assert inbox.cut(everything=True) == Cut(after(*first, *second), 2, 4)
    inbox.drop(inbox.cut())
    assert tags(inbox) == ([after(*second) - len(INSERT) + 30], [(0, "B"), (0, "R")])
    assert all(inbox.data[mark.place] == mark.tag for mark in inbox.marks)
    assert inbox.cut() == Cut(0, 0, 0), "it is still open"
    put(inbox, commit(100, 108, NOW))
    inbox.scan()
    assert inbox.cut() == Cut(inbox.place, 1, 3)
    assert inbox.place == inbox.filled == after(*second, first[2])


def test_what_is_cut_in_the_middle_of_a_transaction_is_open_no_more() -> None:
    """Its begin was taken: all that follows may be, too."""
    inbox = scanned(begin(90, NOW, 5), INSERT, INSERT[:40])
    inbox.drop(inbox.cut(everything=True))
    assert (inbox.place, inbox.filled, inbox.rows, inbox.marks) == (0, 40, [], [])
    put(inbox, INSERT[40:] + INSERT)
    inbox.scan()
    assert inbox.cut() == Cut(2 * len(INSERT), 2, 0)


def test_nothing_is_moved_where_nothing_was_taken() -> None:
    """A large transaction that is still arriving is not copied again and again."""
    inbox = scanned(begin(90, NOW, 5), INSERT)
    before = (list(inbox.rows), list(inbox.marks), inbox.filled)
    inbox.drop(inbox.cut())
    assert (inbox.rows, inbox.marks, inbox.filled) == before
    assert inbox.cut() == Cut(0, 0, 0)


# ---------------------------------------------------------------------- logical messages

WITHIN = logical(50, "p", b"x")
ALONE = logical(60, "p", b"y", transactional=False)


def test_logical_messages_are_rows_where_they_are_wanted() -> None:
    inbox = scanned(INSERT, WITHIN, ALONE, INSERT, takes_logical=True)
    assert len(inbox.rows) == 4 and inbox.logical == [1, 2]
    assert tags(inbox)[1] == [(3, "M")], "one of no transaction has a mark"
    assert [inbox.logical_between(0, n) for n in range(5)] == [0, 0, 1, 2, 2]
    assert inbox.logical_between(2, 4) == 1
    assert [inbox.has_table_rows(1, n) for n in (1, 2, 3, 4)] == [False, False, False, True]
    inbox.drop(Cut(after(INSERT, WITHIN), 2, 0))
    assert inbox.logical == [0] and tags(inbox)[1] == [(1, "M")]
    plain = Inbox(LIMIT)
    put(plain, INSERT + WITHIN + ALONE)
    plain.scan()
    assert (len(plain.rows), plain.marks, plain.logical_between(0, 1)) == (1, [], 0)
    assert plain.has_table_rows(0, 1) and not plain.has_table_rows(1, 1)


def test_what_is_kept_of_one_transaction_has_no_messages_of_none() -> None:
    inbox = scanned(ALONE, takes_logical=True, kept=True)
    assert (inbox.logical, inbox.marks) == ([0], [])


# -------------------------------------------------------------------------- small messages


def only(data: bytes) -> tuple[bytearray, int]:
    """A buffer in which the message stands among others, and the place of its tag."""
    inbox = scanned(INSERT + data + INSERT)
    return inbox.data, inbox.marks[0].place


def test_small_messages_have_what_was_sent() -> None:
    assert pgoutput.read_begin(*only(begin(90, NOW, 2**32 - 1))) == (
        pgoutput.Begin(90, NOW, 2**32 - 1)
    )
    assert pgoutput.read_commit(*only(commit(90, 98, NOW))) == pgoutput.Commit(90, 98, NOW)
    streamed = only(stream_commit(6, 110, 118, NOW))
    assert pgoutput.read_commit(*streamed, streamed=True) == pgoutput.Commit(110, 118, NOW)
    assert pgoutput.read_xid(*streamed) == 6
    assert pgoutput.read_abort(*only(stream_abort(8, 9))) == (8, 9)
    for reply in (False, True):
        assert pgoutput.read_keepalive(*only(keepalive(70, NOW, reply))) == (
            pgoutput.Keepalive(70, reply)
        )
    assert pgoutput.read_truncate(*only(truncate([T, T])), streamed=False) == [7, 7]
    assert pgoutput.read_truncate(*only(truncate([T], xid=3)), streamed=True) == [7]
    message = scanned(INSERT, ALONE, takes_logical=True)
    assert pgoutput.read_message_lsn(message.data, message.rows[1]) == 60


@pytest.mark.parametrize("xid", [None, 3])
def test_a_table_is_read_from_its_description(xid: int | None) -> None:
    body = pgoutput.relation_body(*only(relation(T, xid=xid)), streamed=xid is not None)
    columns = (
        pgoutput.WireColumn("id", 23, -1, flagged=True),
        pgoutput.WireColumn("word", 25, -1, flagged=False),
    )
    assert pgoutput.read_relation(body) == (
        pgoutput.RelationMessage(7, "public", "t", "d", columns)
    )
    nameless = body.replace(b"public\0", b"\0")
    assert pgoutput.read_relation(nameless).schema == "pg_catalog"


SHORT = "CF2105 the server sent a message that ends before its fields do"
READERS: list[tuple[str, int, Callable[[bytearray, int], object]]] = [
    ("B", 20, pgoutput.read_begin),
    ("C", 25, pgoutput.read_commit),
    ("c", 29, lambda data, tag: pgoutput.read_commit(data, tag, streamed=True)),
    ("S", 4, pgoutput.read_xid),
    ("A", 8, pgoutput.read_abort),
    ("T", 5, lambda data, tag: pgoutput.read_truncate(data, tag, streamed=False)),
    ("R", 4, lambda data, tag: pgoutput.relation_body(data, tag, streamed=False)),
]


@pytest.mark.parametrize(("tag", "size", "read"), READERS, ids=[r[0] for r in READERS])
def test_fields_lie_inside_of_their_message(
    tag: str, size: int, read: Callable[[bytearray, int], object]
) -> None:
    """Those of one that is too short would be read out of the next."""
    read(*only(frame(tag.encode() + bytes(size))))
    with pytest.raises(ChangefeedError) as caught:
        read(*only(frame(tag.encode() + bytes(size - 1))))
    assert f"{caught.value.code.number} {caught.value.message}" == SHORT


def test_times_reach_as_far_as_64_bits_of_nanoseconds() -> None:
    last = (2**63 - 1) // 1000
    for time in (last, -last):
        assert pgoutput.read_begin(*only(begin(1, time, 1))).commit_us == time
    for time in (last + 1, -last - 1):
        with pytest.raises(ChangefeedError, match="1678 to 2262"):
            pgoutput.read_begin(*only(begin(1, time, 1)))


def relation_of(names: Sequence[str], identity: bytes = b"d", count: int | None = None) -> bytes:
    body = struct.pack(">I", 7) + b"s\0t\0" + identity
    body += struct.pack(">H", len(names) if count is None else count)
    return body + b"".join(b"\0" + n.encode() + b"\0" + struct.pack(">Ii", 23, -1) for n in names)


@pytest.mark.parametrize(
    "body",
    [
        relation_of(["a", "a"]),
        relation_of(["a"], identity=b"x"),
        relation_of(["a"], count=2),
        relation_of(["a"])[:-1],
    ],
)
def test_a_description_that_makes_no_sense_is_refused(body: bytes) -> None:
    assert [c.name for c in pgoutput.read_relation(relation_of(["a", "b"])).columns] == ["a", "b"]
    with pytest.raises(ChangefeedError, match="a description of a table") as caught:
        pgoutput.read_relation(body)
    assert caught.value.code.number == "CF2105"


def test_a_truncate_names_its_tables_and_nothing_else() -> None:
    for named in (b"", bytes(4), bytes(12)):
        data, tag = only(frame(b"T" + struct.pack(">IB", 2, 0) + named))
        with pytest.raises(ChangefeedError, match="a TRUNCATE of 2 tables"):
            pgoutput.read_truncate(data, tag, streamed=False)
