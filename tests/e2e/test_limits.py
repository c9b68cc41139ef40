"""What a user sees when a limit is reached, and that it is left again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from sinks.testing.readers import file_bytes, visible_files
from tests.e2e.feeds import Feeds, running
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

MIB = 1 << 20
#: A megabyte that no compression makes smaller than half.
WRITE = """
    insert into t select {n} * 1000 + i, (
        select string_agg(md5(random()::text || i || j), '') from generate_series(1, 64) j
    ) from generate_series(1, 512) i
"""


def until(feeds: Feeds, name: str, status: str) -> str:
    """Wait for a feed's status; the reason it gives."""
    deadline = time.monotonic() + 90
    while (job := feeds.catalog.job(name)).status.value != status:
        assert time.monotonic() < deadline, f"{name} is {job.status} {job.reason}, never {status}"
        time.sleep(0.05)
    return job.reason or ""


def delivered(folder: Path) -> list[int]:
    lines = [line for path in visible_files(folder) for line in file_bytes(path).splitlines()]
    return sorted(json.loads(line)["after"]["a"] for line in lines)


def test_a_full_change_log_stalls_the_feeds_until_the_slow_one_has_read(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """A paused feed protects the log: at --max-disk no more is read, and nothing is lost."""
    postgres.execute("create table t (a int primary key, b text)")
    budget = 4 * MIB
    with running(tmp_path / "state", spark_engine, max_disk=budget) as feeds:
        feeds.connect(shop=postgres.uri)
        for name in ("fast", "slow"):
            feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO 'file://{tmp_path}/{name}'")
            feeds.sync(name)
        feeds.execute("PAUSE CHANGEFEED slow")
        for number in range(12):
            postgres.execute(WRITE.format(n=number))
        assert "disk budget" in until(feeds, "fast", "stalled")
        log = sum(path.stat().st_size for path in (tmp_path / "state").rglob("log/**/*.*"))
        assert log < 2 * budget
        before = len(delivered(tmp_path / "fast"))
        assert before < 12 * 512
        feeds.execute("RESUME CHANGEFEED slow")
        feeds.sync("slow")
        feeds.sync("fast")
        until(feeds, "fast", "running")
        wanted = [number * 1000 + i for number in range(12) for i in range(1, 513)]
        assert delivered(tmp_path / "fast") == wanted
        assert delivered(tmp_path / "slow") == wanted


def test_a_feed_that_reached_its_limit_stalls_the_source_until_it_has_delivered(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """A paused feed may keep no more of the log than its max_disk, and nothing is lost."""
    postgres.execute("create table t (a int primary key, b text)")
    budget = 4 * MIB
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        for name, limit in (("fast", ""), ("slow", " WITH max_disk = '4MiB'")):
            feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO 'file://{tmp_path}/{name}'{limit}")
            feeds.sync(name)
        feeds.execute("PAUSE CHANGEFEED slow")
        for number in range(12):
            postgres.execute(WRITE.format(n=number))
        reason = until(feeds, "fast", "stalled")
        assert reason.startswith("feed slow has as much on disk, of the change log"), reason
        assert "max_disk of 4MiB" in reason
        log = sum(path.stat().st_size for path in (tmp_path / "state").rglob("log/**/*.*"))
        assert log < 2 * budget
        assert len(delivered(tmp_path / "fast")) < 12 * 512
        feeds.execute("RESUME CHANGEFEED slow")
        feeds.sync("slow")
        feeds.sync("fast")
        until(feeds, "fast", "running")
        wanted = [number * 1000 + i for number in range(12) for i in range(1, 513)]
        assert delivered(tmp_path / "fast") == wanted
        assert delivered(tmp_path / "slow") == wanted
        # A limit that is raised is no limit any more, without a restart.
        feeds.execute("PAUSE CHANGEFEED slow")
        for number in range(12, 24):
            postgres.execute(WRITE.format(n=number))
        until(feeds, "fast", "stalled")
        feeds.execute("ALTER CHANGEFEED slow SET max_disk = '1GiB'")
        feeds.sync("fast")
        assert feeds.catalog.job("slow").status.value == "paused"
        assert len(delivered(tmp_path / "fast")) == 24 * 512
