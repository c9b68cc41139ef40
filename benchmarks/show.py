"""SHOW over HTTP of a node with many feeds: how long a client waits.

    python -m benchmarks show --feeds 200 --rounds 1000

A node runs feeds of one small table into nothing, on a state in SQLite or (``--server``) in
PostgreSQL. One client, which keeps its connection, asks again and again for the list of feeds, for
one feed, and by ``POST /v1/statements`` for SHOW CHANGEFEEDS, while nothing is committed at the
source. ``--profile FILE`` writes where the node was meanwhile (needs py-spy in the path).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil

from changefeed.api import Interpreter, Session
from changefeed.catalog import Status
from changefeed.embedded.server import free_port
from tests.helpers.hosts import Host, catalog_of
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.postgres import DEFAULT_MAJOR, PostgresCluster


def measured(ask: Callable[[], httpx.Response], rounds: int, node: psutil.Process) -> str:
    """Milliseconds of each answer: the median, p99, and the longest; what the node used of its
    cores for one, with its other work; and the size."""
    times = []
    size, before = 0, sum(node.cpu_times()[:2])
    for _ in range(rounds):
        began = time.perf_counter()
        size = len(ask().raise_for_status().content)
        times.append(1000 * (time.perf_counter() - began))
    used = 1000 * (sum(node.cpu_times()[:2]) - before) / rounds
    cuts = statistics.quantiles(times, n=100)
    return (
        f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, max {max(times):.1f} ms, "
        f"CPU {used:.1f} ms, {size:,} bytes"
    )


def main() -> None:
    """Make the feeds, ask, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--feeds", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--server", action="store_true", help="the state is in PostgreSQL")
    parser.add_argument("--profile", help="a file for py-spy's record, as raw stacks")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder: Path = stack.enter_context(server_folder("show"))
        server = PostgresCluster.make(DEFAULT_MAJOR, stack.enter_context(server_folder("show")))
        server.start()
        stack.callback(server.stop)
        shop = stack.enter_context(server.database())
        state = str(folder / "state")
        if given.server:
            state = stack.enter_context(server.database()).uri
        port = free_port()
        host = Host(folder / "n0", state, "--http", f"127.0.0.1:{port}")
        stack.callback(host.kill)
        host.start()
        until((folder / "n0.log").exists, "the node has begun")
        catalog = stack.enter_context(
            catalog_of(state, folder / "client" if given.server else Path(state))
        )
        until(lambda: bool(catalog.live_nodes()), "the node lives")
        interpreter, session = Interpreter(catalog), Session(client="benchmark")
        shop.execute("create table t (id int primary key)")
        interpreter.execute(f"CREATE EXTERNAL CONNECTION s AS '{shop.uri}'", session)
        for number in range(given.feeds):
            interpreter.execute(
                f"CREATE CHANGEFEED f{number} FOR s.t INTO 'null://' WITH initial_scan = 'no'",
                session,
            )

        def run() -> int:
            return sum(job.status is Status.RUNNING for job in catalog.jobs())

        until(lambda: run() == given.feeds, "all feeds run", seconds=300.0)
        profiler, node = None, psutil.Process(host.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            asked: dict[str, Callable[[], httpx.Response]] = {
                "GET /v1/feeds": lambda: client.get("/v1/feeds"),
                "GET /v1/feeds/f7": lambda: client.get("/v1/feeds/f7"),
                "SHOW CHANGEFEEDS": lambda: client.post(
                    "/v1/statements", json={"statement": "SHOW CHANGEFEEDS"}
                ),
                "SHOW .. WHERE": lambda: client.post(
                    "/v1/statements",
                    json={"statement": "SHOW CHANGEFEEDS WHERE status <> 'running'"},
                ),
            }
            for ask in asked.values():
                measured(ask, 20, node)  # what is loaded on the first use
            if given.profile and (tool := shutil.which("py-spy")):
                profiler = subprocess.Popen(
                    [
                        tool,
                        "record",
                        "--nonblocking",  # else it stops the node's threads half of the time
                        "--gil",
                        "-r",
                        "200",
                        "-f",
                        "raw",
                        "-o",
                        given.profile,
                        "-p",
                        str(host.pid),
                    ]
                )
            for name, ask in asked.items():
                print(f"{name}: {measured(ask, given.rounds, node)}", flush=True)
            if profiler is not None:
                profiler.send_signal(signal.SIGINT)  # at another one it writes nothing
                profiler.wait()
        before, began = sum(node.cpu_times()[:2]), time.monotonic()
        time.sleep(20)
        idle = (sum(node.cpu_times()[:2]) - before) / (time.monotonic() - began)
        print(f"nobody asks: {idle:.1%} of a core; load {psutil.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
