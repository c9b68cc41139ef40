"""How a topic differs from its table: the last message of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from sinks.copies import CopyComparison, Row, exact, row_of

#: Envelopes of whole rows in which a delete can be told from a row.
ENVELOPES = ("wrapped", "row", "enriched", "debezium")

#: Key and value of a message.
Message = tuple[bytes | None, bytes | None]


def require_comparable(envelope: str) -> None:
    """Refuse an envelope whose messages do not say which rows there are.

    Raises:
        ChangefeedError: CF1303.
    """
    if envelope not in ENVELOPES:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"a topic of envelope = '{envelope}' cannot be verified",
            hint=f"these can: {', '.join(ENVELOPES)}.",
        )


def expect(copy: CopyComparison, messages: Iterable[pa.Table], envelope: str) -> None:
    """Take the messages of the rows that the source has."""
    for table in messages:
        for batch in table.to_batches():
            copy.expect(_rows(batch, envelope))


def _rows(batch: pa.RecordBatch, envelope: str) -> Iterator[tuple[str, Row]]:
    pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    for key, value in pairs:
        row = row_of(envelope, exact(value))
        if row is None:
            raise AssertionError("a row of the source is no delete")
        yield key.decode(), row


def hold(copy: CopyComparison, messages: Iterable[Message], envelope: str, partition: int) -> None:
    """Take the messages of a partition, in its order. One without a key is a resolved timestamp,
    or tells of a TRUNCATE: what came before it is gone."""
    waiting: list[tuple[str, Row | None]] = []
    for key, value in messages:
        if key is not None:
            row = None if value is None else row_of(envelope, exact(value))
            waiting.append((key.decode(errors="replace"), row))
        elif _truncates(value):
            waiting.clear()
            copy.clear(partition)
        if len(waiting) >= _MANY:
            copy.hold(waiting, partition)
            waiting.clear()
    copy.hold(waiting, partition)


_MANY = 10_000


def _truncates(value: bytes | None) -> bool:
    found = exact(value) if value is not None else None
    if not isinstance(found, dict):
        return False
    # Where it stands depends on the envelope.
    places = (found, found.get("payload"), found.get("__crdb__"))
    return any(isinstance(place, dict) and "truncate" in place for place in places)
