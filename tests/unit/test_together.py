"""Threads that have the same question at the same moment share its answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from changefeed.core.together import AskedTogether
from tests.helpers.waiting import until

THREADS = 20


def test_an_answer_is_of_a_question_asked_after_its_thread_came() -> None:
    world, begun, asked = [0], threading.Semaphore(0), [0]
    go_on = threading.Semaphore(0)

    def ask() -> int:
        asked[0] += 1
        found = world[0]
        begun.release()
        assert go_on.acquire(timeout=60)
        return found

    together = AskedTogether(ask)
    with ThreadPoolExecutor(THREADS + 1) as threads:
        early = threads.submit(together)
        assert begun.acquire(timeout=60)
        world[0] = 1
        arrived = [0]

        def late() -> int:
            arrived[0] += 1
            return together()

        answers = [threads.submit(late) for _ in range(THREADS)]
        until(lambda: arrived[0] == THREADS, "all others have the question")
        go_on.release(THREADS + 1)
        assert early.result(60) == 0
        assert {answer.result(60) for answer in answers} == {1}
    # A thread may have been on its way to the question when the others had their answer.
    assert 2 <= asked[0] < THREADS / 2
    assert together() == 1


def test_an_error_is_the_answer_of_those_who_waited_for_it() -> None:
    errors = [ValueError("it is away")]

    def ask() -> str:
        if errors:
            raise errors.pop()
        return "here"

    together = AskedTogether(ask)
    with pytest.raises(ValueError, match="it is away"):
        together()
    assert together() == "here"


def test_an_interrupt_is_of_one_thread_alone() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    interrupts = [KeyboardInterrupt()]

    def ask() -> str:
        begun.release()
        assert go_on.acquire(timeout=60)
        if interrupts:
            raise interrupts.pop()
        return "here"

    together = AskedTogether(ask)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(together)
        assert begun.acquire(timeout=60)
        others = [threads.submit(together) for _ in range(2)]
        go_on.release(4)
        with pytest.raises(KeyboardInterrupt):
            first.result(60)
        assert [other.result(60) for other in others] == ["here", "here"]
