"""A shared change log beside one on the local disk, in one run.

``small`` appends transactions of ten rows, 66 a second, and shows how long each takes until it is
durable; ``backlog`` appends flushes that become Parquet files, one after another, and shows rows a
second. The state is a PostgreSQL of its own with fsync; objects go to a directory, or to an S3
server (moto) with ``--s3``. ``--delay`` makes each upload that many milliseconds longer, as a store
that is not on this machine does. ``in turn`` is a shared log whose uploads overlap with nothing.
Contenders take turns. CPU is of this process, all threads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.log import SCHEMAS, as_flush, make_batches
from changefeed.catalog import Catalog, SourceLease
from changefeed.core.events import ChangeBatch
from changefeed.core.state import StateLayout
from changefeed.log import LogWriter
from changefeed.log.objects import ObjectStore
from changefeed.shared_logs import SharedSource
from tests.services.cache import server_folder
from tests.services.postgres import DEFAULT_MAJOR, PostgresCluster
from tests.services.s3 import S3Server

Opened = Callable[[Path], LogWriter]


class DistantStore(ObjectStore):
    """A store whose uploads take longer."""

    def __init__(self, address: str, delay: float) -> None:
        super().__init__(address)
        self._delay = delay

    def put(self, name: str, data: bytes | Path) -> None:
        """Store an object after the delay."""
        time.sleep(self._delay)
        super().put(name, data)


@contextmanager
def contenders(s3: bool, delay: float) -> Iterator[dict[str, Opened]]:
    """How each contender opens a log in a folder."""
    with ExitStack() as stack:
        folder = stack.enter_context(server_folder("bench-state"))
        server = PostgresCluster.make(
            DEFAULT_MAJOR, folder, {"fsync": "on", "full_page_writes": "on"}
        ).start()
        stack.callback(server.stop)
        database = stack.enter_context(server.database())
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-log-")))
        catalog = stack.enter_context(closing(Catalog.open(database.uri, directory=work)))
        place = str(work / "objects")
        if s3:
            store = S3Server(stack.enter_context(server_folder("bench-s3"))).start()
            stack.callback(store.stop)
            place = store.uri(store.bucket("logs"))
        numbers = iter(range(1_000))

        def shared(root: Path) -> LogWriter:
            lease = catalog.acquire_source(f"bench{next(numbers)}", "bench", 60.0)
            assert isinstance(lease, SourceLease)
            layout = StateLayout(root.parent)
            source = SharedSource(catalog, lease, place, layout)
            source.store = DistantStore(place, delay)
            return LogWriter(layout.log(lease.source), shared=source.log())

        yield {"local": LogWriter, "shared": shared}


def run(
    opened: Opened, batches: list[ChangeBatch], pause: float, *, ahead: bool = False
) -> tuple[list[float], float, float]:
    """Append the batches to a new log; the seconds of each, and the CPU and time of all."""
    took = []
    with tempfile.TemporaryDirectory(prefix="bench-copy-") as folder:
        with opened(Path(folder) / "log") as writer:
            flushes = [as_flush(batch) for batch in batches]
            cpu, begun = time.process_time(), time.monotonic()
            last = None
            for number, flush in enumerate(flushes):
                if pause:
                    time.sleep(max(0.0, begun + number * pause - time.monotonic()))
                at = time.monotonic()
                # As capture does: a backlog's uploads overlap with what is written next.
                last = writer.append(flush, ahead=ahead)
                took.append(time.monotonic() - at)
            if last is not None:
                writer.register(last)
            return took, time.process_time() - cpu, time.monotonic() - begun


def main() -> None:
    """Print one line for each contender and round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the backlog")
    parser.add_argument("--seconds", type=float, default=10.0, help="of small flushes")
    parser.add_argument("--s3", action="store_true", help="objects go to an S3 server")
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds of each upload")
    args = parser.parse_args()
    small = make_batches(SCHEMAS["narrow"], int(args.seconds * 66) * 10, 10)
    large = make_batches(SCHEMAS["narrow"], args.rows, 100_000)
    with contenders(args.s3, args.delay / 1_000) as found:
        for round_number in range(args.rounds):
            for name, opened in found.items():
                took, cpu, _ = run(opened, small, 1 / 66)
                cuts = statistics.quantiles([seconds * 1_000 for seconds in took], n=100)
                print(
                    f"{round_number} small   {name:7} p50 {cuts[49]:6.2f} ms"
                    f"  p99 {cuts[98]:6.2f} ms  {cpu / len(took) * 1e3:5.2f} ms of CPU a flush"
                )
            for name, opened in (*found.items(), ("in turn", found["shared"])):
                _, cpu, seconds = run(opened, large, 0.0, ahead=name != "in turn")
                print(
                    f"{round_number} backlog {name:7} {args.rows / seconds / 1e3:8.0f}"
                    f" thousand rows/s  {cpu / args.rows * 1e6:5.2f} us of CPU a row"
                )


if __name__ == "__main__":
    main()
