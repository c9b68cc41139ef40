"""The Python client's ``produce``, one call per row: where :mod:`sinks.kafka.native` cannot go.

Per row it costs about three times the CPU and holds the GIL; the promises are the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinks.kafka.channel import UNASSIGNED, BrokerPatience, DeliveryFailure, Headers
from sinks.kafka.errors import Reasons, explain

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_SLICE = 1_000
"""Rows between two polls: the client asks for one every so often to hand out its reports."""

#: Seconds of one call of a step of a transaction: between two of them errors are looked at.
_STEP = 5.0


class PortableChannel:
    """A ``confluent_kafka.Producer`` behind the :class:`sinks.kafka.channel.Channel` protocol."""

    def __init__(self, config: Mapping[str, str], reasons: Reasons, stall: float) -> None:
        from confluent_kafka import Producer

        self.reasons = reasons
        self._stall = stall
        self._lock = threading.Lock()
        self._failures: list[DeliveryFailure] = []
        settings: dict[str, Any] = {
            **config,
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            "error_cb": self._noted,
        }
        logger: logging.Logger = reasons.logger
        self._producer = Producer(settings, logger=logger)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failure = DeliveryFailure(
                message.topic() or "", error.name(), error.str(), len(message)
            )
            with self._lock:
                self._failures.append(failure)

    def _noted(self, error: KafkaError) -> None:
        if error.fatal():
            self._died(error)
        else:
            self.reasons.note(error)

    def _died(self, error: KafkaError) -> None:
        """The producer cannot go on without a gap; it must be replaced."""
        with self._lock:
            self._failures.append(DeliveryFailure("", error.name(), error.str()))

    def send(self, topic: str, keys: pa.Array, values: pa.Array) -> None:
        from confluent_kafka import KafkaException

        produce = self._producer.produce
        for start in range(0, len(values), _SLICE):
            part = zip(
                keys.slice(start, _SLICE).to_pylist(),
                values.slice(start, _SLICE).to_pylist(),
                strict=True,
            )
            for key, value in part:
                try:
                    produce(topic, value, key)
                except BufferError:
                    self.send_one(topic, key, value)
                except KafkaException as error:
                    raise explain(error.args[0], self.reasons, topic=topic) from error
            self._producer.poll(0)

    def send_one(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int = UNASSIGNED,
        headers: Headers = (),
    ) -> None:
        from confluent_kafka import KafkaException

        patience = BrokerPatience(self._stall, self.reasons, topic)
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition=partition, headers=list(headers) or None
                )
                return
            except BufferError:
                self._producer.poll(0.1)
                patience.check()
            except KafkaException as error:
                if error.args[0].name() != "_UNKNOWN_PARTITION":
                    raise explain(error.args[0], self.reasons, topic=topic) from error
                # The topic has more partitions than this producer knows.
                self._producer.list_topics(topic, timeout=5)
                patience.check()

    def settle(self) -> list[DeliveryFailure]:
        patience = BrokerPatience(self._stall, self.reasons)
        before = self.outstanding()
        while (left := self._flush(0.1)) and not self._failures:
            if left < before:
                patience.progress()
            before = left
            patience.check()
        if self._failures:
            # Collect the report of the message that failed first; drop the others.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._flush(2)
        with self._lock:
            failures, self._failures = self._failures, []
        return failures

    def _flush(self, seconds: float) -> int:
        """How many messages are left; a dead producer says so by an exception of its own."""
        from confluent_kafka import KafkaException

        try:
            return self._producer.flush(seconds)
        except KafkaException as error:
            self._died(error.args[0])
            return self.outstanding()

    def init_transactions(self) -> None:
        self._transact(lambda: self._producer.init_transactions(_STEP))

    def begin(self) -> None:
        self._transact(self._producer.begin_transaction)

    def commit_transaction(self) -> None:
        self._transact(lambda: self._producer.commit_transaction(_STEP))

    def abort_transaction(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._transact(lambda: self._producer.abort_transaction(_STEP))

    def _transact(self, call: Callable[[], None]) -> None:
        """One step of a transaction, called again as long as the library allows it."""
        from confluent_kafka import KafkaException

        patience = BrokerPatience(self._stall, self.reasons)
        while True:
            try:
                return call()
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not cause.retriable() or self.reasons.refused:
                    raise explain(cause, self.reasons) from error
            patience.check()

    def outstanding(self) -> int:
        return len(self._producer)

    def close(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._flush(0)
