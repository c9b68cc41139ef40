"""The types of option values: they turn a text into a typed value, or say what is wrong with it.

The error texts follow CockroachDB's changefeed options. A type knows the name of its kind,
the values to offer for completion, and whether a value may or must be given.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from math import inf
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from changefeed.core.clock import Clock, Timestamp
from changefeed.core.delays import Slo
from changefeed.core.quantities import parse_duration, parse_nanos, parse_size
from changefeed.core.types import MOST_DIGITS, Kind, LogicalType

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)

_LARGEST_WALL = 2**63 - 1


class ValueRule(Enum):
    """Whether an option has a value."""

    NOTHING = "flag"
    """A flag: the name alone."""
    MAYBE = "optional"
    """The name alone has a meaning too."""
    VALUE = "required"


class OptionType(Protocol[T_co]):
    """Reads the value of an option.

    Attributes:
        kind: the name of the kind of value, for the docs.
        values: the values to offer for completion.
        takes: whether a value may or must be given.
    """

    @property
    def kind(self) -> str: ...
    @property
    def values(self) -> tuple[str, ...]: ...
    @property
    def takes(self) -> ValueRule: ...

    def read(self, name: str, text: str, clock: Clock) -> T_co:
        """The typed value of ``text``; the name alone is the empty text.

        Raises:
            ValueError: with the whole message for the user.
        """
        ...

    def stored(self, text: str, value: object) -> str:
        """The text for the job table: ``text``, unless its meaning depends on the time."""
        ...

    def again(self) -> OptionType[T_co]:
        """The type that reads what :meth:`stored` returned, perhaps at another time."""
        ...

    def shown(self, text: str) -> str:
        """The text of the job table, as it is shown to users."""
        ...


def parse_moment(text: str, now: Timestamp) -> Timestamp:
    """An instant: an HLC timestamp, ns since 1970, a date and time (UTC unless it says), or an
    interval from ``now``.

    Raises:
        ValueError: it is none of these, or outside 1970 to 2262.
    """
    for read in (Timestamp.parse, _from_iso):
        try:
            moment = read(text)
        except ValueError:
            continue
        return _checked(moment, text)
    try:
        nanos = parse_nanos(text)
    except ValueError:
        raise ValueError(f"not a timestamp, date or interval: '{text}'") from None
    return _checked(Timestamp(now.wall + nanos), text)


def shown_moment(text: str) -> str:
    """A stored instant as a date and time where that is the same instant, else as it is stored."""
    moment = Timestamp.parse(text)
    written = moment.datetime().replace(tzinfo=None)
    shown = f"{written.isoformat()}Z"
    return shown if _from_iso(shown) == moment else text


def _from_iso(text: str) -> Timestamp:
    return Timestamp.from_datetime(dt.datetime.fromisoformat(text.strip()))


def _checked(moment: Timestamp, text: str) -> Timestamp:
    if not 0 <= moment.wall <= _LARGEST_WALL:
        raise ValueError(f"timestamp '{text}' is out of range")
    return moment


def _problem(name: str, error: ValueError) -> NoReturn:
    raise ValueError(f"problem parsing option {name}: {error}") from None


@dataclass(frozen=True, slots=True)
class _VerbatimType:
    """The job table keeps what the user wrote."""

    def stored(self, text: str, value: object) -> str:
        return text

    def again(self) -> Self:
        return self

    def shown(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Flag(_VerbatimType):
    """The name alone."""

    kind: str = "flag"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.NOTHING

    def read(self, name: str, text: str, clock: Clock) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Text(_VerbatimType):
    """Any text, up to ``limit`` bytes of UTF-8."""

    kind: str = "string"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE
    limit: int = 0

    def read(self, name: str, text: str, clock: Clock) -> str:
        if self.limit and len(text.encode()) > self.limit:
            raise ValueError(f"option {name} must be at most {self.limit} bytes long")
        return text


@dataclass(frozen=True, slots=True)
class Choice(_VerbatimType, Generic[E]):
    """One of the members of ``enum``, or another spelling of one; case does not matter."""

    enum: type[E]
    also: Mapping[str, E] = field(default_factory=dict)
    empty: E | None = None

    @property
    def kind(self) -> str:
        return "choice"

    @property
    def values(self) -> tuple[str, ...]:
        return (*(member.value for member in self.enum), *self.also)

    @property
    def takes(self) -> ValueRule:
        return ValueRule.VALUE if self.empty is None else ValueRule.MAYBE

    def read(self, name: str, text: str, clock: Clock) -> E:
        word = text.strip().lower()
        if not word and self.empty is not None:
            return self.empty
        if word in self.also:
            return self.also[word]
        try:
            return self.enum(word)
        except ValueError:
            raise ValueError(f"unknown {name}: {text}, {one_of(self.values)}") from None


def one_of(values: tuple[str, ...]) -> str:
    """``valid values are 'a', 'b' and 'c'``."""
    quoted = [f"'{value}'" for value in values]
    if len(quoted) == 1:
        return f"the valid value is {quoted[0]}"
    return f"valid values are {', '.join(quoted[:-1])} and {quoted[-1]}"


@dataclass(frozen=True, slots=True)
class Words(_VerbatimType):
    """A comma-separated set of words out of ``values``."""

    values: tuple[str, ...]
    kind: str = "list"
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> frozenset[str]:
        words = [word.strip().lower() for word in text.split(",")]
        for word in words:
            if word not in self.values:
                raise ValueError(f"unknown {name}: {word}, {one_of(self.values)}")
        return frozenset(words)


@dataclass(frozen=True, slots=True)
class Duration(_VerbatimType):
    """Seconds. ``empty`` is what the name alone means, ``words`` are values with a name."""

    zero: bool = False
    empty: float | None = None
    words: tuple[tuple[str, float], ...] = ()

    @property
    def kind(self) -> str:
        return "duration"

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(word for word, _ in self.words)

    @property
    def takes(self) -> ValueRule:
        return ValueRule.VALUE if self.empty is None else ValueRule.MAYBE

    def read(self, name: str, text: str, clock: Clock) -> float:
        if not text and self.empty is not None:
            return self.empty
        named = dict(self.words).get(text.strip().lower())
        if named is not None:
            return named
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            _problem(name, error)
        if seconds < 0:
            raise ValueError(f"negative durations are not accepted: {name}='{text}'")
        if not seconds and not self.zero:
            raise ValueError(f"option {name} must be a duration greater than 0")
        return seconds


@dataclass(frozen=True, slots=True)
class Promise(_VerbatimType):
    """A share of the rows and how late they may be: ``99.9% within 5m``."""

    kind: str = "share within duration"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> Slo:
        found = _PROMISE.fullmatch(text.strip())
        share = float(found[1]) / 100 if found else 0.0
        if found is None or not 0 < share < 1:
            raise ValueError(
                f"option {name} is a share above 0 % and below 100 % and a duration, "
                f"as '99% within 5m', not '{text}'"
            )
        try:
            within = parse_duration(found[2])
        except ValueError as error:
            _problem(name, error)
        if within <= 0:
            raise ValueError(f"option {name} must have a duration greater than 0")
        return Slo(share, within)


_PROMISE = re.compile(r"(\d{1,2}(?:\.\d{1,6})?)\s*%\s+within\s+(\S.*)", re.IGNORECASE)

#: A duration without end.
FOREVER = ("forever", inf)


@dataclass(frozen=True, slots=True)
class ByteSize(_VerbatimType):
    """Bytes, more than none."""

    kind: str = "size"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> int:
        try:
            size = parse_size(text)
        except ValueError as error:
            _problem(name, error)
        if not size:
            raise ValueError(f"option {name} must be a size greater than 0")
        return size


@dataclass(frozen=True, slots=True)
class Count(_VerbatimType):
    """A whole number from 1 to ``most``."""

    most: int
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    @property
    def kind(self) -> str:
        return f"1 to {self.most}"

    def read(self, name: str, text: str, clock: Clock) -> int:
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= self.most):
            raise ValueError(f"option {name} must be a whole number from 1 to {self.most}")
        return int(digits)


@dataclass(frozen=True, slots=True)
class DecimalType(_VerbatimType):
    """``decimal(p,s)``; None for ``string``."""

    kind: str = "decimal(p,s)"
    values: tuple[str, ...] = ("string", "decimal(38,18)")
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> LogicalType | None:
        word = "".join(text.split()).lower()
        if word == "string":
            return None
        try:
            found = LogicalType.parse(word)
        except ValueError:
            found = LogicalType(Kind.TEXT)
        if found.digits != (found.precision, found.scale) or found.precision > MOST_DIGITS:
            raise ValueError(
                f"option {name} must be 'string', or 'decimal(p,s)' with at most {MOST_DIGITS} "
                f"digits, s of them after the point: '{text}'"
            )
        return found


@dataclass(frozen=True, slots=True)
class Share(_VerbatimType):
    """A part of all: ``1%``."""

    kind: str = "share"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> float:
        found = _SHARE.fullmatch(text.strip())
        share = float(found[1]) / 100 if found else 0.0
        if not 0 < share <= 1:
            raise ValueError(f"option {name} is a share up to 100 %, as '1%', not '{text}'")
        return share


_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")


@dataclass(frozen=True, slots=True)
class Moment:
    """A timestamp; ``past`` refuses one that is yet to come."""

    past: bool = False
    kind: str = "timestamp"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> Timestamp:
        now = clock.now()
        try:
            moment = parse_moment(text, now)
        except ValueError as error:
            _problem(name, error)
        if self.past and moment > now:
            raise ValueError(f"timestamp '{text}' is in the future")
        return moment

    def stored(self, text: str, value: object) -> str:
        """The instant itself: an interval would mean another one tomorrow."""
        return str(value)

    def again(self) -> Moment:
        """An instant that was accepted stays valid after a clock was set back."""
        return replace(self, past=False)

    def shown(self, text: str) -> str:
        """See :class:`OptionType`."""
        return shown_moment(text)


#: The prefix of a cursor that is the offset of a connector.
_DEBEZIUM = "debezium:"


@dataclass(frozen=True, slots=True)
class DebeziumOffset:
    """The offset of a Debezium connector, as Kafka Connect stores it.

    Attributes:
        fields: the JSON object of the topic ``connect-offsets``, with such properties of the
            connector's configuration as the source asks for.
    """

    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return _DEBEZIUM + json.dumps(dict(self.fields), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Cursor:
    """An instant that has been, or ``debezium:`` with the offset of a connector."""

    moment: Moment = field(default_factory=lambda: Moment(past=True))
    kind: str = "timestamp"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> Timestamp | DebeziumOffset:
        if not text.strip().startswith(_DEBEZIUM):
            return self.moment.read(name, text, clock)
        return DebeziumOffset(_offset(name, text.strip().removeprefix(_DEBEZIUM)))

    def stored(self, text: str, value: object) -> str:
        return str(value)

    def again(self) -> Cursor:
        return replace(self, moment=self.moment.again())

    def shown(self, text: str) -> str:
        return text if text.startswith(_DEBEZIUM) else self.moment.shown(text)


def _offset(name: str, text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not fields:
        raise ValueError(
            f"problem parsing option {name}: behind 'debezium:' comes the connector's offset, "
            "a JSON object of the topic offset.storage.topic"
        )
    return fields


@dataclass(frozen=True, slots=True)
class Json(_VerbatimType, Generic[T]):
    """A JSON object that ``build`` checks and types."""

    build: Callable[[Mapping[str, object]], T]
    kind: str = "JSON"
    values: tuple[str, ...] = ()
    takes: ValueRule = ValueRule.VALUE

    def read(self, name: str, text: str, clock: Clock) -> T:
        try:
            parsed = json.loads(text)
        except ValueError as error:
            # json's message names a place, never the content, which may be secret.
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "invalid JSON"
            _problem(name, ValueError(f"not JSON: {reason}"))
        except RecursionError:
            _problem(name, ValueError("not JSON: too deeply nested"))
        if not isinstance(parsed, dict):
            _problem(name, ValueError("a JSON object is needed"))
        try:
            return self.build(parsed)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        except ValueError as error:
            _problem(name, error)


class ConfigError(ValueError):
    """A message about a sink's configuration that stands for itself."""
