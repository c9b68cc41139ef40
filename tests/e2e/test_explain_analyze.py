"""``EXPLAIN ANALYZE CREATE CHANGEFEED``: a feed runs into nothing, and leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Result
from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import BRISK, Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


@pytest.fixture
def feeds(request: pytest.FixtureRequest, tmp_path: Path, postgres: Database) -> Iterator[Feeds]:
    postgres.execute(
        "create table t (a int primary key, b text);"
        "insert into t select i, repeat('x', 100) from generate_series(1, 2000) i"
    )
    queries = request.node.get_closest_marker("spark") is not None
    spark = request.getfixturevalue("spark_engine") if queries else None
    with running(tmp_path / "state", spark, timings=BRISK) as feeds:
        feeds.connect(shop=postgres.uri)
        yield feeds


def stages(answer: Result) -> dict[str, dict[str, Any]]:
    """The rows of the answer by stage."""
    rows = (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
    return {str(row["stage"]): row for row in rows}


def held(postgres: Database) -> tuple[list[Any], list[Any]]:
    """What there is of us at the source."""
    slots = postgres.execute("select slot_name from pg_replication_slots")
    return slots, postgres.execute("select pubname from pg_publication")


def test_a_scan_is_measured_and_nothing_is_left(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = feeds.execute(
        "EXPLAIN ANALYZE (DURATION '60s') CREATE CHANGEFEED f FOR t "
        f"INTO 'file://{out}' WITH initial_scan = 'only'"
    )
    found = stages(answer)
    expected = ["scan: read", "scan: encode", "scan: messages", "scan: bound by"]
    assert list(found) == expected
    assert [found[name]["rows"] for name in list(found)[:3]] == [2000, 2000, 2000]
    # {"after": {"a": 1000, "b": "xx.."}} and [1000]
    assert 120 * 2000 < found["scan: messages"]["bytes"] < 160 * 2000
    assert 0 < found["scan: encode"]["seconds"] <= found["scan: messages"]["seconds"] < 60
    assert "bytes a message, the largest 1" in found["scan: messages"]["detail"]
    assert not out.exists() and held(postgres) == ([], [])
    assert feeds.execute("SHOW CHANGEFEEDS").rows == [] == feeds.execute("SHOW JOBS").rows


@pytest.mark.extended
def test_changes_are_measured_as_a_feed_beside_it_goes_on(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    """Also where another feed encodes the same messages: nothing is taken from it."""
    feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'file://{tmp_path}/out'")
    feeds.sync("f")
    ended, answers = threading.Event(), list[Result]()

    def measure() -> None:
        answers.append(
            feeds.interpreter.execute(
                "EXPLAIN ANALYZE (DURATION '3s') CREATE CHANGEFEED f FOR t "
                f"INTO 'file://{tmp_path}/other' WITH initial_scan = 'no'",
                feeds.session,
            )
        )
        ended.set()

    thread = threading.Thread(target=measure)
    thread.start()
    until(lambda: len(feeds.catalog.jobs()) == 2)
    until(lambda: str(feeds.catalog.jobs()[-1].status) == "running")
    postgres.execute("insert into t select i, 'y' from generate_series(2001, 2500) i")
    until(ended.is_set)
    thread.join()
    found = stages(answers[0])
    assert list(found)[:3] == ["changes: read", "changes: encode", "changes: messages"]
    assert [found[name]["rows"] for name in list(found)[:3]] == [500] * 3
    assert (
        found["changes: bound by"]["detail"]
        == "the source: every change was delivered when it came"
    )
    feeds.sync("f")
    assert [job.name for job in feeds.catalog.jobs()] == ["f"]
    assert len(held(postgres)[0]) == 1, "that of the feed"


@pytest.mark.extended
def test_a_scan_that_is_not_over_says_what_bounds_it(feeds: Feeds) -> None:
    answer = feeds.execute(
        "EXPLAIN ANALYZE (DURATION '3s') CREATE CHANGEFEED FOR t INTO 'null://' "
        "WITH initial_scan_max_rate = '40kB', initial_scan_concurrency = '1'"
    )
    found = stages(answer)
    if "scan: messages" not in found:
        assert found["bound by"]["detail"] == "the source: the scan had not begun to deliver"
        return
    said = found["scan: bound by"]["detail"]
    assert said.endswith(" of about 2,000 rows")
    assert said.startswith(
        ("initial_scan_max_rate, or the source: ", "the start of the scan: its first message")
    )


@pytest.mark.extended
@pytest.mark.spark
def test_the_stage_of_a_query_is_measured(feeds: Feeds, postgres: Database) -> None:
    answer = feeds.execute(
        "EXPLAIN ANALYZE (DURATION '120s') CREATE CHANGEFEED INTO 'null://' "
        "WITH initial_scan = 'only' AS SELECT a, upper(b) AS c FROM t WHERE a > 100"
    )
    found = stages(answer)
    assert list(found)[:3] == ["scan: read", "scan: query", "scan: encode"]
    assert [found[name]["rows"] for name in list(found)[:4]] == [2000, 1900, 1900, 1900]
    assert found["scan: query"]["seconds"] > 0 and held(postgres) == ([], [])


def test_what_cannot_run_into_nothing_is_refused(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    for statement, code in (
        (f"CREATE CHANGEFEED FOR t INTO 'duckdb://{tmp_path}/d.db'", "CF1303"),
        (f"CREATE CHANGEFEED FOR t INTO 'file://{tmp_path}' WITH format = 'parquet'", "CF1303"),
        ("CREATE CHANGEFEED FOR DATASET '/data/*.csv' KEY (a) INTO 'null://'", "CF1303"),
        ("CREATE CHANGEFEED FOR nothing INTO 'null://'", "CF1101"),
    ):
        with pytest.raises(ChangefeedError) as refused:
            feeds.execute(f"EXPLAIN ANALYZE (DURATION '1s') {statement}")
        assert refused.value.code.number == code, refused.value
    for duration in ("0s", "2h", "soon"):
        with pytest.raises(ChangefeedError, match="DURATION"):
            feeds.execute(f"EXPLAIN ANALYZE (DURATION '{duration}') CREATE CHANGEFEED FOR t")
    assert held(postgres) == ([], []) and feeds.catalog.jobs() == []
