"""What a sink is: the protocol, and the types that cross it.

A sink gets finished messages in Arrow batches and owns nothing else: no progress, no
retries (the feed that uses it does them), no encoding. The order of calls is

    open -> (write* -> commit -> [resolved])* -> close

* ``write`` may run on the driver or in a Spark executor, in several processes at once for
  different batches; the same ``(feed, epoch, partition)`` may come again after a crash.
* ``commit`` returns only when everything its receipts stand for is :attr:`Delivery.DURABLE`
  in the target, or raises.
* ``resolved`` comes only after the progress it states is durable in the job table.
* After an exception from ``write`` or ``commit`` the same rows come again, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from changefeed.clock import Timestamp
from changefeed.events import Resolved, Truncate
from changefeed.schema import TableName, TableSchema


class Accepts(StrEnum):
    """What the batches of a sink hold."""

    MESSAGES = "messages"
    """Rows of :data:`changefeed.events.MESSAGE_SCHEMA`: key and value as finished bytes."""
    ROWS = "rows"
    """Rows of the table's log schema: for sinks that merge typed columns."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a sink can do. The planner refuses options that need more.

    Attributes:
        accepts: messages or typed rows.
        formats: values of ``format`` it takes, the default first.
        envelopes: values of ``envelope`` it takes; empty means all.
        executor: ``write`` may run in a Spark executor (the sink object pickles before ``open``).
        key_in_value: the value must hold the key, because there is no separate key.
        exactly_once: it has a way to make a repeated batch harmless.
        resolved: it can carry resolved timestamps.
        compressions: values of ``compression`` it takes.
        max_message_bytes: larger messages are refused before they are sent; 0 is no limit.
        pace: seconds the sink likes between two commits (files, merges): changes gather in the
            change log meanwhile. 0 is as soon as there is data.
    """

    accepts: Accepts = Accepts.MESSAGES
    formats: tuple[str, ...] = ("json",)
    envelopes: tuple[str, ...] = ()
    executor: bool = False
    key_in_value: bool = False
    exactly_once: bool = False
    resolved: bool = True
    compressions: tuple[str, ...] = ("none",)
    max_message_bytes: int = 0
    pace: float = 0.0


class Delivery(StrEnum):
    """How far a commit got. Progress moves on DURABLE only."""

    ACCEPTED = "accepted"
    DURABLE = "durable"


@dataclass(frozen=True, slots=True)
class Target:
    """One table of a feed as the sink sees it. ``topic`` is the finished, escaped name."""

    table: TableName
    topic: str


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink may know when it opens.

    Attributes:
        feed: name of the feed, for the target's own logs and client ids.
        job_id: number of the feed's job.
        targets: tables of the feed now; ``open`` is called again when they change.
        options: the feed's WITH options by name, validated and typed.
        node: a short unique id of this process run (part of file names).
        resolved: the feed emits resolved timestamps.
    """

    feed: str
    job_id: int
    targets: tuple[Target, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    node: str = "0"
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class Epoch:
    """One delivery round of a feed: ``number`` rises by one; ``upto`` is where it ends."""

    number: int
    upto: Timestamp


@dataclass(frozen=True, slots=True)
class Batch:
    """The unit a sink may see twice: rows of one table and one schema version, in order.

    ``rows`` is a pyarrow Table or RecordBatch in the schema :class:`Accepts` names.
    ``scan`` is true for rows of the initial scan (each key at most once, any order).
    ``frontier`` is the timestamp at or below which the feed had everything delivered before
    this batch: no row of this or a later epoch is at or below it (scan rows excepted).
    """

    feed: str
    epoch: Epoch
    partition: int
    target: Target
    schema: TableSchema
    rows: pa.Table | pa.RecordBatch
    frontier: Timestamp = Timestamp.ZERO
    scan: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """Small, picklable, and enough to commit or abort a written batch.

    ``staged`` is the sink's own: temporary file names, transaction ids.
    """

    partition: int
    rows: int
    bytes: int
    staged: tuple[str, ...] = ()


@runtime_checkable
class Sink(Protocol):
    """A target of changefeeds; see the module's text for the order of calls."""

    capabilities: ClassVar[Capabilities]

    def open(self, context: SinkContext) -> None:
        """Connect, check rights, make what is missing. Idempotent; may be called again."""
        ...

    def write(self, batch: Batch) -> Receipt:
        """Take the rows in order. May return before they are durable."""
        ...

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Delivery:
        """Return DURABLE once all written batches of the epoch are safe in the target."""
        ...

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Forget what was written since the last commit, where that is possible."""
        ...

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        """Carry a resolved timestamp to every partition of every topic; durable on return.

        ``payload`` is the finished message value.
        """
        ...

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """Carry a TRUNCATE of one table, after everything before it is durable."""
        ...

    def close(self) -> None:
        """Release everything. Promises nothing about what is in flight."""
        ...


@runtime_checkable
class WritesStreams(Protocol):
    """Optional: a sink that settles a whole executor task at once is faster than per batch."""

    def write_all(self, batches: Iterable[Batch]) -> Iterator[Receipt]:
        """Write the batches in order; give out receipts only once all can be committed."""
        ...


def write_all(sink: Sink, batches: Iterable[Batch]) -> Iterator[Receipt]:
    """Write what one executor task has, the fast way where the sink has one."""
    if isinstance(sink, WritesStreams):
        yield from sink.write_all(batches)
    else:
        for batch in batches:
            yield sink.write(batch)
