"""A process of its own that reads mutated conversations under a memory limit.

    python -m tests.helpers.garbage_child KIND FIRST LAST

What a server may send is built message by message, changed by seed, and read by the code that
reads it in production. The outcome is rows, or a ChangefeedError: anything else is printed with
its seed, and ends the process with status 1.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableSchema
from changefeed.sources.base import StreamRequest
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.connect import source_errors
from changefeed.sources.postgres.copyout import CopyBlock, _SocketCopy, parse_csv
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.stream import LogicalSlot, ReplicationStream, StreamLimits
from changefeed.sources.postgres.types import ReplicaIdentity
from tests.helpers.postgres_messages import (
    UNCHANGED,
    Table,
    begin,
    commit,
    frame,
    keepalive,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
)

#: How much more than at the start a process may take, bytes.
ROOM = 1 << 30
SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT8, DATE, STAMP, ZONED, NUMERIC, UUID = 701, 1082, 1114, 1184, 1700, 2950
INT4S, TEXTS = 1007, 1009

TEXTUAL = Table(
    1, "textual",
    {
        "id": INT8, "flag": BOOL, "small": INT2, "word": TEXT, "doc": JSON, "real": FLOAT8,
        "day": DATE, "at": STAMP, "zoned": ZONED, "price": NUMERIC, "some": INT4S, "words": TEXTS,
    },
    ("id",), ReplicaIdentity.FULL,
)  # fmt: skip
KEYED = Table(
    2, "keyed",
    {
        "id": INT4, "flag": BOOL, "word": TEXT, "raw": BYTEA, "real": FLOAT8, "day": DATE,
        "at": STAMP, "zoned": ZONED, "price": NUMERIC, "uuid": UUID,
    },
    ("id",),
)  # fmt: skip
BARE = Table(3, "bare", {"x": TEXT}, (), ReplicaIdentity.NOTHING)
TABLES = (TEXTUAL, KEYED, BARE)


def textual(number: int) -> list[Any]:
    return [
        str(number), "tf"[number % 2], str(number % 100), "wörd " * (number % 5), '{"a": [1]}',
        "1.5", "2024-02-29", "2024-02-29 01:02:03", "2024-02-29 01:02:03.5+00", "12.50",
        "{1,NULL,3}", '{a,"b c",NULL}',
    ]  # fmt: skip


def keyed(number: int) -> list[Any]:
    return [
        str(number), "ft"[number % 2], "word", "\\x000102", str(number / 7), "1991-11-27",
        "2022-03-08 20:26:40", "2022-03-08 20:26:40+00", "12.50",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
    ]  # fmt: skip


def messages(rng: random.Random) -> list[bytes]:
    """Every kind of message, in an order a server could send them in."""
    made: list[bytes] = []
    lsn, xid = 1_000, 500

    def times() -> tuple[int, int]:
        nonlocal lsn, xid
        lsn, xid = lsn + 100, xid + 1
        return lsn, xid

    for count in (2, rng.choice((1, 70)), 3):
        at, number = times()
        made += [begin(at, NOW + at * SECOND, number), relation(TEXTUAL), relation(KEYED)]
        made += [frame(b"O" + struct.pack(">Q", 7) + b"origin\0"), frame(b"Y" + b"\0" * 9)]
        for i in range(count):
            made += [row("I", TEXTUAL, textual(i)), row("I", KEYED, keyed(i))]
        changed = [*textual(0)[:3], UNCHANGED, *textual(0)[4:]]
        made += [
            row("U", TEXTUAL, changed, textual(0), old_kind="O"),
            row("U", KEYED, keyed(1), [keyed(0)[0]] + [None] * (len(KEYED.columns) - 1)),
            row("D", TEXTUAL, None, textual(1), old_kind="O"),
            relation(BARE), row("I", BARE, [None]), truncate((BARE, TEXTUAL)),
            row("I", TEXTUAL, textual(count)), commit(at, at + 50, NOW + at * SECOND),
            keepalive(at + 60, NOW + at * SECOND, reply=True),
        ]  # fmt: skip
    at, number = times()
    made += [stream_start(number, first=True), relation(TEXTUAL, number)]
    made += [row("I", TEXTUAL, textual(i), xid=number + i % 2) for i in range(5)]
    made += [truncate([TEXTUAL], number), stream_stop(), stream_start(number, first=False)]
    made += [row("U", TEXTUAL, textual(1), textual(0), old_kind="O", xid=number), stream_stop()]
    made += [stream_abort(number, number + 1)]
    made += [stream_commit(number, at, at + 50, NOW + at * SECOND)]
    return made


NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\4")


def mutate(rng: random.Random, parts: list[bytes]) -> bytes:
    """One to three changes of bytes, or of the order of messages."""
    parts = list(parts)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(parts))
        choice = rng.randrange(8)
        part = bytearray(parts[at])
        place = rng.randrange(len(part)) if part else 0
        if choice <= 1 and part:
            part[place] ^= 1 << rng.randrange(8)
        elif choice == 2 and part:
            part[place] = rng.randrange(256)
        elif choice == 3:
            part[place : place + 4] = rng.choice(NUMBERS)
        elif choice == 4:
            del part[place : place + rng.randint(1, 9)]
        elif choice == 5:
            part[place:place] = rng.randbytes(rng.randint(1, 40))
        elif choice == 6:
            del parts[at]
            parts.insert(rng.randrange(len(parts) + 1), bytes(part))
            continue
        else:
            parts.insert(rng.randrange(len(parts) + 1), bytes(part))
            continue
        parts[at] = bytes(part)
    return b"".join(parts)


# ----------------------------------------------------------------------------- readers


def intern(schema: TableSchema) -> TableSchema:
    return schema.with_version(schema.table_id)


def describe(oids: Any) -> Any:
    known = {table.oid: table.details() for table in TABLES}
    return {oid: known[oid] for oid in oids if oid in known}


def check(flush: Flush) -> None:
    """Rows that were given out are what Arrow says they are."""
    for event in flush.events:
        if isinstance(event, ChangeBatch):
            event.rows.validate(full=True)


def read_messages(data: bytes, rng: random.Random, folder: Path) -> None:
    """The scanner, the assembler and both decoders."""
    limit = rng.choice((2_000, 1 << 20))
    start = Frontier(Timestamp(5), "0000000000000001", 40)
    relations = Relations("shop", describe, intern)
    spool = Spool(folder / "spool", limit)
    assembler = Assembler(start, relations, spool, small=rng.choice((0, 1 << 30)))
    inbox, place = Inbox(limit), 0

    def receive(into: memoryview) -> int:
        nonlocal place
        count = min(len(into), len(data) - place)
        into[:count] = data[place : place + count]
        place += count
        return count

    while inbox.fill(receive):
        inbox.scan()
        cut = inbox.cut(everything=inbox.full)
        for flush in take(assembler, inbox, cut):
            check(flush)
        inbox.drop(cut)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def answer(*rows: tuple[str | None, ...]) -> bytes:
    """The answer to a simple query."""
    columns = [b"c\0" + struct.pack(">ihihih", 0, 0, TEXT, -1, -1, 0) for _ in rows[0]]
    made = message(b"T", struct.pack(">h", len(columns)) + b"".join(columns))
    for values in rows:
        body = struct.pack(">h", len(values))
        for value in values:
            text = value.encode() if value is not None else b""
            body += struct.pack(">i", -1 if value is None else len(text)) + text
        made += message(b"D", body)
    return made + message(b"C", b"SELECT\0") + READY


READY = message(b"Z", b"I")
LOGIN = b"".join(
    [
        message(b"R", struct.pack(">i", 0)),
        message(b"S", b"server_version\x0016.4\0"), message(b"S", b"server_encoding\0UTF8\0"),
        message(b"K", struct.pack(">ii", 1, 2)), message(b"N", b"SNOTICE\0Mhello\0\0"), READY,
    ]
)  # fmt: skip
#: What a server answers to each of the client's messages, from the startup packet on.
CONVERSATION = [
    LOGIN,
    answer(("",)),
    answer(("7300", "1", "0/FFFFFFFF", "shop")),
    answer(("f",)),
    answer((None, "0/1", "shop", "reserved")),
    answer(("60000",)),
    message(b"W", b"\0\0\0"),
]


def spoil_conversation(rng: random.Random) -> list[bytes]:
    """The conversation with one answer, or the stream, changed."""
    answers = list(CONVERSATION)
    spoilt = rng.randrange(len(answers) + 1)
    stream = messages(rng)
    if spoilt == len(answers):
        tail = mutate(rng, stream)
    else:
        answers[spoilt] = mutate(rng, [answers[spoilt]])
        tail = b"".join(stream)
    answers[-1] += tail
    return answers


def read_conversation(
    answers: list[bytes], folder: Path, patience: float = 0.2, linger: float = 0.03
) -> int:
    """Login by libpq, commands, START_REPLICATION and the stream, over a socket.

    Args:
        patience: seconds that the server waits for the client's next message.
        linger: seconds that it waits at most, after the last answer, for the client to read rows:
            a client looks at what came when nothing more is there yet.

    Returns: how many rows came before the server ended it.
    """
    rows, read = 0, threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server, answers, patience, linger, read))
        thread.start()
        port = server.getsockname()[1]
        try:
            uri = f"postgresql://u:p@127.0.0.1:{port}/shop?sslmode=disable&connect_timeout=5"
            request = StreamRequest(
                start=Frontier(Timestamp(5), "0000000000000001", 40), identity="", memo=dict,
                intern=intern, latest=lambda name: None, names=lambda oid: (),
                spool=folder / "spool", folder=folder / "kept",
            )  # fmt: skip
            slot = LogicalSlot(uri, "slot", "publication", "shop", describe)
            replication = ReplicationStream(slot, request, StreamLimits(heartbeat=3600.0))
            for flush in replication.run():
                check(flush)
                rows += sum(e.rows.num_rows for e in flush.events if isinstance(e, ChangeBatch))
                if rows:
                    read.set()
        except ChangefeedError as error:
            if not rows or error.code.number != "CF2101":
                raise
        finally:
            server.close()
            thread.join()
    return rows


def serve(
    server: socket.socket,
    answers: list[bytes],
    patience: float,
    linger: float,
    read: threading.Event,
) -> None:
    """Send the next answer whenever the client has said something, then end the connection."""
    server.settimeout(5)
    with contextlib.suppress(OSError):
        peer, _ = server.accept()
        with peer:
            peer.settimeout(patience)
            for text in answers:
                if not peer.recv(65_536):
                    return
                peer.sendall(text)
            read.wait(linger)
            peer.shutdown(socket.SHUT_WR)


class _Session:
    """As much of a psycopg connection as COPY on the socket uses."""

    def __init__(self, sock: socket.socket) -> None:
        self.pgconn = self
        self.socket = sock.fileno()


def read_copy(rng: random.Random, folder: Path) -> None:
    """COPY read from the socket, and its rows as CSV."""
    rows = [message(b"d", b"%d,text,\n" % number) for number in range(rng.choice((3, 400)))]
    data = mutate(
        rng, [message(b"H", b"\0\0\0"), *rows, message(b"c", b""), message(b"C", b"COPY\0"), READY]
    )
    with source_errors("scan"):
        for block in raw_copy(data):
            parse_csv(block, 3)


def raw_copy(data: bytes) -> Iterator[CopyBlock]:
    """The blocks of a COPY whose answer is ``data``."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        raw = _SocketCopy(cast(psycopg.Connection[Any], _Session(ours)))
        yield from raw.run("COPY t TO STDOUT", 1 << 16)


READERS: dict[str, Callable[[random.Random, Path], object]] = {
    "messages": lambda rng, folder: read_messages(mutate(rng, messages(rng)), rng, folder),
    "conversation": lambda rng, folder: read_conversation(spoil_conversation(rng), folder),
    "copy": read_copy,
}


def main(kind: str, first: int, last: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What is sent unchanged can be read: else every mutation would be refused for nothing.
        read_messages(b"".join(messages(random.Random(0))), random.Random(0), folder)
        whole = [*CONVERSATION[:-1], CONVERSATION[-1] + b"".join(messages(random.Random(0)))]
        if not read_conversation(whole, folder, patience=10, linger=10):
            raise RuntimeError("a conversation that nobody changed brings no rows")
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
        failed = refused = 0
        for seed in range(first, last):
            try:
                READERS[kind](random.Random(seed), folder)
            except ChangefeedError:
                refused += 1
            except BaseException:
                failed += 1
                print(f"seed {seed}:", traceback.format_exc(), sep="\n")
    print(f"{last - first} seeds, {refused} refused, {failed} failed")
    return 1 if failed or not refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
