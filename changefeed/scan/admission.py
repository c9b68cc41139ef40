"""Admission of workers: one attempt of a task delivers at a time, and the driver knows when none
does.

Spark may run two attempts of one task at once: a speculative copy, or a second try after it has
lost an executor that still lives. It may also end a job before its Python workers end. Either way
an older attempt could write rows after newer rows of the same keys were delivered. So a worker asks
for admission before its first write and stays connected while it delivers; the connection ends with
the delivery or with the process.

* An attempt waits while another attempt of its task is inside.
* What a finished attempt returned is kept: later attempts return the same and deliver nothing.
* The driver sends a *ping*, and the next one only after the answer. A worker may write for
  its lease after it answered a ping whose answer the driver has confirmed by the next
  one; then it must stop. An attempt that has not answered for as long is replaced.
* :meth:`WorkerAdmission.close` admits no more workers and returns when all have left.

A worker that lost its connection or its lease ends its process, so that also the threads of a
client stop. A request on its way at that instant cannot be taken back.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.spark.listening import WorkerPort, keep_alive, receive
from sinks.base import Sink, SinkContext

#: Secret, process, job and task.
_HELLO = struct.Struct(">16siii")
_SIZE = struct.Struct(">i")
#: What the driver says: admitted, refused, another attempt has finished (its result follows), ping
#: and receipt of a result.
_ADMITTED, _REFUSED, _DONE, _PING, _KEPT = b"+", b"-", b"=", b"p", b"!"
#: What a worker says: the answer to a ping, and its result (size and bytes follow).
_ALIVE, _RESULT = b"a", b"r"

#: Seconds a worker gets to end by itself once its delivery was cancelled.
GRACE_SECONDS = 5.0
#: Seconds that a worker may write after it was last in touch with the driver, where no other node
#: can take the feed of one that stands still.
LEASE_SECONDS = 30.0
#: Seconds between an answer and the next ping.
PING_SECONDS = 2.0
_HELLO_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class AdmissionTicket:
    """A worker's ticket for the tasks of one job; picklable.

    Attributes:
        lease: seconds after its last confirmed answer in which a worker may write.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    job: int
    lease: float

    def enter(self, task: int, clock: Clock = SYSTEM_CLOCK) -> Admission:
        """Wait until no other attempt of a task of the job is inside; ``clock`` measures the lease.

        Raises:
            ChangefeedError: CF2201, the delivery is no longer wanted.
        """
        while True:
            found = self._ask(task, clock)
            if found is not None:
                return found

    def _ask(self, task: int, clock: Clock) -> Admission | None:
        """An answer; None: it came late. The lease counts from the question, and most of it would
        be over; as nobody is inside now, the next answer comes soon."""
        asked = clock.monotonic()
        try:
            held = socket.create_connection((self.host, self.port), _HELLO_SECONDS)
            held.settimeout(None)
            keep_alive(held)
            held.sendall(_HELLO.pack(self.secret, os.getpid(), self.job, task))
            answer = held.recv(1)
            if answer == _DONE:
                with held:
                    return Admission(None, asked, self.lease, clock, _sized(held))
        except OSError as error:
            raise _over() from error
        if answer == _ADMITTED and clock.monotonic() - asked <= self.lease / 2:
            return Admission(held, asked, self.lease, clock)
        held.close()
        if answer != _ADMITTED:
            raise _over()
        return None


