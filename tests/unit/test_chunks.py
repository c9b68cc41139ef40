"""How a slice of the change log becomes chunks: joined, bounded, without what nobody saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import Ddl, Event, SchemaChange, Truncate
from changefeed.core.sizes import Sizes
from changefeed.feeds.chunks import Chunk, ControlItem, Item, Watermark, items
from changefeed.log import LogReader, LogSettings, LogWriter
from tests.helpers.log_samples import Row, batch, flush, keys, narrow

A, B = narrow("a"), narrow("b")
BEGIN = Timestamp(1000)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """A log whose large batches lie in row groups of 20 rows."""
    with LogWriter(tmp_path, LogSettings(segment_rows=50, group_rows=20, grace=0.0)) as made:
        made.append(flush([], BEGIN, 1))
        yield made


def handed_out(
    writer: LogWriter,
    upto: Timestamp,
    *events: Event,
    after: Timestamp = BEGIN,
    sizes: Sizes | None = None,
) -> list[Item]:
    """What a feed of both tables gets of these events."""
    writer.append(flush(list(events), upto, upto.wall))
    with LogReader(writer.root) as reader:
        found = list(items(reader, {A.table: after, B.table: after}, upto, sizes=sizes))
        for item in found:
            if isinstance(item, Chunk):
                assert len(item.load()) <= item.rows
        return found


def of(found: Sequence[Item], table: str) -> list[Chunk]:
    return [i for i in found if isinstance(i, Chunk) and i.schema.table.name == table]


def test_neighbours_are_joined_to_chunks_of_bounded_size(writer: LogWriter) -> None:
    rows = [Row(Timestamp(2000 + n), 2000 + n) for n in range(100)]
    upto = Timestamp(2100)
    found = handed_out(
        writer, upto, batch(A, rows), batch(B, rows[:10]), sizes=Sizes(chunk_rows=40)
    )
    assert [(c.rows, len(c.pieces), c.number) for c in of(found, "a")] == [
        (40, 2, 1),
        (40, 2, 2),
        (20, 1, 3),
    ]
    assert [(c.rows, c.number) for c in of(found, "b")] == [(10, 1)]
    assert {(c.after, c.upto) for c in [*of(found, "a"), *of(found, "b")]} == {(BEGIN, upto)}
    assert [s for c in of(found, "a") for s in keys(c.load())] == list(range(2000, 2100))
    assert found[-1] == Watermark((A.table, B.table), upto)


def test_versions_of_a_table_are_not_joined(writer: LogWriter) -> None:
    new = A.with_version(2)
    at = Timestamp(2000)
    change = SchemaChange(A, new, at, 2)
    found = handed_out(writer, at, batch(A, [Row(at, 1)]), change, batch(new, [Row(at, 3)]))
    assert [c.schema.version for c in of(found, "a")] == [1, 2]
    mark = next(i for i in found if isinstance(i, ControlItem))
    assert (mark.table, mark.event, mark.renamed) == (A.table, change, False)


def test_a_chunk_knows_the_columns_that_are_clean_in_all_of_it(writer: LogWriter) -> None:
    """One value with a quote, in any piece, and the column's texts have to be escaped."""
    at = Timestamp(2000)
    quoted = [Row(at, n, '"' if n == 30 else "plain") for n in range(50)]
    plain = [Row(at, 100 + n) for n in range(50)]
    found = handed_out(writer, at, batch(A, quoted), batch(B, plain))
    assert [c.clean for c in of(found, "a")] == [frozenset()]
    assert [c.clean for c in of(found, "b")] == [{"a1"}]


UNSENT = '["note"]'


