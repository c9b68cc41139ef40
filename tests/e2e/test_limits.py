"""What a user sees when a limit is reached, and that it is left again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.readers import file_bytes, visible_files
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


def until(feeds: Feeds, name: str, status: str, words: str = "") -> None:
    """Wait for a feed's status, with these words in its reason."""
    deadline = time.monotonic() + 90
    while True:
        job = feeds.catalog.job(name)
        if job.status.value == status and words in job.reason:
            return
        assert time.monotonic() < deadline, f"{name} is {job.status} {job.reason}, never {status}"
        time.sleep(0.05)


def delivered(folder: Path) -> list[int]:
    lines = [line for path in visible_files(folder) for line in file_bytes(path).splitlines()]
    return sorted(json.loads(line)["after"]["a"] for line in lines)


def events(feeds: Feeds, name: str) -> list[str]:
    return [event.text for event in feeds.catalog.events(feeds.catalog.job(name).id)]


def write(postgres: Database, numbers: range) -> list[int]:
    """Insert half a megabyte for each number; the keys."""
    for number in numbers:
        postgres.execute(WRITE.format(n=number))
    return [number * 1000 + i for number in numbers for i in range(1, 513)]


def test_a_full_change_log_gives_up_the_feed_that_it_keeps_the_most_for(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """At --max-disk reading stops only for a feed that asked for it, and then nothing is lost."""
    postgres.execute("create table t (a int primary key, b text)")
    budget = 4 * MIB
    with running(tmp_path / "state", spark_engine, max_disk=budget) as feeds:
        feeds.connect(shop=postgres.uri)
        for name, option in (("fast", ""), ("slow", " WITH on_max_disk = 'wait'")):
            feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO 'file://{tmp_path}/{name}'{option}")
            feeds.sync(name)
        feeds.execute("PAUSE CHANGEFEED slow")
        wanted = write(postgres, range(12))
        until(feeds, "fast", "stalled", "feed slow needs the most of it")
        log = sum(path.stat().st_size for path in (tmp_path / "state").rglob("log/**/*.*"))
        assert log < 2 * budget
        assert len(delivered(tmp_path / "fast")) < 12 * 512
        feeds.execute("RESUME CHANGEFEED slow")
        feeds.sync("slow")
        feeds.sync("fast")
        until(feeds, "fast", "running")
        assert delivered(tmp_path / "fast") == delivered(tmp_path / "slow") == wanted
        # Without the option the other feed goes on, and this one says what it lost.
        feeds.execute("ALTER CHANGEFEED slow SET on_max_disk = 'fail'")
        feeds.execute("PAUSE CHANGEFEED slow")
        wanted += write(postgres, range(12, 36))
        feeds.sync("fast")
        assert delivered(tmp_path / "fast") == wanted
        until(feeds, "slow", "failed", "(--max-disk) and keeps")
        assert feeds.catalog.job("slow").error_code == "CF3006"
        feeds.execute("RESUME CHANGEFEED slow")
        until(feeds, "slow", "failed")
        assert feeds.catalog.job("slow").error_code == "CF3002", "the changes are gone"
        feeds.execute("ALTER CHANGEFEED slow RESCAN")
        feeds.sync("slow")
        assert set(delivered(tmp_path / "slow")) == set(wanted)
        # One transaction that is larger than the budget.
        postgres.execute(WRITE.format(n=36).replace("512", "12000"))
        for name in ("fast", "slow"):
            until(feeds, name, "stalled", "a transaction does not fit into the disk budget")


def test_feeds_over_their_limit_hold_none_of_fifty_up(
    tmp_path: Path, postgres: Database, spark_engine: NodeSpark
) -> None:
    """One is paused, one has failed: they lose their claim on the log, and go on where they
    stopped if the log still has the changes."""
    postgres.execute("create table t (a int primary key, b text)")
    with running(tmp_path / "state", spark_engine) as feeds:
        feeds.connect(shop=postgres.uri)
        good = ["fast", *(f"f{number}" for number in range(47))]
        for name in good:
            sink = f"file://{tmp_path}/fast" if name == "fast" else "null://"
            feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO '{sink}' WITH initial_scan = 'no'")
        limit = "initial_scan = 'no', max_disk = '4MiB'"
        feeds.execute(f"CREATE CHANGEFEED slow FOR t INTO 'file://{tmp_path}/slow' WITH {limit}")
        broken = "CREATE CHANGEFEED broken FOR t INTO 'webhook-http://127.0.0.1:1/gone'"
        feeds.execute(f"{broken} WITH {limit}, retry_for = '0s'")
        feeds.sync("slow")
        feeds.execute("PAUSE CHANGEFEED slow")
        wanted = write(postgres, range(1))
        until(feeds, "broken", "failed")
        code = feeds.catalog.job("broken").error_code
        wanted += write(postgres, range(1, 24))
        for name in good:
            feeds.sync(name)
        assert delivered(tmp_path / "fast") == wanted
        for name in good:
            assert not any("stalled" in text for text in events(feeds, name)), name
        for name, cause in (("slow", "paused"), ("broken", f"failed ({code})")):
            until(feeds, name, "failed", f"max_disk is 4MiB; this is for a feed that is {cause}")
            assert feeds.catalog.job(name).error_code == "CF3006"
        feeds.execute("ALTER CHANGEFEED slow SET max_disk = '1GiB'")
        feeds.execute("RESUME CHANGEFEED slow")
        feeds.sync("slow")
        assert delivered(tmp_path / "slow") == wanted, "nobody needed the room: nothing is lost"
