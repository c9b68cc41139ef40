"""How old a row is when readers of a lake table can see it, at a steady rate of changes.

    python -m benchmarks.freshness [--rate 1000] [--seconds 120] [--rows 1000000] [--tables 1]
    python -m benchmarks.freshness --by-hand

A node of ours keeps a Delta table of ``--rows`` rows equal to a table of PostgreSQL in which
single rows are changed and committed ``--rate`` times a second. Each commit of the Delta table
says up to which timestamp of the source it is complete; it is visible when its file is there. The
age of a change is the time from its own commit to that of the first table version that holds it.
The first fifth of the time warms up and is not counted. CPU is the node's, with its capture and
Spark's JVM. ``--tables`` spreads rows and changes over so many tables of one feed.

``--by-hand`` then does to one table what a data engineer writes into foreachBatch: read the changes
since the last batch, the last one of each key by a window, one MERGE, at once again. It gets the
changes as typed columns in Parquet files, one each tenth of a second, in the moment in which they
are made: no source is read, and Spark is this process's. A change is visible when MERGE returns.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Cost, Meter
from benchmarks.ours import Ours
from changefeed.core.clock import Timestamp
from changefeed.spark.session import NodeSpark
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


@dataclass(frozen=True)
class Load:
    """What is changed: ``rows`` in all of ``tables`` together, ``rate`` times a second."""

    tables: int
    rows: int
    rate: int
    seconds: float

    @property
    def names(self) -> list[str]:
        """The tables."""
        return [f"items{n}" for n in range(self.tables)]

    def moments(self) -> Iterator[tuple[int, int, float]]:
        """A table, the id of one of its rows, and the time, at each time for a change."""
        first, each = time.perf_counter(), self.rows // self.tables
        for number in range(int(self.rate * self.seconds)):
            wait = first + number / self.rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            # Before it, so that it is not behind the timestamp the source gives the commit.
            yield number % self.tables, 1 + number * 7919 % each, time.time()


def _change(uri: str, load: Load, committed: list[list[float]]) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        for table, row, now in load.moments():
            committed[table].append(now)
            connection.execute(f"update items{table} set amount = amount + 1 where id = %s", [row])


def main() -> None:
    """Run once and print a line for each contender."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--by-hand", action="store_true")
    words = parser.parse_args()
    load = Load(words.tables, words.rows, words.rate, words.seconds)
    with server_folder("freshness") as folder:
        cluster = PostgresCluster.make(16, folder).start()
        try:
            with cluster.database() as database:
                for name in load.names:
                    database.execute(
                        f"create table {name} (id bigint primary key, amount bigint, note text);"
                        f"insert into {name} select n, n, md5(n::text)"
                        f" from generate_series(1, {load.rows // load.tables}) n"
                    )
                _run(folder, database.uri, load)
        finally:
            cluster.stop()
        if words.by_hand:
            _by_hand(folder, load)


def _run(folder: Path, uri: str, load: Load) -> None:
    ours = Ours(folder, uri, f"delta://{folder}/lake")
    with ours.running() as pid:
        ours.execute("CREATE CHANGEFEED fresh FOR SCHEMA source.public INTO 'external://sink'")
        ours.wait_status("fresh", "running", timeout=900)
        ours.execute("SYNC CHANGEFEED fresh TIMEOUT '300s'")
        committed: list[list[float]] = [[] for _ in load.names]
        writer = threading.Thread(target=_change, args=(uri, load, committed), daemon=True)
        with Meter(pid) as meter:
            writer.start()
            writer.join()
        deadline = time.monotonic() + PATIENCE
        counted = [its[len(its) // 5 :] for its in committed]
        places = [folder / "lake" / name for name in load.names]
        while None in (found := [ages(*each) for each in zip(counted, places, strict=True)]):
            ours.check()
            if time.monotonic() > deadline:
                raise TimeoutError("not every change became visible")
            time.sleep(0.5)
        count = sum(len(list(versions(place))) for place in places)
    _say("changefeed", load, [age for its in found for age in its or ()], count, meter.cost)


def _by_hand(folder: Path, load: Load) -> None:
    """The same into one table, by a MERGE of each batch."""
    come = folder / "batches"
    come.mkdir()
    where = f"delta.`{folder}/by_hand`"
    with NodeSpark(heap="4g", packs=["delta"]) as engine, engine.use(packs=("delta",)) as session:
        session.sql(
            f"CREATE TABLE {where} USING delta AS SELECT id, id AS amount, md5(string(id)) AS note,"
            f" 0L AS seq FROM range(1, {load.rows + 1})"
        )
        writer = threading.Thread(target=_write_batches, args=(come, load), daemon=True)
        found: list[float] = []
        done: set[Path] = set()
        rounds = 0
        with Meter(os.getpid(), engine.pid or os.getpid()) as meter:
            writer.start()
            while writer.is_alive() or set(come.glob("*.parquet")) - done:
                fresh = sorted(set(come.glob("*.parquet")) - done)
                if not fresh:
                    time.sleep(0.02)
                    continue
                session.read.parquet(*map(str, fresh)).createOrReplaceTempView("batch")
                session.sql(
                    f"""
                    MERGE INTO {where} AS t USING (
                        SELECT * EXCEPT (n) FROM (
                            SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n
                            FROM batch) WHERE n = 1) AS s
                    ON t.id = s.id
                    WHEN MATCHED AND s.seq > t.seq THEN UPDATE SET
                        amount = s.amount, note = s.note, seq = s.seq
                    WHEN NOT MATCHED THEN INSERT (id, amount, note, seq)
                        VALUES (s.id, s.amount, s.note, s.seq)
                    """
                ).collect()
                now, rounds = time.time(), rounds + 1
                for path in fresh:
                    found += (now - pq.read_table(path)["seq"].to_numpy() / 1e9).tolist()
                done.update(fresh)
    _say("by hand", load, found[len(found) // 5 :], rounds, meter.cost)


def _write_batches(folder: Path, load: Load) -> None:
    waiting: list[tuple[int, float]] = []
    number, last = 0, time.time()
    for _, row, now in load.moments():
        waiting.append((row, now))
        if now - last >= 0.1:
            number, last = number + 1, now
            _write_batch(folder, number, waiting)
            waiting = []
    _write_batch(folder, number + 1, waiting)


def _write_batch(folder: Path, number: int, rows: list[tuple[int, float]]) -> None:
    if not rows:
        return
    ids = [row for row, _ in rows]
    columns = {"id": ids, "amount": ids, "note": list(map(str, ids))}
    part = folder / f".{number:08d}"
    pq.write_table(pa.table(columns | {"seq": [int(now * 1e9) for _, now in rows]}), part)
    part.rename(folder / f"{number:08d}.parquet")


def _say(who: str, load: Load, found: list[float], count: int, cost: Cost) -> None:
    found = sorted(found)
    p50, p95, most = (found[min(int(len(found) * s), len(found) - 1)] for s in (0.5, 0.95, 1.0))
    tables = f"{load.tables} tables, " if load.tables > 1 else ""
    print(
        f"{who}: delta, {tables}{load.rows:,} rows, {load.rate:,.0f} changes/s: age p50 "
        f"{p50:.1f} s, p95 {p95:.1f} s, at most {most:.1f} s; {count} versions, "
        f"{cost.cpu_seconds / cost.wall_seconds:.0%} of a core",
        flush=True,
    )


if __name__ == "__main__":
    main()
