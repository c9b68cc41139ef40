"""Logical messages on their way from the server's bytes to rows of the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Ddl, Flush, Frontier
from changefeed.core.logical_messages import PREFIX
from changefeed.core.partition import Partition, Prefixes
from changefeed.core.schema import TableSchema
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.select import wanted_rows
from changefeed.feeds.lanes import lane_of
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.continuity import ServerHistory
from changefeed.sources.postgres.ddl_events import read_definition
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.logical_messages import messages_schema
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.types import TableDetails
from tests.helpers.postgres_messages import (
    Table,
    begin,
    commit,
    logical,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
)

START = Frontier(Timestamp(5_000), "0000000000000001", 0)
T = Table(1, "t", {"k": 25}, ("k",))


def _receive(data: memoryview, most: int, view: memoryview) -> int:
    count = min(len(view), len(data), most)
    view[:count] = data[:count]
    return count


class Stream:
    """The flushes of a stream that the server sends ``pieces`` of."""

    def __init__(
        self,
        folder: Path,
        *pieces: bytes,
        start: Frontier = START,
        limit: int = 1 << 20,
        taken: bool = True,
        **given: Any,
    ) -> None:
        def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
            return {oid: T.details() for oid in oids}

        def intern(schema: TableSchema) -> TableSchema:
            return schema.with_version(1)

        relations = Relations("shop", describe, intern)
        spool = Spool(folder / "spool", limit, logical=taken)
        self.assembler = Assembler(start, relations, spool, **given)
        inbox = Inbox(limit, logical=taken)
        self.flushes: list[Flush] = []
        data = memoryview(b"".join(pieces))
        while data:
            data = data[inbox.fill(partial(_receive, data, limit)) :]
            inbox.scan()
            cut = inbox.cut(everything=inbox.full)
            self.flushes += take(self.assembler, inbox, cut)
            inbox.drop(cut)

    @property
    def changes(self) -> list[Change]:
        """In the order of their numbers."""
        batches = [e for f in self.flushes for e in f.events if isinstance(e, ChangeBatch)]
        return sorted((c for batch in batches for c in batch.changes()), key=lambda c: c.seq)

    @property
    def told(self) -> list[tuple[int, Any]]:
        """EventBytes in the transaction, and the row's key or the message's content."""
        rows = [(c.ordinal, c.after or {}) for c in self.changes]
        return [(n, after.get("k") or after["content"]) for n, after in rows]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("limit", [90, 1 << 20])
def test_messages_lie_among_rows(tmp_path: Path, limit: int, streamed: bool) -> None:
    """However the transaction arrives."""
    xid = 7 if streamed else None
    inside = b"".join(
        (
            row("I", T, ["1"], xid=xid),
            logical(50, "p", b"after 1", xid=xid),
            logical(60, "p", b"before 2", xid=xid),
            row("I", T, ["2"], xid=xid),
            row("I", T, ["3"], xid=xid),
            logical(70, "q", b"last", xid=xid),
        )
    )
    if streamed:
        whole = stream_start(7, True) + inside + stream_stop() + stream_commit(7, 90, 98, 50)
    else:
        whole = begin(90, 50, 7) + inside + commit(90, 98, 50)
    stream = Stream(tmp_path, relation(T), whole, limit=limit)
    expected = ["1", "after 1", "before 2", "2", "3", "last"]
    assert stream.told == list(enumerate(expected))
    assert len({(c.at, c.xid) for c in stream.changes}) == 1
    assert stream.assembler.frontier.position == f"{98:016X}"


def _definition(statement: str, tag: str = "ALTER TABLE", **table: Any) -> bytes:
    named = {"oid": 1, "schema": "public", "name": "t", "part": False, **table}
    return json.dumps({"tag": tag, "tables": [named], "statement": statement}).encode()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("limit", [90, 1 << 20])
def test_statements_of_ddl_come_between_transactions(
    tmp_path: Path, limit: int, streamed: bool
) -> None:
    """However the transaction arrives; those of other makers, and what is none, are passed over."""
    xid = 8 if streamed else None
    inside = b"".join(
        (
            row("I", T, ["2"], xid=xid),
            logical(50, "changefeed.ddl/me", _definition("ALTER TABLE t ADD c int"), xid=xid),
            logical(60, "changefeed.ddl/you", _definition("theirs"), xid=xid),
            logical(70, "changefeed.ddl/me", b"none", xid=xid),
            logical(80, "p", b"nobody reads it", xid=xid),
        )
    )
    if streamed:
        second = stream_start(8, True) + inside + stream_stop() + stream_commit(8, 90, 98, 60)
    else:
        second = begin(90, 60, 8) + inside + commit(90, 98, 60)
    stream = Stream(
        tmp_path,
        relation(T),
        begin(40, 50, 7) + row("I", T, ["1"]) + commit(40, 48, 50),
        second,
        begin(110, 70, 9) + row("I", T, ["3"]) + commit(110, 118, 70),
        limit=limit,
        messages=lambda: False,
        ddl=lambda: "me",
    )
    events = [e for flush in stream.flushes for e in flush.events]
    told = [
        [c.after["k"] for c in e.changes() if c.after]
        if isinstance(e, ChangeBatch)
        else (e.kind, e.statement, e.table.name, e.position)
        for e in events
        if isinstance(e, ChangeBatch | Ddl)
    ]
    keys = [key for one in told if isinstance(one, list) for key in one]
    assert keys == ["1", "2", "3"]
    [place] = [n for n, one in enumerate(told) if isinstance(one, tuple)]
    assert told[place] == ("ALTER", "ALTER TABLE t ADD c int", "t", f"{90:016X}")
    assert [key for one in told[:place] for key in one] == ["1"]
    numbers = [e.seq for e in events if isinstance(e, Ddl)]
    assert stream.changes[0].seq < numbers[0] < stream.changes[1].seq
    assert {e.at for e in events if isinstance(e, Ddl)} == {stream.changes[1].at}


@pytest.mark.parametrize(
    ("tag", "statement", "part", "kind"),
    [
        ("CREATE TABLE", "CREATE TABLE t ()", False, "CREATE"),
        ("SELECT INTO", "SELECT 1 INTO t", False, "CREATE"),
        ("CREATE TABLE", "CREATE TABLE p PARTITION OF t DEFAULT", True, "ALTER"),
        ("CREATE INDEX", "CREATE INDEX ON t (a)", False, "ALTER"),
        ("ALTER TABLE", "ALTER TABLE t RENAME COLUMN a TO b", False, "ALTER"),
        ("ALTER TABLE", "ALTER TABLE s RENAME TO t", False, "RENAME"),
        ("ALTER TABLE", "ALTER TABLE s.t SET SCHEMA public", False, "RENAME"),
        ("DROP TABLE", "DROP TABLE t", False, "DROP"),
    ],
)
def test_what_happens_to_a_table(tag: str, statement: str, part: bool, kind: str) -> None:
    found = read_definition(_definition(statement, tag, part=part))
    assert found is not None and found.kind(part=part) == kind
    assert found.tables == ((1, "public", "t", part),)


def test_a_part_that_was_rolled_back_says_nothing(tmp_path: Path) -> None:
    stream = Stream(
        tmp_path,
        stream_start(7, True),
        logical(50, "p", b"stays", xid=7),
        logical(60, "p", b"goes", xid=8),
        stream_stop(),
        stream_abort(7, 8),
        stream_commit(7, 90, 98, 50),
    )
    assert stream.told == [(0, "stays")]


def test_messages_of_no_transaction(tmp_path: Path) -> None:
    """Each is a transaction of its own; what was read is not read again."""
    pieces = (
        relation(T),
        begin(20, 50, 7) + row("I", T, ["1"]) + commit(20, 28, 50),
        logical(40, "p", b"x", transactional=False),
        logical(50, "p", b"y", transactional=False),
        begin(60, 50, 8) + logical(55, "p", b"z") + commit(60, 68, 50),
    )
    stream = Stream(tmp_path, *pieces)
    assert [told for _, told in stream.told] == ["1", "x", "y", "z"]
    times = [c.at for c in stream.changes]
    assert times == sorted(set(times))
    assert [c.xid for c in stream.changes] == [7, 0, 0, 8]
    commits = [list(f.commits.position) for f in stream.flushes]
    assert commits == [[f"{n:016X}" for n in (28, 40, 50, 68)]]
    again = Frontier(times[1], f"{40:016X}", 2)
    assert [told for _, told in Stream(tmp_path, *pieces, start=again).told] == ["y", "z"]


def test_a_transaction_of_messages_is_no_witness(tmp_path: Path) -> None:
    """A stream that does not ask for messages is not sent it again."""
    rows = begin(20, 50, 7) + row("I", T, ["1"]) + commit(20, 28, 50)
    messages = begin(60, 50, 8) + logical(55, "p", b"z") + commit(60, 68, 50)
    stream = Stream(tmp_path, relation(T), rows, messages)
    witness = ServerHistory.parse(stream.assembler.frontier.history).witness
    assert witness is not None
    assert witness.lsn == 20


def test_what_nobody_wants_is_passed_over(tmp_path: Path) -> None:
    outside = logical(40, "p", b"x", transactional=False)
    inside = begin(60, 50, 8) + logical(55, "p", b"z") + row("I", T, ["1"]) + commit(60, 68, 50)
    assert Stream(tmp_path, relation(T), outside, inside, taken=False).told == [(0, "1")]


def test_contents(tmp_path: Path) -> None:
    """Text is text, all else is bytes; what we write ourselves is nobody's."""
    contents = [b"", "ä".encode(), b"\xff\x00a", b"a\0b", b'{"a":  1}']
    stream = Stream(
        tmp_path,
        begin(90, 50, 7),
        *(logical(50 + n, "é", content) for n, content in enumerate(contents)),
        logical(70, "changefeed", b"position"),
        commit(90, 98, 50),
    )
    rows = [c.after for c in stream.changes]
    assert [(r["content"], r["bytes"]) for r in rows if r] == [
        ("", None),
        ("ä", None),
        (None, r"\xff0061"),
        (None, r"\x610062"),
        ('{"a":  1}', None),
    ]
    assert {r["prefix"] for r in rows if r} == {"é"}
    (batch,) = [e for f in stream.flushes for e in f.events if isinstance(e, ChangeBatch)]
    plan = MessagePlan(batch.schema, "t", key_column=PREFIX, logical=True, content=True)
    messages = encode_messages(batch.rows, plan)
    assert messages["value"].to_pylist() == contents
    assert set(messages["key"].to_pylist()) == {'["é"]'.encode()}


