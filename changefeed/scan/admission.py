"""Admission of workers: the driver knows every worker that delivers, and when none is left.

A cancelled Spark job ends for the driver before its Python workers end. One of them could write
rows of an old scan after newer changes of the same rows were delivered. So a worker asks for
admission before its first write, and stays connected while it delivers: the connection ends with
the delivery or with the process, whichever comes first. :meth:`WorkerAdmission.close` admits no
more workers and returns when all have left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import threading

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log

_HELLO = struct.Struct(">16si")
_ADMITTED, _REFUSED = b"+", b"-"

#: Seconds a worker of this machine gets to end by itself once its scan was cancelled.
GRACE_SECONDS = 5.0
#: How long the other side may be silent before the connection is tried, and between tries.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_HELLO_SECONDS = 10.0


class AdmissionTicket:
    """A worker's ticket for admission; picklable. One delivery at a time in each process."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._address = (host, port)
        self._secret = secret
        self._held: socket.socket | None = None

    def enter(self) -> None:
        """Ask for admission; does nothing if this process is already admitted.

        Raises:
            ChangefeedError: CF2201, the delivery is no longer wanted.
        """
        if self._held is not None:
            return
        try:
            held = socket.create_connection(self._address, _HELLO_SECONDS)
            held.sendall(_HELLO.pack(self._secret, os.getpid()))
            answer = held.recv(1)
        except OSError as error:
            raise _over() from error
        if answer != _ADMITTED:
            held.close()
            raise _over()
        held.settimeout(None)
        self._held = held

    def leave(self) -> None:
        """Leave: the delivery is over, and this process writes no more."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": None}


class WorkerAdmission:
    """The driver's side.

    Args:
        host: address the workers reach the driver at.
        here: workers run on this machine: a worker that does not end is killed.
        grace: seconds that a worker has to end by itself.
        clock: measures ``grace``.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        here: bool = True,
        grace: float = GRACE_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._here = here
        self._grace = grace
        self._secret = secrets.token_bytes(16)
        self._listener = socket.create_server((host, 0))
        self._port = int(self._listener.getsockname()[1])
        self._host = host
        self._changed = threading.Condition()
        self._inside: dict[socket.socket, int] = {}
        self._closed = False
        threading.Thread(target=self._serve, name="scan-gate", daemon=True).start()

    def ticket(self) -> AdmissionTicket:
        """For the workers."""
        return AdmissionTicket(self._host, self._port, self._secret)

    @property
    def inside(self) -> tuple[int, ...]:
        """Process ids of the admitted workers."""
        with self._changed:
            return tuple(self._inside.values())

    def close(self) -> None:
        """Admit no more workers; return once all have left. May be called again."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._shut()
            kill_at = self._clock.monotonic() + self._grace
            while self._inside:
                if self._here and self._clock.monotonic() >= kill_at:
                    self._kill()
                if not self._clock.wait(self._changed, self._grace if self._inside else 0):
                    log.warning("%d workers of a scan have not ended yet", len(self._inside))

    def _shut(self) -> None:
        # A thread inside accept() holds the socket open over close(): it has to be woken.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _kill(self) -> None:
        for pid in self._inside.values():
            # The connection is open, so this is the process that came in.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        """Serve one worker, from its admission to its end."""
        with connection:
            pid = self._admit(connection)
            if pid is None:
                return
            try:
                while connection.recv(64):
                    continue
            except OSError:
                return  # as good as an end: the connection is gone
            finally:
                with self._changed:
                    del self._inside[connection]
                    self._changed.notify_all()

    def _admit(self, connection: socket.socket) -> int | None:
        try:
            connection.settimeout(_HELLO_SECONDS)
            hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            if len(hello) != _HELLO.size:
                return None
            secret, pid = _HELLO.unpack(hello)
            if not secrets.compare_digest(secret, self._secret):
                return None
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
            with self._changed:
                if self._closed:
                    connection.sendall(_REFUSED)
                    return None
                connection.sendall(_ADMITTED)
                self._inside[connection] = pid
                return int(pid)
        except OSError:
            return None


def _over() -> ChangefeedError:
    return ChangefeedError(Code.SCAN_INTERRUPTED, "the scan is over: no one waits for these rows")