def test_a_chunk_knows_that_the_rest_of_its_transaction_lacks_values(writer: LogWriter) -> None:
    """Row groups have 20 rows, and each is a chunk; what lacks values is known by file."""
    upto = Timestamp(2003)
    rows = [Row(Timestamp(2000 + n // 100), n) for n in range(240)]
    rows[155] = Row(rows[155].at, 155, None, missing=UNSENT)
    batches = [batch(A, rows[n : n + 60]) for n in range(0, 240, 60)]
    found = handed_out(writer, upto, *batches, sizes=Sizes(chunk_rows=20))
    cut = {(c.pieces[0].first_seq, c.unsent_beside) for c in of(found, "a")}
    assert {seq for seq, unsent in cut if unsent} == {100, 120, 140, 160, 180}


def test_values_may_be_lacking_in_the_first_piece_alone(writer: LogWriter) -> None:
    one, two = Timestamp(2000), Timestamp(2001)
    first = batch(A, [Row(one, n, None, missing=UNSENT) for n in range(20)])
    rest = batch(A, [Row(one, 30 + n) for n in range(60)])
    later = batch(A, [Row(two, 100 + n, None, missing=UNSENT) for n in range(20)])
    between = [batch(B, [Row(at, seq)]) for at, seq in ((one, 25), (two, 95))]
    events = [first, between[0], rest, between[1], later]
    found = handed_out(writer, two, *events, sizes=Sizes(chunk_rows=20))
    told = [(c.pieces[0].first_seq, c.unsent_beside) for c in of(found, "a")]
    assert told == [(0, False), (30, True), (50, True), (70, True), (100, False)]


def test_what_another_transaction_or_table_lacks_does_not_matter(writer: LogWriter) -> None:
    one, two = Timestamp(2000), Timestamp(2001)
    known = [Row(one, n) for n in range(60)]
    other = [Row(one, 100 + n, None, missing=UNSENT) for n in range(60)]
    later = [Row(two, 200 + n, None, missing=UNSENT) for n in range(60)]
    events = [batch(A, known), batch(B, other), batch(A, later)]
    found = handed_out(writer, two, *events, sizes=Sizes(chunk_rows=20))
    assert [c.unsent_beside for c in of(found, "a")] == [False] * 3 + [True] * 3
    assert [c.unsent_beside for c in of(found, "b")] == [True] * 3


def test_what_a_truncate_of_their_own_transaction_removed_was_never_seen(
    writer: LogWriter,
) -> None:
    """Rows of the transaction before, of the truncate's own transaction after it, and of another
    table stay."""
    before, at = Timestamp(2000), Timestamp(2001)
    found = handed_out(
        writer,
        at,
        batch(A, [Row(before, 1), Row(at, 2), Row(at, 4)]),
        batch(B, [Row(at, 3)]),
        Truncate(A, at, 5),
        batch(A, [Row(at, 6)]),
        batch(B, [Row(at, 7)]),
    )
    assert [keys(c.load()) for c in of(found, "a")] == [[1], [6]]
    assert [s for c in of(found, "b") for s in keys(c.load())] == [3, 7]


def test_a_truncate_removes_nothing_of_earlier_transactions(writer: LogWriter) -> None:
    """The truncate itself tells of these rows, and their messages are owed."""
    at = Timestamp(2001)
    found = handed_out(writer, at, batch(A, [Row(Timestamp(2000), 1)]), Truncate(A, at, 2))
    [chunk] = of(found, "a")
    assert (keys(chunk.load()), chunk.removed) == ([1], ())


def test_rows_behind_a_truncate_are_above_it(writer: LogWriter) -> None:
    """A sink that orders by the chunk's bound sorts them behind the truncation. A schema change
    sorts nothing."""
    at = Timestamp(2000)
    new = B.with_version(2)
    events: list[Event] = [
        batch(A, [Row(at, 1)]),
        Truncate(A, at, 2),
        batch(A, [Row(at, 3)]),
        batch(B, [Row(at, 4)]),
        SchemaChange(B, new, at, 5),
        batch(new, [Row(at, 6)]),
    ]
    found = handed_out(writer, at, *events)
    assert [c.after for c in of(found, "a")] == [BEGIN, Timestamp(1999)]
    assert [c.after for c in of(found, "b")] == [BEGIN, BEGIN]


def test_rows_behind_a_truncate_are_above_their_tables_bound(writer: LogWriter) -> None:
    """The bound may be of the same nanosecond as what is just below the truncate."""
    at, bound = Timestamp(2000), Timestamp(1999, 5)
    found = handed_out(writer, at, Truncate(A, at, 2), batch(A, [Row(at, 3)]), after=bound)
    assert [c.after for c in of(found, "a")] == [bound]


def test_a_statement_of_ddl_comes_between_the_rows_of_its_table(writer: LogWriter) -> None:
    at = [Timestamp(2000 + n) for n in range(4)]
    ddl = Ddl(B.table, "ALTER", "ALTER TABLE b ..", "00000002", at[1], 2)
    events: list[Event] = [
        batch(A, [Row(at[0], 1)]),
        batch(B, [Row(at[0], 1)]),
        ddl,
        batch(B, [Row(at[2], 3)]),
    ]
    found = handed_out(writer, at[3], *events)
    [mark] = [item for item in found if isinstance(item, ControlItem)]
    assert (mark.event, mark.table, mark.renamed) == (ddl, B.table, False)
    assert mark.complete == (A.table,), "everything of the other table was handed out"
    place = found.index(mark)
    assert (
        [c.rows for c in of(found[:place], "b")] == [c.rows for c in of(found[place:], "b")] == [1]
    )