def test_only_messages_of_our_own(tmp_path: Path) -> None:
    position = begin(90, 50, 7) + logical(50, "changefeed", b"position") + commit(90, 98, 50)
    assert Stream(tmp_path, position).changes == []


@pytest.mark.parametrize(
    "piece",
    [
        logical(50, "p", b"abc").replace(b"\0\0\0\x03abc", b"\0\0\0\x02abc"),
        logical(50, "p", b"abc").replace(b"\0\0\0\x03abc", b"\0\0\0\x09abc"),
        logical(50, "p", b"abc", transactional=False),
    ],
    ids=["too short", "too long", "of no transaction inside of one"],
)
def test_garbage_is_refused(tmp_path: Path, piece: bytes) -> None:
    with pytest.raises(ChangefeedError) as caught:
        Stream(tmp_path, begin(90, 50, 7), piece, commit(90, 98, 50))
    assert caught.value.code.number == "CF2105"


def log_of(prefixes: Sequence[str]) -> tuple[TableSchema, pa.Table]:
    schema = messages_schema("shop").with_version(1)
    fields = {"op": "c", "wall": 1, "logical": 0, "ord": 0, "xid": 1, "commit_us": 1, "last": True}
    rows = [
        fields | {"seq": n, "a0": n, "a1": p, "a2": True, "a3": "x"} for n, p in enumerate(prefixes)
    ]
    return schema, pa.Table.from_pylist(rows, schema=schema.log_schema())


