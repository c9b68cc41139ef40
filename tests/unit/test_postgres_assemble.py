"""What the assembler makes of time and positions, and of values that the server did not send."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Commits, Flush, Frontier, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.postgres.assemble import SAMPLES, Assembler
from changefeed.sources.postgres.continuity import ServerHistory, Witness
from changefeed.sources.postgres.inbox_pass import take
from changefeed.sources.postgres.lsn import position_of
from changefeed.sources.postgres.pgoutput import Inbox, Keepalive
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.spool import Spool
from changefeed.sources.postgres.types import ReplicaIdentity, TableDetails, schema_of
from tests.helpers.postgres_messages import (
    UNCHANGED,
    Table,
    begin,
    commit,
    relation,
    row,
    truncate,
)

#: Above the wall clock's microsecond, so that a time of the same microsecond is no later one.
START = Frontier(Timestamp(5_000_000, 3), position_of(600), 4)
T = Table(1, "t", {"k": 23, "v": 25, "w": 25}, ("k",))
U = Table(2, "u", {"k": 23, "v": 25}, ("k",))
Make = Callable[..., Assembler]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes an assembler that goes on from ``START``."""

    def describe(oids: Sequence[int]) -> Mapping[int, TableDetails]:
        return {oid: known[oid].details() for oid in oids}

    known = {table.oid: table for table in (T, U)}

    def made(**named: Any) -> Assembler:
        for table in named.pop("tables", ()):
            known[table.oid] = table
        relations = Relations("shop", describe, lambda schema: schema.with_version(1))
        return Assembler(START, relations, Spool(tmp_path / "spool"), **named)

    return made


def hear(assembler: Assembler, *messages: bytes) -> list[Flush]:
    """What comes of messages of the server."""
    data = b"".join(messages)
    inbox = Inbox(1 << 16)
    inbox.data[: len(data)] = data
    inbox.filled = len(data)
    inbox.scan()
    return list(take(assembler, inbox, inbox.cut()))


def keepalive(assembler: Assembler, lsn: int) -> int:
    """The position after a keepalive."""
    assembler.keepalive(Keepalive(lsn, False))
    return assembler.position


def written(lsn: int, commit_us: int, xid: int) -> bytes:
    """A transaction of one row, whose commit record is a byte long."""
    insert = row("I", T, ["1", "a", "b"])
    return begin(lsn, commit_us, xid) + insert + commit(lsn, lsn + 1, commit_us)


# ------------------------------------------------------------------------ time and positions


def test_what_the_frontier_covers_is_skipped(make: Make) -> None:
    assembler = make()
    assert assembler.begin(599, 9_000, 7).skip
    assembler.commit(600)
    assert assembler.frontier == START
    transaction = assembler.begin(600, 9_000, 8)
    assert not transaction.skip
    assert (transaction.at, transaction.previous) == (Timestamp(9_000_000), START.at)
    assert not assembler.idle
    assembler.commit(608)
    assert assembler.idle
    assert (assembler.last, assembler.position) == (Timestamp(9_000_000), 608)


def test_a_commit_that_is_not_later_counts_logically(make: Make) -> None:
    assert make().begin(700, 5_000, 7).at == START.at.next()


def test_a_commit_needs_a_begin(make: Make) -> None:
    with pytest.raises(ChangefeedError, match="without a begin") as caught:
        make().commit(700)
    assert caught.value.code.number == "CF2105"


def test_a_message_of_no_transaction_is_one_at_the_time_of_the_one_before(make: Make) -> None:
    assembler = make()
    told = assembler.outside(601)
    assert (told.lsn, told.xid, told.commit_us, told.at) == (600, 0, 5_000, START.at.next())
    assert told.spoke and not told.skip and assembler.idle
    (flush,) = assembler.flush(assembler.frontier)  # with its commit, though it has no rows
    assert flush.commits == Commits([5_000_000], [4], [position_of(601)], [0])
    assert assembler.flush(assembler.frontier) == ()
    again = assembler.outside(600)
    assert again.skip and not again.spoke


def test_the_server_moves_the_position_between_transactions_alone(make: Make) -> None:
    assembler = make()
    assert keepalive(assembler, 599) == 600
    assert keepalive(assembler, 700) == 700
    assert keepalive(assembler, 650) == 700
    assembler.begin(800, 9_000, 7)
    assert keepalive(assembler, 900) == 700


