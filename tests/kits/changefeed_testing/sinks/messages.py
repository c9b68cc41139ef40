"""One message as a consumer reads it, whatever the envelope."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from changefeed.core.clock import Timestamp

Row = Mapping[str, Any]

#: Members of a value that are not columns of the row, in the ``row`` and ``bare`` envelopes.
META = "__crdb__"


@dataclass(frozen=True, slots=True)
class Message:
    """A row or a control message, and where it is in the target.

    Attributes:
        topic, partition: where it was read; files and tables have one partition, 0.
        key: JSON text of the key; None for control messages.
        at: commit timestamp of the change; None if the message has none (no ``updated``).
        after, before: images of the row; None: no row. ``has_before`` distinguishes an absent
            image from one without a row.
        resolved, truncated: the timestamp of a control message.
    """

    topic: str
    partition: int
    key: str | None = None
    at: Timestamp | None = None
    after: Row | None = None
    before: Row | None = None
    has_before: bool = False
    resolved: Timestamp | None = None
    truncated: Timestamp | None = None
    #: The table that a truncation is about.
    table: str | None = None

    @property
    def is_row(self) -> bool:
        """Whether the message is a change of a row, not a control message."""
        return self.resolved is None and self.truncated is None


def parse_message(topic: str, partition: int, key: bytes | None, value: bytes | None) -> Message:
    """Read a JSON message of any envelope; numbers keep their digits.

    A null value is a row without an image: a delete in the ``row`` envelope, or the tombstone
    after a delete in another envelope.
    """
    text = None if key is None else key.decode()
    if value is None:
        return Message(topic, partition, text)
    data = json.loads(value, parse_float=Decimal)
    meta = data.get(META, {}) if isinstance(data.get(META), dict) else {}
    if text is None:
        for place in (data, meta):
            if isinstance(place.get("resolved"), str):
                return Message(topic, partition, resolved=Timestamp.parse(place["resolved"]))
            if isinstance(place.get("truncate"), str):
                at, table = Timestamp.parse(place["truncate"]), place.get("table")
                return Message(topic, partition, truncated=at, table=table)
    return _row(topic, partition, text, data, meta)


def _row(
    topic: str, partition: int, key: str | None, data: dict[str, Any], meta: dict[str, Any]
) -> Message:
    wrapped = "after" in data
    if key is None:
        found = data.get("key", meta.get("key"))
        key = None if found is None else json.dumps(found, ensure_ascii=False, default=str)
    image = data.get("after") if wrapped else {k: v for k, v in data.items() if k != META}
    return Message(
        topic=topic,
        partition=partition,
        key=key,
        at=_timestamp(data if wrapped else meta),
        after=image,
        before=data.get("before") if wrapped else None,
        has_before=wrapped and "before" in data,
    )


def _timestamp(data: dict[str, Any]) -> Timestamp | None:
    source = data.get("source")
    if isinstance(source, dict) and isinstance(source.get("ts_hlc"), str):
        return Timestamp.parse(source["ts_hlc"])
    for member in ("updated", "mvcc_timestamp"):
        if isinstance(data.get(member), str):
            return Timestamp.parse(data[member])
    return None
