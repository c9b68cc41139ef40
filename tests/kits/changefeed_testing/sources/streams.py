"""Cases about the changes that a stream carries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from changefeed.core.events import SchemaChange, Truncate
from changefeed.core.schema import BeforeImage
from changefeed_testing.sources.copy import Copy
from changefeed_testing.sources.harness import SourceHarness
from changefeed_testing.sources.reader import CaptureDouble, State, capturing
from changefeed_testing.sources.scans import TABLE, fill

#: Rows of a transaction that is too large for a source to keep in memory.
LARGE = 60_000


def _ops(state: State, table: str = "t") -> list[tuple[str, Any]]:
    """The operation and the key of each change."""
    return [
        (change.op, (change.before if change.op == "d" else change.after or {})["id"])  # type: ignore[index]
        for change in state.changes(table)
    ]


def every_kind_of_change(harness: SourceHarness) -> None:
    """Inserts, updates and deletes come in commit order, with their values."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
        harness.execute("UPDATE t SET v = 'b' WHERE id = 1")
        harness.execute("DELETE FROM t WHERE id = 2")
        reader.catch_up()
        assert _ops(state) == [("c", 1), ("c", 2), ("u", 1), ("d", 2)]
        assert [change.after for change in state.changes()] == [
            {"id": 1, "v": "a"},
            {"id": 2, "v": None},
            {"id": 1, "v": "b"},
            None,
        ]


def a_transaction_has_one_timestamp(harness: SourceHarness) -> None:
    """Rows of a transaction share one timestamp. Sequence numbers, timestamps, positions rise."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        for start in range(0, 40, 4):
            rows = ", ".join(f"({start + n}, 'x')" for n in range(4))
            harness.execute(f"INSERT INTO t VALUES {rows}")
        reader.catch_up()
        changes = state.changes()
        assert [change.seq for change in changes] == sorted({change.seq for change in changes})
        assert [change.ordinal for change in changes] == [0, 1, 2, 3] * 10
        stamps = [change.at for change in changes]
        assert stamps == sorted(stamps) and len(set(stamps)) == 10
        positions = state.positions()
        places = [positions[at] for at in sorted(set(stamps))]
        assert places == sorted(set(places))
        frontiers = [flush.frontier for flush in state.flushes if flush.frontier]
        for before, after in pairwise(frontiers):
            assert before.at <= after.at and before.position <= after.position
            assert before.seq <= after.seq


def a_change_of_the_key(harness: SourceHarness) -> None:
    """A change of the key is a delete of the old key, then an insert of the new one."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO t VALUES (1, 'a')")
        harness.execute("UPDATE t SET id = 2 WHERE id = 1")
        reader.catch_up()
        assert _ops(state) == [("c", 1), ("d", 1), ("c", 2)]
        _, gone, come = state.changes()
        assert gone.at == come.at and come.after == {"id": 2, "v": "a"}


