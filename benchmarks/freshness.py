"""How old a row is when readers of a lake table can see it, at a steady rate of changes.

    python -m benchmarks.freshness [--rate 1000] [--seconds 120] [--rows 1000000]

A node of ours keeps a Delta table of ``--rows`` rows equal to a table of PostgreSQL in which
single rows are changed and committed ``--rate`` times a second. Each commit of the Delta table
says up to which timestamp of the source it is complete; it is visible when its file is there. The
age of a change is the time from its own commit to that of the first table version that holds it.
The first fifth of the time warms up and is not counted. CPU is the node's, with its capture and
Spark's JVM.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import psycopg

from benchmarks.measure import Meter
from benchmarks.ours import Ours
from changefeed.core.clock import Timestamp
from tests.services.cache import server_folder
from tests.services.postgres import PostgresCluster

#: How long the last changes may take until they are visible.
PATIENCE = 120.0


def versions(table: Path) -> Iterator[tuple[int, float]]:
    """For each table version of the feed: complete up to (ns), visible since (s, wall clock)."""
    for file in sorted((table / "_delta_log").glob("*.json")):
        seen = file.stat().st_mtime
        for line in file.read_text().splitlines():
            notes = json.loads(line).get("commitInfo", {}).get("userMetadata")
            if notes and "changefeed.resolved" in json.loads(notes):
                yield Timestamp.parse(json.loads(notes)["changefeed.resolved"]).wall, seen


def ages(committed: list[float], table: Path) -> list[float] | None:
    """Sorted ages in seconds, None while some change is in no version yet."""
    known = list(versions(table))
    ends = [at / 1e9 for at, _ in known]
    found = []
    for moment in committed:
        place = bisect_left(ends, moment)
        if place == len(ends):
            return None
        found.append(known[place][1] - moment)
    return sorted(found)


def _change(uri: str, rows: int, rate: int, seconds: float, committed: list[float]) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        first = time.perf_counter()
        for number in range(int(rate * seconds)):
            wait = first + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            # Before it, so that it is not behind the timestamp the source gives the commit.
            committed.append(time.time())
            connection.execute(
                "update items set amount = amount + 1 where id = %s", [1 + number * 7919 % rows]
            )


def main() -> None:
    """Run once and print a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rows", type=int, default=1_000_000)
    words = parser.parse_args()
    with server_folder("freshness") as folder:
        cluster = PostgresCluster.make(16, folder).start()
        try:
            with cluster.database() as database:
                database.execute(
                    "create table items (id bigint primary key, amount bigint, note text);"
                    "insert into items select n, n, md5(n::text)"
                    f" from generate_series(1, {words.rows}) n"
                )
                _run(folder, database.uri, words.rows, words.rate, words.seconds)
        finally:
            cluster.stop()


def _run(folder: Path, uri: str, rows: int, rate: int, seconds: float) -> None:
    ours = Ours(folder, uri, f"delta://{folder}/lake")
    with ours.running() as pid:
        ours.execute("CREATE CHANGEFEED fresh FOR source.items INTO 'external://sink'")
        ours.wait_status("fresh", "running", timeout=600)
        ours.execute("SYNC CHANGEFEED fresh TIMEOUT '300s'")
        committed: list[float] = []
        writer = threading.Thread(
            target=_change, args=(uri, rows, rate, seconds, committed), daemon=True
        )
        table = folder / "lake" / "items"
        with Meter(pid) as meter:
            writer.start()
            writer.join()
        done = len(committed)
        deadline = time.monotonic() + PATIENCE
        while (found := ages(committed[done // 5 :], table)) is None:
            ours.check()
            if time.monotonic() > deadline:
                raise TimeoutError("not every change became visible")
            time.sleep(0.5)
    p50, p95, most = (found[min(int(len(found) * s), len(found) - 1)] for s in (0.5, 0.95, 1.0))
    print(
        f"delta, {rows:,} rows, {done / seconds:,.0f} changes/s: age p50 {p50:.1f} s, "
        f"p95 {p95:.1f} s, at most {most:.1f} s; {len(list(versions(table)))} versions, "
        f"{meter.cost.cpu_seconds / meter.cost.wall_seconds:.0%} of a core"
    )


if __name__ == "__main__":
    main()
