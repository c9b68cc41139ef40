"""Several requests at once, and yet each key in order: a queue has one request in flight.

After one request failed no queue begins another, so what was delivered of a queue is always
a gap-free beginning, and sending everything again never brings an old version last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sinks.webhook.body import BodyPiece, Parcel, Queue

BUFFER_BYTES = 32_000_000
"""Messages that wait in memory; ``put`` waits above it."""


class OrderedQueues:
    """Queues with a sender each. ``put``, ``settle`` and ``drop`` are one thread's."""

    def __init__(
        self, count: int, messages: int, bytes: int, send: Callable[[Parcel], None]
    ) -> None:
        """``send`` delivers a parcel, or raises; it is called from several threads."""
        self._send = send
        self._queues = [Queue(messages, bytes) for _ in range(count)]
        self._busy = [False] * count
        self._flushing = False
        #: Set while no queue may begin anything, so that senders end their pauses.
        self.halt = threading.Event()
        self._failed: BaseException | None = None
        self._moved = threading.Condition()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="webhook")

    def put(self, number: int, piece: BodyPiece) -> None:
        """Queue messages; waits while too much is queued.

        After a failure it takes nothing more: ``settle`` says why.
        """
        with self._moved:
            if self._failed is not None:
                return
            self._queues[number].put(piece)
            self._start(number)
            while self._waiting() > BUFFER_BYTES and self._failed is None:
                for other in range(len(self._queues)):
                    self._start(other, whatever=True)
                self._moved.wait()

    def settle(self) -> None:
        """Send what is queued; returns when all of it is delivered.

        Raises:
            ChangefeedError: the first failure. What was not sent is forgotten.
        """
        with self._moved:
            self._flushing = True
            for number in range(len(self._queues)):
                self._start(number)
            self._moved.wait_for(self._rests)
            self._flushing = False
            failed = self._failed
            if failed is not None:
                self._clear()
                raise failed

    def drop(self) -> None:
        """Forget what is queued. No request is in flight on return: one that came late would
        bring old rows after those sent again."""
        with self._moved:
            self.halt.set()
            self._moved.wait_for(lambda: not any(self._busy))
            self._clear()

    def close(self) -> None:
        self.drop()
        self._pool.shutdown(wait=True)

    # ---------------------------------------------------------------- with the lock held

    def _clear(self) -> None:
        for queue in self._queues:
            queue.clear()
        self._failed = None
        self.halt.clear()

    def _waiting(self) -> int:
        return sum(queue.bytes for queue in self._queues)

    def _rests(self) -> bool:
        if any(self._busy):
            return False
        return self._failed is not None or not any(queue.messages for queue in self._queues)

    def _start(self, number: int, whatever: bool = False) -> None:
        if self._busy[number] or not self._ready(number, whatever):
            return
        self._busy[number] = True
        self._pool.submit(self._run, number, self._queues[number].take())

    def _ready(self, number: int, whatever: bool = False) -> bool:
        queue = self._queues[number]
        if self.halt.is_set() or not queue.messages:
            return False
        return queue.full or self._flushing or whatever

    # ---------------------------------------------------------------- in the queue's thread

    def _run(self, number: int, parcel: Parcel) -> None:
        try:
            while parcel:
                self._send(parcel)
                with self._moved:
                    parcel = self._queues[number].take() if self._ready(number) else ()
                    self._busy[number] = bool(parcel)
                    self._moved.notify_all()
        except BaseException as error:
            with self._moved:
                self._failed = self._failed or error
                self.halt.set()
                self._busy[number] = False
                self._moved.notify_all()
