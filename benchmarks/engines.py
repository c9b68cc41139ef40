"""The engine `spark` beside the engine `driver`, in one node with a warm session.

    python -m benchmarks.engines backlog --rows 2000000 --rounds 3
    python -m benchmarks.engines scan --rows 5000000 --rounds 3
    python -m benchmarks.engines warehouse --rows 2000000 --rounds 3
    python -m benchmarks.engines slow --cores 4

*backlog*: two feeds into Kafka wait behind the same changes in the log and are resumed one after
the other. *scan*: two feeds scan the same table into Kafka. *warehouse*: each of them
into a file of DuckDB. *slow*: a webhook that takes 20 ms for
each request of ten messages, one request at a time (``--parallel``; by itself the sink has four):
with four cores there are four lanes, which wait at the same time.
The first round warms the session, Python workers and caches of both, and is not printed. CPU is
that of the node's process and its children: capture, JVM and Python workers (and the webhook).
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection

from benchmarks.measure import Meter
from benchmarks.peers.debezium import Run, place
from benchmarks.query import Here, here
from benchmarks.workload import NARROW
from changefeed.spark.session import NodeSpark

ENGINES = ("driver", "spark")
#: What the slow webhook takes for a request.
SLOW_SECONDS = 0.02
#: Messages of one of its requests.
SLOW_MESSAGES = 10
#: Rows of a round of each mode. One lane takes 45 seconds for those of *slow*.
ROWS = {"backlog": 1_000_000, "scan": 1_000_000, "warehouse": 1_000_000, "slow": 20_000}


def backlog(run: Run, ours: Here, count: int, rounds: int) -> None:
    """The same changes through both, round by round."""
    sink = f"kafka://{run.broker.bootstrap}?topic_name="
    _behind(run, ours, count, rounds, lambda engine: (f"{sink}{engine}", ""))


def slow(run: Run, ours: Here, count: int, rounds: int, parallel: int = 1) -> None:
    """A sink that waits."""
    with _webhook() as port:
        flush = f'{{"Flush": {{"Messages": {SLOW_MESSAGES}, "Frequency": "1s"}}}}'
        more = f", webhook_sink_config = '{flush}'"
        _behind(
            run,
            ours,
            count,
            rounds,
            lambda _: (f"webhook-http://127.0.0.1:{port}/hook?parallel={parallel}", more),
        )


def _behind(
    run: Run, ours: Here, count: int, rounds: int, into: Callable[[str], tuple[str, str]]
) -> None:
    with run.database.connect() as connection:
        NARROW.create(connection)
        for engine in ENGINES:
            uri, more = into(engine)
            ours.execute(
                f"CREATE CHANGEFEED {engine} FOR source.narrow INTO '{uri}' "
                f"WITH initial_scan = 'no', engine = '{engine}'{more}"
            )
        ours.execute(
            "CREATE CHANGEFEED log FOR source.narrow INTO 'null://' WITH initial_scan = 'no'"
        )
        existing = 0
        for number in range(rounds + 1):
            ours.execute("PAUSE CHANGEFEED " + ", ".join(ENGINES))
            NARROW.change(connection, count, existing=existing, seed=0.1 + number / 100)
            existing += count
            ours.sync("log")
            for engine in ENGINES:
                _timed(ours, engine, f"RESUME CHANGEFEED {engine}", count, number)


def scan(run: Run, ours: Here, count: int, rounds: int, into: Callable[[str], str]) -> None:
    """The same table through both into the sink of a name, round by round."""
    with run.database.connect() as connection:
        NARROW.create(connection)
        NARROW.change(connection, count)
        connection.execute(f"vacuum analyze {NARROW.table}")
        [[there]] = connection.execute(f"select count(*) from {NARROW.table}").fetchall()
    for number in range(rounds + 1):
        for engine in ENGINES:
            name = f"{engine}{number}"
            create = (
                f"CREATE CHANGEFEED {name} FOR source.narrow INTO '{into(name)}' "
                f"WITH engine = '{engine}', initial_scan = 'only'"
            )
            _timed(ours, name, create, int(there), number)
            ours.execute(f"DROP CHANGEFEED {name}")


def _into_kafka(run: Run, ours: Here, count: int, rounds: int) -> None:
    broker = run.broker.bootstrap
    scan(run, ours, count, rounds, lambda name: f"kafka://{broker}?topic_name={name}")


def _into_duckdb(run: Run, ours: Here, count: int, rounds: int) -> None:
    scan(run, ours, count, rounds, lambda name: f"duckdb://{run.folder}/{name}.duckdb")


def _timed(ours: Here, feed: str, statement: str, count: int, number: int) -> None:
    with Meter(os.getpid()) as meter:
        began = time.perf_counter()
        ours.execute(statement)
        ours.sync(feed)
        seconds = time.perf_counter() - began
    ours.check()
    if number:
        used = meter.cost.cpu_seconds * 1e6 / count
        print(f"round {number} {feed}: {count / seconds:,.0f} rows/s, {used:.1f} us of CPU a row")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a request, wait, answer; until the client closes."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(SLOW_SECONDS)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
    writer.close()


async def _serve(ports: Connection) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    ports.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _serving(ports: Connection) -> None:
    asyncio.run(_serve(ports))


@contextmanager
def _webhook() -> Iterator[int]:
    """A server in a process of its own, as it would take the node's time otherwise."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serving, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def main() -> None:
    """Run one mode and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("mode", choices=sorted(ROWS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--parallel", type=int, default=1, help="requests at a time, of slow")
    given = parser.parse_args()
    count = given.rows or ROWS[given.mode]
    modes: dict[str, Callable[[Run, Here, int, int], None]] = {
        "backlog": backlog,
        "scan": _into_kafka,
        "warehouse": _into_duckdb,
        "slow": partial(slow, parallel=given.parallel),
    }
    spark = NodeSpark(master=f"local[{given.cores}]")
    with place() as run, here(run, spark) as ours:
        modes[given.mode](run, ours, count, given.rounds)


if __name__ == "__main__":
    main()