def a_row_that_changes_twice_at_once(harness: SourceHarness) -> None:
    """Only the last change of a key in a transaction is marked as the last."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute(
            "INSERT INTO t VALUES (1, 'a')",
            "UPDATE t SET v = 'b' WHERE id = 1",
            "INSERT INTO t VALUES (2, 'z')",
            "UPDATE t SET v = 'c' WHERE id = 1",
        )
        reader.catch_up()
        last = [(change.after or {})["v"] for change in state.changes() if change.last]
        assert sorted(last) == ["c", "z"]


def a_table_without_a_key(harness: SourceHarness) -> None:
    """Equal rows are counted, and updates and deletes have the whole old row."""
    harness.execute("CREATE TABLE t (a INT, b VARCHAR(20))", harness.full_images("t"))
    with capturing(harness, "t") as (state, reader):
        schema = reader.source.describe(None, "t")
        assert schema.keyless and schema.before_image is BeforeImage.FULL
        harness.execute("INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)")
        harness.execute("UPDATE t SET b = 'y' WHERE a IS NULL")
        harness.execute("DELETE FROM t WHERE a = 1", "INSERT INTO t VALUES (1, 'x')")
        reader.catch_up()
        copy = Copy(schema)
        copy.apply(state, state.flushes[0].frontier.at)  # type: ignore[union-attr]
        wanted = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
        assert copy.rows() == sorted(wanted, key=repr)


def old_rows_are_whole_where_they_are_logged(harness: SourceHarness) -> None:
    """With full before images each update and delete has all old values."""
    harness.execute(TABLE, harness.full_images("t"))
    with capturing(harness, "t") as (state, reader):
        assert reader.source.describe(None, "t").before_image is BeforeImage.FULL
        harness.execute("INSERT INTO t VALUES (1, 'a')")
        harness.execute("UPDATE t SET v = 'b'")
        harness.execute("DELETE FROM t")
        reader.catch_up()
        assert [change.before for change in state.changes()] == [
            None,
            {"id": 1, "v": "a"},
            {"id": 1, "v": "b"},
        ]


def truncate(harness: SourceHarness) -> None:
    """A TRUNCATE is a separate event, between the rows before and after it."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        fill(harness, 5)
        harness.execute("TRUNCATE TABLE t")
        harness.execute("INSERT INTO t VALUES (7, 'after')")
        reader.catch_up()
        (event,) = (event for event in state.events if isinstance(event, Truncate))
        assert event.schema.table.name == "t"
        seqs = [change.seq for change in state.changes()]
        assert seqs[4] < event.seq < seqs[5]
        copy = Copy(event.schema)
        copy.apply(state, state.flushes[0].frontier.at)  # type: ignore[union-attr]
        assert copy.rows() == [{"id": 7, "v": "after"}]


def columns_come_and_go(harness: SourceHarness) -> None:
    """A change of columns is announced once, before the first row of the new shape."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO t VALUES (1, 'a')")
        reader.catch_up()
        harness.execute("ALTER TABLE t ADD COLUMN w INT")
        harness.execute("INSERT INTO t VALUES (2, 'b', 22)")
        harness.execute("ALTER TABLE t DROP COLUMN v")
        harness.execute("INSERT INTO t VALUES (3, 33)")
        reader.catch_up()
        changes = [event for event in state.events if isinstance(event, SchemaChange)]
        shapes = [[column.name for column in change.new.columns] for change in changes]
        assert shapes == [["id", "v", "w"], ["id", "w"]]
        rows = state.changes()
        assert [row.after for row in rows] == [
            {"id": 1, "v": "a"},
            {"id": 2, "v": "b", "w": 22},
            {"id": 3, "w": 33},
        ]
        assert rows[0].seq < changes[0].seq < rows[1].seq < changes[1].seq < rows[2].seq
        assert changes[0].old.version < changes[0].new.version == changes[1].old.version


def a_column_gets_another_name(harness: SourceHarness) -> None:
    """A renamed column keeps its id, if the source has ids."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO t VALUES (1, 'a')")
        reader.catch_up()
        harness.execute("ALTER TABLE t RENAME COLUMN v TO w")
        harness.execute("INSERT INTO t VALUES (2, 'b')")
        reader.catch_up()
        (change,) = (event for event in state.events if isinstance(event, SchemaChange))
        old, new = change.old.columns[1], change.new.columns[1]
        assert (old.name, new.name) == ("v", "w")
        assert old.column_id == new.column_id
        assert (old.ref == new.ref) == (old.column_id != 0)
        assert state.changes()[-1].after == {"id": 2, "w": "b"}


