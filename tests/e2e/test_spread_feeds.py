"""Feeds on other nodes than the one that captures their source: nodes as processes, a state on
PostgreSQL, the change log in a directory that all of them see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog, Job, Status
from changefeed.drain import drain
from changefeed_testing.sinks.messages import Message, parse_message
from changefeed_testing.sinks.readers import read_files
from changefeed_testing.sinks.validators import OrderValidator, ResolvedValidator, validate
from tests.conftest import PostgresFactory
from tests.helpers.hosts import Host, catalog_of, hosts
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

#: Rows of a backlog that takes some time.
BACKLOG = 200_000

#: The room of each node.
ROOM = 2


class Spread:
    """Nodes with room for two feeds each, and feeds of one small table into files."""

    def __init__(
        self, shop: Database, catalog: Catalog, machines: list[Host], folder: Path
    ) -> None:
        self.shop = shop
        self.catalog = catalog
        self.machines = machines
        self.folder = folder
        self.names: list[str] = []
        self._interpreter = Interpreter(catalog)
        self._session = Session(client="tests")
        self._rows = 0
        shop.execute("create table t (id int primary key, note text)")
        shop.execute("alter table t replica identity full")
        self.execute(f"CREATE EXTERNAL CONNECTION shop AS '{shop.uri}'")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement of a client on a machine without a node."""
        return list(self._interpreter.execute(sql, self._session).rows)

    def start(self, *numbers: int) -> None:
        """Start nodes, one after the other."""
        for number in numbers:
            self.machines[number].start()
            until(partial(self._lives, number), "the node lives")

    def _lives(self, number: int) -> bool:
        return number in self.numbers().values()

    def create(self, *names: str, options: str = "") -> None:
        """Feeds into a folder each, which run."""
        for name in names:
            self.names.append(name)
            self.execute(
                f"CREATE CHANGEFEED {name} FOR TABLE shop.public.t INTO "
                f"'file://{self.folder}/out-{name}?flush_interval=0s' "
                f"WITH resolved = '200ms', updated{options}"
            )
        for name in names:
            self.runs(name)

    def runs(self, name: str) -> None:
        """Wait until a node runs the feed."""
        until(
            lambda: self.is_(name, Status.RUNNING) and self.place(name) is not None,
            f"feed {name} runs",
        )

    def is_(self, name: str, status: Status) -> bool:
        """Whether a feed has a status."""
        return self.catalog.job(name).status is status

    def place(self, name: str) -> int | None:
        """The number of the machine that runs a feed."""
        holder = self.catalog.job_holders().get(self.catalog.job(name).id)
        return self.numbers().get(holder or "")

    def node(self, number: int) -> str:
        """The id of a machine's node."""
        return next(node for node, machine in self.numbers().items() if machine == number)

    def captor(self) -> int | None:
        """The number of the machine that captures the source."""
        return self.numbers().get(self.catalog.source_holders().get("shop", ""))

    def numbers(self) -> dict[str, int]:
        """The machine of each node, as a number."""
        pids = {machine.pid: n for n, machine in enumerate(self.machines)}
        return {node.id: pids[node.pid] for node in self.catalog.live_nodes() if node.pid in pids}

    def shares(self) -> dict[int, int]:
        """How many feeds each machine runs."""
        found: dict[int, int] = {}
        for name in self.names:
            place = self.place(name)
            if place is not None:
                found[place] = found.get(place, 0) + 1
        return found

    def write(self, rows: int = 20) -> None:
        """New rows, and a change of an old one for each."""
        for _ in range(rows):
            self._rows += 1
            self.shop.execute("update t set note = note || '.' where id = %s", [self._rows - 7])
            self.shop.execute("insert into t values (%s, %s)", [self._rows, f"n{self._rows}"])

    def messages(self, name: str) -> list[Message]:
        """What a consumer of a feed reads."""
        out = self.folder / f"out-{name}"
        return read_files(out, ["t"]) if out.exists() else []

    def arrived(self, name: str) -> bool:
        """Whether a consumer of the feed has the table as it is."""
        newest: dict[int, tuple[str, str]] = {}
        for message in self.messages(name):
            # A node that was frozen may repeat old versions after newer ones.
            if message.after is not None:
                row = str(message.at), str(message.after["note"])
                at = int(message.after["id"])
                newest[at] = max(newest.get(at, row), row)
        notes = {at: note for at, (_, note) in newest.items()}
        return notes == dict(self.shop.execute("select id, note from t"))

    def check(self) -> None:
        """The consumers of all feeds have the table, in order, and no promise is broken."""
        for name in self.names:
            until(partial(self.arrived, name), f"all rows of {name} arrive")
            validate(self.messages(name), OrderValidator(), ResolvedValidator())


