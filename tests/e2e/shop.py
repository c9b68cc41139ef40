"""Two tables that tests write to, and a feed of them into files that the validators judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changefeed.catalog.model import TableProgress
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import read_files
from tests.e2e.feeds import Feeds, running
from tests.nemesis.judge import judge_feed
from tests.nemesis.ledger import Cause, Ledger, Table
from tests.nemesis.reading import of_postgres
from tests.nemesis.service import Service
from tests.services.postgres import Database

T = Table("t", steady=("id", "v", "b"))
U = Table("u")


class Shop:
    """Two tables that a test writes to, and what they really held."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.out = folder / "out"
        self.ledger = Ledger([T, U])
        self._number = 0
        db.execute(
            "create table t (id int primary key, v bigint, b text);"
            "alter table t replica identity full;"
            "insert into t select i, -i, 'first' from generate_series(1, 10) i;"
            "create table u (id int primary key, v bigint, b text);"
            "insert into u values (1, 1, 'u')"
        )
        self.record("t", "u")

    def record(self, *tables: str) -> None:
        """Write down what the tables hold now."""
        with self.db.connect() as connection:
            self.ledger.record(of_postgres(connection), tables)

    def record_as(self, table: str, cause: Cause) -> None:
        """Write down what a schema change or TRUNCATE made of a table."""
        with self.db.connect() as connection:
            self.ledger.record(of_postgres(connection), [table], cause)

    def write(self, times: int = 1) -> None:
        """Commits of every kind."""
        for _ in range(times):
            self._number += 10
            n = self._number
            for sql in (
                f"insert into t values ({100 + n}, {n}, 'new')",
                f"update t set v = {n + 1} where id <= 3",
                f"update t set id = id + 1000000, v = {n + 2} where id = {90 + n}",
                f"delete from t where id = {100 + n - 30}",
                f"update u set v = {n + 3}",
            ):
                self.db.execute(sql)
                self.record("t", "u")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Commits go on in a thread while the block lasts."""
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.02):
                self.write()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()

    def create(self, execute: Feeds | Service, name: str = "f", tables: str = "t, u") -> None:
        """A feed into files with all that the validators want."""
        execute.execute(
            f"CREATE CHANGEFEED {name} FOR {tables} INTO 'file://{self.out / name}'"
            " WITH updated, resolved = '100ms'"
        )

    def check(self, name: str = "f", *tables: str) -> None:
        """The feed delivered every version, in order, and nothing else."""
        names = tables or ("t", "u")

        def failures() -> list[str]:
            found = read_files(self.out / name, names)
            return judge_feed(self.ledger, found, names, diff=False)

        # SYNC answers when rows are durable; the mark that says so follows in a moment. What is
        # wrong for good stays wrong.
        deadline = time.monotonic() + 60
        while (left := failures()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, "\n".join(left[:20])

    def messages(self, name: str = "f") -> list[Message]:
        """Everything delivered so far."""
        return read_files(self.out / name, ["t", "u"])

    def with_column(self, column: str) -> list[Message]:
        """Rows that have a column."""
        return [m for m in self.messages() if m.after and column in m.after]

    def values(self, topic: str, column: str) -> set[object]:
        """What a column of a table was said to be."""
        return {m.after[column] for m in self.messages() if m.topic == topic and m.after}

    def keys(self, name: str, topic: str) -> set[str | None]:
        """Keys of the rows that were delivered."""
        return {m.key for m in self.messages(name) if m.is_row and m.topic == topic}


@pytest.fixture
def shop(postgres: Database, tmp_path: Path) -> Shop:
    return Shop(postgres, tmp_path)


@pytest.fixture
def feeds(shop: Shop, tmp_path: Path, spark_engine: NodeSpark) -> Iterator[Feeds]:
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=shop.db.uri)
        yield feeds


def table_of(feeds: Feeds, name: str = "t") -> TableProgress:
    """What is known of a table of the feed ``f``."""
    job = feeds.catalog.job("f")
    return next(t for t in feeds.catalog.tables(job.id) if t.table.name == name)
