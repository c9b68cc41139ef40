"""How long rows stand still in Kafka when the node that captures their source ends.

    python -m benchmarks takeover --rounds 20
    python -m benchmarks takeover --rounds 20 --clean

Two nodes with host names of their own share a state on PostgreSQL and a log in a directory, so
nothing but the lease says that one of them is gone. A row is committed every 20 ms. Each round
ends the node that captures the source, by SIGKILL of all its processes or with ``--clean`` by
SIGTERM, and takes the longest time between two arrivals in Kafka until the other node delivers: of
the last row of the one and the first row of the other. Then the node is started again. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.peers.debezium import place
from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from tests.helpers.hosts import Host, catalog_of
from tests.helpers.waiting import until

#: Between two commits, seconds.
PACE = 0.02
#: Rows flow again when nothing has stood still for so long, seconds.
FLOWS = 1.0

#: After which a node that was started has its capture process on standby loaded, seconds.
SETTLED = 3.0


class Arrivals:
    """When rows came into the topic ``ticks``, as its consumer sees it."""

    def __init__(self, bootstrap: str) -> None:
        self.times: list[float] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "takeover", "fetch.wait.max.ms": 5}
        )
        self._consumer.assign([TopicPartition("ticks", 0, 0)])

    def take(self) -> None:
        """Wait for a moment for what comes next."""
        for message in self._consumer.consume(1000, 0.01):
            if message.error() is None and message.key() is not None:
                self.times.append(time.monotonic())

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()


@contextmanager
def repeated(work: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Do ``work`` again and again in a thread of its own."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(pause):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def standstill(catalog: Catalog, hosts: list[Host], arrivals: Arrivals, clean: bool) -> float:
    """End the node that captures the source; the longest time without a row, seconds."""

    def captor() -> Host | None:
        holder = catalog.source_holders().get("source")
        pids = {node.pid for node in catalog.live_nodes() if node.id == holder}
        return next((host for host in hosts if host.runs and host.pid in pids), None)

    until(lambda: captor() is not None, "a node captures the source")
    ends = captor()
    assert ends is not None
    (other,) = (host for host in hosts if host is not ends)
    until(
        lambda: other.waits and other.pid in {node.pid for node in catalog.live_nodes()},
        "the other one waits",
    )
    time.sleep(SETTLED)
    began, first = time.monotonic(), len(arrivals.times) - 1
    if clean:
        ends.stop()
    else:
        ends.kill()
    until(lambda: captor() is other, "the other one has it")

    def flows() -> bool:
        lately = [at for at in arrivals.times[first:] if at > time.monotonic() - FLOWS]
        return time.monotonic() - began > FLOWS and len(lately) > FLOWS / PACE / 2

    until(flows, "rows come")
    seen = arrivals.times[first:]
    ends.start()
    return max(after - before for before, after in pairwise(seen))


def main() -> None:
    """Run the rounds and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lease", type=float, default=10.0, help="seconds")
    parser.add_argument("--clean", action="store_true", help="end it in good order")
    given = parser.parse_args()
    with ExitStack() as stack:
        run = stack.enter_context(place())
        state = stack.enter_context(run.database.server.database())
        folder: Path = run.folder
        catalog = stack.enter_context(catalog_of(state.uri, folder / "client"))
        catalog.set_lease_seconds(given.lease)
        hosts = []
        for name in ("one", "two"):
            named = ("unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")
            log = str(folder / "store")
            hosts.append(Host(folder / name, state.uri, "--log", log, within=named))
            stack.callback(hosts[-1].kill)
            hosts[-1].start()
        until(lambda: len(catalog.live_nodes()) == len(hosts), "both nodes live")
        run.database.execute("create table ticks (id serial primary key)")
        run.broker.create_topic("ticks")
        interpreter, session = Interpreter(catalog), Session(client="benchmark")
        for sql in (
            f"CREATE EXTERNAL CONNECTION source AS '{run.database.uri}'",
            f"CREATE CHANGEFEED f FOR source.ticks INTO '{run.broker.uri}'",
        ):
            interpreter.execute(sql, session)
        arrivals = Arrivals(run.broker.bootstrap)
        stack.callback(arrivals.close)
        commits = stack.enter_context(psycopg.connect(run.database.uri, autocommit=True))
        tick = partial(commits.execute, "insert into ticks default values")
        stack.enter_context(repeated(tick, PACE))
        stack.enter_context(repeated(arrivals.take))
        until(lambda: len(arrivals.times) > 1 / PACE, "rows come")
        found = []
        for number in range(given.rounds):
            found.append(standstill(catalog, hosts, arrivals, given.clean))
            print(f"{number} {found[-1]:6.2f} s", flush=True)
        how = "clean stop" if given.clean else f"kill, lease {given.lease:g} s"
        print(f"takeover, {how}: p50 {statistics.median(found):.2f} s, max {max(found):.2f} s")


if __name__ == "__main__":
    main()
