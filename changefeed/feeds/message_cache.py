"""Feeds of one node share encoded messages: equal plans over equal ranges are encoded once.

Two feeds that watch the same table with the same options, and have the same progress, request the
same key; the first one computes the messages, the others wait for them. Results are kept for a
short time and up to a number of bytes, because the feeds of one source wake together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

import pyarrow as pa

DEFAULT_BYTES = 64 << 20


class MessageCache:
    """A small cache of message tables with in-flight sharing. Thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Future[pa.Table]] = OrderedDict()
        self._bytes = 0
        self.hits = 0
        self.misses = 0
        #: How many feeds run: a single feed shares with none, so nothing is kept.
        self.feeds = 0

    def get(self, key: Hashable, compute: Callable[[], pa.Table]) -> pa.Table:
        """The messages of ``key``, computed by exactly one caller at a time.

        A failure is raised to every caller that waited for it and is not kept.
        """
        if self.feeds <= 1:
            return compute()
        with self._lock:
            future = self._entries.get(key)
            mine = future is None
            if future is None:
                self.misses += 1
                future = self._entries[key] = Future()
            else:
                self.hits += 1
        if not mine:
            return future.result()
        try:
            table = compute()
        except BaseException as error:
            with self._lock:
                self._entries.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(table)
        self._account(table.nbytes)
        return table

    def _account(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            while self._bytes > self._max_bytes and self._entries:
                oldest, future = next(iter(self._entries.items()))
                if not future.done():
                    break
                del self._entries[oldest]
                self._bytes -= future.result().nbytes
