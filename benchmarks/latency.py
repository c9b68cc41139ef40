"""Milliseconds from a commit to a Kafka consumer, the same way for every contender.

A thread commits single rows into ``ticks`` at a steady rate; this thread consumes the topic.
Messages come in commit order (one key per row, one partition), so the n-th row message is the
n-th commit; messages without a key (resolved timestamps) are left out. The first tenth warms
up and is not counted. The clock runs from the return of the commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psycopg
from confluent_kafka import Consumer, TopicPartition


@dataclass(frozen=True, slots=True)
class Latencies:
    """Sorted delays in milliseconds."""

    milliseconds: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """The delay that ``share`` (0..1) of the messages did not exceed."""
        return self.milliseconds[
            min(int(len(self.milliseconds) * share), len(self.milliseconds) - 1)
        ]

    def __str__(self) -> str:
        return f"p50 {self.percentile(0.5):.1f} ms, p99 {self.percentile(0.99):.1f} ms"


#: Commits the row of a number, on a connection that was opened by the thread that calls it.
Tick = Callable[[int], object]
#: Opens a connection to commit on.
Ticks = Callable[[], AbstractContextManager[Tick]]


@contextmanager
def postgresql_ticks(uri: str) -> Iterator[Ticks]:
    """The table ``ticks`` of a PostgreSQL database; it is gone afterwards."""

    @contextmanager
    def connected() -> Iterator[Tick]:
        with psycopg.connect(uri, autocommit=True) as connection:
            yield lambda number: connection.execute("insert into ticks values (%s)", [number])

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("create table ticks (id int primary key)")
        yield connected
        connection.execute("drop table ticks")


def measure(
    ticks: Ticks,
    bootstrap: str,
    topic: str,
    *,
    rate: int,
    seconds: float,
    check: Callable[[], None],
    steady: Callable[[], None],
) -> Latencies:
    """Commit ``rate`` rows a second for ``seconds`` and time each one's arrival in ``topic``.

    Waits first until one row has come through, so that nobody's start-up is measured. ``check``
    is called now and then, to raise when the contender has died, ``steady`` when the first tenth
    has arrived and when everything has.

    Raises:
        TimeoutError: not everything arrived within a minute of the last commit.
    """
    total = int(rate * seconds)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "latency", "fetch.wait.max.ms": 5}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    committed: list[float] = []
    arrived: list[float] = []

    def consume(count: int, deadline: float) -> None:
        look = 0.0
        while len(arrived) < count:
            # One at a time: consume(n, ..) would wait for n messages or its whole timeout.
            message = consumer.poll(0.5)
            now = time.perf_counter()
            if message is not None and message.error() is None and message.key() is not None:
                arrived.append(now)
            if now >= look:
                check()
                look = now + 1
            if now > deadline:
                raise TimeoutError(f"{len(arrived)} of {count} messages arrived")

    with ticks() as tick:
        tick(0)
    consume(1, time.perf_counter() + 120)
    arrived.clear()
    writer = threading.Thread(target=_commit, args=(ticks, total, rate, committed), daemon=True)
    writer.start()
    try:
        deadline = time.perf_counter() + seconds + 60
        consume(total // 10, deadline)
        steady()
        consume(total, deadline)
        steady()
    finally:
        consumer.close()
    writer.join()
    pairs = list(zip(committed, arrived, strict=True))[total // 10 :]
    return Latencies(tuple(sorted((there - here) * 1000 for here, there in pairs)))


def _commit(ticks: Ticks, total: int, rate: int, committed: list[float]) -> None:
    with ticks() as tick:
        first = time.perf_counter()
        for number in range(1, total + 1):
            wait = first + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            tick(number)
            committed.append(time.perf_counter())
