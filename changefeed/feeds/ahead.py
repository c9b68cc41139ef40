"""Prepares what a delivery writes next while the sink writes the present chunk.

A plain feed needs one more thread for that. Chunks of a query are evaluated in Spark's JVM: while
one thread waits for it, another one reads or encodes. So two chunks of a query are prepared at the
same time; they are returned in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from changefeed.feeds.chunks import Chunk, ControlItem, Item

#: Chunks of a query that are prepared at the same time.
QUERY_THREADS = 2

Prepared = TypeVar("Prepared")


class Workers:
    """The threads that prepare the items of one feed."""

    def __init__(self, name: str) -> None:
        #: Reads the log; prepares what it has read, unless several items are prepared at once.
        self.reader = ThreadPoolExecutor(1, thread_name_prefix=f"encode-{name}")
        self.preparers = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix=f"evaluate-{name}")

    def close(self) -> None:
        self.reader.shutdown(wait=False, cancel_futures=True)
        self.preparers.shutdown(wait=False, cancel_futures=True)


class Ahead(Generic[Prepared]):
    """The items of one delivery, in order. Used by the feed's thread.

    Args:
        source: the items; read by one thread at a time.
        prepare: brings an item into the form that is written. Called with several items at the
            same time if ``several``.
        workers: the feed's threads.
        several: prepare several items at the same time.
        least_rows: from a chunk of so many rows on, the next ones are prepared at the same time.
    """

    def __init__(
        self,
        source: Iterator[Item],
        prepare: Callable[[Item], Prepared],
        workers: Workers,
        *,
        several: bool,
        least_rows: int,
    ) -> None:
        self._source = source
        self._prepare = prepare
        self._workers = workers
        self._several = several
        self._least_rows = least_rows
        # Watermarks are items, too: two chunks and one of them.
        self._most = QUERY_THREADS + 1 if several else 1
        self._waiting: deque[Future[Callable[[], Prepared | None] | None]] = deque()
        #: Nothing more is read: behind a control event, an error or the end.
        self._held = False

    def next(self) -> Prepared | None:
        """The next item; None at the end."""
        while self._waiting:
            found = self._waiting.popleft().result()
            if found is not None:
                return found()
        self._held = False
        item = next(self._source, None)
        if item is None:
            return None
        if self._several and isinstance(item, Chunk) and item.rows >= self._least_rows:
            self.prepare_next()
        return self._prepare(item)

    def prepare_next(self) -> None:
        """Let other threads prepare the next items; returns at once."""
        while len(self._waiting) < self._most:
            self._waiting.append(self._workers.reader.submit(self._read))

    def close(self) -> None:
        """Read nothing more; returns when no other thread works on the items."""
        self._held = True
        wait([each for each in self._waiting if not each.cancel()])
        for each in self._waiting:
            found = None if each.cancelled() or each.exception() else each.result()
            if isinstance(found, _Later):
                found.give_up()
        self._waiting.clear()

    def _read(self) -> Callable[[], Prepared | None] | None:
        """Runs in the reading thread; returns what gives the next item, None if nothing may be
        read."""
        if self._held:
            return None
        try:
            item = next(self._source, None)
        except BaseException:
            self._held = True
            raise
        # What a control event does to the table decides about later rows.
        self._held = item is None or isinstance(item, ControlItem)
        if item is None:
            return lambda: None
        if self._several:
            return _Later(self._workers.preparers.submit(self._prepare, item))
        prepared = self._prepare(item)
        return lambda: prepared


class _Later(Generic[Prepared]):
    def __init__(self, future: Future[Prepared]) -> None:
        self._future = future

    def __call__(self) -> Prepared:
        return self._future.result()

    def give_up(self) -> None:
        if not self._future.cancel():
            wait([self._future])