@pytest.mark.parametrize(
    "patterns",
    [
        ("orders.*",),
        ("a", "b?"),
        ("[a-c]", "x[[]y"),
        ("*",),
        ("",),
        ("[c-a]",),
        ("[b-b]",),
        ("a.b", "a b"),
    ],
)
def test_prefixes_are_globs(patterns: tuple[str, ...]) -> None:
    prefixes = ["orders.a", "orders", "a", "b", "bé", "x[y", "", "o\nx", "a.b", "a b", "axb"]
    schema, rows = log_of(prefixes)
    part = Partition.from_json(Partition("", (Prefixes(2, patterns),)).to_json())
    assert part.of_messages
    found = wanted_rows(rows, MessagePlan(schema, "t", within=part.conditions))
    expected = [p for p in prefixes if any(fnmatchcase(p, pattern) for pattern in patterns)]
    assert found["a1"].to_pylist() == expected


def test_a_prefix_has_one_lane() -> None:
    schema, rows = log_of([f"p{n % 5}" for n in range(50)])
    plan = MessagePlan(schema, "t", key_column=PREFIX, logical=True)
    lanes = lane_of(rows, schema, 4, plan.ordered_by)
    assert len({*zip(rows["a1"].to_pylist(), lanes.tolist(), strict=True)}) == 5