def test_time_does_not_go_back(make: Make) -> None:
    """Not by the version either, which is a row's number at targets."""
    assembler = make()
    assembler.sample(600, START.at.version)
    assert assembler.last == START.at
    assembler.sample(600, START.at.version + 1)
    assert assembler.last == Timestamp(START.at.version + 1)


def test_a_sample_of_the_logs_end_counts_once_everything_up_to_it_is_read(make: Make) -> None:
    assembler = make()
    assembler.sample(700, 10**9)
    assembler.sample(800, 2 * 10**9)
    assert assembler.last == START.at
    keepalive(assembler, 699)
    assert assembler.last == START.at
    keepalive(assembler, 700)
    assert assembler.last == Timestamp(10**9)
    keepalive(assembler, 900)
    assert assembler.last == Timestamp(2 * 10**9)
    assembler.sample(900, 3 * 10**9)
    assert assembler.last == Timestamp(3 * 10**9)


def test_a_sample_beyond_the_end_that_is_sent_holds_up_no_other(make: Make) -> None:
    """The server sends what is on disk: the very end of its log may not be for a while."""
    assembler = make()
    assembler.sample(900, 2 * 10**9)
    assembler.sample(800, 10**9)
    keepalive(assembler, 800)
    assert assembler.last == Timestamp(10**9)
    keepalive(assembler, 900)
    assert assembler.last == Timestamp(2 * 10**9)


def test_of_too_many_samples_the_oldest_are_kept(make: Make) -> None:
    """However far behind a stream is, the next one that it comes to is among them."""
    assembler = make()
    for n in range(3 * SAMPLES):
        assembler.sample(1000 + n, 10**9 + n)
    assert len(assembler._samples) == SAMPLES
    keepalive(assembler, 1000 + SAMPLES - 2)
    assert assembler.last == Timestamp(10**9 + SAMPLES - 2)
    keepalive(assembler, 1000 + 3 * SAMPLES - 1)
    assert assembler.last == Timestamp(10**9 + 3 * SAMPLES - 1)


def test_a_stream_that_ends_at_a_position_gives_out_nothing_behind_it(make: Make) -> None:
    assembler = make(upto=position_of(800))
    [flush] = hear(assembler, relation(T), written(799, 9_000, 7))
    assert len(flush.events) == 1
    assert assembler.position == 800
    history = ServerHistory.parse(assembler.frontier.history)
    assert history.witness is None, "what lies before belongs to another publication"
    before = assembler.frontier
    assert hear(assembler, written(800, 9_500, 8)) == []
    assert keepalive(assembler, 900) == 800
    assert assembler.frontier == before


def test_the_newest_transaction_with_rows_is_the_witness(make: Make) -> None:
    assembler = make(upto=position_of(800))
    hear(assembler, relation(T), written(700, 9_000, 7))
    for _ in range(2):
        assert ServerHistory.parse(assembler.frontier.history).witness == Witness(700, 7, 9_000)


def test_a_transaction_behind_the_end_is_where_time_waits_for_the_samples(make: Make) -> None:
    assembler = make(upto=position_of(800))
    assembler.sample(800, 10**9)
    assert assembler.begin(850, 9_000, 7).skip
    assert (assembler.position, assembler.last) == (800, Timestamp(10**9))


def test_shapes_that_change_between_transactions_have_times_of_their_own(make: Make) -> None:
    assembler = make()
    old = schema_of(T.details(), "shop")
    new, other = old.with_version(2), replace(old, table=replace(old.table, name="before"))
    changes = [ShapeChange(old, new, False, (other,)), ShapeChange(new, old, True)]
    (flush,) = assembler.change_shapes(changes)
    assert flush.frontier == assembler.frontier
    one, two = START.at.next(), START.at.next().next()
    assert list(flush.events) == [
        SchemaChange(old, new, one, 5, False),
        SchemaChange(other, new, one, 6, False),
        SchemaChange(new, old, two, 7, True),
    ]
    assert (assembler.frontier.at, assembler.frontier.seq) == (two, 7)
    assert make().change_shapes([]) == ()


