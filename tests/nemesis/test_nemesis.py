"""Everything that can happen, at random, from a seed; the feeds must keep every promise.

A run prints its seed: ``CHANGEFEED_SEED=... pytest tests/nemesis`` repeats its choices.
``CHANGEFEED_NEMESIS_SECONDS`` says how long things go wrong (default 40).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from changefeed.catalog import Status
from changefeed.core.errors import ChangefeedError, Code
from tests.conftest import PostgresFactory
from tests.helpers.waiting import PATIENCE, until
from tests.nemesis.copies import (
    Copy,
    DeltaCopy,
    DuckDBCopy,
    IcebergCopy,
    IndexCopy,
    PostgreSQLCopy,
)
from tests.nemesis.ends import Bus, End, Files, Trouble
from tests.nemesis.ledger import Ledger
from tests.nemesis.service import Service
from tests.nemesis.workload import ODD, SCHEMA, TABLES, Writer
from tests.services.elasticsearch import Elasticsearch
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.nemesis, pytest.mark.e2e, pytest.mark.postgres]

SECONDS = float(os.environ.get("CHANGEFEED_NEMESIS_SECONDS", "40"))
#: Failures of one feed that are told.
TOLD = 10
#: A reader comes by so often, in seconds.
LOOK_EVERY = 0.7
#: How often the publication is changed in a run.
PUBLICATION_ROUNDS = 2


class Run:
    """One database, one node, one seed, feeds into every end."""

    def __init__(self, db: Database, folder: Path, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.db = db
        self.ledger = Ledger(TABLES)
        self.ends: Sequence[End] = ()
        self.service = Service(folder / "state")
        self.history: list[str] = []
        self._began = time.monotonic()
        db.execute(SCHEMA)
        with db.connect() as connection:
            self.ledger.record(connection, [t.name for t in TABLES])
        self.writer = Writer(db, self.ledger, self.chance)
        self._without_extra: set[str] = set()
        self._look_at = 0.0

    def note(self, text: str) -> None:
        """Write down what was done and when."""
        self.history.append(f"{time.monotonic() - self._began:7.2f}s {text}")

    def create_feeds(self, ends: Sequence[End]) -> None:
        """A feed into each end, while rows change."""
        self.ends = ends
        service = self.service
        service.start()
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{self.db.uri}'")
        for end in ends:
            service.execute(end.statement)
        for _ in range(10):
            self.note(self.writer.commit())
        for end in ends:
            service.sync(end.name)
        self.ledger.scanned()
        self.note("all feeds run")

    # -- what goes wrong ------------------------------------------------------------------

    def kill_capture(self) -> str:
        return f"kill -9 of the capture: {self.service.kill_child('capture')}"

    def kill_jvm(self) -> str:
        return f"kill -9 of the JVM: {self.service.kill_child('jvm')}"

    def kill_working_jvm(self) -> str:
        until(partial(self.service.kill_child, "jvm"), "a JVM to kill")
        return "kill -9 of the JVM"

    def kill_node(self) -> str:
        self.service.kill()
        for _ in range(self.chance.randint(0, 5)):
            self.note(self.writer.commit())
        self.service.start()
        return "kill -9 of the node, and a new one"

    def full_disk(self) -> str:
        """The change log cannot be written for a while, in the next life of the node."""
        self.service.kill()
        self.service.start(faults="log.append.write@8:full,log.append.write@9:full")
        return "a new node that meets a full disk"

    def end_walsender(self) -> str:
        self.db.execute("select pg_terminate_backend(pid) from pg_stat_replication")
        return "the walsender is terminated"

    def restart_source(self) -> str:
        self.db.server.kill() if self.chance.random() < 0.5 else self.db.server.stop()
        self.db.server.start()
        self.writer.connect()
        return "the source is restarted"

    def meanwhile(self) -> None:
        """What the source does while a target is away."""
        for _ in range(3):
            self.note(self.writer.commit())

    def pause(self) -> str:
        feed = self.chance.choice(self.ends).name
        wanted = "RESUME" if self.service.job(feed).wanted.value == "paused" else "PAUSE"
        return self._statement(f"{wanted} CHANGEFEED {feed}")

    def alter(self) -> str:
        """Table ``extra`` leaves and joins a feed, or an option changes."""
        end = self.chance.choice(self.ends)
        if "extra" not in end.tables or self.chance.random() < 0.3:
            setting = self.chance.choice(end.settings)
            return self._statement(f"ALTER CHANGEFEED {end.name} SET {setting}")
        if end.name in self._without_extra:
            return self._join(end.name)
        said, done = self._try(f"ALTER CHANGEFEED {end.name} DROP extra")
        if done:
            self._without_extra.add(end.name)
        return said

    def _join(self, feed: str) -> str:
        said, done = self._try(f"ALTER CHANGEFEED {feed} ADD extra WITH initial_scan = 'yes'")
        if done:
            self._without_extra.discard(feed)
        return said

    def _statement(self, sql: str) -> str:
        return self._try(sql)[0]

    def _try(self, sql: str) -> tuple[str, bool]:
        try:
            self.service.execute(sql)
        except ChangefeedError as error:
            return f"{sql}: {error.code.number} {error.message}", False
        return sql, True

    # -- the run --------------------------------------------------------------------------

    def writes(self) -> list[Trouble]:
        """What the writer may do next, with its weight."""
        writer = self.writer
        return [
            (30, writer.commit),
            (4, writer.rollback),
            (6, writer.savepoint),
            (6, writer.come_and_go),
            (6, writer.hold),
            (4, writer.prepare),
            (3, writer.truncate),
            (2, writer.streamed_truncate),
            (4, writer.odd),
            (5, writer.toast),
            (2, writer.large),
            (4, writer.extra),
            (3, writer.ddl),
            (3, writer.grow),
        ]

    def actions(self) -> list[Trouble]:
        """What may happen next, with its weight."""
        return [
            *self.writes(),
            (3, self.pause),
            (2, self.alter),
            (2, self.kill_capture),
            (1, self.kill_jvm),
            (2, self.end_walsender),
            (0.7, self.kill_node),
            (0.5, self.full_disk),
            (0.6, self.restart_source),
            *(trouble for end in self.ends for trouble in end.troubles(self.meanwhile)),
        ]

    def go_wrong(self, seconds: float, actions: Sequence[Trouble] = ()) -> None:
        """Do things for ``seconds``, of all that there are or of ``actions``."""
        weights, doings = zip(*(actions or self.actions()), strict=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.note(self.chance.choices(doings, weights)[0]())
            if time.monotonic() >= self._look_at:
                self.look()
                self._look_at = time.monotonic() + LOOK_EVERY
            time.sleep(self.chance.choice([0, 0, 0.05, 0.3]))

    def go_without_looking(self, seconds: float) -> None:
        """Write for ``seconds``, while copies need not be whole."""
        deadline = time.monotonic() + seconds
        weights, doings = zip(*self.writes(), strict=True)
        while time.monotonic() < deadline:
            self.note(self.chance.choices(doings, weights)[0]())

    def change_publication(self) -> str:
        """What somebody with rights on it may do; sometimes no node sees it happen."""
        [(name,)] = self.db.execute("select quote_ident(pubname) from pg_publication")
        tables = self.chance.sample(["orders", "plain", ODD.quoted], k=self.chance.randint(1, 2))
        change = self.chance.choice(
            [
                f"alter publication {name} drop table {', '.join(tables)}",
                f"alter publication {name} set (publish = 'insert')",
                f"alter publication {name} set table {', '.join(tables)}",
                f"drop publication {name}",
            ]
        )
        blind = self.chance.random() < 0.3
        if blind:
            self.service.stop()
        self.db.execute(change)
        if blind:
            self.go_without_looking(0.5)
            self.service.start()
        return f"{change}{' while no node runs' * blind}"

    def rescan(self) -> None:
        """Wait until every feed has said that it lost something, and have it read again."""
        self.note(self.writer.release())
        self.note(self.writer.end_prepared())  # a new slot waits for every open transaction
        for end in self.ends:
            until(partial(self._lost, end.name), f"{end.name} says that changes are lost")
        for end in self.ends:
            until(partial(self._rescanned, end.name), f"{end.name} has everything")
            self.note(f"{end.name} has everything")

    def _rescanned(self, feed: str) -> bool:
        """One table after the other fails: somebody who is quick does it again."""
        self.note(self._statement(f"ALTER CHANGEFEED {feed} RESCAN"))
        try:
            self.service.sync(feed)
        except ChangefeedError as error:
            self.note(f"{feed}: {error.message}")
            return False
        return True

    def _lost(self, feed: str) -> bool:
        job = self.service.job(feed)
        tables = self.service.catalog.tables(job.id)
        told = {job.error_code, *(table.error_code for table in tables)}
        # Without the publication nothing can be read at all, so the slot is given up.
        return not told.isdisjoint({Code.TABLE_GAP.number, Code.SOURCE_LOG_GONE.number})

    def look(self) -> None:
        """A reader comes by at every end."""
        for end in self.ends:
            end.look()

    def see_everywhere(self) -> None:
        """Wait until a reader has found every copy at some instant."""

        def seen() -> bool:
            self.look()
            return all(end.instants for end in self.ends if isinstance(end, Copy))

        until(seen, "every copy stands at an instant")

    def settle(self) -> None:
        """Let everything that was stopped go on, and wait until the feeds have it all."""
        self.note(self.writer.release())
        self.note(self.writer.end_prepared())
        for feed in sorted(self._without_extra):
            self.note(self._join(feed))
        for end in self.ends:
            until(partial(self._resumed, end.name), f"{end.name} goes on")
            self.service.sync(end.name)
            self.note(f"{end.name} has everything")
            assert self.service.job(end.name).status is not Status.FAILED

    def verify(self) -> list[str]:
        """What VERIFY says of the feeds whose sinks it knows."""
        told = []
        for end in self.ends:
            if end.renames_leave:
                tables = ", ".join(end.renames_leave)
                self.service.execute(f"ALTER CHANGEFEED {end.name} RESCAN {tables}")
                self.service.sync(end.name)
            try:
                answer = self.service.execute(f"VERIFY CHANGEFEED {end.name}")
            except ChangefeedError as error:
                if error.code is not Code.NOT_SUPPORTED:
                    raise
                continue
            self.note(f"{end.name}: {'; '.join(answer.notices)}")
            told += [f"{end.name}: {row}" for row in answer.rows[:TOLD]]
        return told

    def _resumed(self, feed: str) -> bool:
        if self.service.job(feed).wanted.value == "paused":
            self.note(self._statement(f"RESUME CHANGEFEED {feed}"))
        return self.service.job(feed).wanted.value == "running"

    def judge(self) -> list[str]:
        """What the feeds broke."""
        return [f"{end.name}: {text}" for end in self.ends for text in end.judge()[:TOLD]]

    def told(self, failures: Sequence[str]) -> str:
        """Failures for a reader, with what repeats them."""
        return "\n".join([f"CHANGEFEED_SEED={self.seed}", *failures])

    def close(self) -> None:
        """Stop what runs."""
        self.writer.close()
        self.service.close()

    def story(self) -> str:
        """Everything a reader of a failure needs."""
        jobs = [f"{j.name}: {j.status} {j.reason} {j.error}" for j in self.service.catalog.jobs()]
        seen = [
            f"{end.name} was compared at {len(end.instants)} instants"
            for end in self.ends
            if isinstance(end, Copy)
        ]
        words = [f"seed {self.seed}", *self.history, *jobs, *seen, self.service.last_words()]
        return "\n".join(words)


@pytest.fixture
def run(own_postgres_factory: PostgresFactory, tmp_path: Path) -> Iterator[Run]:
    seed = int(os.environ.get("CHANGEFEED_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CHANGEFEED_SEED={seed}")
    server = own_postgres_factory(
        logical_decoding_work_mem="64kB",
        track_commit_timestamp="on",
        max_prepared_transactions="10",
    )
    with server.database() as db:
        made = Run(db, tmp_path, seed)
        try:
            yield made
        finally:
            print(made.story())
            made.close()


def settled_failures(run: Run) -> list[str]:
    """What the feeds broke. SYNC answers when rows are durable; the mark that says so follows in
    a moment, and somebody may be reading. What is wrong for good stays wrong."""
    deadline = time.monotonic() + 20
    while True:
        run.look()
        failures = run.judge()
        if not failures or time.monotonic() > deadline:
            return failures
        time.sleep(0.5)


@pytest.mark.kafka
@pytest.mark.elasticsearch
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_feeds_keep_their_promises_whatever_happens(
    run: Run, own_kafka: KafkaBroker, elasticsearch: Elasticsearch, tmp_path: Path
) -> None:
    run.create_feeds(
        [
            Files(run.ledger, tmp_path / "out"),
            Bus(run.ledger, own_kafka),
            PostgreSQLCopy(run.ledger, run.db),
            DuckDBCopy(run.ledger, tmp_path / "target.duckdb"),
            IndexCopy(run.ledger, elasticsearch, f"nemesis_{run.db.name}_"),
        ]
    )
    run.see_everywhere()
    run.go_wrong(SECONDS)
    run.settle()
    failures = settled_failures(run)
    assert not failures, run.told(failures)
    different = run.verify()
    assert not different, run.told(different)


@pytest.mark.elasticsearch
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_copies_are_whole_again_after_somebody_changed_the_publication(
    run: Run, elasticsearch: Elasticsearch, tmp_path: Path
) -> None:
    """What was not published is lost to the log; each feed says so, and RESCAN makes it good."""
    run.create_feeds(
        [
            PostgreSQLCopy(run.ledger, run.db),
            DuckDBCopy(run.ledger, tmp_path / "target.duckdb"),
            IndexCopy(run.ledger, elasticsearch, f"nemesis_{run.db.name}_"),
        ]
    )
    for _ in range(PUBLICATION_ROUNDS):
        run.go_without_looking(SECONDS / 20)
        run.note(run.change_publication())
        run.go_without_looking(SECONDS / 20)
        run.rescan()
    run.settle()
    run.see_everywhere()
    failures = settled_failures(run)
    assert not failures, run.told(failures)
    different = run.verify()
    assert not different, run.told(different)


@pytest.mark.spark
@pytest.mark.timeout(6 * PATIENCE + SECONDS)
def test_every_version_of_a_lake_table_is_what_the_source_was(
    run: Run, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # Spark is asked for when it is read: the node has one of its own until then.
    spark = partial(request.getfixturevalue, "spark_engine")
    run.create_feeds(
        [
            IcebergCopy(run.ledger, tmp_path / "lake", spark),
            DeltaCopy(run.ledger, tmp_path / "delta", spark),
        ]
    )
    # One after the other, as a MERGE takes seconds: each has to meet some.
    troubles = [run.kill_node, run.kill_working_jvm, run.kill_capture, run.end_walsender]
    for trouble in run.chance.sample(troubles, k=len(troubles)):
        run.go_wrong(SECONDS / 10, run.writes())
        run.note(trouble())
    run.settle()
    run.service.stop()
    failures = run.judge()
    assert not failures, run.told(failures)