Nodes = Callable[[int], Spread]


@pytest.fixture
def nodes(postgres_server: PostgresFactory, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        shop = stack.enter_context(postgres_server().database())
        state = stack.enter_context(postgres_server().database())
        catalog = stack.enter_context(catalog_of(state.uri, tmp_path / "client"))
        catalog.set_lease_seconds(3.0)

        def made(count: int) -> Spread:
            names = [f"m{n}" for n in range(count)]
            machines = stack.enter_context(
                hosts(
                    tmp_path,
                    state.uri,
                    *names,
                    log=str(tmp_path / "store"),
                    more=("--max-feeds", str(ROOM)),
                )
            )
            return Spread(shop, catalog, machines, tmp_path)

        yield made


def test_feeds_beyond_the_room_of_a_node_run_on_another(nodes: Nodes) -> None:
    it = nodes(2)
    it.start(0)
    it.create("a", "b", "c")
    it.write()
    it.check()
    assert it.shares() == {0: 3}, "without other nodes it runs all"
    it.start(1)
    until(lambda: it.shares() == {0: 2, 1: 1}, "the second node takes its share")
    it.create("d")
    assert it.place("d") == 1
    it.write()
    it.check()
    (away,) = (name for name in ("a", "b", "c") if it.place(name) == 1)
    # Statements reach it wherever it runs, and it stays there.
    it.execute(f"ALTER CHANGEFEED {away} INTO 'file://{it.folder}/out-{away}?flush_interval=1h'")
    for _ in range(3):
        it.write()
        it.execute(f"SYNC CHANGEFEED {away} TIMEOUT '30s'")
    it.execute(f"ALTER CHANGEFEED {away} INTO 'file://{it.folder}/out-{away}?flush_interval=0s'")
    it.execute(f"PAUSE CHANGEFEED {away}")
    until(lambda: it.catalog.job(away).status is Status.PAUSED, "it is paused")
    it.write(3)
    it.execute(f"RESUME CHANGEFEED {away}")
    it.runs(away)
    it.execute(f"ALTER CHANGEFEED {away} RESCAN")
    it.write(3)
    it.check()
    shown = it.execute("SHOW NODES")
    assert sorted((len(row[6]), row[7]) for row in shown) == [(2, 2), (2, 2)]
    assert {row[1]: row[-2] for row in it.execute("SHOW CHANGEFEEDS")} == {
        name: next(row[0] for row in shown if name in row[6]) for name in it.names
    }
    it.execute("DROP CHANGEFEED d")
    it.names.remove("d")
    until(lambda: len(it.catalog.jobs()) == 3, "it is dropped")
    # The node that captures dies: the other one takes the source and all feeds.
    it.machines[0].kill(disk=True)
    it.write()
    it.check()
    until(lambda: it.captor() == 1 and it.shares() == {1: 3}, "the other node has all")


def spread(it: Spread, captor: int, *feeds: int) -> Callable[[], bool]:
    """Whether the machine that captures and the others run that many feeds."""
    return lambda: (
        it.captor() == captor
        and it.shares().get(captor) == feeds[0]
        and sorted(n for machine, n in it.shares().items() if machine != captor)
        == sorted(feeds[1:])
    )


@pytest.mark.extended
def test_a_node_with_feeds_of_another_source_dies(nodes: Nodes) -> None:
    it = nodes(3)
    it.start(0, 1, 2)
    it.create("a", "b", "c", "d", "e")
    captor = it.captor()
    assert captor is not None
    until(spread(it, captor, 2, 1, 2), "spread")
    it.write()
    first, second = (n for n in range(3) if n != captor)
    it.machines[first].kill(disk=True)
    it.write()
    until(lambda: {*it.shares()} == {captor, second} and sum(it.shares().values()) == 5, "taken")
    it.check()
    assert it.captor() == captor
    it.machines[captor].kill(disk=True)
    it.write()
    until(spread(it, second, 5), "the last node has all")
    it.check()
    it.start(first)
    until(lambda: it.shares() in ({first: 2, second: 3}, {first: 3, second: 2}), "scaled up")
    it.write()
    it.check()


@pytest.mark.extended
@pytest.mark.parametrize("captures", [False, True], ids=["another", "captor"])
def test_a_node_that_freezes_and_wakes_up_delivers_nothing_wrong(
    nodes: Nodes, captures: bool
) -> None:
    it = nodes(2)
    it.start(0, 1)
    it.create("a", "b", "c")
    captor = it.captor()
    assert captor is not None
    until(spread(it, captor, 2, 1), "spread")
    it.write()
    frozen = captor if captures else 1 - captor
    awake = 1 - frozen
    it.machines[frozen].freeze()
    it.write()
    until(spread(it, awake, 3), "the other node has all")
    it.write()
    it.check()
    it.machines[frozen].thaw()
    until(lambda: "the lease was lost" in it.machines[frozen].printed, "it notices")
    it.write()
    it.check()
    until(spread(it, awake, 2, 1), "it takes its share again")
    it.write()
    it.check()


class Exports:
    """A schedule whose runs a test makes due."""

    def __init__(self, it: Spread, options: str = "") -> None:
        self.it = it
        it.execute(
            "CREATE SCHEDULE export FOR CHANGEFEED shop.public.t INTO "
            f"'file://{it.folder}/out-export' {options} RECURRING '@yearly'"
        )

    def due(self) -> None:
        """A run is due now."""
        (schedule,) = self.it.catalog.schedules()
        self.it.catalog.replace_schedule(replace(schedule, due=time.time_ns()))

    def runs(self) -> list[Job]:
        """The feeds of all runs so far."""
        made = self.it.catalog.scheduled_jobs()
        return [job for job in self.it.catalog.jobs() if job.id in made]

    def ended(self, count: int) -> bool:
        """Whether there were so many runs, and all are over."""
        runs = self.runs()
        assert len(runs) <= count, [job.name for job in runs]
        return [job.status for job in runs] == [Status.SUCCEEDED] * count

    def read(self) -> set[int]:
        """The rows that a consumer has."""
        return {int(m.after["id"]) for m in self.it.messages("export") if m.after is not None}


@pytest.mark.extended
def test_of_two_nodes_one_makes_each_run_of_a_schedule(nodes: Nodes) -> None:
    it = nodes(2)
    it.start(0, 1)
    it.write(3)
    exports = Exports(it)
    for count in range(1, 6):
        exports.due()
        until(partial(exports.ended, count), "the run has ended")
        it.write(1)
    # One of them dies when a run is due, which may be before it has begun.
    exports.due()
    it.machines[0].kill()
    until(partial(exports.ended, 6), "the other node makes it")
    assert {row[0] for row in it.shop.execute("select id from t")} == exports.read()
    (schedule,) = it.catalog.schedules()
    assert (schedule.error, schedule.job_id) == (None, exports.runs()[-1].id)


@pytest.mark.extended
def test_a_run_of_a_schedule_survives_the_node_that_makes_it(nodes: Nodes) -> None:
    it = nodes(2)
    it.shop.execute("insert into t select n, repeat('x', 200) from generate_series(1, 3000) n")
    it.start(0, 1)
    exports = Exports(it, "WITH initial_scan_max_rate = '100kB'")
    exports.due()

    def scanning() -> int | None:
        runs = exports.runs()
        assert len(runs) < 2
        return next((it.place(run.name) for run in runs if run.status is Status.SCANNING), None)

    until(lambda: scanning() is not None, "a run is under way")
    busy = scanning()
    assert busy is not None, "it takes some seconds"
    it.machines[busy].kill()
    exports.due()  # It waits: the first run goes on.
    until(partial(exports.ended, 1), "the other node ends it")
    until(lambda: len(exports.runs()) == 2, "the next run begins")
    assert exports.read() == set(range(1, 3001))


@pytest.mark.extended
def test_a_node_that_drains_gives_its_feeds_away(nodes: Nodes) -> None:
    it = nodes(2)
    it.start(0, 1)
    it.create("a", "b", "c", "d")
    captor = it.captor()
    assert captor is not None
    other = 1 - captor
    until(spread(it, captor, 2, 2), "spread")
    assert drain(it.catalog, it.node(other), 60.0).endswith("is drained")
    it.write()
    it.check()
    assert it.shares() == {captor: 4}
    it.machines[other].stop()
    it.start(other)
    until(spread(it, captor, 2, 2), "it takes its share again")
    assert drain(it.catalog, it.node(captor), 60.0).endswith("is drained")
    it.write()
    it.check()
    assert it.captor() == other and it.shares() == {other: 4}


@pytest.mark.extended
def test_a_feed_with_row_images_stays_with_the_capture(nodes: Nodes) -> None:
    it = nodes(2)
    it.start(0, 1)
    it.create("a", "b", "c", options=", diff, row_images = 'store'")
    assert it.shares() == {it.captor(): 3}
    found = it.catalog.capture_news()["shop"].bound
    assert found.keys() == {job.id for job in it.catalog.jobs()}
    assert all("row images of public.t" in why for why in found.values())
    it.write()
    it.check()


@pytest.mark.extended
def test_a_source_that_lost_its_slot_is_read_again_for_all_feeds(nodes: Nodes) -> None:
    it = nodes(2)
    it.start(0, 1)
    it.create("a", "b", "c")
    captor = it.captor()
    assert captor is not None
    until(spread(it, captor, 2, 1), "spread")
    it.write()
    it.check()
    (slot,) = it.shop.slots()
    captor_process = it.machines[captor]
    captor_process.freeze()
    it.shop.execute("select pg_terminate_backend(active_pid) from pg_replication_slots")
    drop_slot(it.shop, slot)
    captor_process.thaw()
    for name in it.names:
        until(partial(it.is_, name, Status.FAILED), f"{name} fails")
        assert it.catalog.job(name).error_code == "CF2102"
    for name in it.names:
        it.execute(f"ALTER CHANGEFEED {name} RESCAN")
    for name in it.names:
        it.runs(name)
    it.write()
    for name in it.names:
        until(partial(it.arrived, name), f"all rows of {name} arrive")
    until(spread(it, captor, 2, 1), "spread again")


@pytest.mark.extended
@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_kafka_gets_no_new_promise_of_a_node_that_wakes_up(
    nodes: Nodes, kafka: KafkaBroker, topic: str, delivery: str
) -> None:
    """It freezes amid the rows of a backlog, and another node delivers them meanwhile."""
    it = nodes(2)
    it.start(0, 1)
    it.create("a", "b")
    captor = it.captor()
    assert captor is not None
    it.execute(
        f"CREATE CHANGEFEED k FOR TABLE shop.public.t INTO '{kafka.uri}?topic_prefix={topic}_' "
        f"WITH resolved = '200ms', updated, delivery = '{delivery}'"
    )
    it.runs("k")
    assert it.place("k") == 1 - captor
    name, frozen = f"{topic}_t", it.machines[1 - captor]
    until(lambda: kafka.topics().get(name), "the topic is there")
    before = kafka.end(name)
    it.shop.execute(f"insert into t select i, 'n' from generate_series(1, {BACKLOG}) i")
    it.shop.execute("update t set note = note || '.'")
    until(lambda: kafka.end(name) > before + 1000, "the first rows are there")
    frozen.freeze()
    until(lambda: it.place("k") == captor, "the captor takes the feed")

    def sent() -> list[Message]:
        return [parse_message(r.topic, r.partition, r.key, r.value) for r in kafka.messages(name)]

    def arrived() -> bool:
        newest = {m.key: m.after["note"] for m in sent() if m.after is not None}
        return list(newest.values()).count("n.") == BACKLOG

    until(arrived, "all rows arrive")
    assert not frozen.printed.count("the lease was lost")
    woken = kafka.end(name)
    frozen.thaw()
    until(lambda: "the lease was lost" in frozen.printed, "it notices")
    it.shop.execute("update t set note = 'last' where id = 1")
    until(lambda: any(m.after and m.after["note"] == "last" for m in sent()), "the last row")
    found = sent()
    validate(found, OrderValidator(), ResolvedValidator())
    rows = [(m.key, m.at) for m in found if m.is_row]
    repeats = len(rows) - len(set(rows))
    late = [r for r in kafka.messages(name) if r.key is not None and r.offset >= woken]
    print(f"{delivery}: {repeats} repeats, {len(late) - 1} of them after it woke up")
    if delivery == "exactly_once":
        assert not repeats and len(late) == 1