def test_a_truncate_is_one_of_the_changes_of_its_transaction(make: Make) -> None:
    assembler = make()
    [flush] = hear(
        assembler,
        relation(T),
        relation(U),
        begin(700, 9_000, 7),
        truncate([T, U]),
        row("I", U, ["1", "a"]),
        commit(700, 708, 9_000),
    )
    first, second, rows = flush.events
    assert isinstance(first, Truncate) and isinstance(second, Truncate)
    assert isinstance(rows, ChangeBatch)
    assert [first.schema.table.name, second.schema.table.name] == ["t", "u"]
    [change] = rows.changes()
    assert [first.seq, second.seq, change.seq] == [5, 6, 7]
    assert change.ordinal == 2


def test_a_truncate_tells_first_that_its_table_has_another_shape(make: Make) -> None:
    assembler = make()
    hear(assembler, relation(T), written(700, 9_000, 7))
    wider = replace(T, columns={**T.columns, "x": 25})
    end = begin(800, 9_500, 8) + truncate([wider]) + commit(800, 808, 9_500)
    [flush] = hear(assembler, relation(wider), end)
    assert [type(event) for event in flush.events] == [SchemaChange, Truncate]


# ------------------------------------------------------------------------ values not sent


@dataclass
class Answers:
    """Looks up what a table holds now: ``v`` and ``w`` by key."""

    held: Mapping[int, tuple[str | None, str | None]]
    gone: frozenset[int] = frozenset()
    asked: list[tuple[Sequence[int], list[Any], list[Any]]] = field(default_factory=list)
    present: Any = None
    values: Any = None

    def __call__(
        self, schema: TableSchema, ordinals: Sequence[int], keys: Sequence[pa.Array], xids: pa.Array
    ) -> Answers:
        wanted = keys[0].to_pylist()
        self.asked.append((ordinals, wanted, xids.to_pylist()))
        self.present = pa.array([key in self.held for key in wanted], pa.bool_())
        self.values = [
            None
            if ordinal in self.gone
            else pa.array([self.held.get(key, (None, None))[ordinal - 1] for key in wanted])
            for ordinal in ordinals
        ]
        return self


class Waits:
    """Remembers what it was asked to wait for."""

    def __init__(self) -> None:
        self.xids: list[set[int]] = []

    def wait(self, xids: set[int]) -> set[int]:
        self.xids.append(xids)
        return set()


