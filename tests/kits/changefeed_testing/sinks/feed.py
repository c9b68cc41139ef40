"""A feed without a node: makes batches of JSON messages and delivers epochs in the right order.

It calls a sink as a feed does: write, commit, then the mark. It records the rows of the source in a
:class:`changefeed_testing.sinks.history.RowHistory`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.events import Resolved, Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed_testing.sinks.history import RowHistory
from changefeed_testing.sinks.messages import Row
from sinks.base import Batch, Durability, Epoch, Receipt, Sink, SinkContext, Target

START = Timestamp(1_585_800_000_000_000_000)
"""When the feeds of the tests begin: 2 April 2020."""


def at(step: int) -> Timestamp:
    """The timestamp ``step`` seconds after :data:`START`."""
    return Timestamp(START.wall + step * 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Write:
    """One change: the row with ``key`` is ``row`` from ``at`` on, None deletes it."""

    key: int
    row: Row | None
    at: Timestamp
    table: str = "t"
    headers: str | None = None


def put(key: int, text: str, step: int, table: str = "t") -> Write:
    """``key`` gets the text ``text`` at ``step``."""
    return Write(key, {"a": key, "b": text}, at(step), table)


def delete(key: int, step: int, table: str = "t") -> Write:
    """``key`` is deleted at ``step``."""
    return Write(key, None, at(step), table)


def table_schema(table: str, version: int = 1) -> TableSchema:
    """``table(a int primary key, b text)``; version 2 has a column ``c`` more."""
    columns = [
        Column("a", "integer", LogicalType.parse("int32"), nullable=False, column_id=1),
        Column("b", "text", LogicalType.parse("text"), column_id=2),
        Column("c", "text", LogicalType.parse("text"), column_id=3),
    ]
    name = TableName("shop", "public", table)
    return TableSchema(name, tuple(columns[: 1 + version]), (0,), version=version)


def key_text(key: int) -> str:
    """The message key of a row."""
    return f"[{key}]"


def message_rows(
    writes: Iterable[Write], *, key_in_value: bool = False, topic: str | None = None
) -> pa.Table:
    """Finished messages in the wrapped envelope with ``updated``; ``topic`` goes into the value."""
    rows = []
    for number, write in enumerate(writes, start=1):
        value: dict[str, object] = {"after": write.row}
        if key_in_value:
            value["key"] = [write.key]
        if topic is not None:
            value["topic"] = topic
        value["updated"] = str(write.at)
        rows.append(
            {
                "key": key_text(write.key).encode(),
                "value": json.dumps(value).encode(),
                "wall": write.at.wall,
                "logical": write.at.logical,
                "seq": write.at.wall + number,
                "op": "d" if write.row is None else "u",
                "headers": write.headers,
            }
        )
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


class FeedDouble:
    """Delivers to one sink after another, as a job does across restarts.

    Attributes:
        history: what was committed at the source so far.
        delivered: everything up to it was delivered.
        state_database: the URL given to a sink that declares ``Capabilities.state_database``.
    """

    def __init__(
        self,
        topics: Mapping[str, str],
        *,
        key_in_value: bool = False,
        topic_in_value: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """``topics`` names the topic of each table."""
        self.targets = {
            table: Target(TableName("shop", "public", table), topic)
            for table, topic in topics.items()
        }
        self.history = RowHistory()
        self.delivered = Timestamp.ZERO
        self.versions = dict.fromkeys(topics, 1)
        self._key_in_value = key_in_value
        self._topic_in_value = topic_in_value
        self._options = dict(options or {})
        self._epoch = 0
        self._nodes = 0
        self.state_database = ""

    def context(self) -> SinkContext:
        """For a sink opened by a new run of the job."""
        self._nodes += 1
        return SinkContext(
            feed="conformance",
            job_id=17,
            targets=tuple(self.targets.values()),
            options=self._options,
            node=f"node{self._nodes}",
            resolved=True,
            state_database=self.state_database,
        )

    def open(self, sink: Sink) -> Sink:
        """Open a sink as a new run."""
        sink.open(self.context())
        return sink

    def epoch(self, upto: Timestamp) -> Epoch:
        """The next delivery round."""
        self._epoch += 1
        return Epoch(self._epoch, upto)

    def batches(self, epoch: Epoch, writes: Sequence[Write]) -> list[Batch]:
        """One batch per table, rows in order."""
        found = []
        for number, (table, target) in enumerate(self.targets.items()):
            own = [write for write in writes if write.table == table]
            if own:
                topic = target.topic if self._topic_in_value else None
                rows = message_rows(own, key_in_value=self._key_in_value, topic=topic)
                schema = table_schema(table, self.versions[table])
                batch = Batch("conformance", epoch, number, target, schema, rows, self.delivered)
                found.append(batch)
        return found

    def record(self, writes: Iterable[Write]) -> None:
        """Record changes that the source committed."""
        for write in writes:
            topic = self.targets[write.table].topic
            self.history.put(topic, key_text(write.key), write.at, write.row)

    def write(self, sink: Sink, epoch: Epoch, writes: Sequence[Write]) -> list[Receipt]:
        """Hand the rows over without committing."""
        self.record(writes)
        return [sink.write(batch) for batch in self.batches(epoch, writes)]

    def deliver(self, sink: Sink, writes: Sequence[Write], upto: Timestamp | None = None) -> None:
        """A whole epoch: write, commit, advance."""
        end = upto or max(write.at for write in writes)
        epoch = self.epoch(end)
        receipts = self.write(sink, epoch, writes)
        if sink.commit(epoch, receipts) is not Durability.DURABLE:
            raise AssertionError("commit returned before the rows were durable")
        self.delivered = end

    def resolve(self, sink: Sink, mark: Timestamp | None = None) -> Timestamp:
        """Emit what was delivered (or ``mark``) as resolved."""
        stamp = mark or self.delivered
        sink.resolved(Resolved(stamp), json.dumps({"resolved": str(stamp)}).encode())
        return stamp

    def truncate(self, sink: Sink, table: str, when: Timestamp) -> None:
        """Empty a table."""
        target = self.targets[table]
        self.history.truncate(target.topic, when)
        event = Truncate(table_schema(table, self.versions[table]), when, when.wall)
        sink.truncate(event, target, json.dumps({"truncate": str(when)}).encode())
