"""Exceptions nobody planned for: named without their text, counted, and final when they repeat."""

from __future__ import annotations

import logging
import sys

import pytest

from changefeed.capture import standby
from changefeed.capture.process import EXIT_RETRY, Notice
from changefeed.capture.supervisor import CaptureSupervisor
from changefeed.core.clock import ManualClock, Waitable
from changefeed.core.internal_errors import LIMIT, SPAN_SECONDS, FailureCounter, raised_at
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.core.uri import redact
from tests.helpers.waiting import until


def failure(value: str = "row value") -> Exception:
    try:
        redact(None)  # type: ignore[arg-type]
    except Exception as error:
        error.args = (value,)
        return error
    raise AssertionError("a URI that is None")


def test_the_place_is_in_our_code_and_the_text_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.ERROR, logger="changefeed"):
            error = FailureCounter().error("feed f", failure())
    finally:
        log.removeHandler(caplog.handler)
    assert raised_at(failure()).startswith("changefeed.core.uri:")
    assert error.message == f"internal error: TypeError at {raised_at(failure())}"
    assert error.code.number == "CF9001"
    assert "TypeError" in caplog.text and "uri.py" in caplog.text
    assert "row value" not in caplog.text + error.message + error.detail


def test_a_failure_that_repeats_becomes_final() -> None:
    clock = ManualClock()
    counter = FailureCounter(clock)
    for _ in range(LIMIT - 1):
        assert counter.error("f", failure(), "t").code.number == "CF9001"
        assert counter.error("f", failure(), "other").code.number == "CF9001"
    assert counter.error("f", failure(), "t").code.number == "CF9002"
    counter.clear()
    assert counter.error("f", failure(), "t").code.number == "CF9001"


def test_one_that_comes_now_and_then_is_tried_again_for_ever() -> None:
    clock = ManualClock()
    counter = FailureCounter(clock)
    for _ in range(3 * LIMIT):
        assert counter.error("f", failure()).code.number == "CF9001"
        clock.advance(SPAN_SECONDS / (LIMIT - 2))


def test_a_capture_that_fails_the_same_way_again_and_again_stays_down() -> None:
    line = Notice("error", code="CF9001", message="internal error: KeyError at x:1").line()
    program = f"import sys; sys.stdout.buffer.write({line!r}); sys.exit({EXIT_RETRY})"
    told: list[str] = []
    supervisor = CaptureSupervisor(
        lambda: standby.start([sys.executable, "-c", program], None),
        lambda notice: told.append(notice.code),
        timings=Timings(restart_first=0.001, restart_longest=0.001),
    )
    supervisor.start()
    try:
        until(lambda: "CF9002" in told)
    finally:
        supervisor.stop()
    assert told == ["CF9001"] * LIMIT + ["CF9002"]


def test_a_capture_that_fails_now_and_then_is_started_again() -> None:
    line = Notice("error", code="CF9001", message="internal error: KeyError at x:1").line()
    program = f"import sys; sys.stdout.buffer.write({line!r}); sys.exit({EXIT_RETRY})"
    told: list[str] = []

    class Slow(ManualClock):
        def wait(self, waitable: Waitable, seconds: float) -> bool:
            self.advance(SPAN_SECONDS / (LIMIT - 2))
            return super().wait(waitable, seconds)

    supervisor = CaptureSupervisor(
        lambda: standby.start([sys.executable, "-c", program], None),
        lambda notice: told.append(notice.code),
        clock=Slow(),
        timings=Timings(restart_first=0.001, restart_longest=0.001),
    )
    supervisor.start()
    try:
        until(lambda: len(told) > 2 * LIMIT)
    finally:
        supervisor.stop()
    assert set(told) == {"CF9001"}