def updates(assembler: Assembler, table: Table, *cells: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of a transaction of updates, with what is missing of each."""
    [flush] = hear(
        assembler,
        relation(table),
        begin(700, 9_000, 7),
        *(row("U", table, new) for new in cells),
        commit(700, 708, 9_000),
    )
    [batch] = flush.events
    assert isinstance(batch, ChangeBatch)
    return [
        {**{c: item[c] for c in ("a0", "a1", "a2")}, "missing": json.loads(item["missing"] or "[]")}
        for item in batch.rows.to_pylist()
    ]


ROWS = (
    (["1", "sent", "sent"]),
    (["2", UNCHANGED, "sent"]),
    (["3", UNCHANGED, UNCHANGED]),
    (["4", "sent", UNCHANGED]),
)


def named(key: int, v: str | None, w: str | None, *missing: str) -> dict[str, Any]:
    return {"a0": key, "a1": v, "a2": w, "missing": list(missing)}


def test_values_that_were_not_sent_are_looked_up(make: Make) -> None:
    answers = Answers({2: ("v2", "w2"), 3: ("v3", None)})
    waits = Waits()
    assembler = make(lookup=answers, visibility=waits)
    assert updates(assembler, T, *ROWS) == [
        named(1, "sent", "sent"),
        named(2, "v2", "sent"),
        named(3, "v3", None),
        named(4, "sent", None, "w"),
    ]
    assert answers.asked == [([1, 2], [2, 3, 4], [7, 7, 7])]
    assert waits.xids == [{7}]


def test_a_column_that_cannot_be_read_any_more_stays_missing(make: Make) -> None:
    answers = Answers({2: ("v2", "w2"), 3: ("v3", "w3"), 4: ("v4", "w4")}, gone=frozenset({1}))
    assert updates(make(lookup=answers), T, *ROWS) == [
        named(1, "sent", "sent"),
        named(2, None, "sent", "v"),
        named(3, None, "w3", "v"),
        named(4, "sent", "w4"),
    ]


def test_nothing_is_looked_up_where_everything_was_sent(make: Make) -> None:
    answers, waits = Answers({}), Waits()
    assembler = make(lookup=answers, visibility=waits)
    assert updates(assembler, T, ROWS[0]) == [named(1, "sent", "sent")]
    assert answers.asked == [] and waits.xids == []


@pytest.mark.parametrize(
    ("table", "looks"),
    [
        (T, True),
        (replace(T, key=(), identity=ReplicaIdentity.NOTHING), False),
        (replace(T, identity=ReplicaIdentity.FULL), False),
    ],
    ids=["keyed", "keyless", "whole old rows"],
)
def test_only_rows_with_a_key_alone_are_looked_up(make: Make, table: Table, looks: bool) -> None:
    answers = Answers({2: ("v2", "w2")})
    [found] = updates(make(lookup=answers, tables=[table]), table, ROWS[1])
    assert bool(answers.asked) is looks
    assert found["missing"] == ([] if looks else ["v"])


def test_without_a_lookup_what_was_not_sent_is_missing(make: Make) -> None:
    assert updates(make(), T, *ROWS[1:3]) == [
        named(2, None, "sent", "v"),
        named(3, None, None, "v", "w"),
    ]


# ------------------------------------------------------------------- the trouble of one table


def _events(flushes: list[Flush]) -> tuple[list[tuple[str, Any]], list[SchemaChange]]:
    """Rows with their tables, and tables that cannot be read."""
    rows, told = [], []
    for flush in flushes:
        for event in flush.events:
            if isinstance(event, ChangeBatch):
                rows += [(c.table.name, (c.after or {})["k"]) for c in event.changes()]
            elif isinstance(event, SchemaChange):
                told.append(event)
    return rows, told


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        (b"t\0\0\0\3abc", b"t\0\0\0\3a\xffc", "not valid UTF-8"),
        (b"t\0\0\0\3abc", b"x\0\0\0\3abc", "unknown kind"),
        (b"t\0\0\0\3abc", b"t\0\0\0\1aun", "its message"),
    ],
)
def test_rows_of_one_table_that_cannot_be_read(
    make: Make, small: int, good: bytes, bad: bytes, why: str
) -> None:
    """Those of the other in the same transaction are as ever, and so are later ones of both."""
    hurt = row("I", T, ["2", "abc", "b"])
    assert good in hurt
    flushes = hear(
        make(small=small),
        begin(700, 8, 1), relation(T), relation(U), row("I", U, ["1", "u"]),
        hurt.replace(good, bad), row("I", U, ["2", "u"]), commit(700, 701, 8),
        begin(710, 9, 2), row("I", T, ["3", "a", "b"]), row("I", U, ["3", "u"]),
        commit(710, 711, 9),
    )  # fmt: skip
    rows, told = _events(flushes)
    assert [k for name, k in rows if name == "u"] == [1, 2, 3]
    assert {e.new.table.name for e in told} == {"t"} and all(e.unreadable for e in told)
    assert told[0].why.startswith("changes of public.t cannot be read: ") and why in told[0].why
    # All that was decoded together is lost: the event is behind it.
    assert [k for name, k in rows if name == "t"] == []
    assert flushes[-1].frontier is not None and told[-1].at == flushes[-1].frontier.at


def test_a_description_of_one_table_that_cannot_be_read(make: Make) -> None:
    assembler = make()
    hear(
        assembler, begin(700, 8, 1), relation(T), row("I", T, ["1", "a", "b"]), commit(700, 701, 8)
    )
    good = relation(T)
    bad = good.replace(b"public\0t\0d", b"public\0t\0z")
    assert bad != good
    flushes = hear(
        assembler,
        begin(710, 9, 2), bad, row("I", T, ["2", "a", "b"]), relation(U), row("I", U, ["2", "u"]),
        commit(710, 711, 9),
    )  # fmt: skip
    rows, told = _events(flushes)
    assert rows == [("u", 2)]
    assert [(e.new.table.name, e.unreadable) for e in told] == [("t", True)]
    assert "a description of a table that cannot be read" in told[0].why
    healed = hear(
        assembler, begin(720, 10, 3), good, row("I", T, ["3", "a", "b"]), commit(720, 721, 10)
    )
    assert _events(healed) == ([("t", 3)], [])
