"""A scan that is not wanted any more writes nothing any more."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.timings import LONGEST_LEASE, SHORTEST_LEASE, Timings
from changefeed.scan.admission import AdmissionTicket, ScanStopped, WorkerAdmission, WriteBarrier
from tests.helpers.waiting import suspend, until


def closing(gate: WorkerAdmission | WriteBarrier) -> threading.Thread:
    thread = threading.Thread(target=gate.close, daemon=True)
    thread.start()
    return thread


def test_closing_waits_for_those_inside() -> None:
    gate = WorkerAdmission()
    ticket: AdmissionTicket = pickle.loads(pickle.dumps(gate.ticket()))
    with ticket.enter(0):
        until(lambda: len(gate.inside) == 1)
        thread = closing(gate)
        with pytest.raises(ChangefeedError) as refused:
            until(lambda: gate.ticket().enter(0))
        assert refused.value.code.number == "CF2201"
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()
    gate.close()


def test_a_task_that_failed_is_admitted_again() -> None:
    gate = WorkerAdmission()
    ticket = gate.ticket()
    for _ in range(3):
        with ticket.enter(0) as admission:
            assert admission.result is None
            until(lambda: gate.inside)
        until(lambda: not gate.inside)
    gate.close()


def test_a_stranger_does_not_hold_it_open() -> None:
    gate = WorkerAdmission()
    with pytest.raises(ChangefeedError):
        replace(gate.ticket(), secret=b"x" * 16).enter(0)
    assert not gate.inside
    gate.close()


def test_another_attempt_waits_and_then_returns_what_the_first_delivered() -> None:
    gate = WorkerAdmission()
    ticket, got = gate.ticket(), list[bytes | None]()

    def again() -> None:
        with ticket.enter(7) as admission:
            got.append(admission.result)

    with ticket.enter(7) as first:
        thread = threading.Thread(target=again)
        thread.start()
        with ticket.enter(8) as other, gate.ticket().enter(7) as other_job:
            assert other.result is None
            assert other_job.result is None
        until(lambda: len(gate.inside) == 1)
        assert not got
        first.check()
        first.finish(b"3 rows")
        # Nothing is delivered any more: the wait is over before the first attempt has left.
        thread.join(10)
        assert got == [b"3 rows"]
    gate.close()


def test_another_attempt_is_admitted_when_the_first_has_failed() -> None:
    gate = WorkerAdmission()
    ticket, order = gate.ticket(), list[str]()

    def again() -> None:
        with ticket.enter(7) as admission:
            order.append("again" if admission.result is None else "finished")

    with ticket.enter(7):
        thread = threading.Thread(target=again)
        thread.start()
        order.append("first")
    thread.join(10)
    assert order == ["first", "again"]
    gate.close()


def test_a_worker_without_connection_may_not_write() -> None:
    gate = WorkerAdmission()
    with gate.ticket().enter(0) as admission:
        admission.check()
    with pytest.raises(ChangefeedError):
        admission.check()
    with pytest.raises(ChangefeedError):
        admission.finish(b"")
    gate.close()


def _stay(ticket: AdmissionTicket, inside: object) -> None:
    with ticket.enter(0):
        inside.set()  # type: ignore[attr-defined]
        threading.Event().wait()


def staying(ticket: AdmissionTicket) -> SpawnProcess:
    """A worker process that was admitted and does not end by itself."""
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    worker = context.Process(target=_stay, args=(ticket, inside), daemon=True)
    worker.start()
    assert inside.wait(60)
    return worker


def writing(ticket: AdmissionTicket, file: Path) -> SpawnProcess:
    """A worker process that writes as long as it may."""
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=_write, args=(ticket, str(file)), daemon=True)
    worker.start()
    return worker


def _write(ticket: AdmissionTicket, file: str) -> None:
    """Write a letter again and again, as long as one may."""
    Path(f"{file}.asked").touch()
    with ticket.enter(0) as admission, open(file, "ab", 0) as out:
        while True:
            admission.check()
            out.write(b"w")
            time.sleep(0.001)


def test_a_worker_that_does_not_end_is_killed() -> None:
    gate = WorkerAdmission(grace=0.2)
    worker = staying(gate.ticket())
    gate.close()
    worker.join(20)
    assert worker.exitcode == -9


def test_a_worker_elsewhere_that_does_not_end_is_cut_off_and_ends_its_process() -> None:
    gate = WorkerAdmission(here=False, grace=0.2)
    worker = staying(gate.ticket())
    gate.close()
    worker.join(20)
    assert worker.exitcode == os.EX_TEMPFAIL


def test_a_frozen_worker_elsewhere_is_replaced_and_writes_no_more_when_it_wakes_up(
    tmp_path: Path,
) -> None:
    """The other one is a process, too: a task that loses its lease ends its process."""
    gate = WorkerAdmission(here=False, grace=0.2, lease=1.0, ping=0.05)
    ticket, file = gate.ticket(), tmp_path / "written"
    worker = writing(ticket, file)
    until(lambda: file.exists() and file.stat().st_size > 1000)
    assert worker.pid is not None
    suspend(worker.pid)
    other = staying(ticket)
    before = file.stat().st_size
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(20)
    assert worker.exitcode == os.EX_TEMPFAIL
    assert file.stat().st_size <= before + 1  # the write that was under way
    gate.close()
    other.join(20)
    assert other.exitcode == os.EX_TEMPFAIL


def test_an_attempt_that_waited_longer_than_its_lease_may_write(tmp_path: Path) -> None:
    gate = WorkerAdmission(here=False, grace=0.2, lease=1.0, ping=0.05)
    ticket, file = gate.ticket(), tmp_path / "written"
    first = writing(ticket, tmp_path / "first")
    until(lambda: gate.inside == (first.pid,))
    other = writing(ticket, file)
    until(Path(f"{file}.asked").exists)
    time.sleep(2 * ticket.lease)
    first.kill()
    until(lambda: file.exists() and file.stat().st_size > 1000)
    assert other.is_alive()
    gate.close()
    other.join(20)


def _send_all(ticket: AdmissionTicket, file: str) -> None:
    """One long write, as by the threads of a client."""
    with ticket.enter(0), open(file, "ab", 0) as out:
        while True:
            out.write(b"w")
            time.sleep(0.001)


def _drive(tickets: Connection) -> None:
    """A node that may freeze."""
    tickets.send(WorkerAdmission(here=False, lease=1.0, ping=0.05).ticket())
    threading.Event().wait()


def test_a_worker_whose_node_froze_ends_before_another_node_takes_the_feed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    node = context.Process(target=_drive, args=(there,), daemon=True)
    node.start()
    file = tmp_path / "written"
    worker = context.Process(target=_send_all, args=(here.recv(), str(file)), daemon=True)
    worker.start()
    until(lambda: file.exists() and file.stat().st_size > 1000)
    assert node.pid is not None
    suspend(node.pid)
    worker.join(20)
    node.kill()
    assert worker.exitcode == os.EX_TEMPFAIL


@pytest.mark.parametrize("lease", [SHORTEST_LEASE, 5.0, 10.0, LONGEST_LEASE])
def test_a_task_may_write_for_less_long_than_the_lease_of_its_node(lease: float) -> None:
    """The node renewed its lease at most one pulse before it stood still."""
    timings = Timings(lease=lease)
    assert timings.task_lease + timings.pulse < lease


def test_a_dead_worker_holds_up_nobody() -> None:
    gate = WorkerAdmission()
    worker = staying(gate.ticket())
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
