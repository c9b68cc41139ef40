"""What it costs to hand finished messages to Kafka, three ways, on one broker in one run.

    python -m benchmarks.kafka_sink --bootstrap 127.0.0.1:9092 [--rows 500000] [--size 190]

Ways: ``native`` (Arrow buffers to librdkafka, what the sink does), ``loop`` (the Python client's
``produce`` per row), ``batch`` (its ``produce_batch``). Each way writes its own
topic; the broker's offsets are compared with the rows sent, so a figure without delivery cannot
come out. Producer settings are the sink's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from sinks.kafka.channel import Channel
from sinks.kafka.errors import Reasons
from sinks.kafka.options import BASE
from sinks.kafka.topics import Topics

BATCH = 10_000


@dataclass
class Figures:
    """Seconds of one way; ``queue`` is until the last row was accepted."""

    queue: float = 0.0
    wall: float = 0.0
    thread: float = 0.0
    process: float = 0.0


def rows(count: int, size: int) -> tuple[pa.Array, pa.Array]:
    """Keys ``[n]`` and JSON values of about ``size`` bytes."""
    numbers = np.arange(count)
    filler = "x" * max(1, size - 40)
    keys = [f"[{n}]".encode() for n in numbers]
    values = [f'{{"after": {{"id": {n}, "name": "{filler}"}}}}'.encode() for n in numbers]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


@contextmanager
def measured(figures: Figures) -> Iterator[Callable[[], None]]:
    """Times a block; the function given out marks the end of queueing."""
    wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()

    def queued() -> None:
        figures.queue = time.perf_counter() - wall
        figures.thread = time.thread_time() - thread

    yield queued
    figures.wall = time.perf_counter() - wall
    figures.process = time.process_time() - process


def through_channel(channel: Channel, topic: str, keys: pa.Array, values: pa.Array) -> Figures:
    """The sink's producer."""
    figures = Figures()
    with measured(figures) as queued:
        for start in range(0, len(values), BATCH):
            channel.send(topic, keys.slice(start, BATCH), values.slice(start, BATCH))
        queued()
        failures = channel.settle()
    channel.close()
    if failures:
        raise SystemExit(f"{len(failures)} messages not delivered: {failures[0].name}")
    return figures


Pairs = list[tuple[bytes | None, bytes | None]]


def row_by_row(producer: Producer, topic: str, pairs: Pairs) -> None:
    """The Python client's ``produce``: a call per row."""
    for key, value in pairs:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)


def in_batches(producer: Producer, topic: str, pairs: Pairs) -> None:
    """The Python client's ``produce_batch``: a dictionary per row."""
    left = [{"key": key, "value": value} for key, value in pairs]
    while left:
        done = producer.produce_batch(topic, left)
        left = left[done:]
        producer.poll(0.05 if left else 0)


def through_client(
    config: dict[str, str],
    topic: str,
    keys: pa.Array,
    values: pa.Array,
    produce: Callable[[Producer, str, Pairs], None],
) -> Figures:
    """The Python client, by either of its calls."""
    producer = Producer(dict(config), logger=Reasons().logger)
    figures = Figures()
    with measured(figures) as queued:
        for start in range(0, len(values), BATCH):
            columns = (column.slice(start, BATCH).to_pylist() for column in (keys, values))
            produce(producer, topic, list(zip(*columns, strict=True)))
        queued()
        producer.flush()
    return figures


def delivered(bootstrap: str, topic: str) -> int:
    """Messages in the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark"})
    first, last = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return last - first


def main() -> None:
    """Run every way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=190, help="bytes of a value")
    given = parser.parse_args()
    config = {**BASE, "bootstrap.servers": given.bootstrap}
    keys, values = rows(given.rows, given.size)
    topics = Topics({"bootstrap.servers": given.bootstrap}, Reasons())
    ways: dict[str, Callable[[str], Figures]] = {
        "native": lambda t: through_channel(Channel(config, Reasons()), t, keys, values),
        "loop": lambda t: through_client(config, t, keys, values, row_by_row),
        "batch": lambda t: through_client(config, t, keys, values, in_batches),
    }
    print("| way | rows/s to the last acknowledgement | thread CPU µs/row | process CPU µs/row |")
    print("| --- | --- | --- | --- |")
    for name, way in ways.items():
        topic = f"benchmark_{name}_{time.time_ns()}"
        topics.ensure([topic])
        figures = way(topic)
        found = delivered(given.bootstrap, topic)
        if found != given.rows:
            raise SystemExit(f"{name}: {found} messages arrived, {given.rows} were sent")
        per_row = 1e6 / given.rows
        print(
            f"| {name} | {given.rows / figures.wall:,.0f} | {figures.thread * per_row:.2f} "
            f"| {figures.process * per_row:.2f} |"
        )


if __name__ == "__main__":
    main()
