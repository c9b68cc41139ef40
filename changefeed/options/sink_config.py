"""The JSON of ``kafka_sink_config`` and ``webhook_sink_config``: CockroachDB's shape, checked.

Keys are taken in any case, as Go's JSON reader takes them; an unknown key is an error here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from changefeed.core.quantities import parse_duration
from changefeed.options.types import ConfigError, one_of
from grammar.spelling import did_you_mean

T = TypeVar("T")

_VERSION = re.compile(r"\d+\.\d+\.\d+(?:\.\d+)?\Z")
_CODECS = ("NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD")
_ACKS = {"ONE": "1", "1": "1", "NONE": "0", "0": "0", "ALL": "all", "-1": "all"}

#: The levels librdkafka takes, by codec; -1 is the codec's own default.
COMPRESSION_LEVELS = {"GZIP": (-1, 9), "LZ4": (-1, 12), "ZSTD": (-1, 22)}


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """When a batch is sent; 0 and None leave it to the client.

    Attributes:
        messages: send when this many are waiting.
        bytes: send when this many bytes are waiting.
        frequency: send what has waited this many seconds.
        max_messages: never more than this in one request.
        max_bytes: never more bytes than this in one request.
    """

    messages: int = 0
    bytes: int = 0
    frequency: float = 0.0
    max_messages: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How the client retries. ``max`` None means without end (``'inf'``); backoff in seconds."""

    max: int | None = 3
    backoff: float = 0.5


@dataclass(frozen=True, slots=True)
class KafkaSinkConfig:
    """The values of ``kafka_sink_config``; None: not given.

    Attributes:
        compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
        required_acks: ``0``, ``1`` or ``all``, as the Kafka client spells it.
    """

    flush: FlushLimits = FlushLimits()
    retry: RetryLimits | None = None
    client_id: str | None = None
    compression: str | None = None
    compression_level: int | None = None
    required_acks: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookSinkConfig:
    """The values of ``webhook_sink_config``."""

    flush: FlushLimits = FlushLimits()
    retry: RetryLimits = RetryLimits()


class _Section:
    """A JSON object whose members are taken one by one; a member that is left over is unknown."""

    def __init__(self, path: str, members: Mapping[str, object]) -> None:
        self.path = path
        self.left = {key.casefold(): (key, value) for key, value in members.items()}
        self.known: list[str] = []

    def take(self, name: str, read: Callable[[str, object], T], default: T) -> T:
        self.known.append(name)
        found = self.left.pop(name.casefold(), None)
        return default if found is None else read(self.path + name, found[1])

    def finish(self) -> None:
        for key, _ in self.left.values():
            near = did_you_mean(key, self.known)
            meant = f', did you mean "{self.path}{near}"?' if near else ""
            raise ValueError(f'unknown field "{self.path}{key}"{meant}')


def kafka_sink_config(members: Mapping[str, object]) -> KafkaSinkConfig:
    """Check and type the JSON object of ``kafka_sink_config``.

    Raises:
        ValueError: a member is unknown or has a wrong value; ConfigError for one that
            contradicts another.
    """
    section = _Section("", members)
    config = KafkaSinkConfig(
        flush=section.take("Flush", _flush, FlushLimits()),
        retry=section.take("Retry", _retry, None),
        client_id=section.take("ClientID", _text, None),
        compression=section.take("Compression", _codec, None),
        compression_level=section.take("CompressionLevel", _integer, None),
        required_acks=section.take("RequiredAcks", _acks, None),
        version=section.take("Version", _version, None),
    )
    section.finish()
    _check_level(config)
    return config


def webhook_sink_config(members: Mapping[str, object]) -> WebhookSinkConfig:
    """Check and type the JSON object of ``webhook_sink_config``.

    Raises:
        ValueError: as for :func:`kafka_sink_config`.
    """
    section = _Section("", members)
    config = WebhookSinkConfig(
        flush=section.take("Flush", _flush, FlushLimits()),
        retry=section.take("Retry", _retry, RetryLimits()),
    )
    section.finish()
    for name, value in (
        ("MaxMessages", config.flush.max_messages),
        ("MaxBytes", config.flush.max_bytes),
    ):
        if value is not None:
            near = name.removeprefix("Max")
            raise ValueError(f'unknown field "Flush.{name}", did you mean "Flush.{near}"?')
    return config


