"""Which renames of MySQL's tables readers of the log are told, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import SchemaChange
from changefeed.sources.mysql.binlog import QueryEvent
from changefeed.sources.mysql.ddl import Named, read_definition
from changefeed.sources.mysql.renames import GRACE_NS, Renames, net_moves
from tests.helpers.mysql_recordings import Recording
from tests.unit.test_mysql_binlog import query_event

A, B, C = (("d", name) for name in "abc")


class Log:
    """A log of statements, which ends at positions 1, 2, 3; a second passes with each."""

    def __init__(self, folder: Path, wanted: set[Named]) -> None:
        self.folder = folder
        self.wanted = frozenset(wanted)
        self.number = 0
        self.renames = Renames(folder, "0")

    @property
    def position(self) -> str:
        return str(self.number)

    @property
    def watched(self) -> set[Named]:
        return set(self.renames.watched(self.wanted))

    def run(self, *statements: str) -> None:
        for text in statements:
            self.number += 1
            found = read_definition(QueryEvent("d", text))
            assert found is not None
            gone = found.tables if found.kind == "DROP" else ()
            wall = self.number * 1_000_000_000
            watched = self.renames.watched(self.wanted)
            self.renames.defined(found, gone, watched, self.position, wall)

    def waiting(self) -> list[tuple[str, str]]:
        """Old and new name of what is still to be told, after the grace."""
        late = self.renames.overdue(self.number * 1_000_000_000 + GRACE_NS)
        return [(r.old[1], r.new[1]) for r in late]

    def row_of(self, named: Named) -> None:
        """The first row under a name."""
        self.number += 1
        rename = self.renames.awaiting(named)
        assert rename is not None
        rename.due = True
        self.renames.announce(rename.old, rename.new, self.position)

    def restart(self, position: str) -> None:
        """Another stream, from there on."""
        self.renames.save()
        self.renames = Renames(self.folder, position)


@pytest.mark.parametrize(
    ("statement", "moves"),
    [
        ("RENAME TABLE a TO b", {A: B}),
        ("RENAME TABLE a TO tmp, b TO a, tmp TO b", {A: B, B: A}),
        ("RENAME TABLE a TO b, b TO c", {A: C}),
        ("RENAME TABLE a TO b, b TO a", {}),
        ("ALTER TABLE a ADD x int, RENAME TO e.a", {A: ("e", "a")}),
        ("ALTER TABLE a ADD x int", {}),
    ],
)
def test_what_tables_are_called_after_a_statement(
    statement: str, moves: dict[Named, Named]
) -> None:
    found = read_definition(QueryEvent("d", statement))
    assert found is not None and net_moves(found.moves) == moves


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["RENAME TABLE a TO b"], [("a", "b")]),
        (["RENAME TABLE a TO b", "ALTER TABLE b RENAME c"], [("a", "c")]),
        (["RENAME TABLE a TO b", "RENAME TABLE b TO old, new TO b"], [("a", "b")]),
        # The name goes to another table, at once or soon: it was altered online.
        (["RENAME TABLE a TO b, new TO a"], []),
        (["RENAME TABLE a TO tmp, b TO a, tmp TO b"], []),
        (["RENAME TABLE a TO b", "ALTER TABLE new RENAME a"], []),
        (["RENAME TABLE a TO b", "CREATE TABLE a (x int)"], []),
        (["RENAME TABLE a TO b", "CREATE TABLE IF NOT EXISTS a (x int)"], []),
        (["RENAME TABLE a TO b", "RENAME TABLE b TO a"], []),
        (["RENAME TABLE a TO b", "DROP TABLE b"], []),
        (["RENAME TABLE other TO b"], []),
    ],
)
def test_a_table_is_renamed_while_nothing_else_has_its_name(
    tmp_path: Path, statements: list[str], told: list[tuple[str, str]]
) -> None:
    log = Log(tmp_path, {A})
    log.run(*statements)
    assert log.waiting() == told
    assert log.watched == {A, *(("d", new) for _, new in told)}


def test_a_rename_waits_for_its_grace(tmp_path: Path) -> None:
    log = Log(tmp_path, {A})
    log.run("RENAME TABLE a TO b")
    assert log.renames.overdue(1_000_000_000 + GRACE_NS - 1) == []
    assert len(log.renames.overdue(1_000_000_000 + GRACE_NS)) == 1


def test_what_was_told_outlives_the_stream_until_nobody_wants_the_old_name(tmp_path: Path) -> None:
    log = Log(tmp_path, {A})
    log.run("RENAME TABLE a TO b")
    log.row_of(B)
    log.run("RENAME TABLE b TO c")
    log.row_of(C)
    log.restart(log.position)
    assert (log.watched, log.waiting()) == ({A, B, C}, [])
    log.run("CREATE TABLE a (x int)")  # feeds that are behind follow all the same
    assert log.watched == {A, B, C}
    log.wanted = frozenset({C})
    assert log.watched == {C}
    log.restart(log.position)
    log.wanted = frozenset({A})
    assert log.watched == {A}, "it was forgotten"


def test_a_stream_that_begins_earlier_meets_everything_again(tmp_path: Path) -> None:
    log = Log(tmp_path, {A})
    log.run("RENAME TABLE a TO b")
    log.row_of(B)
    log.restart("1")
    assert log.waiting() == [("a", "b")], "its row comes again"
    log.row_of(B)
    log.restart("0")
    assert (log.watched, log.waiting()) == ({A}, [])


def test_a_file_that_cannot_be_read_is_no_silent_loss(tmp_path: Path) -> None:
    (tmp_path / "renames").write_text("[[1]]")
    with pytest.raises(ChangefeedError) as caught:
        Renames(tmp_path, "0")
    assert caught.value.code is Code.LOG_DAMAGED


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_rename_without_rows_is_told_by_later_transactions_or_by_time(
    tmp_path: Path, flavor: str
) -> None:
    """In the shape that the table had, and once."""
    for how in ("transaction", "time"):
        recording = Recording.load(flavor)
        assembler = recording.assembler(tmp_path / how)
        for place in recording.events():
            list(assembler.take(place) or ())
        list(assembler.flush())
        list(assembler.take(query_event("RENAME TABLE plain TO simple, items TO things")) or ())
        events = [e for flush in assembler.flush() for e in flush.events]
        assert not any(isinstance(e, SchemaChange) for e in events)
        seconds = 1_700_000_000 + GRACE_NS // 1_000_000_000
        for _ in range(2):
            if how == "time":
                assembler.caught_up(max(assembler.frontier.at.wall, seconds * 1_000_000_000) + 1000)
            else:
                list(assembler.take(query_event("CREATE DATABASE other", seconds=seconds)) or ())
            flushes = list(assembler.flush())
            events += [e for flush in flushes for e in flush.events]
        changes = [e for e in events if isinstance(e, SchemaChange)]
        assert [(e.old.table.name, e.new.table.name) for e in changes] == [
            ("plain", "simple"),
            ("items", "things"),
        ]
        assert all(e.old.columns == e.new.columns and not e.rewritten for e in changes)
