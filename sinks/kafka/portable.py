"""The Python client's ``produce``, one call a row: where :mod:`sinks.kafka.native` cannot go.

Per row it costs about three times the CPU and holds the GIL; the promises are the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sinks.kafka.channel import UNASSIGNED, Failure, Headers, Patience
from sinks.kafka.errors import Reasons, explain

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_SLICE = 1_000
"""Rows between two polls: the client asks for one every so often to hand out its reports."""


class PortableChannel:
    """A ``confluent_kafka.Producer`` behind the :class:`sinks.kafka.channel.Channel` protocol."""

    def __init__(self, config: Mapping[str, str], reasons: Reasons, stall: float) -> None:
        from confluent_kafka import Producer

        self.reasons = reasons
        self._stall = stall
        self._fatal = False
        self._lock = threading.Lock()
        self._failures: list[Failure] = []
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
            failure = Failure(message.topic() or "", error.name(), error.str(), len(message))
            with self._lock:
                self._failures.append(failure)

    def _noted(self, error: KafkaError) -> None:
        if not error.fatal():
            self.reasons.note(error)
            return
        with self._lock:
            self._fatal = True
            self._failures.append(Failure("", error.name(), error.str()))

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

        patience = Patience(self._stall, self.reasons, topic)
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
                raise explain(error.args[0], self.reasons, topic=topic) from error

    def settle(self) -> list[Failure]:
        patience = Patience(self._stall, self.reasons)
        before = self.outstanding()
        while (left := self._producer.flush(0.1)) and not self._fatal:
            if left < before:
                patience.progress()
            before = left
            patience.check()
        if self._fatal:
            # Collect the report of the message the producer died of; drop the others.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.flush(2)
        with self._lock:
            failures, self._failures = self._failures, []
        return failures

    def outstanding(self) -> int:
        return len(self._producer)

    def close(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.flush(0)
