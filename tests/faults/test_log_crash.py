"""kill -9 at every named point of the change log: nothing lost, nothing doubled, no litter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from changefeed.core import faults
from changefeed.core.clock import Timestamp
from changefeed.log import LogReader, LogWriter
from tests.helpers.log_child import LARGE, SETTINGS, SMALL, expected, flushes, moment, run
from tests.helpers.log_samples import drop_process, keys

STEPS = 75


def child(root: Path, rule: str = "", steps: int = STEPS) -> subprocess.Popen[str]:
    """The writer in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.log_child", str(root), str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, faults.VARIABLE: rule},
        cwd=Path(__file__).parents[2],
    )


def check(root: Path, last: int) -> None:
    """Steps up to ``last`` are in the log exactly once, except what retention dropped."""
    with LogReader(root) as reader:
        frontier = reader.frontier
        assert frontier is not None and frontier.at == moment(last)
        oldest = reader.oldest
        for schema in (SMALL, LARGE):
            got = reader.slice({schema.table: oldest}, Timestamp.MAX, 10**9, 10**12)
            assert got.upto == moment(last)
            rows = [seq for piece in got.pieces for seq in keys(piece.load())]
            first = oldest.wall // moment(1).wall + 1
            name = schema.table.name
            assert rows == [s for n in range(first, last + 1) for s in expected(n)[name]]


def no_litter(root: Path, writer: LogWriter) -> None:
    """Every file is one that the log knows."""
    known = {f"journal-{s.number:012d}" for s in writer._ledger.sealed}
    known |= {name for s in writer._ledger.sealed for name, _ in s.segments}
    known |= {name for name, _ in writer._live.segments}
    known |= {g.name for g in writer._ledger.garbage}
    known |= {f"journal-{writer._live.number:012d}", "LOCK", "HEAD", "LEDGER"}
    assert {p.name for p in root.iterdir()} == known


@pytest.mark.parametrize("point", faults.LOG_POINTS)
@pytest.mark.parametrize("hit", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_killed_at_a_point(tmp_path: Path, point: str, hit: int) -> None:
    """What was acknowledged is there after recovery, and the log goes on."""
    process = child(tmp_path, f"{point}@{hit}:kill")
    assert process.stdout is not None
    acknowledged = [int(line) for line in process.stdout]
    process.stdout.close()
    assert process.wait(60) == -9, f"{point} was not reached"
    done = acknowledged[-1] if acknowledged else 0
    with LogWriter(tmp_path, SETTINGS) as writer:
        frontier = writer.frontier
        there = int(frontier.position, 16) if frontier else 0
        # The step that was being appended may be durable without having been acknowledged.
        assert there in (done, done + 1)
        no_litter(tmp_path, writer)
        if frontier is not None:
            check(tmp_path, there)
    run(tmp_path, there + 8)
    check(tmp_path, there + 8)


@pytest.mark.parametrize(
    "point", [p for p in faults.LOG_POINTS if p.startswith(("log.append", "log.segment"))]
)
@pytest.mark.parametrize("action", ["error", "full"])
def test_append_fails_at_a_point(tmp_path: Path, point: str, action: str) -> None:
    """An append that failed is either not there at all, or the writer says: open me again."""
    from changefeed.core.errors import ChangefeedError

    run(tmp_path, 8)
    writer = LogWriter(tmp_path, SETTINGS)
    step = flushes(9)[0]
    with faults.armed(f"{point}:{action}"), pytest.raises(ChangefeedError) as caught:
        writer.append(step)
    durable = point in (faults.Point.LOG_APPEND_SYNCED, faults.Point.LOG_APPEND_PUBLISHED)
    assert caught.value.code.number == ("CF3003" if action == "full" and not durable else "CF3004")
    if durable:
        with pytest.raises(ChangefeedError, match="opened again"):
            writer.append(step)
        writer.close()
        writer = LogWriter(tmp_path, SETTINGS)
        assert writer.frontier is not None and writer.frontier.at == moment(9)
    else:
        writer.append(step)
    check(tmp_path, 9)
    writer.close()


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """Every write fails for a time; afterwards the same large transaction is stored once."""
    from changefeed.core.errors import ChangefeedError

    run(tmp_path, 4)
    with LogWriter(tmp_path, SETTINGS) as writer:
        full = ",".join(
            f"{p}:full" for p in (faults.Point.LOG_APPEND_WRITE, faults.Point.LOG_SEGMENT_WRITE)
        )
        for part in flushes(5):
            with faults.armed(full):
                for _ in range(3):
                    with pytest.raises(ChangefeedError) as caught:
                        writer.append(part)
                    assert caught.value.code.number == "CF3003"
            writer.append(part)
        check(tmp_path, 5)
        no_litter(tmp_path, writer)


def test_a_torn_frame_at_every_byte(tmp_path: Path) -> None:
    """Whatever part of the last frame reached the disk, the flushes before it are there."""
    run(tmp_path, 2)
    writer = LogWriter(tmp_path, SETTINGS)
    start = writer._live.tally.end
    path = tmp_path / f"journal-{writer._live.number:012d}"
    head = tmp_path / "HEAD"
    before = head.read_bytes()
    writer.append(flushes(3)[0])
    drop_process(writer)
    whole = path.read_bytes()
    segments = {p: p.read_bytes() for p in tmp_path.glob("segment-*")}
    for cut in [*range(start, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        head.write_bytes(before)  # it is written when the frame is durable
        for segment, data in segments.items():
            segment.write_bytes(data)
        with LogWriter(tmp_path, SETTINGS) as recovered:
            assert recovered.frontier is not None and recovered.frontier.at == moment(2)
            no_litter(tmp_path, recovered)
        assert path.stat().st_size == start


def test_a_feed_follows_a_writer_that_rolls_merges_and_drops(tmp_path: Path) -> None:
    """A reader beside a busy writer sees every row once, in order."""
    process = child(tmp_path)
    assert process.stdout is not None
    seen: dict[str, list[int]] = {"small": [], "large": []}
    progress = Timestamp(0)
    deadline = time.monotonic() + 60
    with LogReader(tmp_path) as reader:
        while progress < moment(STEPS):
            assert time.monotonic() < deadline
            if reader.refresh() is None:
                continue
            bounds = {SMALL.table: progress, LARGE.table: progress}
            got = reader.slice(bounds, Timestamp.MAX, 100, 10**9)
            for piece in got.pieces:
                seen[piece.schema.table.name] += keys(piece.load())
            progress = got.upto
    process.stdout.close()
    assert process.wait(60) == 0
    for name, rows in seen.items():
        assert rows == [s for n in range(1, STEPS + 1) for s in expected(n)[name]]
