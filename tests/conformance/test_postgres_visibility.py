"""What the server sends before it shows it: the catalog and the tables are read afterwards.

A commit that waits for a synchronous standby is in the log, and so in the stream, but not yet seen.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.events import SchemaChange
from changefeed.sources.postgres import PostgresSource
from changefeed.sources.postgres.lookup import Lookup
from tests.conformance.conftest import ALL
from tests.helpers.postgres_tail import Tail, prepare, tailing
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = pytest.mark.postgres

_KEY = "begin; alter table t drop constraint t_pkey, add primary key (b); {}; commit"


class Held:
    """Commits of a server are in its log, and seen by nobody before :meth:`show`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._writer: threading.Thread | None = None
        self._name("nobody")

    def _name(self, standbys: str) -> None:
        with self._db.connect() as connection:
            connection.execute(f"alter system set synchronous_standby_names = '{standbys}'")
            connection.execute("select pg_reload_conf()")
        shown = [(standbys,)]
        until(lambda: self._db.execute("show synchronous_standby_names") == shown)

    def write(self, sql: str) -> None:
        """Run ``sql`` in another thread: its commit does not end yet."""
        self._writer = threading.Thread(target=self._db.execute, args=(sql,), daemon=True)
        self._writer.start()

    def show(self) -> None:
        """Let commits end, again; returns when the one of :meth:`write` has."""
        self._name("")
        if self._writer is not None:
            self._writer.join(60)
            assert not self._writer.is_alive()


@contextmanager
def held(db: Database) -> Iterator[Held]:
    made = Held(db)
    try:
        yield made
    finally:
        made.show()


@contextmanager
def reading(db: Database, folder: Path, source: PostgresSource, held: Held) -> Iterator[Tail]:
    """A stream; the held commit is shown as soon as the stream has looked for it in vain."""

    def unseen(xids: Collection[int]) -> set[int]:
        left = source.unseen(xids)
        if left:
            held.show()
        return left

    lookup = Lookup(db.uri)
    with tailing(db, folder, unseen=unseen, lookup=lookup.fetch) as tail:
        yield tail
    lookup.close()


def _keys(tail: Tail) -> list[Any]:
    return [[c.name for c in batch.schema.key_columns] for batch in tail.batches("t")]


@ALL
def test_a_key_that_changed_a_moment_ago_is_the_key(
    postgres: Database, tmp_path: Path, source: PostgresSource
) -> None:
    """A Relation message does not tell the primary key of a table that logs whole old rows."""
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t values (1, 'x')"
    )
    prepare(postgres)
    postgres.execute("update t set b = 'y'")
    with held(postgres) as commits, reading(postgres, tmp_path, source, commits) as tail:
        tail.wait_for(lambda: tail.changes("t"))
        commits.write(_KEY.format("update t set b = 'z'"))
        tail.wait_for(lambda: len(tail.changes("t")) > 1)
        assert _keys(tail) == [["a"], ["b"]]
        [change] = [event for event in tail.events if isinstance(event, SchemaChange)]
        assert [column.name for column in change.new.key_columns] == ["b"]


def test_a_key_that_is_shown_too_late_is_found_with_a_later_row(
    postgres: Database, tmp_path: Path, source: PostgresSource
) -> None:
    """A standby that is away holds no stream; what the catalog shows then is taken."""
    at_once = {"patience": 0.0, "look_again": 0.0}
    postgres.execute(
        "create table t (a int primary key, b text); alter table t replica identity full;"
        "insert into t values (1, 'x')"
    )
    prepare(postgres)
    postgres.execute("update t set b = 'y'")
    with (
        held(postgres) as commits,
        tailing(postgres, tmp_path, unseen=source.unseen, **at_once) as tail,
    ):
        tail.wait_for(lambda: tail.changes("t"))
        commits.write(_KEY.format("update t set b = 'z'"))
        tail.wait_for(lambda: len(tail.changes("t")) == 2)
        assert _keys(tail) == [["a"], ["a"]]
        commits.show()
        postgres.execute("update t set a = 2")
        tail.catch_up()
    assert _keys(tail) == [["a"], ["a"], ["b"]]


def test_a_value_that_was_not_sent_is_looked_up_when_its_row_is_seen(
    postgres: Database, tmp_path: Path, source: PostgresSource
) -> None:
    postgres.execute(
        "create table t (a int primary key, v int, big text);"
        "alter table t alter big set storage external;"
        "insert into t values (1, 1, repeat('x', 5000))"
    )
    prepare(postgres)
    with held(postgres) as commits, reading(postgres, tmp_path, source, commits) as tail:
        commits.write("update t set v = 2")
        tail.wait_for(lambda: tail.changes("t"))
        [change] = tail.changes("t")
        assert change.after == {"a": 1, "v": 2, "big": "x" * 5000}
