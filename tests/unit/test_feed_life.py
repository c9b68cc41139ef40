"""The log has one line for each event in a feed's life; errors name address and cause."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from changefeed.catalog import Job, Status
from changefeed.core.errors import LONGEST_LINE, ChangefeedError
from changefeed.core.telemetry import log
from changefeed.feeds.status import explained, log_move, log_start
from tests.golden.world import SECRETS, World


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    world = World(tmp_path)
    world.shop()
    world.run("CREATE CHANGEFEED f FOR orders INTO 'kafka://u:hunter2@broker:9092?topic_prefix=a_'")
    yield world.catalog.job("f")
    world.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger="changefeed"):
        yield caplog
    log.removeHandler(caplog.handler)


DOWN = ChangefeedError("CF5001", "cannot reach the Kafka brokers", detail="Connection refused")

MOVES = [
    (None, Status.SCANNING, "0 %", None, "INFO feed f: scanning"),
    (Status.SCANNING, Status.RUNNING, "running", None, "INFO feed f: initial scan done, running"),
    (None, Status.RUNNING, "running", None, "INFO feed f: running"),
    (Status.RETRYING, Status.RUNNING, "running", None, "INFO feed f: recovered, running"),
    (Status.STALLED, Status.SCANNING, "2 %", None, "INFO feed f: recovered, scanning"),
    (Status.RUNNING, Status.RETRYING, "no; again", DOWN, "WARNING feed f: CF5001 no; again"),
    (Status.RUNNING, Status.STALLED, "full", None, "WARNING feed f: stalled: full"),
    (Status.RETRYING, Status.FAILED, "no", DOWN, "ERROR feed f: CF5001 failed: no"),
    (None, Status.SUCCEEDED, "end", None, "INFO feed f: succeeded: end"),
    (None, Status.PAUSED, "job failed (no)", DOWN, "INFO feed f: CF5001 paused: job failed (no)"),
]


@pytest.mark.parametrize(("before", "after", "reason", "error", "line"), MOVES)
def test_a_line_for_each_move(
    lines: pytest.LogCaptureFixture,
    before: Status | None,
    after: Status,
    reason: str,
    error: ChangefeedError | None,
    line: str,
) -> None:
    log_move("f", before, after, reason, error)
    (record,) = lines.records
    assert f"{record.levelname} {record.getMessage()}" == line


def test_how_a_feed_begins(lines: pytest.LogCaptureFixture, job: Job) -> None:
    log_start(replace(job, started=None))
    log_start(replace(job, reason="resumed, waits for a node"))
    log_start(replace(job, started=1))
    place = "from shop to kafka://u:redacted@broker:9092"
    assert [record.getMessage() for record in lines.records] == [
        f"feed f: {word}, {place}" for word in ("created", "resumed", "taken up")
    ]


def test_an_error_names_the_cause_and_the_address(job: Job) -> None:
    told = explained(DOWN, job)
    assert told.message == (
        "cannot reach the Kafka brokers: Connection refused (kafka://u:redacted@broker:9092)"
    )
    assert not [secret for secret in SECRETS if secret in told.message]
    assert (told.code, told.hint) == (DOWN.code, DOWN.hint)


def test_an_address_that_is_there_is_not_said_twice(job: Job) -> None:
    there = ChangefeedError("CF5001", "cannot reach it", detail="broker:9092: Connection refused")
    assert explained(there, job).message == "cannot reach it: broker:9092: Connection refused"
    mine = ChangefeedError("CF3002", "older than the log")
    assert explained(mine, job).message == "older than the log", "it is not the sink's"


def test_an_explanation_has_an_end() -> None:
    long = ChangefeedError("CF5001", "no", detail="x\n" * 2000)
    assert len(long.explained) == LONGEST_LINE and "\n" not in long.explained
    assert ChangefeedError("CF5001", "no").explained == "no"
