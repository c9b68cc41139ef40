"""A writer process for tests of the change log: appends a known history, says how far it got.

    python -m tests.helpers.log_child DIRECTORY STEPS

Step ``n`` has the timestamp ``n`` seconds and the position ``n``; ``expected`` is what its rows
are. After each durable step the process prints its number.
"""

from __future__ import annotations

import sys
from pathlib import Path

from changefeed.core.clock import Timestamp
from changefeed.core.events import Event, Flush, Truncate
from changefeed.log import LogSettings, LogWriter
from tests.helpers.log_samples import Row, batch, clocks, flush, narrow, wide

SECOND = 1_000_000_000

#: Everything happens within a few steps: segments, rolls, merges, retention, removal.
SETTINGS = LogSettings(
    gc_ttl=40.0,
    segment_rows=16,
    roll_frames=4,
    roll_age=5.0,
    pack_bytes=2_000,
    merge_fan=2,
    grace=1.0,
)

SMALL, LARGE = narrow("small"), wide("large", texts=2)


def moment(step: int) -> Timestamp:
    """The timestamp of a step."""
    return Timestamp(step * SECOND)


def expected(step: int) -> dict[str, list[int]]:
    """Sequence numbers of the rows of a step, by table."""
    base = step * 1000
    large = [base + 100 + i for i in range(20)] if step % 3 == 0 else []
    if step % 5 == 0:
        large = [base + 100 + i for i in range(55)]
    return {"small": [base + i for i in range(3)], "large": large}


def flushes(step: int) -> list[Flush]:
    """A step as flushes; every fifth is a large transaction in three parts."""
    at, rows = moment(step), expected(step)
    small = batch(SMALL, [Row(at, seq, f"n{seq}") for seq in rows["small"]])
    large = [Row(at, seq) for seq in rows["large"]]
    commits = [(at, step)]
    if step % 5 == 0:
        return [
            Flush([batch(LARGE, large[:20])], None),
            Flush([batch(LARGE, large[20:40])], None),
            flush([batch(LARGE, large[40:]), small], at, step, commits, step * 1000 + 999),
        ]
    events: list[Event] = [small, *([batch(LARGE, large)] if large else [])]
    if step % 7 == 0:
        events.append(Truncate(SMALL, at, step * 1000 + 50))
    return [flush(events, at, step, commits, step * 1000 + 999)]


def run(root: Path, steps: int) -> None:
    """Go on after the last complete step."""
    with LogWriter(root, SETTINGS) as writer:
        frontier = writer.frontier
        if frontier is None:
            writer.append(flush([], moment(0), 0))
        first = int(frontier.position, 16) + 1 if frontier else 1
        for step in range(first, steps + 1):
            for part in flushes(step):
                writer.append(part)
            print(step, flush=True)
            if step % 3 == 0:
                writer.maintain(clocks(moment(step)), moment(max(step - 45, 0)))


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
