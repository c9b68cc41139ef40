"""Guarantees that a cancelled scan performs no further writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.scan.admission import AdmissionTicket, WorkerAdmission


class ScanStopped(Exception):
    """The scan was cancelled; nothing went wrong."""


class WriteBarrier:
    """Every write of a scan passes it: in this process by :meth:`passing`, in workers by a ticket.

    After :meth:`close` no write passes, and none is running. Reads may continue for a while, which
    is harmless.
    """

    def __init__(self) -> None:
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
                self._gate = WorkerAdmission(host, here=here)
            return self._gate.ticket()

    def close(self) -> None:
        """Stop all writes; returns when the last running write has ended."""
        self._closing.set()
        with self._passing:
            gate = self._gate
        if gate is not None:
            gate.close()
