"""The two row decoders agree with each other, and the assembler with a model in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.postgres.assemble import Assembler
from changefeed.sources.postgres.columns import Block, decode_columns
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.pgoutput import Inbox
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.rows import decode_rows
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.types import ReplicaIdentity, TableDetails, schema_of
from changefeed.sources.postgres.values import text_value
from tests.helpers.postgres_messages import (
    UNCHANGED,
    Cells,
    Table,
    Unchanged,
    begin,
    commit,
    keepalive,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
)

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_STAMPS = st.sampled_from(
    ["2024-01-02 03:04:05+00", "2024-01-02 03:04:05.123456+00", "infinity", "-infinity",
     "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00"]
)  # fmt: skip
_ARRAYS = st.sampled_from(["{a,b}", "{}", '{"a b",NULL}', "{{a},{b}}", "[0:1]={x,y}", '{"q\\"q"}'])

#: Type oid -> texts a server could print.
_VALUES: dict[int, st.SearchStrategy[str]] = {
    16: st.sampled_from(["t", "f"]),
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    21: st.integers(-(2**15), 2**15 - 1).map(str),
    23: st.integers(-(2**31), 2**31 - 1).map(str),
    25: _TEXTS,
    114: st.sampled_from(['{"a": 1}', '{"a":\n 1}', "null", '"x"']),
    701: st.sampled_from(["0.1", "1e+10", "NaN", "-Infinity", "-0"]),
    1007: st.sampled_from(["{1,2}", "{}", "{NULL,-3}", "{{1},{2}}", "[2:3]={1,2}"]),
    1009: _ARRAYS,
    1184: _STAMPS,
    1700: st.sampled_from(["1.50", "0", "NaN", "-12.000"]),
}
_KEY_TYPES = (20, 25)


@dataclass(frozen=True)
class Op:
    """One row message; ``old_kind`` is empty without an old tuple."""

    kind: str
    table: Table
    new: Cells | None
    old: Cells | None
    old_kind: str

    def bytes(self, xid: int | None = None) -> bytes:
        kind = self.old_kind or "K"
        return row(self.kind, self.table, self.new, self.old, old_kind=kind, xid=xid)


@st.composite
def tables(draw: st.DrawFn, oid: int = 1) -> Table:
    keys = draw(st.lists(st.sampled_from(_KEY_TYPES), max_size=2))
    others = draw(st.lists(st.sampled_from(sorted(_VALUES)), min_size=1, max_size=5))
    types = [*keys, *others]
    places = draw(st.permutations(range(len(types))))
    columns = {f"c{place}": types[place] for place in places}
    key = tuple(f"c{i}" for i in range(len(keys)))
    if not key:
        identity = draw(st.sampled_from([ReplicaIdentity.FULL, ReplicaIdentity.NOTHING]))
    else:
        identity = draw(st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]))
    return Table(oid, f"t{oid}", columns, key, identity)


def _cells(draw: st.DrawFn, table: Table, only: tuple[str, ...] | None = None) -> list[Any]:
    found: list[Any] = []
    for name, oid in table.columns.items():
        if only is not None and name not in only:
            found.append(None)
        elif name in table.key:
            # Few different keys, so that transactions write some twice.
            found.append(draw(st.sampled_from(["1", "2", "3"])))
        else:
            found.append(draw(st.none() | _VALUES[oid]))
    return found


@st.composite
def operations(draw: st.DrawFn, table: Table) -> Op:
    inserts_only = table.identity is ReplicaIdentity.NOTHING
    kind = "I" if inserts_only else draw(st.sampled_from("IUUD"))
    full = table.identity is ReplicaIdentity.FULL
    old: list[Any] | None = None
    if kind == "D" or (kind == "U" and (full or draw(st.booleans()))):
        old = _cells(draw, table, None if full else table.key)
    new: list[Any] | None = None
    if kind != "D":
        new = _cells(draw, table)
        if kind == "U":
            for i, name in enumerate(table.columns):
                if name not in table.key and draw(st.integers(0, 9)) == 0:
                    new[i] = UNCHANGED
            if old is not None and draw(st.booleans()):
                for i, name in enumerate(table.columns):
                    if name in table.key:
                        new[i] = old[i]
    return Op(kind, table, new, old, "" if old is None else "O" if full else "K")


def _decoded(decoded: DecodedRows) -> dict[str, Any]:
    return {
        "message": decoded.message.tolist(),
        "op": bytes(decoded.op).decode(),
        "after": [column.to_pylist() for column in decoded.after],
        "before": [column.to_pylist() for column in decoded.before],
        "key": [column.to_pylist() for column in decoded.key],
        "types": [column.type for column in (*decoded.after, *decoded.before)],
        "unchanged": {i: mask.tolist() for i, mask in decoded.unchanged.items()},
    }


def _scanned(data: bytes) -> Inbox:
    inbox = Inbox(1 << 20)
    view = memoryview(data)
    position = 0

    def receive(into: memoryview) -> int:
        nonlocal position
        count = min(len(into), len(view) - position)
        into[:count] = view[position : position + count]
        position += count
        return count

    while position < len(view):
        inbox.fill(receive)
    inbox.scan()
    return inbox


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_decoders_agree(data: st.DataObject) -> None:
    """The columnar decoder and the one by rows, on any mix of messages of a table."""
    table = data.draw(tables())
    ops = data.draw(st.lists(operations(table), min_size=1, max_size=20))
    schema = schema_of(table.details(), "src")
    inbox = _scanned(b"".join(op.bytes() for op in ops))
    block = Block(inbox.bytes())
    tags = np.array(inbox.rows, np.intp)
    by_column = decode_columns(block, tags, schema)
    by_row = decode_rows(inbox.data, inbox.rows, schema)
    for column in (*by_column.after, *by_column.before, *by_column.key):
        column.validate(full=True)
    assert _decoded(by_column) == _decoded(by_row)


# ----------------------------------------------------------------------------- the model


@dataclass
class Expected:
    """One row of the log as the model has it."""

    table: str
    op: str
    at: Timestamp
    ordinal: int
    seq: int
    xid: int
    after: list[Any]
    before: list[Any]
    key: tuple[Any, ...]
    missing: list[str]
    last: bool = True


@dataclass(frozen=True)
class Transaction:
    """Operations that commit together. ``late_us`` is added to the clock before it."""

    xid: int
    commit_us: int
    lsn: int
    ops: tuple[Op, ...]

    def bytes(self) -> bytes:
        return (
            begin(self.lsn, self.commit_us, self.xid)
            + b"".join(op.bytes() for op in self.ops)
            + commit(self.lsn, self.lsn + 8, self.commit_us)
        )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Table], list[Transaction]]:
    used = [draw(tables(oid)) for oid in range(1, draw(st.integers(1, 3)) + 1)]
    transactions = []
    now, lsn = 1_700_000_000_000_000, 1000
    for number in range(draw(st.integers(1, 5))):
        now += draw(st.integers(-5, 50))
        lsn += draw(st.integers(20, 30))
        ops = draw(st.lists(st.sampled_from(used).flatmap(lambda t: operations(t)), max_size=6))
        transactions.append(Transaction(700 + number, now, lsn, tuple(_possible(ops))))
    return used, transactions


def _possible(ops: Sequence[Op]) -> Iterator[Op]:
    """Without a second insert or delete of a key: no row is there twice."""
    seen = set()
    for op in ops:
        cells = op.new if op.kind == "I" else op.old
        if op.kind != "U" and op.table.key and cells is not None:
            names = list(op.table.columns)
            key = (op.kind, op.table.oid, *(cells[names.index(name)] for name in op.table.key))
            if key in seen:
                continue
            seen.add(key)
        yield op


def model(transactions: Sequence[Transaction], start: Frontier) -> list[Expected]:
    """What the log must hold, one row at a time."""
    rows: list[Expected] = []
    last, seq = start.at, start.seq
    for transaction in transactions:
        last = last.at_least(transaction.commit_us * 1000)
        mine: list[Expected] = []
        for op in transaction.ops:
            for kind, after, before, missing in _effects(op):
                seq += 1
                names = list(op.table.columns)
                key_of = before if kind == "d" else after
                key = tuple(key_of[names.index(name)] for name in op.table.key)
                mine.append(
                    Expected(op.table.name, kind, last, len(mine), seq, transaction.xid,
                             after, before, key, missing)
                )  # fmt: skip
        _mark(mine, {op.table.name: op.table for op in transaction.ops})
        rows += mine
    return rows


def _effects(op: Op) -> Iterator[tuple[str, list[Any], list[Any], list[str]]]:
    schema = schema_of(op.table.details(), "src")
    nothing = [None] * len(schema.columns)
    key = set(schema.key)
    whole = op.old_kind == "O"

    def value(i: int, cell: Any) -> Any:
        return text_value(schema.columns[i], cell)

    old = None
    if op.old is not None:
        old = [value(i, c) if whole or i in key else None for i, c in enumerate(op.old)]
    if op.kind == "D":
        yield "d", nothing, old or nothing, []
        return
    assert op.new is not None
    new: list[Any] = []
    missing = []
    for i, cell in enumerate(op.new):
        if not isinstance(cell, Unchanged):
            new.append(value(i, cell))
        elif whole and old is not None:
            new.append(old[i])
        else:
            new.append(None)
            missing.append(schema.columns[i].name)
    if op.kind == "I":
        yield "c", new, nothing, missing
    elif old is None:
        yield "u", new, [v if i in key else None for i, v in enumerate(new)], missing
    elif any(_raw(op.new, i) not in (UNCHANGED, _raw(op.old, i)) for i in key):
        yield "d", nothing, old, []
        yield "c", new, nothing, missing
    else:
        yield "u", new, old, missing


def _raw(cells: Cells | None, i: int) -> Any:
    return None if cells is None else cells[i]


def _mark(rows: list[Expected], known: Mapping[str, Table]) -> None:
    groups: dict[Any, list[Expected]] = {}
    for item in rows:
        if known[item.table].key:
            groups.setdefault((item.table, item.key), []).append(item)
    for group in groups.values():
        existed, final = group[0].op != "c", group[-1]
        for item in group[:-1]:
            item.last = False
        if final.op == "d" and not existed:
            final.last = False
        elif len(group) > 1:
            final.before = list(group[0].before)
            if final.op != "d":
                final.op = "u" if existed else "c"


# ------------------------------------------------------------------------- the assembler


def _relations(known: Sequence[Table]) -> Relations:
    details: dict[int, TableDetails] = {table.oid: table.details() for table in known}

    def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
        return {oid: details[oid] for oid in oids}

    def intern(schema: TableSchema) -> TableSchema:
        return schema.with_version(schema.table_id)

    return Relations("src", describe, intern)


def assemble(
    data: bytes, known: Sequence[Table], folder: Path, start: Frontier, *, limit: int,
    small: int, piece: int = 1 << 20,
) -> list[Flush]:  # fmt: skip
    """All flushes of a byte stream that arrives in pieces."""
    assembler = Assembler(start, _relations(known), Spool(folder / "spool", limit), small=small)
    inbox = Inbox(limit)
    flushes: list[Flush] = []
    position = 0

    def receive(into: memoryview) -> int:
        nonlocal position
        count = min(len(into), len(data) - position, piece)
        into[:count] = data[position : position + count]
        position += count
        return count

    while position < len(data) or inbox.filled:
        before = inbox.filled
        inbox.fill(receive)
        inbox.scan()
        cut = inbox.cut(everything=inbox.full)
        flushes += take(assembler, inbox, cut)
        inbox.drop(cut)
        assert inbox.filled < before or position <= len(data)
    if not flushes or flushes[-1].frontier != assembler.frontier:
        flushes.append(Flush((), assembler.frontier))
    return flushes


def log_rows(flushes: Sequence[Flush]) -> list[Expected]:
    """The rows of flushes in log order."""
    rows: list[Expected] = []
    for flush in flushes:
        for event in flush.events:
            assert isinstance(event, ChangeBatch)
            event.rows.validate(full=True)
            rows += _rows(event.schema, event.rows)
    return sorted(rows, key=lambda item: item.seq)


def _rows(schema: TableSchema, batch: pa.RecordBatch) -> Iterator[Expected]:
    import json

    for item in batch.to_pylist():
        after = [item[f"a{i}"] for i in range(len(schema.columns))]
        before = [item.get(f"b{i}") for i in range(len(schema.columns))]
        key_of = before if item["op"] == "d" else after
        key = () if schema.keyless else tuple(key_of[i] for i in schema.key)
        yield Expected(
            schema.table.name, item["op"], Timestamp(item["wall"], item["logical"]),
            item["ord"], item["seq"], item["xid"], after, before, key,
            json.loads(item["missing"] or "[]"), item["last"],
        )  # fmt: skip


_START = Frontier(Timestamp(5), "0000000000000001", 40)


@pytest.mark.parametrize("small", [0, 1 << 30])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(), piece=st.integers(1, 4000))
def test_log_is_what_the_model_says(
    history: tuple[list[Table], list[Transaction]], piece: int, small: int, tmp_path: Path
) -> None:
    known, transactions = history
    data = b"".join(relation(table) for table in known)
    data += b"".join(transaction.bytes() for transaction in transactions)
    flushes = assemble(data, known, tmp_path, _START, limit=1 << 20, small=small, piece=piece)
    assert log_rows(flushes) == model(transactions, _START)
    frontier = flushes[-1].frontier
    assert frontier is not None
    assert frontier.position == f"{transactions[-1].lsn + 8:016X}"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(), limit=st.integers(40, 1500), piece=st.integers(1, 700))
def test_small_buffers_lose_nothing(
    history: tuple[list[Table], list[Transaction]], limit: int, piece: int, tmp_path: Path
) -> None:
    """Transactions larger than the buffer come in parts, the parts without a frontier; the rows
    are those that a large buffer gives."""
    known, transactions = history
    data = b"".join(relation(table) for table in known)
    data += b"".join(transaction.bytes() for transaction in transactions)
    flushes = assemble(data, known, tmp_path, _START, limit=limit, small=3, piece=piece)
    assert log_rows(flushes) == model(transactions, _START)
    _check_frontiers(flushes)


def _check_frontiers(flushes: Sequence[Flush]) -> None:
    """A frontier never covers a row that comes later, and never falls."""
    previous = _START
    for i, flush in enumerate(flushes):
        if flush.frontier is None:
            continue
        assert flush.frontier.at >= previous.at
        assert flush.frontier.position >= previous.position
        previous = flush.frontier
        assert all(item.at > previous.at for item in log_rows(flushes[i + 1 :]))
        assert all(item.at <= previous.at for item in log_rows(flushes[: i + 1]))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(), done=st.integers(0, 4))
def test_restart_goes_on_where_the_log_ends(
    history: tuple[list[Table], list[Transaction]], done: int, tmp_path: Path
) -> None:
    """What the frontier covers is skipped when the server sends it again."""
    known, transactions = history
    relations = b"".join(relation(table) for table in known)
    first = relations + b"".join(t.bytes() for t in transactions[:done])
    flushes = assemble(first, known, tmp_path, _START, limit=1 << 20, small=150)
    middle = flushes[-1].frontier
    assert middle is not None
    again = relations + b"".join(t.bytes() for t in transactions)
    rest = assemble(again, known, tmp_path, middle, limit=1 << 20, small=150)
    assert log_rows([*flushes, *rest]) == model(transactions, _START)


@st.composite
def streamed(draw: st.DrawFn, transaction: Transaction) -> tuple[list[bytes], Transaction]:
    """The pieces in which a transaction comes before its commit, and what is left of it:
    operations of a subtransaction that was rolled back are not."""
    pieces, kept, aborted = [], [], set()
    ops = list(transaction.ops)
    first = True
    while ops or first:
        count = draw(st.integers(0, len(ops))) if not first else draw(st.integers(0, 3))
        part, ops = ops[: max(count, 1)], ops[max(count, 1) :]
        sub = draw(st.sampled_from([0, 1000, 2000]))
        xid = transaction.xid + sub if transaction.xid + sub not in aborted else transaction.xid
        inside = b"".join(op.bytes(xid) for op in part)
        if draw(st.booleans()) and part:
            inside = relation(part[0].table, xid) + inside
        pieces.append(stream_start(transaction.xid, first) + inside + stream_stop())
        kept += [(xid, op) for op in part]
        if xid != transaction.xid and draw(st.booleans()):
            aborted.add(xid)
            pieces.append(stream_abort(transaction.xid, xid))
        first = False
    left = tuple(op for xid, op in kept if xid not in aborted)
    return pieces, replace(transaction, ops=left)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), piece=st.integers(1, 4000), limit=st.sampled_from([200, 1 << 20]))
def test_streamed_transactions_come_at_their_commit(
    data: st.DataObject, piece: int, limit: int, tmp_path: Path
) -> None:
    """Pieces of running transactions lie between others; nothing is seen before the commit,
    nothing of what was rolled back ever."""
    known, transactions = data.draw(histories())
    chunks: list[list[bytes]] = []
    expected = []
    for transaction in transactions:
        place = 0
        if data.draw(st.booleans()):
            pieces, left = data.draw(streamed(transaction))
            for one in pieces:  # each somewhere before the commit, in order
                place = data.draw(st.integers(place, len(chunks)))
                if place == len(chunks):
                    chunks.append([])
                chunks[place].append(one)
            times = (left.lsn, left.lsn + 8, left.commit_us)
            chunks.append([stream_commit(left.xid, *times)])
            expected.append(left)
        else:
            chunks.append([transaction.bytes()])
            expected.append(transaction)
    gone = stream_start(9999, True) + stream_stop() + stream_abort(9999, 9999)
    stream = b"".join(relation(table) for table in known) + gone
    stream += b"".join(b"".join(chunk) for chunk in chunks)
    flushes = assemble(stream, known, tmp_path, _START, limit=limit, small=3, piece=piece)
    assert log_rows(flushes) == model(expected, _START)
    _check_frontiers(flushes)
    assert list((tmp_path / "spool").iterdir()) == []


def test_keepalives_move_the_position_and_say_nothing_of_the_time(tmp_path: Path) -> None:
    """A server that answers late has not looked at its log before, however late that is."""
    second = 1_000_000
    data = b"".join(keepalive(500, time * second) for time in (10, 11, 12))
    [flush] = assemble(data, [], tmp_path, _START, limit=1 << 20, small=150)
    assert flush.frontier == Frontier(_START.at, f"{500:016X}", 40)


def _aside(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def test_messages_that_are_not_replication() -> None:
    """Notices and changed settings are passed over, errors are the server's own, and an orderly
    end is one to try again after."""
    notes = _aside(b"S", b"TimeZone\0UTC\0") + _aside(b"N", b"SNOTICE\0\0") + _aside(b"A", b"x")
    inbox = _scanned(notes + keepalive(1, 1) + notes)
    assert [mark.tag for mark in inbox.marks] == [ord("k")]
    for kind, body, code in [
        (b"C", b"COPY 0\0", "CF2101"), (b"c", b"", "CF2101"), (b"Z", b"I", "CF2101"),
        (b"E", b"SFATAL\0C57P01\0Mterminating\0\0", "CF2101"), (b"x", b"", "CF2105"),
    ]:  # fmt: skip
        with pytest.raises(ChangefeedError) as caught:
            _scanned(notes + _aside(kind, body))
        assert caught.value.code.number == code
