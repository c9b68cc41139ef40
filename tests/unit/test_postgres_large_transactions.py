"""A transaction that does not fit one buffer gives the changes that it would give in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import Change, ChangeBatch, Event, Frontier, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.repeats import EXISTED, NEW, ONCE, SUPERSEDED, KeyHashes, Repeats
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.types import ReplicaIdentity, TableDetails
from tests.helpers.postgres_messages import (
    Table,
    begin,
    commit,
    relation,
    row,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
)

START = Frontier(Timestamp(5), "0000000000000001", 0)
T = Table(1, "t", {"k": 25, "v": 25}, ("k",), ReplicaIdentity.FULL)
U = Table(2, "u", {"k": 25, "v": 25}, ("k",))
#: A chunk of the spool holds about one message, or all of them.
SIZES = [80, 1 << 20]

Message = Callable[[int | None], bytes]


def insert(table: Table, *values: str) -> Message:
    return lambda xid: row("I", table, values, xid=xid)


def update(table: Table, old: Sequence[str], new: Sequence[str]) -> Message:
    if table.identity is ReplicaIdentity.FULL:
        return lambda xid: row("U", table, new, old, old_kind="O", xid=xid)
    return lambda xid: row("U", table, new, xid=xid)


def delete(table: Table, *old: str) -> Message:
    if table.identity is ReplicaIdentity.FULL:
        return lambda xid: row("D", table, None, old, old_kind="O", xid=xid)
    key = [v if name in table.key else None for name, v in zip(table.columns, old, strict=True)]
    return lambda xid: row("D", table, None, key, xid=xid)


def _receive(data: memoryview, into: memoryview) -> int:
    count = min(len(into), len(data))
    into[:count] = data[:count]
    return count


class Run:
    """What comes out of one transaction of ``messages``."""

    def __init__(
        self, folder: Path, limit: int, messages: Sequence[Message], *, streamed: bool
    ) -> None:
        now: dict[int, Table] = {T.oid: T, U.oid: U}
        inside = b"".join(message(7 if streamed else None) for message in messages)
        data = b"".join(map(relation, now.values()))
        if streamed:
            data += stream_start(7, True) + inside + stream_stop() + stream_commit(7, 90, 98, 50)
        else:
            data += begin(90, 50, 7) + inside + commit(90, 98, 50)

        def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
            return {oid: now[oid].details() for oid in oids}

        def intern(schema: TableSchema) -> TableSchema:
            return schema.with_version(1)

        self.spool = folder / "spool"
        assembler = Assembler(
            START, Relations("src", describe, intern), Spool(self.spool, limit), small=0
        )
        inbox, left = Inbox(limit), memoryview(data)
        self.events: list[Event] = []
        while left:
            left = left[inbox.fill(partial(_receive, left[:limit])) :]
            inbox.scan()
            cut = inbox.cut(everything=inbox.full)
            for flush in take(assembler, inbox, cut):
                self.events += flush.events
            inbox.drop(cut)

    def changes(self, table: Table) -> list[Change]:
        """All rows of a table."""
        batches = [e for e in self.events if isinstance(e, ChangeBatch)]
        rows = [c for batch in batches for c in batch.changes()]
        return [change for change in rows if change.table.name == table.name]

    def told(self, table: Table) -> list[tuple[str, Any, Any]]:
        """What consumers see of a table."""
        return [(c.op, c.before, c.after) for c in self.changes(table) if c.last]


@pytest.fixture(params=[(n, s) for n in SIZES for s in (False, True)], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Run]:
    limit, streamed = request.param
    return lambda *messages: Run(tmp_path, limit, messages, streamed=streamed)


def kv(key: str, value: str) -> dict[str, str]:
    return {"k": key, "v": value}


def test_one_change_a_key_with_the_row_before_the_transaction(run: Callable[..., Run]) -> None:
    made = run(
        insert(T, "new", "1"),
        update(T, ("old", "0"), ("old", "1")),
        insert(T, "gone", "1"),
        delete(T, "back", "0"),
        update(T, ("moves", "0"), ("middle", "0")),
        update(T, ("new", "1"), ("new", "2")),
        update(T, ("middle", "0"), ("moved", "0")),
        update(T, ("old", "1"), ("old", "2")),
        insert(T, "back", "1"),
        delete(T, "gone", "1"),
        insert(T, "gone", "2"),
        delete(T, "gone", "2"),
        insert(T, "once", "1"),
    )
    assert made.told(T) == [
        ("d", kv("moves", "0"), None),
        ("c", None, kv("new", "2")),
        ("c", None, kv("moved", "0")),
        ("u", kv("old", "0"), kv("old", "2")),
        ("u", kv("back", "0"), kv("back", "1")),
        ("c", None, kv("once", "1")),
    ]
    assert len(made.changes(T)) == 15
    assert [c.ordinal for c in made.changes(T)] == list(range(15))
    assert not list(made.spool.iterdir())


def test_keys_alone_before_where_no_more_is_sent(run: Callable[..., Run]) -> None:
    made = run(
        insert(U, "new", "1"),
        update(U, (), ("old", "1")),
        delete(U, "back", "0"),
        update(U, (), ("new", "2")),
        update(U, (), ("old", "2")),
        insert(U, "back", "1"),
    )
    assert made.told(U) == [
        ("c", None, kv("new", "2")),
        ("u", {"k": "old"}, kv("old", "2")),
        ("u", {"k": "back"}, kv("back", "1")),
    ]


def test_a_truncate_parts_the_writes_of_its_tables_alone(run: Callable[..., Run]) -> None:
    made = run(
        update(T, ("a", "0"), ("a", "1")),
        update(U, (), ("b", "1")),
        lambda xid: truncate([T], xid),
        insert(T, "a", "2"),
        update(U, (), ("b", "2")),
        update(T, ("a", "2"), ("a", "3")),
    )
    # The first row is before the TRUNCATE: whoever reads the log leaves it out.
    assert made.told(T) == [("u", kv("a", "0"), kv("a", "1")), ("c", None, kv("a", "3"))]
    assert made.told(U) == [("u", {"k": "b"}, kv("b", "2"))]
    (mark,) = [event for event in made.events if isinstance(event, Truncate)]
    seqs = [c.seq for c in made.changes(T)]
    assert seqs[0] < mark.seq < seqs[1]


def test_a_new_column_does_not_part_the_writes_of_a_key(tmp_path: Path) -> None:
    wider = replace(T, columns={**T.columns, "w": 25})
    for limit in SIZES:
        for streamed in (False, True):
            made = Run(
                tmp_path,
                limit,
                [
                    update(T, ("a", "0"), ("a", "1")),
                    update(U, (), ("b", "1")),
                    lambda xid: relation(wider, xid),
                    update(wider, ("a", "1", "x"), ("a", "2", "y")),
                    update(U, (), ("b", "2")),
                ],
                streamed=streamed,
            )
            (change,) = [e for e in made.events if isinstance(e, SchemaChange)]
            assert [c.name for c in change.new.columns] == ["k", "v", "w"]
            last = {"k": "a", "v": "2", "w": "y"}
            assert made.told(T) == [("u", {"k": "a", "v": "0", "w": None}, last)]
            assert made.told(U) == [("u", {"k": "b"}, kv("b", "2"))]


def test_images_too_large_for_one_chunk_come_in_parts(tmp_path: Path) -> None:
    large = "x" * 300
    messages = [update(T, (str(i), large), (str(i), "1")) for i in range(20)]
    messages += [update(T, (str(i), "1"), (str(i), "2")) for i in range(20)]
    made = Run(tmp_path, 1500, messages, streamed=True)
    assert made.told(T) == [("u", kv(str(i), large), kv(str(i), "2")) for i in range(20)]
    batches = [e.rows for e in made.events if isinstance(e, ChangeBatch)]
    assert max(sum(rows["last"].to_pylist()) for rows in batches) <= 5


# ------------------------------------------------------------------------------- the keys


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"\xc3\xa9key", b"\xff\xa9key"),
        lambda data: data.replace(b"\xc3\xa9old", b"\xff\xa9old"),
        lambda data: data.replace(b"\xc3\xa9new", b"\xff\xa9new"),
    ],
    ids=["key", "old", "new"],
)
def test_a_row_that_cannot_be_read_stops_its_table_alone(
    run: Callable[..., Run], damage: Callable[[bytes], bytes]
) -> None:
    """Its key, an old row that a later change of the key needs, or the new one."""
    changed = update(T, ("\u00e9key", "\u00e9old"), ("\u00e9key", "\u00e9new"))
    made = run(
        insert(U, "a", "1"),
        insert(T, "first", "x" * 300_000),
        lambda xid: damage(changed(xid)),
        update(U, ("a", "1"), ("a", "2")),
        *(insert(U, str(number), "x" * 300_000) for number in range(3)),  # of another chunk
        update(T, ("\u00e9key", "x"), ("\u00e9key", "y")),
        insert(U, "b", "1"),
        delete(T, "first", "1"),
    )
    assert [after["k"] for _, _, after in made.told(U)] == ["a", "0", "1", "2", "b"]
    told = [event for event in made.events if isinstance(event, SchemaChange)]
    assert told and all(e.unreadable and e.new.table.name == T.name for e in told)
    assert "not valid UTF-8" in told[0].why


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_repeats_are_what_a_dict_finds(tmp_path: Path, at_once: int) -> None:
    chance = np.random.default_rng(4)
    ops = np.array([CREATED, UPDATED, DELETED], np.uint8)
    added: list[tuple[tuple[int, str, int], int, int]] = []
    sizes = []
    with closing(Repeats(tmp_path / "records", tmp_path / "found", at_once)) as repeats:
        for place in range(0, 3000, 100):
            group, count = int(chance.integers(2)), int(chance.integers(1, 20))
            texts = [f"{n}" * (n % 4) for n in chance.integers(0, 12, count)]
            numbers = chance.integers(0, 4, count)
            op = ops[chance.integers(0, 3, count)]
            places = np.arange(place, place + count)
            repeats.add(group, [pa.array(texts), pa.array(numbers)], op, places)
            keys = [(group, text, int(n)) for text, n in zip(texts, numbers, strict=True)]
            added += zip(keys, op.tolist(), places.tolist(), strict=True)
            sizes.append(count)
        repeats.sort()
        found = [repeats.take() for _ in sizes]
    assert [len(some.kind) for some in found] == sizes
    kinds = np.concatenate([some.kind for some in found]).tolist()
    firsts = np.concatenate([some.first for some in found]).tolist()
    by_key: dict[Any, list[int]] = {}
    for number, (key, _, _) in enumerate(added):
        by_key.setdefault(key, []).append(number)
    for rows in by_key.values():
        existed = added[rows[0]][1] != CREATED
        gone = added[rows[-1]][1] == DELETED and not existed
        wanted = EXISTED if existed else SUPERSEDED if gone else NEW
        if len(rows) == 1:
            assert kinds[rows[0]] == ONCE
            continue
        assert [kinds[n] for n in rows] == [SUPERSEDED] * (len(rows) - 1) + [wanted]
        if existed:
            assert firsts[rows[-1]] == added[rows[0]][2]


def test_hashes_tell_keys_apart() -> None:
    hashes = KeyHashes()
    texts = ["", "\0", "\0\0", "a", "ab", "ba", "a\0", "é", "x" * 5000, "x" * 4999 + "y"]
    one = [hashes.of(0, [pa.array([t, "z"])], 2) for t in texts]
    assert len({int(high[0]) for high, _ in one}) == len(texts)
    numbers = pa.array([0, 1, -1, 256, 2**62, -(2**63)])
    for high in hashes.of(0, [numbers], 6):
        assert len(set(high.tolist())) == 6
    # The same key in another column, group or order is another one.
    pairs = pa.array(["a", "b"]), pa.array(["b", "a"])
    high, _ = hashes.of(0, pairs, 2)
    assert high[0] != high[1]
    assert hashes.of(1, pairs, 2)[0][0] != high[0]
    assert hashes.of(0, [pairs[1], pairs[0]], 2)[0][0] == high[1]
