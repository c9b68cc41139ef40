"""One conversation of the server, in whatever pieces it arrives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Flush, Frontier, SchemaChange, Truncate
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.continuity import Redelivery, Witness
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.lsn import position_of
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.types import TableDetails
from changefeed.sources.postgres.visibility import Visibility
from tests.helpers.postgres_messages import (
    Table,
    begin,
    commit,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
)

START = Frontier(Timestamp(1_000, 0), position_of(10), 0)
T = Table(1, "t", {"k": 23, "v": 25}, ("k",))
U = Table(2, "u", {"k": 23, "v": 25}, ("k",))
WIDER = replace(T, columns={**T.columns, "w": 25})

#: What a reader of the log sees, without times: rows as (table, key, transaction).
Seen = list[tuple[Any, ...]]


def insert(table: Table, key: int, xid: int | None = None, value: str = "v") -> bytes:
    cells = [str(key), *[value] * (len(table.columns) - 1)]
    return row("I", table, cells, xid=xid)


def ended(lsn: int, xid: int, *messages: bytes) -> bytes:
    """A transaction of these messages, with its commit at ``lsn``."""
    return begin(lsn, lsn, xid) + b"".join(messages) + commit(lsn, lsn + 1, lsn)


def conversation() -> Iterator[tuple[bytes, Seen]]:
    """Messages, and what has to come of them."""
    yield relation(T) + relation(U), []
    # Already in the log: skipped, with its TRUNCATE and its streamed kind.
    old = [insert(T, key, value="x" * 150) for key in range(90, 110)]
    yield ended(9, 3, *old, truncate([U]), insert(U, 91)), []
    kept = stream_start(4, True) + insert(T, 92, 4) + stream_stop() + stream_commit(4, 9, 10, 9)
    yield kept, []
    yield ended(20, 5, insert(T, 1), insert(U, 2)), [("t", 1, 5), ("u", 2, 5)]
    # One number again, as of a transaction of which nothing may be left in the spool.
    again = stream_start(4, True) + insert(U, 3, 4) + stream_stop() + stream_commit(4, 30, 31, 30)
    yield again, [("u", 3, 4)]
    # A TRUNCATE behind rows of other transactions, and alone in its own.
    yield ended(40, 6, insert(T, 4)), [("t", 4, 6)]
    yield ended(50, 7, truncate([T])), [("truncate", "t")]
    yield (
        ended(60, 8, insert(T, 5), truncate([T, U]), insert(U, 6)),
        [("t", 5, 8), ("truncate", "t"), ("truncate", "u"), ("u", 6, 8)],
    )
    # Rows of the old shape lie before the new one, in a transaction of their own.
    yield ended(70, 9, insert(T, 7)), [("t", 7, 9)]
    yield relation(WIDER) + ended(80, 10, insert(WIDER, 8)), [("shape", "t", 3), ("t", 8, 10)]
    streamed = stream_start(11, True) + insert(WIDER, 9, 11) + insert(WIDER, 80, 12) + stream_stop()
    streamed += ended(90, 13, insert(U, 10)) + stream_start(11, False) + insert(U, 11, 11)
    streamed += stream_stop() + stream_abort(11, 12) + stream_commit(11, 100, 101, 100)
    yield streamed, [("u", 10, 13), ("t", 9, 11), ("u", 11, 11)]
    large = [insert(WIDER, key, value="x" * 300) for key in range(20, 40)]
    yield ended(110, 14, *large), [("t", key, 14) for key in range(20, 40)]


def arrive(
    folder: Path,
    pieces: int,
    limit: int,
    data: bytes,
    small: int,
    *,
    visibility: Visibility | None = None,
    redelivery: Redelivery | None = None,
) -> list[Flush]:
    """The flushes, ``pieces`` bytes of the network at a time."""
    known = {table.oid: table for table in (T, U)}

    def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
        return {oid: known[oid].details() for oid in oids}

    def receive(some: memoryview, into: memoryview) -> int:
        count = min(len(into), len(some))
        into[:count] = some[:count]
        return count

    relations = Relations(
        "shop", describe, lambda schema: schema.with_version(1), visibility=visibility
    )
    spool = Spool(folder, limit)
    assembler = Assembler(START, relations, spool, small=small, redelivery=redelivery)
    inbox, left, flushes = Inbox(limit), memoryview(data), []
    while left:
        left = left[inbox.fill(partial(receive, left[:pieces])) :]
        inbox.scan()
        cut = inbox.cut(everything=inbox.full)
        flushes += list(take(assembler, inbox, cut))
        inbox.drop(cut)
    assert assembler.idle and list(folder.iterdir()) == [], "nothing is left in the spool"
    return flushes


def seen(flushes: Sequence[Flush]) -> Seen:
    """What is in the flushes, in the order of the log."""
    found: list[tuple[tuple[Timestamp, int], tuple[Any, ...]]] = []
    for event in (event for flush in flushes for event in flush.events):
        if isinstance(event, ChangeBatch):
            for change in event.changes():
                row = change.after or {}
                found.append(((change.at, change.seq), (change.table.name, row["k"], change.xid)))
        elif isinstance(event, Truncate):
            found.append(((event.at, event.seq), ("truncate", event.schema.table.name)))
        elif isinstance(event, SchemaChange):
            wide = len(event.new.columns)
            found.append(((event.at, event.seq), ("shape", event.new.table.name, wide)))
    found.sort(key=lambda one: one[0])
    numbers = [seq for (_, seq), _ in found]
    assert numbers == sorted(set(numbers)), "numbers rise with the times"
    return [what for _, what in found]


@pytest.mark.parametrize("small", [0, 1 << 16], ids=["columns", "rows"])
@pytest.mark.parametrize("limit", [1 << 16, 2000, 400])
@pytest.mark.parametrize("pieces", [1 << 16, 700, 101, 37])
def test_a_conversation_is_what_it_is_however_it_arrives(
    tmp_path: Path, pieces: int, limit: int, small: int
) -> None:
    parts = list(conversation())
    data = b"".join(messages for messages, _ in parts)
    flushes = arrive(tmp_path, pieces, limit, data, small)
    assert seen(flushes) == [what for _, expected in parts for what in expected]
    # Each transaction with rows or a TRUNCATE is told once, in the order of the commits.
    commits = [xid for flush in flushes for xid in flush.commits.xid]
    assert commits == [5, 4, 6, 7, 8, 9, 10, 13, 11, 14]


def test_a_commit_ends_one_transaction(tmp_path: Path) -> None:
    data = relation(T) + ended(20, 5, insert(T, 1)) + commit(30, 31, 30)
    with pytest.raises(ChangefeedError, match="without a begin") as caught:
        arrive(tmp_path, len(data), 1 << 16, data, 0)
    assert caught.value.code.number == "CF2105"


@pytest.mark.parametrize("pieces", [1 << 16, 101, 37])
def test_rows_that_come_again_are_seen_however_they_arrive(tmp_path: Path, pieces: int) -> None:
    """The last piece of the transaction has none: they were seen in those before."""
    witness = Witness(7, 2, 7)
    redelivery = Redelivery(witness, begin=5, frontier=10, settled=lambda: None)
    rows = [insert(T, key, value="x" * 150) for key in range(3)]
    data = relation(T) + ended(7, 2, insert(T, 9)) + ended(8, 3, *rows)
    with pytest.raises(ChangefeedError, match="transaction 3 committed at 0/8") as caught:
        arrive(tmp_path, pieces, 300, data, 0, redelivery=redelivery)
    assert caught.value.code.number == "CF2104"
    # One without rows of ours says nothing about the history.
    quiet = relation(T) + ended(7, 2, insert(T, 9)) + ended(8, 3) + ended(20, 5, insert(T, 1))
    redelivery = Redelivery(witness, begin=5, frontier=10, settled=lambda: None)
    flushes = arrive(tmp_path, pieces, 300, quiet, 0, redelivery=redelivery)
    assert seen(flushes) == [("t", 1, 5)]


def test_only_a_transaction_that_announces_a_table_is_waited_for(tmp_path: Path) -> None:
    waited: list[set[int]] = []

    def unseen(xids: Collection[int]) -> set[int]:
        waited.append(set(xids))
        return set()

    data = relation(T) + ended(20, 5, insert(T, 1)) + ended(30, 6, relation(U), insert(U, 2))
    arrive(tmp_path, len(data), 1 << 16, data, 0, visibility=Visibility(unseen))
    assert waited == [{6}]
