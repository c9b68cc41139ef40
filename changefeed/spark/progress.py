"""Workers report to the driver how far the parts of a running scan are.

Each worker sends one small datagram per batch to a socket of the driver, with the totals of its
part so far. Lost datagrams do no harm: the next one has the totals, and the exact figures come with
the job's result. The secret keeps other processes of the machine out.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from changefeed.core.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORM = struct.Struct(">16siqq?")

#: The listener is called at most this often, seconds.
PERIOD = 0.25


def driver_host(session: SparkSession) -> str:
    """The address at which executors reach this process."""
    return session.conf.get("spark.driver.host") or "127.0.0.1"


class Reporter:
    """Sends progress; pickles into the workers."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._address = (host, port)
        self._secret = secret
        self._socket: socket.socket | None = None

    def __call__(self, part: int, rows: int, size: int, durable: bool = False) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.sendto(_FORM.pack(self._secret, part, rows, size, durable), self._address)
        except OSError:
            return  # the driver shows an older figure for a moment

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_socket": None}


class Listener:
    """Adds up what the reporters of one job send, and passes it on.

    Args:
        on_progress: called from a thread of its own with rows and bytes of all parts.
        host: the address at which workers reach the driver.
        clock: for ``period``.
        on_durable: called from that thread with number, rows and bytes of a part when its rows are
            durable.
        period: seconds between two calls of ``on_progress``, at least.
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], None],
        host: str,
        clock: Clock = SYSTEM_CLOCK,
        on_durable: Callable[[int, int, int], None] = lambda part, rows, size: None,
        period: float = PERIOD,
    ) -> None:
        self._clock = clock
        self._period = period
        self._on_durable = on_durable
        self._on_progress = on_progress
        self._parts: dict[int, tuple[int, int]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.settimeout(period)
        self._secret = secrets.token_bytes(16)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scan-progress", daemon=True)

    def __enter__(self) -> Reporter:
        host, port = self._socket.getsockname()
        self._thread.start()
        return Reporter(host, port, self._secret)

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        # An empty datagram ends the wait for the next one.
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        passed_on = 0.0
        fresh = False
        while not self._closed.is_set():
            fresh = self._take() or fresh
            if fresh and self._clock.monotonic() - passed_on >= self._period:
                passed_on, fresh = self._clock.monotonic(), False
                rows, sizes = zip(*self._parts.values(), strict=True)
                self._on_progress(sum(rows), sum(sizes))

    def _take(self) -> bool:
        try:
            datagram = self._socket.recv(_FORM.size)
        except TimeoutError:
            return False
        if len(datagram) != _FORM.size:
            return False
        secret, part, rows, size, durable = _FORM.unpack(datagram)
        if not secrets.compare_digest(secret, self._secret):
            return False
        self._parts[part] = (rows, size)
        if durable:
            self._on_durable(part, rows, size)
        return True
