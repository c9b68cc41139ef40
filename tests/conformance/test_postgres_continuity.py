"""A server that went back, or that left our history: it is said, and nothing of it is read.

Each test reads from a server, does to it what restores, crashes and promotions do, and reads on
from the last frontier.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import Frontier
from changefeed.sources.postgres.continuity import ServerHistory
from changefeed.sources.postgres.lsn import lsn_of, parse_lsn
from tests.conftest import PostgresFactory
from tests.helpers.postgres_tail import SLOT, Catalog, Tail, prepare
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = [pytest.mark.postgres]

#: What others write to the server's log.
_NOISE = "select pg_logical_emit_message(false, 'noise', repeat('x', 4000))"


class Reader:
    """Follows one table of a server, in one session after the other."""

    def __init__(self, cluster: PostgresCluster, folder: Path) -> None:
        self.cluster = cluster
        self.catalog = Catalog()
        self.rows: list[int] = []
        self._folder = folder
        self.db.execute("create table t (id int primary key, v text)")
        prepare(self.db, "t")
        self.frontier = Frontier(Timestamp.ZERO, "")

    @property
    def db(self) -> Database:
        """The database on the server that is read now."""
        return Database(self.cluster, "postgres")

    def _tail(self) -> Tail:
        return Tail(self.db, self._folder, start=self.frontier, catalog=self.catalog)

    def read(self) -> None:
        """Read on, up to everything that committed before now."""
        tail = self._tail()
        try:
            tail.catch_up()
        finally:
            tail.close()
        self.frontier = tail.frontier
        self.rows += [change.after["id"] for change in tail.changes() if change.after]

    def insert(self, *numbers: int) -> None:
        """One commit per row."""
        for number in numbers:
            self.db.execute("insert into t values (%s, 'x')", [number])

    def refused(self) -> str:
        """Read on in vain: nothing comes, nothing is acknowledged; what is said."""
        before = self.confirmed
        tail = self._tail()
        error = tail.wait_for_end()
        assert error is not None and error.code.number == "CF2104", error
        assert tail.flushes == []
        assert self.confirmed == before
        assert "point the connection back" in error.hint
        return error.message

    @property
    def confirmed(self) -> int:
        """How far the slot was acknowledged."""
        [(lsn,)] = self.db.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s",
            [SLOT],
        )
        return parse_lsn(lsn)

    @property
    def end(self) -> int:
        """Where the server's log ends."""
        [(lsn,)] = self.db.execute("select pg_current_wal_flush_lsn()::text")
        return parse_lsn(lsn)

    def grow(self, beyond: int = 0) -> None:
        """Let others write to the server's log, until it is beyond a position."""
        self.db.execute(f"{_NOISE} from generate_series(1, 20)")
        self.db.execute("select pg_logical_emit_message(true, 'noise', 'x')")
        until(lambda: self.db.execute(_NOISE) and self.end > beyond)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """What happens inside is lost to the server: it gets the disk it had before."""
        snapshot = self.cluster.data.with_name("snapshot")
        self.cluster.stop()
        self.cluster.copy_data(snapshot)
        self.cluster.start()
        yield
        self.cluster.stop()
        self.cluster.restore_data(snapshot)
        self.cluster.start()


@pytest.fixture
def reader(own_postgres: PostgresCluster, tmp_path: Path) -> Reader:
    return Reader(own_postgres, tmp_path)


def test_restored_server_that_ends_below_what_was_read(reader: Reader) -> None:
    reader.insert(1)
    reader.read()
    with reader.restored():
        reader.insert(2, 3)
        reader.grow()
        reader.read()
    assert reader.end < lsn_of(reader.frontier.position)
    assert "its log ends at" in reader.refused()


@pytest.mark.parametrize("own_postgres", [14, 16, 18], indirect=True)
def test_restored_server_that_has_passed_what_was_read(reader: Reader) -> None:
    """The last transaction that was read is not in its log."""
    reader.insert(1)
    reader.read()
    with reader.restored():
        reader.insert(2, 3)
        reader.read()
    reader.insert(4)
    reader.grow(lsn_of(reader.frontier.position))
    reader.insert(5)
    assert "was read, is not in its log" in reader.refused()


