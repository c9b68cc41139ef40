"""A CDC query beside the plain feed of the same table: rows a second, CPU, and milliseconds.

    python -m benchmarks.query rows --rows 1000000 --rounds 3
    python -m benchmarks.query latency --rate 100 --seconds 30

*rows*: three feeds into Kafka wait behind the same backlog of changes in the log, and are resumed
one after the other: the plain feed, the query (three expressions and a WHERE that keeps two rows
of three), and the query with a look-up table joined to it, in one node whose Spark is warm. Each
round begins with another feed.
*latency*: from the commit of a row of ``ticks`` to a consumer, for each feed at the same rate.
Ours against ours on one machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.latency import measure, postgresql_ticks
from benchmarks.measure import Meter, public_ways
from benchmarks.peers.debezium import Run, place
from benchmarks.workload import NARROW
from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.node.node import Node
from changefeed.spark.session import NodeSpark

#: Rows of the look-up table.
LOOKUP_ROWS = 100_000
QUERY = (
    "AS SELECT id, quantity, price * 2 AS twice, upper(label) AS name, year(at) AS year "
    "FROM source.public.narrow WHERE quantity % 3 <> 0"
)


def lookup_table(folder: Path) -> str:
    """A look-up table in a file of Parquet, as a query names it."""
    path = folder / "lookup"
    path.mkdir(exist_ok=True)
    numbers = pa.array(range(LOOKUP_ROWS), pa.int64())
    words = pc.binary_join_element_wise("item", numbers.cast(pa.string()), "-")
    pq.write_table(pa.table({"number": numbers, "word": words}), path / "part.parquet")
    return f"parquet.`{path}`"


def joined_query(lookup: str) -> str:
    """:data:`QUERY` with a column of the look-up table."""
    query = QUERY.replace("year(at) AS year", "year(at) AS year, l.word")
    return query.replace(" WHERE", f" AS n LEFT JOIN {lookup} AS l ON n.quantity = l.number WHERE")


class Here:
    """A state with a node in this process."""

    def __init__(self, run: Run, spark: NodeSpark | None = None) -> None:
        state = run.folder / "query-state"
        state.mkdir()
        self.catalog = Catalog.open(str(state))
        self.node = Node(self.catalog, str(state), spark=spark)
        self._interpreter = Interpreter(self.catalog, host=self.node)
        self._session = Session(client="benchmark")
        if not self.node.start():
            raise SystemExit("another node runs this state")
        self.execute(f"CREATE EXTERNAL CONNECTION source AS '{run.database.uri}'")

    def execute(self, sql: str) -> None:
        """One statement."""
        self._interpreter.execute(sql, self._session)

    def sync(self, feed: str) -> None:
        """Wait until everything committed before now is in the feed's sink."""
        self.execute(f"SYNC CHANGEFEED {feed} TIMEOUT '600s'")

    def check(self) -> None:
        """Raise when a feed has failed."""
        for job in self.catalog.jobs():
            if str(job.status) == "failed":
                raise RuntimeError(f"{job.name} failed: {job.error}")


@contextmanager
def here(run: Run, spark: NodeSpark | None = None) -> Iterator[Here]:
    """A node that is stopped afterwards."""
    made = Here(run, spark)
    try:
        yield made
    finally:
        made.node.stop()
        made.catalog.close()


def rows(run: Run, count: int, rounds: int) -> None:
    """The feeds through the same backlogs; prints each round."""
    with run.database.connect() as connection, here(run) as ours:
        NARROW.create(connection)
        sink = f"kafka://{run.broker.bootstrap}?topic_name="
        no_scan = "WITH initial_scan = 'no'"
        ours.execute(f"CREATE CHANGEFEED plain FOR source.narrow INTO '{sink}plain' {no_scan}")
        ours.execute(f"CREATE CHANGEFEED query INTO '{sink}query' {no_scan} {QUERY}")
        joined = joined_query(lookup_table(run.folder))
        ours.execute(f"CREATE CHANGEFEED lookup INTO '{sink}lookup' {no_scan} {joined}")
        ours.execute(f"CREATE CHANGEFEED log FOR source.narrow INTO 'null://' {no_scan}")
        existing = 0
        for number in range(rounds + 1):  # the first one warms up
            ours.execute("PAUSE CHANGEFEED plain, query, lookup")
            changes = count if number else min(count, 200_000)
            NARROW.change(connection, changes, existing=existing, seed=0.1 + number / 100)
            existing += changes
            ours.sync("log")
            feeds = ("plain", "query", "lookup")
            # Each feed is the first one after the changes in some round.
            first = number % len(feeds)
            for feed in (*feeds[first:], *feeds[:first]):
                with Meter(os.getpid()) as meter:
                    began = time.perf_counter()
                    ours.execute(f"RESUME CHANGEFEED {feed}")
                    ours.sync(feed)
                    seconds = time.perf_counter() - began
                used = meter.cost.cpu_seconds * 1e6 / changes
                if number:
                    print(f"round {number} {feed}: {changes / seconds:,.0f} rows/s, {used:.1f} us")
                ours.check()


def latency(run: Run, rate: int, seconds: float) -> None:
    """Each feed alone, at the same rate; prints all."""
    table = lookup_table(run.folder)
    with postgresql_ticks(run.database.uri) as ticks, here(run) as ours:
        queries = {
            "plain": "CREATE CHANGEFEED plain FOR source.ticks INTO '{sink}'",
            "query": "CREATE CHANGEFEED query INTO '{sink}' AS SELECT id, id * 2 AS twice "
            "FROM source.public.ticks WHERE id >= 0",
            "lookup": "CREATE CHANGEFEED lookup INTO '{sink}' AS SELECT t.id, l.word "
            f"FROM source.public.ticks AS t LEFT JOIN {table} AS l ON t.id = l.number",
        }
        for name, sql in queries.items():
            ours.execute(sql.format(sink=f"kafka://{run.broker.bootstrap}?topic_name={name}"))
            ours.sync(name)
            found = measure(
                ticks,
                run.broker.bootstrap,
                name,
                rate=rate,
                seconds=seconds,
                steady=lambda: None,
                check=ours.check,
            )
            print(f"{name}, {rate} commits/s: {found}")
            ours.execute(f"DROP CHANGEFEED {name}")
            with run.database.connect() as connection:
                connection.execute("truncate ticks")


def main(words: list[str] | None = None) -> None:
    """Run one mode and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.query")
    parser.add_argument("mode", choices=["rows", "latency"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--public", action="store_true", help="without Spark's internals")
    given = parser.parse_args(words)
    with place() as run, public_ways() if given.public else nullcontext():
        if given.mode == "rows":
            rows(run, given.rows, given.rounds)
        else:
            latency(run, given.rate, given.seconds)


if __name__ == "__main__":
    main()
