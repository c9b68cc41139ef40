"""Where a feed without an initial scan begins: an instant, or where a connector stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from changefeed.core.clock import Clock, Timestamp
from changefeed.options.types import Moment, ValueRule

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
        """See :class:`changefeed.options.types.OptionType`."""
        if not text.strip().startswith(_DEBEZIUM):
            return self.moment.read(name, text, clock)
        return DebeziumOffset(_offset(name, text.strip().removeprefix(_DEBEZIUM)))

    def stored(self, text: str, value: object) -> str:
        """See :class:`changefeed.options.types.OptionType`."""
        return str(value)

    def again(self) -> Cursor:
        """See :class:`changefeed.options.types.OptionType`."""
        return replace(self, moment=self.moment.again())

    def shown(self, text: str) -> str:
        """See :class:`changefeed.options.types.OptionType`."""
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
