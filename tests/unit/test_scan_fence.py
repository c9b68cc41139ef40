"""A scan that is not wanted any more writes nothing any more."""

from __future__ import annotations

import multiprocessing
import pickle
import threading

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.scan.admission import AdmissionTicket, WorkerAdmission
from changefeed.scan.barrier import ScanStopped, WriteBarrier
from tests.helpers.waiting import until


def closing(gate: WorkerAdmission | WriteBarrier) -> threading.Thread:
    thread = threading.Thread(target=gate.close, daemon=True)
    thread.start()
    return thread


def test_closing_waits_for_those_inside() -> None:
    gate = WorkerAdmission()
    ticket: AdmissionTicket = pickle.loads(pickle.dumps(gate.ticket()))
    ticket.enter()
    ticket.enter()
    until(lambda: len(gate.inside) == 1)
    thread = closing(gate)
    with pytest.raises(ChangefeedError) as refused:
        until(lambda: gate.ticket().enter())
    assert refused.value.code.number == "CF2201"
    assert thread.is_alive()
    ticket.leave()
    thread.join(10)
    assert not thread.is_alive()
    gate.close()


def test_one_who_has_left_may_come_again() -> None:
    gate = WorkerAdmission()
    ticket = gate.ticket()
    for _ in range(3):
        ticket.enter()
        until(lambda: gate.inside)
        ticket.leave()
        until(lambda: not gate.inside)
    gate.close()


def test_a_stranger_does_not_hold_it_open() -> None:
    gate = WorkerAdmission()
    host, port = gate.ticket()._address
    with pytest.raises(ChangefeedError):
        AdmissionTicket(host, port, b"x" * 16).enter()
    assert not gate.inside
    gate.close()


def _stay(ticket: AdmissionTicket, inside: object) -> None:
    ticket.enter()
    inside.set()  # type: ignore[attr-defined]
    threading.Event().wait()


def test_a_worker_that_does_not_end_is_killed() -> None:
    gate = WorkerAdmission(grace=0.2)
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    worker = context.Process(target=_stay, args=(gate.ticket(), inside), daemon=True)
    worker.start()
    assert inside.wait(60)
    gate.close()
    worker.join(20)
    assert worker.exitcode == -9


def test_a_dead_worker_holds_up_nobody() -> None:
    gate = WorkerAdmission()
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    worker = context.Process(target=_stay, args=(gate.ticket(), inside), daemon=True)
    worker.start()
    assert inside.wait(60)
    worker.kill()
    gate.close()
    assert not gate.inside


def test_writes_here_end_before_the_fence_is_closed() -> None:
    wall = WriteBarrier()
    order: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with wall.passing():
            entered.set()
            go_on.wait(10)
            order.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    assert entered.wait(10)
    thread = closing(wall)
    go_on.set()
    writer.join(10)
    thread.join(10)
    order.append("closed")
    assert order == ["written", "closed"]
    with pytest.raises(ScanStopped), wall.passing():
        order.append("too late")
    with pytest.raises(ScanStopped):
        wall.ticket("127.0.0.1", here=True)
    assert order == ["written", "closed"]
