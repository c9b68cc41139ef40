"""From the start of a process to the first row in Kafka: ``changefeed start`` beside Debezium.

    python -m benchmarks start --rounds 8
    python -m benchmarks start --only ours --imports 30

State, slot and topic are there, and a backlog of ``--rows`` rows waits. Each round commits one
backlog for each contender, starts them one after the other, and takes the time until the end of
its topic moves (it is asked for every 5 ms or so). The first round makes caches and topics and is
not counted. CPU is user and system time of all processes of the contender until then.
``--imports N`` runs the node once more and lists the N modules whose own code took longest to
load, in the node and in its capture process, as ``python -X importtime`` counts them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.measure import Cost, Meter, compiled, slowest_imports
from benchmarks.ours import Ours
from benchmarks.peers import debezium
from benchmarks.peers.debezium import Counter, Debezium, Run, place
from benchmarks.workload import NARROW

TABLE = NARROW.table
#: How long one of them may take, seconds.
PATIENCE = 120.0


class Contender(Protocol):
    """Somebody who delivers the changes of the table into a topic of its own."""

    topic: str

    def running(self) -> AbstractContextManager[int]:
        """Start it; gives the process id. It is asked to end afterwards."""

    def check(self) -> None:
        """Raise when it has ended by itself."""


class Changefeed:
    """``changefeed start`` on a state whose feed was running when its node ended."""

    topic = TABLE

    def __init__(self, run: Run) -> None:
        self._folder = run.folder
        self._ours = Ours(run.folder, run.database.uri, run.broker.uri)
        with self._ours.running():
            self._ours.execute(
                f"CREATE CHANGEFEED bench FOR source.{TABLE} INTO 'external://sink'"
                " WITH initial_scan = 'no'"
            )
            self._ours.wait_status("bench", "running")

    @contextmanager
    def running(self, *options: str) -> Iterator[int]:
        """The command as a user types it; ``options`` are Python's."""
        command = [sys.executable, *options, "-m", "shell"]
        command += ["--state", str(self._ours.state), "start"]
        with (self._folder / "start.log").open("w") as log:
            process = subprocess.Popen(command, stderr=log, env=compiled(os.environ))
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)

    def check(self) -> None:
        self._ours.check()

    def imports(self, counter: Counter, count: int) -> list[tuple[str, float]]:
        """The modules that took longest to load, milliseconds."""
        with self.running("-X", "importtime"):
            counter.wait(counter.count() + 1, self.check, PATIENCE)
        return slowest_imports((self._folder / "start.log").read_text(), count)


class Peer:
    """Debezium's engine behind a slot that keeps its place."""

    topic = f"{debezium.PREFIX}.public.{TABLE}"

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process: Debezium | None = None
        run.broker.create_topic(self.topic)
        run.database.execute(f"create publication {debezium.PUBLICATION} for table {TABLE}")
        run.database.execute(
            f"select pg_create_logical_replication_slot('{debezium.SLOT}', 'pgoutput')"
        )

    @contextmanager
    def running(self) -> Iterator[int]:
        settings = {
            "snapshot.mode": "no_data",
            "table.include.list": f"public.{TABLE}",
            **debezium.TUNED,
        }
        run = self._run
        settings |= debezium.to_broker(run.broker)
        connector = debezium.of_postgresql(run.database)
        with Debezium(run.folder, connector, settings) as self._process:
            yield self._process.pid

    def check(self) -> None:
        if self._process is not None:
            self._process.check()


@dataclass(frozen=True, slots=True)
class Backlog:
    """Rows that a contender finds when it starts."""

    run: Run
    rows: int

    def commit(self) -> None:
        """Rows in one transaction."""
        values = NARROW.row.format(id="coalesce(top, 0) + n")
        with self.run.database.connect() as connection:
            connection.execute(
                f"insert into {TABLE} select {values} from generate_series(1, {self.rows}) n,"
                f" (select max(id) as top from {TABLE})"
            )


def first_row(contender: Contender, counter: Counter, before: int, rows: int) -> Cost:
    """What the contender uses from its start until there is more than ``before``; it ends when
    all rows have come."""
    with contender.running() as pid:
        with Meter(pid) as meter:
            counter.wait(before + 1, contender.check, PATIENCE, pause=0.005)
            meter.first()
        counter.wait(before + rows, contender.check, PATIENCE)
    return meter.cost


def line(name: str, costs: list[Cost]) -> str:
    """Wall and CPU of the counted rounds."""
    wall = [cost.first_seconds for cost in costs]
    cpu = [cost.cpu_seconds for cost in costs]
    return (
        f"start, {name}: first row after {min(wall):.2f} s (median {statistics.median(wall):.2f}, "
        f"at most {max(wall):.2f}), CPU {min(cpu):.2f} s (median {statistics.median(cpu):.2f})"
    )


def main() -> None:
    """Run the rounds and print a line for each contender."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--only", choices=["ours", "debezium"])
    parser.add_argument("--imports", type=int, default=0, metavar="N")
    given = parser.parse_args()
    with place() as run:
        with run.database.connect() as connection:
            NARROW.create(connection)
        contenders: dict[str, Contender] = {}
        if given.only != "debezium":
            contenders["ours"] = Changefeed(run)
        if given.only != "ours":
            contenders["debezium"] = Peer(run)
        counters = {name: Counter(run.broker, each.topic) for name, each in contenders.items()}
        costs: dict[str, list[Cost]] = {name: [] for name in contenders}
        backlog = Backlog(run, given.rows)
        for number in range(given.rounds + 1):
            backlog.commit()
            for name, contender in contenders.items():
                counter = counters[name]
                cost = first_row(contender, counter, counter.count(), given.rows)
                if number:
                    costs[name].append(cost)
        for name in contenders:
            print(line(name, costs[name]), flush=True)
        ours = contenders.get("ours")
        if given.imports and isinstance(ours, Changefeed):
            backlog.commit()
            for module, milliseconds in ours.imports(counters["ours"], given.imports):
                print(f"{milliseconds:8.1f} ms  {module}")
        for counter in counters.values():
            counter.close()


if __name__ == "__main__":
    main()
