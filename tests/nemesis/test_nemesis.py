"""Everything that can happen, at random, from a seed; the feeds must keep every promise.

A run prints its seed: ``CHANGEFEED_SEED=... pytest tests/nemesis`` repeats its choices.
``CHANGEFEED_NEMESIS_SECONDS`` says how long things go wrong (default 40).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from changefeed.catalog import Status
from changefeed.errors import ChangefeedError
from sinks.testing.messages import Message, parse_message
from sinks.testing.readers import read_files
from tests.conftest import PostgresFactory
from tests.nemesis.judge import judge_feed
from tests.nemesis.ledger import Ledger
from tests.nemesis.service import PATIENCE, Service, until
from tests.nemesis.workload import SCHEMA, TABLES, Writer
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.nemesis,
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.kafka,
]

SECONDS = float(os.environ.get("CHANGEFEED_NEMESIS_SECONDS", "40"))
PARTITIONS = 3
FILE_TABLES = ("orders", "plain", "lines", "parts", "shapes", "bulk", "extra")
BUS_TABLES = ("orders", "lines", "parts", "shapes", "bulk")


class Run:
    """One database, one node, two feeds, one seed."""

    def __init__(self, db: Database, broker: KafkaBroker, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.db = db
        self.broker = broker
        self.out = folder / "out"
        self.ledger = Ledger(TABLES)
        self.service = Service(folder / "state")
        self.history: list[str] = []
        self._began = time.monotonic()
        db.execute(SCHEMA)
        with db.connect() as connection:
            self.ledger.record(connection, [t.name for t in TABLES])
        self.writer = Writer(db, self.ledger, self.chance)
        self.with_extra = True
        for table in BUS_TABLES:
            broker.create_topic(table, PARTITIONS)

    def note(self, text: str) -> None:
        """Write down what was done and when."""
        self.history.append(f"{time.monotonic() - self._began:7.2f}s {text}")

    def create_feeds(self) -> None:
        """One feed into files, one with before images into Kafka, while rows change."""
        service = self.service
        service.start()
        service.execute(f"CREATE EXTERNAL CONNECTION shop AS '{self.db.uri}'")
        service.execute(
            f"CREATE CHANGEFEED lake FOR {', '.join(FILE_TABLES)} INTO 'file://{self.out}'"
            " WITH updated, resolved = '200ms'"
        )
        service.execute(
            f"CREATE CHANGEFEED bus FOR {', '.join(BUS_TABLES)} INTO '{self.broker.uri}'"
            " WITH updated, diff, resolved = '200ms'"
        )
        for _ in range(10):
            self.note(self.writer.commit())
        for feed in ("lake", "bus"):
            service.sync(feed)
        self.ledger.scanned()
        self.note("both feeds run")

    # -- what goes wrong ------------------------------------------------------------------

    def kill_capture(self) -> str:
        return f"kill -9 of the capture: {self.service.kill_child('capture')}"

    def kill_jvm(self) -> str:
        return f"kill -9 of the JVM: {self.service.kill_child('jvm')}"

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

    def restart_broker(self) -> str:
        self.broker.kill() if self.chance.random() < 0.5 else self.broker.stop()
        for _ in range(3):
            self.note(self.writer.commit())
        self.broker.start()
        return "the broker is restarted"

    def pause(self) -> str:
        feed = self.chance.choice(["lake", "bus"])
        wanted = "RESUME" if self.service.job(feed).wanted.value == "paused" else "PAUSE"
        return self._statement(f"{wanted} CHANGEFEED {feed}")

    def alter(self) -> str:
        """Table ``extra`` leaves and joins the feed, or an option changes."""
        if self.chance.random() < 0.3:
            every = self.chance.choice(["100ms", "300ms"])
            return self._statement(f"ALTER CHANGEFEED bus SET resolved = '{every}'")
        if self.with_extra:
            said = self._statement("ALTER CHANGEFEED lake DROP extra")
        else:
            said = self._statement("ALTER CHANGEFEED lake ADD extra WITH initial_scan = 'yes'")
        return said

    def _statement(self, sql: str) -> str:
        try:
            self.service.execute(sql)
        except ChangefeedError as error:
            return f"{sql}: {error.code.number} {error.message}"
        if "extra" in sql:
            self.with_extra = "ADD" in sql
        return sql

    # -- the run --------------------------------------------------------------------------

    def actions(self) -> list[tuple[float, Callable[[], str]]]:
        """What may happen next, with its weight."""
        writer = self.writer
        return [
            (30, writer.commit),
            (4, writer.rollback),
            (6, writer.savepoint),
            (6, writer.come_and_go),
            (6, writer.hold),
            (3, writer.truncate),
            (5, writer.toast),
            (2, writer.large),
            (4, writer.extra),
            (3, writer.ddl),
            (3, self.pause),
            (2, self.alter),
            (2, self.kill_capture),
            (1, self.kill_jvm),
            (2, self.end_walsender),
            (0.7, self.kill_node),
            (0.5, self.full_disk),
            (0.6, self.restart_source),
            (0.4, self.restart_broker),
        ]

    def go_wrong(self, seconds: float) -> None:
        """Do things for ``seconds``."""
        weights, doings = zip(*self.actions(), strict=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.note(self.chance.choices(doings, weights)[0]())
            time.sleep(self.chance.choice([0, 0, 0.05, 0.3]))

    def settle(self) -> None:
        """Let everything that was stopped go on, and wait until the feeds have it all."""
        self.note(self.writer.release())
        if not self.with_extra:
            self.note(self._statement("ALTER CHANGEFEED lake ADD extra WITH initial_scan = 'yes'"))
        for feed in ("lake", "bus"):
            until(partial(self._resumed, feed), f"{feed} goes on")
            self.service.sync(feed)
            self.note(f"{feed} has everything")
            assert self.service.job(feed).status is not Status.FAILED

    def _resumed(self, feed: str) -> bool:
        if self.service.job(feed).wanted.value == "paused":
            self.note(self._statement(f"RESUME CHANGEFEED {feed}"))
        return self.service.job(feed).wanted.value == "running"

    def messages_of_bus(self) -> list[Message]:
        return [
            parse_message(r.topic, r.partition, r.key, r.value)
            for table in BUS_TABLES
            for r in self.broker.messages(table)
        ]

    def judge(self) -> list[str]:
        """What both feeds broke."""
        lake = read_files(self.out, FILE_TABLES)
        failures = judge_feed(self.ledger, lake, FILE_TABLES, diff=False, gaps=["extra"])
        failures = [f"lake: {text}" for text in failures]
        bus = judge_feed(
            self.ledger, self.messages_of_bus(), BUS_TABLES, diff=True, partitions=PARTITIONS
        )
        return failures + [f"bus: {text}" for text in bus]

    def close(self) -> None:
        """Stop what runs."""
        self.writer.close()
        self.service.close()

    def story(self, seed: int) -> str:
        """Everything a reader of a failure needs."""
        jobs = [f"{j.name}: {j.status} {j.reason} {j.error}" for j in self.service.catalog.jobs()]
        return "\n".join([f"seed {seed}", *self.history, *jobs, self.service.last_words()])


@pytest.fixture
def run(
    own_postgres_factory: PostgresFactory, own_kafka: KafkaBroker, tmp_path: Path
) -> Iterator[Run]:
    seed = int(os.environ.get("CHANGEFEED_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CHANGEFEED_SEED={seed}")
    server = own_postgres_factory(logical_decoding_work_mem="64kB")
    with server.database() as db:
        made = Run(db, own_kafka, tmp_path, seed)
        try:
            yield made
        finally:
            print(made.story(seed))
            made.close()


@pytest.mark.timeout(4 * PATIENCE + SECONDS)
def test_feeds_keep_their_promises_whatever_happens(run: Run) -> None:
    run.create_feeds()
    run.go_wrong(SECONDS)
    run.settle()
    # SYNC answers when rows are durable; the mark that says so follows in a moment. What is
    # wrong for good stays wrong.
    deadline = time.monotonic() + 20
    while (failures := run.judge()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not failures, "\n".join(failures[:30])