def a_table_gets_another_name(harness: SourceHarness) -> None:
    """If tables have ids, or the log tells of renames, the rows of a renamed table come under the
    new name after a schema change that has both names, even in a stream that begins after the
    rename; with ids for a reader of any earlier name. Otherwise the rows under the new name are
    those of another table."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO t VALUES (1, 'a')")
        reader.catch_up()
        numbered = reader.source.describe(None, "t").table_id != 0
        followed = numbered or harness.logs_renames
        for number, (old, new) in enumerate((("t", "u"), ("u", "w")), start=2):
            harness.execute(f"ALTER TABLE {old} RENAME TO {new}")
            if new == "w":
                reader.close()
            harness.execute(f"INSERT INTO {new} VALUES ({number}, 'b')")
            if new == "w":
                reader = CaptureDouble(state, reader.source)
            reader.catch_up()
        reader.close()
        names = [(change.table.name, (change.after or {})["id"]) for change in state.changes()]
        assert names == [("t", 1), ("u", 2), ("w", 3)] if followed else [("t", 1)]
        moves = [
            (event.old.table.name, event.new.table.name)
            for event in state.events
            if isinstance(event, SchemaChange)
        ]
        assert moves[:1] == ([("t", "u")] if followed else [])
        later = {("u", "w"), ("t", "w")} if numbered else {("u", "w")}
        assert set(moves[1:]) == (later if followed else set())


def a_large_transaction_is_whole(harness: SourceHarness) -> None:
    """The rows of a large transaction come in bounded batches, with one timestamp, and without a
    frontier between them."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        fill(harness, LARGE)
        harness.execute("INSERT INTO t VALUES (-1, 'after')")
        reader.catch_up()
        changes = state.changes()
        assert len(changes) == LARGE + 1
        assert {(change.after or {})["id"] for change in changes} == {-1, *range(LARGE)}
        large = {change.at for change in changes[:-1]}
        assert len(large) == 1 and changes[-1].at > max(large)
        assert [change.ordinal for change in changes[:-1]] == list(range(LARGE))


def what_is_undone_never_was(harness: SourceHarness) -> None:
    """Rows of a transaction or savepoint that was rolled back are not sent."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader), harness.session() as session:
        session.execute("INSERT INTO t VALUES (1, 'undone')")
        session.rollback()
        session.execute("INSERT INTO t VALUES (2, 'kept')")
        session.execute("SAVEPOINT s")
        session.execute("INSERT INTO t VALUES (3, 'undone')")
        session.execute("ROLLBACK TO SAVEPOINT s")
        session.execute("INSERT INTO t VALUES (4, 'kept')")
        session.commit()
        reader.catch_up()
        assert _ops(state) == [("c", 2), ("c", 4)]


def an_abandoned_large_transaction(harness: SourceHarness) -> None:
    """A large transaction that is rolled back leaves nothing, and does not affect the next one."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader), harness.session() as session:
        for start in range(0, LARGE, 500):
            rows = ", ".join(f"({key}, 'undone')" for key in range(start, start + 500))
            session.execute(f"INSERT INTO t VALUES {rows}")
        session.rollback()
        harness.execute("INSERT INTO t VALUES (1, 'kept')")
        reader.catch_up()
        assert [change.after for change in state.changes()] == [{"id": 1, "v": "kept"}]


def commits_come_in_their_order(harness: SourceHarness) -> None:
    """Overlapping transactions come whole, in commit order."""
    harness.execute(TABLE)
    with capturing(harness, "t") as (state, reader):
        with harness.session() as one, harness.session() as two:
            one.execute("INSERT INTO t VALUES (1, 'one')")
            two.execute("INSERT INTO t VALUES (2, 'two')")
            one.execute("INSERT INTO t VALUES (3, 'one')")
            two.execute("INSERT INTO t VALUES (4, 'two')")
            two.commit()
            one.commit()
        reader.catch_up()
        assert _ops(state) == [("c", 2), ("c", 4), ("c", 1), ("c", 3)]


def other_tables_stay_away(harness: SourceHarness) -> None:
    """A table that is not captured sends nothing."""
    harness.execute(TABLE, "CREATE TABLE other (id INT NOT NULL PRIMARY KEY, v VARCHAR(200))")
    with capturing(harness, "t") as (state, reader):
        harness.execute("INSERT INTO other VALUES (1, 'x')", "INSERT INTO t VALUES (1, 'x')")
        harness.execute("INSERT INTO other VALUES (2, 'x')")
        reader.catch_up()
        assert {event.schema.table.name for event in state.events} == {"t"}  # type: ignore[union-attr]
