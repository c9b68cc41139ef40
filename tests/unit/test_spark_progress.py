"""What tasks of Spark say of their progress reaches the driver, and its end waits for nothing."""

from __future__ import annotations

import threading

import pytest

from changefeed.spark import progress


@pytest.mark.timeout(60)
def test_a_listener_ends_without_waiting_for_its_period() -> None:
    with progress.Listener(lambda rows, size: None, "127.0.0.1", period=3600.0):
        pass


def test_what_a_part_has_done_is_passed_on() -> None:
    told: list[tuple[int, int]] = []
    durable = threading.Event()
    parts: list[tuple[int, int, int]] = []

    def on_durable(part: int, rows: int, size: int) -> None:
        parts.append((part, rows, size))
        durable.set()

    listener = progress.Listener(
        lambda rows, size: told.append((rows, size)), "127.0.0.1", on_durable=on_durable
    )
    with listener as tell:
        tell(0, 3, 30)
        tell(1, 4, 40)
        tell(0, 5, 50, durable=True)
        assert durable.wait(30)
    assert parts == [(0, 5, 50)]
    assert told[0] == (3, 30)
