"""Changes of the log read by Spark's changefeed source into ``noop``, beside the log alone.

A log of updates is written first, without a source or a node. ``spark`` reads all of it as a batch
query, ``python`` the same rows as Arrow in this process, one thread: what the conversion to
typed changes costs without Spark. Each is run ``--rounds`` times in one session; the first round
of ``spark`` starts the Python workers.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.log import SCHEMAS, make_batches
from changefeed import spark_source
from changefeed.catalog import Catalog
from changefeed.core.clock import Timestamp
from changefeed.core.events import Commits, Flush, Frontier
from changefeed.core.state import StateLayout
from changefeed.log import LogSettings, LogWriter
from changefeed.readers.table_log import Selection, TableLog

SOURCE = "bench"


def write(state: Path, table: str, rows: int) -> None:
    """A state whose log has so many changes of a table."""
    catalog = Catalog.open(state)
    catalog.create_connection(SOURCE, "postgresql://127.0.0.1/nowhere")
    schema = catalog.intern_schema(SCHEMAS[table])
    catalog.announce_schemas([schema.version])
    catalog.set_captured(SOURCE, {schema.table: Timestamp.ZERO})
    batches = make_batches(schema, rows, 50_000)
    with LogWriter(StateLayout(state).log(SOURCE), LogSettings()) as log:
        first = batches[0].rows.column("wall")[0].as_py()
        log.append(Flush([], Frontier(Timestamp(first - 1), f"{0:016X}", 0)))
        for number, batch in enumerate(batches, 1):
            stamps = batch.rows
            last = Timestamp(
                stamps.column("wall")[-1].as_py(), stamps.column("logical")[-1].as_py()
            )
            seq = stamps.column("seq")[-1].as_py()
            log.append(Flush([batch], Frontier(last, f"{number:016X}", seq), Commits()))
    catalog.close()


def timed(name: str, rows: int, rounds: int, run: Callable[[], None]) -> None:
    """Run and print rows a second."""
    for number in range(1, rounds + 1):
        began, cpu = time.perf_counter(), time.process_time()
        run()
        took = time.perf_counter() - began
        used = (time.process_time() - cpu) / rows * 1e6
        print(
            f"{name:8} round {number}: {rows / took:12,.0f} rows/s   {took:6.2f} s"
            f"   {used:5.2f} µs CPU a row in this process",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--table", choices=sorted(SCHEMAS), default="narrow")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="changefeed-bench-") as folder:
        state = Path(folder) / "state"
        write(state, options.table, options.rows)
        table = SCHEMAS[options.table].table
        log = TableLog(StateLayout(state).log(SOURCE), Selection(table))
        frontier = log.frontier()
        assert frontier is not None

        def python() -> None:
            span = log.span(log.log.oldest, frontier)
            found = sum(batch.num_rows for part in span.ranges for batch in part.read())
            assert found >= options.rows, found

        timed("python", options.rows, options.rounds, python)

        from changefeed.spark.session import NodeSpark

        with NodeSpark() as engine:
            session = engine.session()
            spark_source.register(session)
            read = session.read.format("changefeed").option("state", str(state))

            def spark() -> None:
                frame = read.option("table", str(table)).load()
                frame.write.format("noop").mode("overwrite").save()

            timed("spark", options.rows, options.rounds, spark)
            assert read.option("table", str(table)).load().count() >= options.rows


if __name__ == "__main__":
    main()
