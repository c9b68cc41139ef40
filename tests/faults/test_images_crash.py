"""kill -9 at every named point of the row images: every row that goes out is true, or the table
promises no rows before changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from changefeed.core import faults
from changefeed.core.faults import Point
from changefeed.core.schema import BeforeImage
from changefeed.images.states import StoreState, store_folder, store_status
from changefeed.sources.base import StreamFallback
from tests.helpers.image_changes import SCHEMA
from tests.helpers.images_child import SENT, Life, run

STEPS = 60
LOG = (Point.LOG_APPEND_BEGIN, Point.LOG_APPEND_WRITTEN, Point.LOG_APPEND_SYNCED)


def child(folder: Path, rule: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.images_child", str(folder), str(STEPS)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, faults.VARIABLE: rule},
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("point", [*faults.IMAGES_POINTS, *LOG])
@pytest.mark.parametrize("hit", [1, 3])
def test_killed_at_a_point(tmp_path: Path, point: Point, hit: int) -> None:
    hit = 1 if point is Point.IMAGES_FILLED else hit + 10 * (point in LOG)
    process = child(tmp_path, f"{point}@{hit}:kill")
    assert process.stdout is not None
    told = [int(line) for line in process.stdout]
    process.stdout.close()
    assert process.wait(60) == -9, f"{point} was not reached"
    done = told[-1] if told else 0
    assert run(tmp_path, done + 20), "the store is live again"
    kept = sorted(path.name for path in store_folder(tmp_path / "images", SCHEMA.table).iterdir())
    assert len(kept) <= 12, "nothing is left behind"


@pytest.mark.parametrize("point", faults.IMAGES_POINTS)
@pytest.mark.parametrize("action", ["error", "full"])
def test_a_disk_that_fails(tmp_path: Path, point: Point, action: str) -> None:
    """The store is given up, or goes on; whatever goes out is true."""
    life = Life(tmp_path)
    with faults.armed(f"{point}@1:{action}"):
        for _ in range(20):
            frontier = life.writer.frontier
            assert frontier is not None
            try:
                life.step()
            except StreamFallback:
                life.close()
                life = Life(tmp_path)
    assert life.world.step >= 15
    life.close()


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, 30)
    # Its start makes a checkpoint, so that the next one reads no row of the log.
    Life(tmp_path).close()
    folder = store_folder(tmp_path / "images", SCHEMA.table)
    run_file = max(folder.glob("run-*"), key=lambda path: path.stat().st_size)
    data = bytearray(run_file.read_bytes())
    for at in range(200, len(data) - 1_500, 7):
        data[at] ^= 0xFF
    run_file.write_bytes(data)
    life = Life(tmp_path)
    with pytest.raises(StreamFallback, match="damaged"):
        for _ in range(20):
            life.step()
    assert store_status(tmp_path / "images", SCHEMA.table).state is StoreState.BROKEN
    assert life.images.shape(SENT).before_image is BeforeImage.KEY
    life.close()


def test_a_store_that_nobody_wants_is_removed(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for _ in range(5):
        life.step()
    assert life.whole
    life.wanted = {}
    life.step()
    assert not life.whole
    life.images.look()
    assert not store_folder(tmp_path / "images", SCHEMA.table).exists()
    life.close()


def test_nobody_else_may_read_a_store(tmp_path: Path) -> None:
    run(tmp_path, 20)
    folder = store_folder(tmp_path / "images", SCHEMA.table)
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