def test_restored_server_with_another_transaction_at_the_same_place(reader: Reader) -> None:
    """Same position, same number: the commit time tells them apart."""
    reader.insert(1)
    reader.read()
    with reader.restored():
        reader.insert(2)
        reader.read()
    witness = ServerHistory.parse(reader.frontier.history).witness
    reader.insert(2)
    reader.grow(lsn_of(reader.frontier.position))
    message = reader.refused()
    assert witness is not None
    assert f"transaction {witness.xid} committed" in message or "not in its log" in message


def test_restored_server_with_all_of_our_rows(reader: Reader) -> None:
    """What was lost is of others; but now rows of ours lie where we have read past."""
    reader.insert(1)
    reader.read()
    with reader.restored():
        reader.grow(reader.end + 200_000)
        reader.read()
    reader.insert(2)
    assert reader.end < lsn_of(reader.frontier.position)
    reader.grow(lsn_of(reader.frontier.position))
    reader.insert(3)
    assert "where it had not been" in reader.refused()


def test_crash_is_no_other_history(reader: Reader) -> None:
    """After a crash the slot stands where it was last written down: what comes again is known."""
    reader.insert(1)
    reader.read()
    reader.db.execute("checkpoint")
    stood = reader.confirmed
    for number in (2, 3, 4):
        reader.insert(number)
        reader.read()
        reader.cluster.kill()
        reader.cluster.start()
        assert reader.confirmed < lsn_of(reader.frontier.position)
        reader.insert(number + 10)
        reader.grow()
        reader.read()
    assert stood < reader.confirmed
    assert reader.rows == [1, 2, 12, 3, 13, 4, 14]


def test_large_transactions_come_again_after_a_crash(
    own_postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    """Streamed ones with a part that was rolled back, one of them with nothing left."""
    reader = Reader(own_postgres_factory(16, logical_decoding_work_mem="64kB"), tmp_path)
    fill = "insert into t select i, repeat('x', 500) from generate_series({0}, {0} + 999) i"
    reader.db.execute(
        f"begin; {fill.format(1000)}; savepoint s; {fill.format(5000)}; rollback to s; commit"
    )
    reader.read()
    reader.db.execute("checkpoint")
    reader.db.execute(f"begin; {fill.format(2000)}; savepoint s; {fill.format(5000)}; commit")
    reader.db.execute("truncate t")
    reader.db.execute(f"begin; savepoint s; {fill.format(7000)}; rollback to s; commit")
    reader.grow()
    reader.read()
    reader.cluster.kill()
    reader.cluster.start()
    reader.insert(9)
    reader.read()
    assert reader.rows == [*range(1000, 2000), *range(2000, 3000), *range(5000, 6000), 9]


def test_frontier_without_history_is_taken_as_it_is(reader: Reader) -> None:
    """As logs of earlier versions have it; the next frontier has one."""
    reader.insert(1)
    reader.read()
    reader.frontier = replace(reader.frontier, history="")
    reader.insert(2)
    reader.read()
    assert reader.rows == [1, 2]
    history = ServerHistory.parse(reader.frontier.history)
    assert history.timeline == 1 and history.witness is not None


def test_promoted_copy_that_left_before_what_was_read(
    own_postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    """The old primary went on, and was read; the copy has written more than that since."""
    primary = own_postgres_factory(16)
    reader = Reader(primary, tmp_path)
    reader.insert(1)
    reader.read()
    primary.stop()
    copy = primary.standby("copy", slots=True, primary_conninfo="")
    primary.start()
    reader.insert(2, 3)
    reader.read()
    with copy:
        copy.promote()
        reader.cluster = copy
        reader.grow(lsn_of(reader.frontier.position))
        reader.insert(4)
        assert "its timeline 2 left timeline 1 at" in reader.refused()


def test_old_primary_that_came_back(own_postgres_factory: PostgresFactory, tmp_path: Path) -> None:
    primary = own_postgres_factory(16)
    reader = Reader(primary, tmp_path)
    reader.insert(1)
    reader.read()
    primary.stop()
    copy = primary.standby("copy", slots=True, primary_conninfo="")
    with copy:
        copy.promote()
        reader.cluster = copy
        reader.insert(2)
        reader.read()
        assert ServerHistory.parse(reader.frontier.history).timeline == 2
    reader.cluster = primary.start()
    reader.grow(lsn_of(reader.frontier.position))
    assert "timeline 1, which does not come from timeline 2" in reader.refused()