def _check_level(config: KafkaSinkConfig) -> None:
    if config.compression_level is None or config.compression is None:
        return
    codec = config.compression.upper()
    if codec not in COMPRESSION_LEVELS:
        raise ConfigError(f"invalid sink config, Compression {codec} has no CompressionLevel")
    least, most = COMPRESSION_LEVELS[codec]
    if not least <= config.compression_level <= most:
        raise ConfigError(
            f"invalid sink config, CompressionLevel of {codec} must be between {least} and {most}"
        )


def _flush(path: str, value: object) -> FlushLimits:
    section = _Section("Flush.", _object(path, value))
    flush = FlushLimits(
        messages=section.take("Messages", _count, 0),
        bytes=section.take("Bytes", _count, 0),
        frequency=section.take("Frequency", _duration, 0.0),
        max_messages=section.take("MaxMessages", _count, None),
        max_bytes=section.take("MaxBytes", _count, None),
    )
    section.finish()
    if (flush.messages or flush.bytes) and not flush.frequency:
        raise ConfigError(
            "invalid sink config, Flush.Frequency is not set, messages may never be sent"
        )
    return flush


def _retry(path: str, value: object) -> RetryLimits:
    section = _Section("Retry.", _object(path, value))
    retry = RetryLimits(
        max=section.take("Max", _retry_max, RetryLimits().max),
        backoff=section.take("Backoff", _duration, RetryLimits().backoff),
    )
    section.finish()
    return retry


def _retry_max(_path: str, value: object) -> int | None:
    if isinstance(value, str) and value.lower() == "inf":
        return None
    digits = isinstance(value, str) and value.isascii() and value.isdigit()
    number = int(value) if digits else value  # type: ignore[call-overload]
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        raise ConfigError("Retry.Max must be a positive integer. use 'inf' for infinite retries.")
    return number


def _object(path: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object")
    return value


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{path} must be a string")
    return value


def _integer(path: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{path} must be an integer")
    return value


def _count(path: str, value: object) -> int:
    count = _integer(path, value)
    if count < 0:
        raise ConfigError("invalid sink config, all values must be non-negative")
    return count


def _duration(path: str, value: object) -> float:
    try:
        seconds = parse_duration(_text(path, value))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if seconds < 0:
        raise ConfigError("invalid sink config, all values must be non-negative")
    return seconds


def _codec(path: str, value: object) -> str:
    codec = _text(path, value).upper()
    if codec not in _CODECS:
        raise ValueError(f"unknown {path}: {value}, {one_of(_CODECS)}")
    return codec.lower()


def _acks(path: str, value: object) -> str:
    word = str(value).upper()
    if isinstance(value, bool) or word not in _ACKS:
        raise ValueError(f"unknown {path}: {value}, {one_of(('ONE', 'NONE', 'ALL'))}")
    return _ACKS[word]


def _version(path: str, value: object) -> str:
    text = _text(path, value)
    if not _VERSION.match(text):
        raise ValueError(f"{path} must look like 1.0.0.0")
    return text


def extra_headers(members: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The headers of ``extra_headers``: names and texts, in the order given.

    Raises:
        ValueError: a value is not a string.
    """
    for name, value in members.items():
        if not isinstance(value, str):
            raise ValueError(f'the value of header "{name}" must be a string')
    return tuple((name, str(value)) for name, value in members.items())


#: Properties without which a lake's table cannot follow its source.
_KEPT_PROPERTIES = ("delta.columnMapping.mode", "delta.appendOnly")


def table_properties(members: Mapping[str, object]) -> Mapping[str, str]:
    """The properties of ``table_properties`` as texts, by name.

    Raises:
        ValueError: a value is no text, number or truth value, or the feed decides the property.
    """
    found = {}
    for name, value in members.items():
        if not isinstance(value, str | int | float):
            raise ValueError(f'the value of property "{name}" must be a string, number or boolean')
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name.startswith("changefeed.") or name in _KEPT_PROPERTIES:
            raise ValueError(f'the feed itself decides property "{name}"')
        if (name, text) == ("format-version", "1"):
            raise ValueError("format-version must be 2 or 3: rows are changed without a rewrite")
        found[name] = text
    return found
