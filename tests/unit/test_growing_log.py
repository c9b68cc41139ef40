"""Whether a change log goes on, as the node sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from changefeed.capture.growing_log import GrowingLog
from changefeed.core.clock import ManualClock, Timestamp, Waitable
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Flush, Frontier
from changefeed.core.schema import TableName, TableSchema
from changefeed.log import LogSettings, LogWriter
from tests.helpers.log_samples import Row, batch, flush, narrow, table_name
from tests.helpers.waiting import until


class Reader:
    """A log of which the node has not seen the last flush."""

    def __init__(self) -> None:
        self.frontier = Frontier(Timestamp(1), "1")

    def refresh(self) -> Frontier:
        self.frontier = Frontier(Timestamp(2), "2")
        return self.frontier

    def tables_beyond(self, at: Timestamp) -> set[TableName]:
        return set()


class Clock(ManualClock):
    """Takes a step of the story at each wait."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        next(self._steps)()
        return super().wait(waitable, seconds)


def test_what_an_earlier_capture_wrote_does_not_show_that_the_log_goes_on(tmp_path: Path) -> None:
    gone = ChangefeedError("CF2103", "the source was replaced")
    told: list[GrowingLog] = []
    clock = Clock(lambda: told[0].refresh(), lambda: told[0].fail(gone))
    log = GrowingLog("shop", tmp_path, clock)
    told.append(log)
    cast(Any, log)._reader = Reader()
    assert log.why_lost(threading.Event()) is gone


def test_a_log_that_cannot_be_opened_for_a_while_is_followed_again(tmp_path: Path) -> None:
    """The thread that follows it says what is wrong, and outlives it."""
    with LogWriter(tmp_path, LogSettings()) as writer:
        writer.append(flush([], Timestamp(1000), 1))
        log = GrowingLog("shop", tmp_path)
        assert log.frontier is not None and log.frontier.at == Timestamp(1000)
        log.fail(ChangefeedError(Code.LOG_DAMAGED, "damaged"))
        (tmp_path / "LEDGER").rename(tmp_path / "elsewhere")
        log.retry()  # the reader that was open is left
        log.follow()
        until(lambda: log.error is not None, "it says that the log is damaged")
        assert log.error is not None and log.error.code is Code.LOG_DAMAGED
        (tmp_path / "elsewhere").rename(tmp_path / "LEDGER")
        writer.append(flush([], Timestamp(2000), 2))
        until(lambda: log.error is None, "it reads the log again")
        log.waiter().wait_beyond(Timestamp(1000), 10)
        assert log.frontier.at == Timestamp(2000)
        log.close()


class Growth(ManualClock):
    """Writes the next flush at each wait."""

    def __init__(self, *flushes: Flush) -> None:
        super().__init__()
        self._flushes = iter(flushes)
        self.write: Callable[[Flush], None] = lambda flush: None

    def wait(self, waitable: Waitable, seconds: float) -> bool:
        self.write(next(self._flushes))
        self.advance(1)
        return False


@pytest.mark.parametrize(
    ("tables", "upto"), [(None, 2000), ({table_name("b")}, 3000), ({table_name("a")}, 4000)]
)
def test_a_wait_ends_with_the_changes_of_its_tables(
    tables: set[TableName] | None, upto: int, tmp_path: Path
) -> None:
    a, b = narrow("a"), narrow("b")
    clock = Growth(
        flush([], Timestamp(2000), 2),
        flush([batch(b, [Row(Timestamp(3000), 1)])], Timestamp(3000), 3),
        flush([batch(a, [Row(Timestamp(4000), 2)])], Timestamp(4000), 4),
    )
    with LogWriter(tmp_path, LogSettings()) as writer:
        writer.append(flush([], Timestamp(1000), 1))
        log = GrowingLog("shop", tmp_path, clock)
        assert log.frontier is not None

        def write(flush: Flush) -> None:
            writer.append(flush)
            log.refresh()

        clock.write = write
        log.waiter().wait_beyond(Timestamp(1000), 60, tables)
        assert log.frontier.at == Timestamp(upto)
        log.close()
        log.release()


def test_whether_a_log_has_something_of_tables_in_a_range(tmp_path: Path) -> None:
    a, b, c = (narrow(name) for name in "abc")
    with LogWriter(tmp_path, LogSettings()) as writer:
        log = GrowingLog("shop", tmp_path)
        assert not log.has_nothing({a.table: Timestamp(1000)}, Timestamp(2000)), "it is empty"
        for number, schema in enumerate((a, b, a), 1):
            at = Timestamp(1000 * number)
            writer.append(flush([batch(schema, [Row(at, number)])], at, number))
        writer.append(flush([], Timestamp(4000), 4))
        log.refresh()

        def nothing(after: int, upto: int, *tables: TableSchema) -> bool:
            bounds = {schema.table: Timestamp(after) for schema in tables}
            return log.has_nothing(bounds, Timestamp(upto))

        assert nothing(1000, 4000, c) and nothing(1000, 2000, a, c) and nothing(3000, 4000, a, b)
        assert not nothing(1000, 4000, a) and not nothing(1000, 2000, a, b, c)
        assert not nothing(2000, 3000, a) and not nothing(2500, 3500, a)
        assert not nothing(1, 4000, c), "the log may have begun after that"
        log.close()
        log.release()


def test_a_wait_ends_with_a_call_before_it_with_trouble_and_with_its_time(tmp_path: Path) -> None:
    clock = Growth(*(flush([], Timestamp(n), n) for n in range(1, 10)))
    log = GrowingLog("shop", tmp_path, clock)
    waiter, other = log.waiter(), log.waiter()

    def passed() -> float:
        began = clock.monotonic()
        waiter.wait_beyond(Timestamp.MAX, 3, {table_name("a")})
        return clock.monotonic() - began

    assert passed() == 3
    other.wake()
    assert passed() == 3
    waiter.wake()
    assert passed() == 0
    log.wake()
    assert passed() == 0
    log.stall("its disk is full")
    assert passed() == 0
    log.fail(ChangefeedError(Code.LOG_DAMAGED, "damaged"))
    assert passed() == 0
    assert passed() == 3
    log.close()
    assert passed() == 0


def test_a_log_says_since_when_it_stands_still(tmp_path: Path) -> None:
    """The process that writes it sends nothing, or another process writes it."""
    clock = ManualClock()
    with LogWriter(tmp_path, LogSettings()) as writer:
        began, log = clock.now(), GrowingLog("shop", tmp_path, clock)
        clock.advance(31)
        assert log.silent_since(30) == began
        writer.append(flush([], Timestamp(1000), 1))
        log.refresh()
        assert log.silent_since(30) is None
        grew = clock.now()
        for _ in range(2):
            clock.advance(20)
            log.refresh()
        assert log.silent_since(30) == grew
        log.close()
        log.release()
