"""Exactly once: messages and the feed's progress in one Kafka transaction.

The progress of a feed is the last committed record under its key in a compacted topic::

    key    changefeed-<state>-<job id>            (the producer's transactional.id)
    value  {"places": {"<name>": "<timestamp>", ..}}

It is written in the transaction of the messages it speaks of, so either both are there or
neither is. A feed that starts registers its ``transactional.id`` first, which ends whatever an
earlier process of it has left open, and goes on from that record: a consumer that reads
committed messages only sees each change once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from sinks.base import SinkContext
from sinks.kafka.channel import BrokerPatience, Channel
from sinks.kafka.errors import Reasons, explain

#: Topic settings: only the newest record of a key counts, so the topic stays small.
PROGRESS_TOPIC_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}

#: Longest transaction of changes, in seconds: rounds are small, and until a transaction that a
#: dead process left open has timed out, consumers of committed messages wait.
ROUND_TIMEOUT = 60.0

#: Longest transaction of a scan, one table: brokers allow 15 minutes by default.
SCAN_TIMEOUT = 900.0


def transactional_id(context: SinkContext) -> str:
    """The feed's identity towards the brokers; a scan runs at the same time as changes."""
    name = f"changefeed-{context.state}-{context.job_id}"
    return f"{name}-scan" if context.scan else name


def transactional(
    config: Mapping[str, str], context: SinkContext, timeout: float
) -> dict[str, str]:
    """The producer's settings made transactional. ``timeout``: seconds a transaction may last."""
    millis = f"{timeout * 1000:.0f}"
    return {
        **config,
        "transactional.id": transactional_id(context),
        "transaction.timeout.ms": millis,
        # The library wants messages to give up before their transaction does.
        "message.timeout.ms": millis,
    }


class ChannelTransaction:
    """The transaction of one channel: begun by the first message, ended by the commit."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.is_open = False

    def enter(self) -> None:
        """Begin the transaction, unless it has begun."""
        if not self.is_open:
            self._channel.begin()
            self.is_open = True

    def commit(self, topic: str, context: SinkContext, progress: Mapping[str, Timestamp]) -> None:
        """Add the progress and make everything visible; all messages were settled before.

        Raises:
            ChangefeedError: it is not known whether it was committed; the next start finds out.
        """
        self.enter()
        key = transactional_id(context).encode()
        self._channel.send_one(topic, key, written(progress), partition=0)
        failures = self._channel.settle()
        if failures:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"the progress was not written to topic {topic}",
                detail=failures[0].text,
            )
        self.end()

    def end(self) -> None:
        """Make everything visible, if anything was sent."""
        if self.is_open:
            self._channel.commit_transaction()
            self.is_open = False


def written(progress: Mapping[str, Timestamp]) -> bytes:
    """The value of a progress record."""
    places = {name: str(at) for name, at in progress.items()}
    return json.dumps({"places": places}, sort_keys=True).encode()


def read_progress(
    make_consumer: Callable[[], Any],
    topic: str,
    end: int,
    context: SinkContext,
    reasons: Reasons,
    stall: float,
) -> dict[str, Timestamp]:
    """The feed's progress by name: of its changes and its scans together, the further one.

    ``make_consumer`` gives a ``confluent_kafka.Consumer`` that reads committed messages, ``end``
    is the offset behind all of them and behind those of open transactions.

    Raises:
        ChangefeedError: CF5001 when the topic cannot be read to its end in time, for instance
            because another feed's transaction on it is still open.
    """
    ids = {transactional_id(replace(context, scan=scan)).encode() for scan in (False, True)}
    newest: dict[bytes, bytes] = {}
    consumer = make_consumer()
    try:
        for key, value in records(consumer, topic, end, reasons, stall):
            if key in ids and value is not None:
                newest[key] = value
    finally:
        consumer.close()
    found: dict[str, Timestamp] = {}
    for value in newest.values():
        for name, text in json.loads(value)["places"].items():
            at = Timestamp.parse(text)
            found[name] = max(at, found.get(name, at))
    return found


def records(
    consumer: Any, topic: str, end: int, reasons: Reasons, stall: float, *, partition: int = 0
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of every committed record of a partition up to ``end``.

    The end of the partition, not of its committed part: behind an open transaction of another
    feed there may be a record of this one.
    """
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    patience = BrokerPatience(stall, reasons, topic)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        reached = -1  # until the end of what is committed was seen
        while reached < end:
            message = consumer.poll(0.2)
            try:
                patience.check()
            except ChangefeedError as late:
                if reached >= 0:
                    raise _waiting(topic) from late
                raise
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message.key(), message.value()
                patience.progress()  # behind it: who reads may take its time
            elif error.code() == KafkaError._PARTITION_EOF:
                # Its offset counts the marks that end transactions, which no message does.
                reached = message.offset()
            elif not error.retriable():
                raise explain(error, reasons, topic=topic)
    except KafkaException as error:
        raise explain(error.args[0], reasons, topic=topic) from error


def _waiting(topic: str) -> ChangefeedError:
    return ChangefeedError(
        Code.SINK_UNREACHABLE,
        f"topic {topic} holds an open transaction of another feed",
        detail="behind it may be the progress of this feed",
        hint="it ends when that feed runs again, or by its transaction_timeout.",
    )
