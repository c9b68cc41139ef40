"""What every stream's flushes are made by: numbers, timestamps, and what is left for the next."""

from __future__ import annotations

from dataclasses import replace

from changefeed.core.clock import Timestamp
from changefeed.core.events import Commits, Ddl, Frontier, SchemaChange, Truncate
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.decoded.flushes import FlushBuilder, LogCommit, ShapeChange

AT = Timestamp(5_000)
START = Frontier(Timestamp(1_000), "p1", 10)
TABLE = TableSchema(
    TableName("src", "public", "t"),
    (Column("id", "int", LogicalType.parse("int32"), False),),
    (0,),
    BeforeImage.FULL,
)


def test_every_event_has_the_next_number() -> None:
    made = FlushBuilder(START)
    other = replace(TABLE, version=2)
    made.define(TABLE.table, "ALTER", "alter table t ..", "p2", AT)
    made.change(ShapeChange(TABLE, other, rewritten=False, others=(other,)), AT)
    made.truncate(other, AT)
    made.unreadable(other, "why", AT)
    made.add(Truncate(TABLE, AT, 99))
    (flush,) = made.flush(START)
    assert flush.events == (
        Ddl(TABLE.table, "ALTER", "alter table t ..", "p2", AT, 11),
        SchemaChange(TABLE, other, AT, 12),
        SchemaChange(other, other, AT, 13),
        Truncate(other, AT, 14),
        SchemaChange(other, other, AT, 15, rewritten=True, unreadable=True, why="why"),
        Truncate(TABLE, AT, 99),
    )
    assert (made.seq, made.flush(START)) == (15, ())


def test_time_never_goes_back_and_a_commit_alone_is_a_flush() -> None:
    made = FlushBuilder(START)
    made.pass_time(500)
    assert made.last == START.at
    made.reach(0)
    assert made.last == START.at.next()
    made.pass_time(5_000)
    made.add_commit(LogCommit(made.last, 7, 5, "p2"))
    (flush,) = made.flush(None)
    assert (flush.events, flush.frontier) == ((), None)
    assert flush.commits == Commits([5_000], [0], ["p2"], [7])
