"""The way messages take to the brokers: what both producers have in common.

:class:`sinks.kafka.native.NativeChannel` hands Arrow buffers to librdkafka whole, without
a Python object per row; :class:`sinks.kafka.portable.PortableChannel` uses the Python client's
``produce`` where the C library cannot be reached that way. Both keep order, and both know of
every message that was not delivered: librdkafka reports a message exactly once, and it reports
only failures to us, so "nothing outstanding and no failure" means everything is acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from sinks.kafka.errors import Reasons, explain_name

Headers = Sequence[tuple[str, bytes]]

STALL_SECONDS = 30.0
"""After so long without one acknowledgement the brokers count as unreachable.

Longer than a broker takes to restart, short enough that an outage shows as an attempt in SHOW.
"""

UNASSIGNED = -1
"""Partition number that means: by the hash of the key."""


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """One message that was not delivered. ``name`` is librdkafka's error name."""

    topic: str
    name: str
    text: str
    size: int = 0


class Channel(Protocol):
    """A producer with everything it was given and has not yet been told about."""

    reasons: Reasons

    def send(self, topic: str, keys: pa.Array, values: pa.Array) -> None:
        """Queue rows in order. Waits while the queue is full.

        Raises:
            ChangefeedError: the queue stayed full, or the client refused a row.
        """
        ...

    def send_one(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int = UNASSIGNED,
        headers: Headers = (),
    ) -> None:
        """Queue one message, behind all earlier ones."""
        ...

    def settle(self) -> list[DeliveryFailure]:
        """Wait until no message is outstanding; return (and forget) those that failed.

        Raises:
            ChangefeedError: nothing moved for :data:`STALL_SECONDS`. The channel is then to be
                closed: what it holds is a gap-free rest, and goes with it.
        """
        ...

    def outstanding(self) -> int:
        """How many messages are queued or in flight."""
        ...

    def init_transactions(self) -> None:
        """Register the producer's ``transactional.id``: an open transaction of an earlier
        producer of that id is aborted, and that producer can write nothing more.

        This and the other steps raise ChangefeedError as :meth:`settle` does; the channel is
        then to be closed.
        """
        ...

    def begin(self) -> None:
        """Start a transaction: what is sent from here on becomes visible together."""
        ...

    def commit_transaction(self) -> None:
        """Make it visible; everything sent was settled before."""
        ...

    def abort_transaction(self) -> None:
        """Take back what was sent in it."""
        ...

    def close(self) -> None:
        """Drop what is outstanding and release the client."""
        ...


def parse_headers(text: str | None) -> list[tuple[str, bytes]]:
    """A row's headers column (a JSON object) as Kafka headers; values other than text as JSON."""
    if not text:
        return []
    pairs = json.loads(text)
    return [
        (name, (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in pairs.items()
    ]


INTERRUPTED_SECONDS = 1.0
"""How long an interrupted sink waits for brokers of which nothing comes."""


class BrokerPatience:
    """How long to wait for the brokers: as long as something moves, else ``stall`` seconds."""

    def __init__(
        self, stall: float, reasons: Reasons, topic: str = "", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._seconds = stall
        self._reasons = reasons
        self._topic = topic
        self._started = self._clock.monotonic()

    def progress(self) -> None:
        """Something moved: start counting again."""
        self._started = self._clock.monotonic()

    def check(self) -> None:
        """Raise CF5001 once nothing has moved for too long."""
        seconds = self._seconds
        if self._reasons.interrupted.is_set():
            seconds = min(seconds, INTERRUPTED_SECONDS)
        if self._clock.monotonic() - self._started <= seconds:
            return
        quiet = f"nothing was acknowledged for {seconds:g} s"
        if self._reasons.latest is None:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE, "the Kafka brokers do not answer", detail=quiet
            )
        raise explain_name("_TIMED_OUT", quiet, self._reasons, topic=self._topic)


def failure_error(failures: Sequence[DeliveryFailure], reasons: Reasons) -> ChangefeedError:
    """One error for the messages that were not delivered: the gravest, with the count."""
    first = failures[0]
    errors = {f.name: explain_name(f.name, f.text, reasons, topic=f.topic) for f in failures}
    error = next((e for e in errors.values() if e.action != "retry"), errors[first.name])
    error.detail = f"{len(failures)} messages not delivered; {error.detail}"
    return error
