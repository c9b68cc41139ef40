"""What feeds at rest cost: CPU, memory, connections, time of a start and of SHOW.

    python -m benchmarks many_feeds --feeds 200
    python -m benchmarks many_feeds --feeds 1000 --sources 10 --nodes 3

Feeds of one small table each source into files; the sources are databases of one PostgreSQL, the
state is one of another. Nothing is committed while CPU is measured. ``start``: from the start of
the nodes until all feeds run again and a row that was committed meanwhile is in the files of all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from changefeed.api import Interpreter, Session
from changefeed.catalog import Status
from tests.helpers.hosts import Host, catalog_of
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.postgres import DEFAULT_MAJOR, Database, PostgresCluster

#: Seconds that many feeds may take for something.
PATIENCE = 600.0


def family(hosts: list[Host]) -> list[psutil.Process]:
    """The nodes and their captures."""
    nodes = [psutil.Process(host.pid) for host in hosts]
    return [process for node in nodes for process in (node, *node.children(recursive=True))]


def used(processes: list[psutil.Process]) -> float:
    """CPU seconds."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def connections(server: Database) -> int:
    """How many sessions of others the server of a database has."""
    query = (
        "select count(*) from pg_stat_activity where backend_type in ('client backend',"
        " 'walsender') and pid <> pg_backend_pid()"
    )
    return int(server.execute(query)[0][0])


def main() -> None:
    """Make the feeds, look at them at rest, start them again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--feeds", type=int, default=200)
    parser.add_argument("--sources", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="at rest")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder: Path = stack.enter_context(server_folder("many"))
        servers = []
        for _ in ("state", "source"):
            settings = {"max_connections": "500", "max_wal_senders": "30"}
            settings["max_replication_slots"] = "30"
            server = PostgresCluster.make(
                DEFAULT_MAJOR, stack.enter_context(server_folder("many")), settings
            )
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        state = stack.enter_context(servers[0].database())
        shops = [stack.enter_context(servers[1].database()) for _ in range(given.sources)]
        catalog = stack.enter_context(catalog_of(state.uri, folder / "client"))
        room = ("--max-feeds", str(-(-given.feeds // given.nodes)))
        log = ("--log", str(folder / "store")) if given.nodes > 1 else ()
        hosts = [
            Host(
                folder / f"n{number}",
                state.uri,
                *log,
                *room,
                within=("unshare", "--uts", "sh", "-c", f'hostname n{number}; exec "$@"', "sh"),
            )
            for number in range(given.nodes)
        ]
        for host in hosts:
            stack.callback(host.kill)
            host.start()
        until(lambda: len(catalog.live_nodes()) == len(hosts), "the nodes live")
        interpreter, session = Interpreter(catalog), Session(client="benchmark")

        def run() -> int:
            jobs = catalog.jobs()
            return sum(job.status is Status.RUNNING for job in jobs)

        def shown() -> float:
            began = time.monotonic()
            rows = list(interpreter.execute("SHOW CHANGEFEEDS", session).rows)
            assert len(rows) == given.feeds
            return time.monotonic() - began

        began = time.monotonic()
        for number, shop in enumerate(shops):
            shop.execute("create table t (id int primary key)")
            interpreter.execute(f"CREATE EXTERNAL CONNECTION s{number} AS '{shop.uri}'", session)
        for number in range(given.feeds):
            interpreter.execute(
                f"CREATE CHANGEFEED f{number} FOR s{number % given.sources}.t INTO "
                f"'file://{folder}/out/f{number}?flush_interval=0s' WITH initial_scan = 'no'",
                session,
            )
        made = time.monotonic() - began
        until(lambda: run() == given.feeds, "all feeds run", seconds=PATIENCE)
        print(f"created in {made:.1f} s, all run after {time.monotonic() - began:.1f} s")

        def look(word: str) -> None:
            time.sleep(10)  # what follows a start is over
            processes = family(hosts)
            before, began = used(processes), time.monotonic()
            beats = {node.id: node.seen for node in catalog.live_nodes()}
            ages = []
            while time.monotonic() - began < given.seconds:
                time.sleep(1)
                ages.append(len(catalog.live_nodes()))
            share = (used(processes) - before) / (time.monotonic() - began)
            memory = sum(process.memory_full_info().pss for process in processes)
            shows = [shown() for _ in range(5)]
            print(
                f"{word}: {share:.1%} of a core, {memory / 2**20:,.0f} MiB in "
                f"{len(processes)} processes, connections {connections(state)} to the state "
                f"and {connections(shops[0])} to the sources, SHOW CHANGEFEEDS "
                f"{statistics.median(shows):.2f} s, nodes seen at least {min(ages)} of "
                f"{len(beats)}, load {psutil.getloadavg()[0]:.1f}",
                flush=True,
            )

        look("at rest")
        began = time.monotonic()
        interpreter.execute("DROP CHANGEFEED f0", session)
        until(lambda: len(catalog.jobs()) == given.feeds - 1, "one is gone", seconds=PATIENCE)
        print(f"a DROP took {time.monotonic() - began:.2f} s")
        began = time.monotonic()
        for host in hosts:
            host.stop()
        print(f"stopped in {time.monotonic() - began:.1f} s")
        for shop in shops:
            shop.execute("insert into t values (1)")
        began = time.monotonic()
        for host in hosts:
            host.start()

        waiting = {folder / "out" / f"f{number}" for number in range(1, given.feeds)}

        def arrived() -> bool:
            waiting.difference_update([out for out in waiting if any(out.rglob("*.ndjson"))])
            return not waiting

        until(arrived, "the row is everywhere", seconds=PATIENCE)
        print(f"started: the row was in all files after {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
