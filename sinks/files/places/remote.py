"""What places without a rename have in common: files are put whole, once they are finished.

A put is atomic, so a reader never sees half a file and a crash leaves nothing to clean. What a
round that failed has put already stays, and comes again under another name: repeats, which
``at_least_once`` allows. Executors put their files themselves, for nobody else could reach them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pyarrow as pa

from sinks.files.names import parse_name
from sinks.files.places.base import Move

PARALLEL = 8
"""Tables whose files are put at once; those of one table go one after another."""


def publish(moves: Sequence[Move], put: Callable[[str, pa.Buffer], None]) -> None:
    """Put the files of all moves, each table's in the order of the names."""
    if any(move.file is None for move in moves):
        raise FileNotFoundError("a staged file is gone")
    lanes: dict[str, list[Move]] = defaultdict(list)
    for move in sorted(moves, key=lambda move: move.name):
        said = parse_name(move.name.rpartition("/")[2])
        lanes[said.topic if said else ""].append(move)

    def put_lane(lane: list[Move]) -> None:
        for move in lane:
            if move.file is not None:
                put(move.name, move.file.content())

    if len(lanes) == 1:
        put_lane(next(iter(lanes.values())))
        return
    with ThreadPoolExecutor(min(PARALLEL, len(lanes) or 1), thread_name_prefix="files") as pool:
        running: list[Future[None]] = [pool.submit(put_lane, lane) for lane in lanes.values()]
        wait(running)
        for done in running:
            done.result()