class Admission:
    """What a worker got for its ticket; leave by the end of the ``with`` block.

    Attributes:
        result: what another attempt passed to :meth:`finish`. There is nothing to deliver then, and
            this worker was not admitted. None if it was.
    """

    def __init__(
        self,
        held: socket.socket | None,
        asked: float,
        lease: float,
        clock: Clock,
        result: bytes | None = None,
    ) -> None:
        """
        Args:
            held: the connection of a worker that was admitted.
            asked: when it asked, by the clock.
        """
        self.result = result
        self._held = held
        self._lease = lease
        self._clock = clock
        self._until = asked + lease
        self._kept = threading.Event()
        self._sending = threading.Lock()
        if held is not None:
            threading.Thread(target=self._watch, args=(held, asked), daemon=True).start()
            with contextlib.suppress(ValueError):  # only the main thread of a process may
                signal.signal(signal.SIGCONT, lambda *_: self._end_if_expired())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            held.close()

    def check(self) -> None:
        """Make sure, before a write, that this attempt may still deliver.

        Raises:
            ChangefeedError: CF2201, it may not.
        """
        if self._held is None or self._clock.monotonic() > self._until:
            raise _over()

    def finish(self, result: bytes) -> None:
        """Everything of the task is durable: no other attempt delivers it again.

        Raises:
            ChangefeedError: CF2201, the delivery is no longer wanted.
        """
        self.check()
        assert self._held is not None
        try:
            with self._sending:
                self._held.sendall(_RESULT + _SIZE.pack(len(result)) + result)
        except OSError as error:
            raise _over() from error
        if not self._clock.wait(self._kept, self._lease):
            raise _over()

    def _watch(self, held: socket.socket, answered: float) -> None:
        while True:
            try:
                said = held.recv(1) if self._hears(held) else b""
            except OSError:
                said = b""
            if said == _KEPT:
                self._kept.set()
            elif said == _PING:
                # The driver has the last answer, so it counts on this worker from then on.
                self._until = answered + self._lease
                answered = self._clock.monotonic()
                with contextlib.suppress(OSError), self._sending:
                    held.sendall(_ALIVE)
            else:
                break
        if self._held is held:
            os._exit(os.EX_TEMPFAIL)  # cut off: threads of a client may still be writing

    def _hears(self, held: socket.socket) -> bool:
        """Wait for a word of the driver; False if there was none in the time of the lease."""
        while (left := self._until - self._clock.monotonic()) > 0:
            poll = select.poll()
            poll.register(held, select.POLLIN)
            if poll.poll(left * 1000):
                return True
        return False

    def _end_if_expired(self) -> None:
        """After the process was stopped for a while, before it does anything else."""
        if self._held is not None and self._clock.monotonic() > self._until:
            os._exit(os.EX_TEMPFAIL)


def deliver_once(
    ticket: AdmissionTicket,
    task: int,
    sink: Sink,
    context: SinkContext,
    deliver: Callable[[Admission], list[list[int]]],
) -> list[list[int]]:
    """Deliver a task to the sink, which is not open yet, unless another attempt did.

    Args:
        deliver: delivers durably, and returns numbers that say what.

    Returns:
        What ``deliver`` returned, in whichever attempt.

    Raises:
        ChangefeedError: CF2201, the delivery is no longer wanted; the sink failed.
    """
    with ticket.enter(task) as admission:
        if admission.result is not None:
            known: list[list[int]] = json.loads(admission.result)
            return known
        sink.open(context)
        try:
            done = deliver(admission)
            admission.finish(json.dumps(done).encode())
        finally:
            sink.close()
        return done


@dataclass(slots=True, eq=False)
class _Attempt:
    """A worker that was admitted.

    Attributes:
        task: job and task.
        answered: when it was last known to live, by the driver's monotonic clock.
    """

    task: tuple[int, int]
    pid: int
    connection: socket.socket
    answered: float


