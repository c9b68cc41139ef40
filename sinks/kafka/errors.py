"""Kafka's errors in our codes, and the client's log lines kept off the terminal."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError, Code
from sinks.repeats import LimitRepeats

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_logger = logging.getLogger("changefeed.sinks.kafka")
# Without a handler of its own Python would print warnings on the terminal.
_logger.addHandler(logging.NullHandler())
# Remarks on settings we chose on purpose, at every start of a producer.
_logger.addFilter(lambda record: "CONFWARN" not in record.getMessage())
_logger.addFilter(LimitRepeats())

#: Error names (``KafkaError.name()``) that are not "cannot reach": the code, and what to say.
_BY_NAME: dict[str, tuple[str, str]] = {
    "_AUTHENTICATION": (Code.SINK_REFUSED_LOGIN, "the broker refused the login"),
    "SASL_AUTHENTICATION_FAILED": (Code.SINK_REFUSED_LOGIN, "the broker refused the login"),
    "UNSUPPORTED_SASL_MECHANISM": (
        Code.SINK_REFUSED_LOGIN,
        "the broker does not know this sasl_mechanism",
    ),
    "ILLEGAL_SASL_STATE": (Code.SINK_REFUSED_LOGIN, "the broker requires another kind of login"),
    "TOPIC_AUTHORIZATION_FAILED": (Code.SINK_REFUSED_LOGIN, "this user may not write to the topic"),
    "CLUSTER_AUTHORIZATION_FAILED": (
        Code.SINK_REFUSED_LOGIN,
        "this user may not do that on the cluster",
    ),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        Code.SINK_REFUSED_LOGIN,
        "this user may not use transactions",
    ),
    "INVALID_TRANSACTION_TIMEOUT": (
        Code.SINK_REFUSED_LOGIN,
        "the broker does not accept this transaction_timeout",
    ),
    "_FENCED": (Code.SINK_UNREACHABLE, "another process writes for this feed"),
    "INVALID_PRODUCER_EPOCH": (
        Code.SINK_UNREACHABLE,
        "the broker ended the transaction, or another process did",
    ),
    "MSG_SIZE_TOO_LARGE": (
        Code.SINK_CANNOT_TAKE_TABLE,
        "a message is larger than the broker accepts",
    ),
    "TOPIC_EXCEPTION": (Code.SINK_REFUSED_DATA, "the broker does not accept this topic name"),
    "_UNKNOWN_TOPIC": (Code.SINK_UNREACHABLE, "the topic does not exist"),
    "UNKNOWN_TOPIC_OR_PART": (Code.SINK_UNREACHABLE, "the topic does not exist"),
    "RECORD_LIST_TOO_LARGE": (
        Code.SINK_CANNOT_TAKE_TABLE,
        "a batch is larger than the broker accepts",
    ),
    "INVALID_RECORD": (Code.SINK_REFUSED_DATA, "the broker refused a record"),
    "POLICY_VIOLATION": (Code.SINK_REFUSED_DATA, "a policy of the broker refuses this"),
    "_QUEUE_FULL": (Code.SINK_BUSY, "the broker is slower than the feed"),
    "THROTTLING_QUOTA_EXCEEDED": (Code.SINK_BUSY, "the broker's quota is used up"),
    "_PURGE_QUEUE": (Code.SINK_UNREACHABLE, "delivery was abandoned"),
    "_PURGE_INFLIGHT": (Code.SINK_UNREACHABLE, "delivery was abandoned"),
}

#: Names of errors that a message gets for itself, or a batch for one of its messages.
_OF_MESSAGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"})

_HINTS = {
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic, or leave the large column out "
    "with a column list, then RESUME.",
    "RECORD_LIST_TOO_LARGE": "lower MaxBytes in kafka_sink_config's Flush, or raise "
    "max.message.bytes of the topic, then RESUME.",
    "INVALID_RECORD": "a topic with cleanup.policy = compact accepts no message without a key: "
    "no resolved timestamp, no TRUNCATE, no row of a table without a primary "
    "key.",
}

#: Names that say only *that* it failed; the latest connection error says why.
_VAGUE = frozenset(
    {
        "_MSG_TIMED_OUT",
        "_TIMED_OUT",
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_PURGE_QUEUE",
        "_PURGE_INFLIGHT",
        "_FATAL",
        "_DESTROY",
    }
)


class Reasons:
    """The newest connection error of a client: why the vague ones happen.

    Also owns the logger the client library writes to: its lines go to the node's log at
    the level they have, never to the terminal.
    """

    def __init__(self) -> None:
        self.logger = _logger
        self._latest: tuple[str, str] | None = None
        self._lock = threading.Lock()
        #: The feed is wanted to end: a wait in which nothing moves is short.
        self.interrupted = threading.Event()

    def note(self, error: KafkaError) -> None:
        """Remember an error the client reports by itself (its ``error_cb``)."""
        self.record(error.name(), error.str())

    def record(self, name: str, text: str) -> None:
        """Remember ``name`` (librdkafka's) and the client's text for it."""
        with self._lock:
            # "All brokers down" follows the real reason and would hide it.
            if name != "_ALL_BROKERS_DOWN" or self._latest is None:
                self._latest = (name, text)

    def clear(self) -> None:
        """Forget the error, because a broker has answered."""
        with self._lock:
            self._latest = None

    @property
    def latest(self) -> tuple[str, str] | None:
        """Name and text of the newest error."""
        with self._lock:
            return self._latest

    @property
    def text(self) -> str:
        """Why messages are not acknowledged; empty if no error is known."""
        latest = self.latest
        if latest is None:
            return ""
        return f"the Kafka brokers do not acknowledge: {latest[1]}"

    @property
    def refused(self) -> bool:
        """The brokers refused the login: waiting for an answer is in vain."""
        latest = self.latest
        return (
            latest is not None and _BY_NAME.get(latest[0], ("", ""))[0] == Code.SINK_REFUSED_LOGIN
        )


def explain(error: KafkaError, reasons: Reasons, *, topic: str = "") -> ChangefeedError:
    """A ChangefeedError with our code and words for an error of librdkafka."""
    return explain_name(error.name(), error.str(), reasons, topic=topic)


def explain_name(name: str, text: str, reasons: Reasons, *, topic: str = "") -> ChangefeedError:
    """The same from librdkafka's error name and text."""
    latest = reasons.latest
    if name in _VAGUE and latest is not None:
        name, text = latest
    code, what = _BY_NAME.get(name, (Code.SINK_UNREACHABLE, "cannot reach the Kafka brokers"))
    detail = f"{name.lstrip('_').lower().replace('_', ' ')}: {text}"
    detail = f"topic {topic}: {detail}" if topic else detail
    return ChangefeedError(
        code,
        what,
        detail=detail,
        hint=_HINTS.get(name, ""),
        target=topic,
        about_row=name in _OF_MESSAGE,
    )