class WorkerAdmission:
    """The driver's side.

    Args:
        host: address the workers reach the driver at.
        here: workers run on this machine: a worker that does not end is killed.
        grace: seconds that a worker has to end by itself.
        lease: seconds after its last answer in which a worker may write.
        ping: seconds between an answer and the next ping.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        here: bool = True,
        grace: float = GRACE_SECONDS,
        lease: float = LEASE_SECONDS,
        ping: float = PING_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._here = here
        self._grace = grace
        self._lease = lease
        self._ping = ping
        self._secret = secrets.token_bytes(16)
        self._changed = threading.Condition()
        self._jobs = 0
        self._inside: dict[tuple[int, int], _Attempt] = {}
        self._results: dict[tuple[int, int], bytes] = {}
        self._closed = False
        self._port = WorkerPort(host, self._attend, "scan-gate")

    def ticket(self) -> AdmissionTicket:
        """A ticket for the workers of one job."""
        with self._changed:
            self._jobs += 1
            return AdmissionTicket(
                self._port.host, self._port.number, self._secret, self._jobs, self._lease
            )

    @property
    def inside(self) -> tuple[int, ...]:
        """Process ids of the admitted workers."""
        with self._changed:
            return tuple(attempt.pid for attempt in self._inside.values())

    def close(self) -> None:
        """Admit no more workers; return once all have left. May be called again."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._port.close()
                self._changed.notify_all()
            end_at = self._clock.monotonic() + self._grace
            while self._inside:
                if self._clock.monotonic() >= end_at:
                    for attempt in list(self._inside.values()):
                        self._end(attempt)
                if not self._clock.wait(self._changed, self._grace if self._inside else 0):
                    log.warning("%d workers of a scan have not ended yet", len(self._inside))

    def _end(self, attempt: _Attempt) -> None:
        """End an attempt's process, or the driver's wait for it if its lease is over."""
        if self._here:
            # The connection is open, so this is the process that came in.
            with contextlib.suppress(ProcessLookupError):
                os.kill(attempt.pid, signal.SIGKILL)
        expired = self._clock.monotonic() > attempt.answered + self._lease
        with contextlib.suppress(OSError):
            # The worker reads the end and exits, which ends the connection.
            attempt.connection.shutdown(socket.SHUT_RDWR if expired else socket.SHUT_WR)

    def _attend(self, connection: socket.socket) -> None:
        attempt = self._admit(connection)
        if attempt is None:
            return
        try:
            self._follow(attempt)
        finally:
            with self._changed:
                del self._inside[attempt.task]
                self._changed.notify_all()

    def _follow(self, attempt: _Attempt) -> None:
        connection, asked = attempt.connection, False
        connection.settimeout(self._ping)
        while True:
            try:
                said = connection.recv(1)
            except TimeoutError:
                if not asked:
                    connection.sendall(_PING)
                    asked = True
                continue
            if not said:
                return
            attempt.answered = self._clock.monotonic()
            if said == _ALIVE:
                asked = False
            elif said == _RESULT:
                connection.settimeout(_HELLO_SECONDS)
                result = _sized(connection)
                with self._changed:
                    self._results[attempt.task] = result
                    self._changed.notify_all()
                connection.sendall(_KEPT)
                connection.settimeout(self._ping)

    def _admit(self, connection: socket.socket) -> _Attempt | None:
        connection.settimeout(_HELLO_SECONDS)
        secret, pid, *numbers = _HELLO.unpack(receive(connection, _HELLO.size))
        if not secrets.compare_digest(secret, self._secret):
            return None
        connection.settimeout(None)
        keep_alive(connection)
        task = (numbers[0], numbers[1])
        with self._changed:
            self._await_turn(task)
            if task in self._results:
                result = self._results[task]
                connection.sendall(_DONE + _SIZE.pack(len(result)) + result)
                return None
            if self._closed:
                connection.sendall(_REFUSED)
                return None
            connection.sendall(_ADMITTED)
            attempt = _Attempt(task, pid, connection, self._clock.monotonic())
            self._inside[task] = attempt
            return attempt

    def _await_turn(self, task: tuple[int, int]) -> None:
        while task not in self._results and not self._closed:
            inside = self._inside.get(task)
            if inside is None:
                return
            left = inside.answered + self._lease - self._clock.monotonic()
            if left < 0:
                log.warning("a worker of a delivery does not answer: another attempt replaces it")
                self._end(inside)
            self._clock.wait(self._changed, max(left, self._ping))


def _sized(connection: socket.socket) -> bytes:
    """Receive bytes that follow their size. Raises OSError if the connection ends before."""
    (count,) = _SIZE.unpack(receive(connection, _SIZE.size))
    return receive(connection, count)


def _over() -> ChangefeedError:
    return ChangefeedError(Code.SCAN_INTERRUPTED, "the scan is over: no one waits for these rows")


class ScanStopped(Exception):
    """The scan was cancelled; nothing went wrong."""


class WriteBarrier:
    """Every write of a scan passes it: in this process by :meth:`passing`, in workers by a ticket.

    After :meth:`close` no write passes, and none is running. Reads may continue for a while, which
    is harmless.

    Args:
        lease: of the workers, seconds; see :class:`WorkerAdmission`.
    """

    def __init__(self, lease: float = LEASE_SECONDS) -> None:
        self._lease = lease
        self._passing = threading.RLock()
        self._closing = threading.Event()
        self._gate: WorkerAdmission | None = None

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A call of the sink from this process.

        Raises:
            ScanStopped: the scan was cancelled.
        """
        with self._passing:
            if self._closing.is_set():
                raise ScanStopped
            yield

    def ticket(self, host: str, *, here: bool) -> AdmissionTicket:
        """A ticket for the workers of a Spark job, which reach the driver at ``host`` (``here``:
        this machine).

        Raises:
            ScanStopped: the scan was cancelled.
        """
        with self.passing():
            if self._gate is None:
                ping = min(PING_SECONDS, self._lease / 4)
                self._gate = WorkerAdmission(host, here=here, lease=self._lease, ping=ping)
            return self._gate.ticket()

    def close(self) -> None:
        """Stop all writes; returns when the last running write has ended."""
        self._closing.set()
        with self._passing:
            gate = self._gate
        if gate is not None:
            gate.close()
