"""``kafka://``: an idempotent producer that knows of every message it could not deliver.

On the driver ``write`` queues and ``commit`` waits for the acknowledgements of all in-sync
replicas. A copy in an executor that the driver commits for cannot wait later, so its ``write``
returns only when the rows are acknowledged.

With ``delivery = 'exactly_once'`` everything between two commits, and the feed's progress, is one
transaction (:mod:`sinks.kafka.transactions`), written by the driver.

After a failed delivery the producer is thrown away with all it still holds: the feed sends
the epoch again from its start, so a reader sees repeats but never a gap or an old value last.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from changefeed.core.settings import Parameter
from changefeed.encoding.registry import connect
from changefeed.options import Feature
from sinks.base import (
    Batch,
    Capabilities,
    Difference,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.copies import WHOLE_ROWS
from sinks.kafka.channel import (
    STALL_SECONDS,
    Channel,
    DeliveryFailure,
    failure_error,
    parse_headers,
)
from sinks.kafka.errors import Reasons
from sinks.kafka.options import PRODUCER_ONLY, KafkaSettings
from sinks.kafka.schemas import Announcements, ddl_announcement, drop_announcement
from sinks.kafka.topics import REQUEST_SECONDS, Topics
from sinks.kafka.transactions import (
    PROGRESS_TOPIC_SETTINGS,
    ROUND_TIMEOUT,
    SCAN_TIMEOUT,
    ChannelTransaction,
    read_progress,
    records,
    transactional,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer


LARGE = 900_000
"""Bytes from which a message is compared with its topic's limit (Kafka's default is 1 MiB)."""


class KafkaSink(Sink):
    """Messages to Kafka topics."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        formats=("json", "avro", "protobuf"),
        executor=True,
        lanes=True,
        exactly_once=True,
        compressions=("none", "gzip", "snappy", "lz4", "zstd"),
        keeps_progress=True,
        features=frozenset(
            {
                Feature.SCHEMA_REGISTRY,
                Feature.MESSAGE_HEADERS,
                Feature.EXTRA_HEADERS,
                Feature.KAFKA_PRODUCER,
                Feature.COMPARISON,
                Feature.DEAD_LETTERS,
                Feature.TRANSACTIONS,
            }
        ),
        evolves=True,
        resolved_by_topic=True,
        shared_topics=True,
        repairs=True,
        continues_scans=True,
        rewinds=True,
    )
    parameters: ClassVar[tuple[Parameter, ...]] = KafkaSettings.parameters()
    stall_seconds: float = STALL_SECONDS
    request_seconds: float = REQUEST_SECONDS

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings: KafkaSettings = KafkaSettings.read(uri, options)
        if self.settings.exactly_once:
            # A transaction has one producer: executors cannot share it.
            self.capabilities = replace(  # type: ignore[misc]
                type(self).capabilities, executor=False
            )
        self._context: SinkContext | None = None
        self._remote = False
        self._reset()

    def _reset(self) -> None:
        self._reasons = Reasons()
        self._topics: Topics | None = None
        self._channel: Channel | None = None
        self._transaction: ChannelTransaction | None = None
        self._progress: dict[str, Timestamp] = {}
        self._schemas = Announcements()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "stall_seconds": self.stall_seconds,
            "_context": self._context,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remote = True
        self._reset()

    def topic(self, name: str) -> str:
        """The topic of the table (or topic alias) ``name``."""
        return self.settings.topic(name)

    # ------------------------------------------------------------------ life

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._remote = False  # a copy that is opened where it runs is committed there too
        self._admin().ensure(self._names())
        if self.settings.schema_topic:
            self._admin().ensure([self.settings.schema_topic], {})
        if self.settings.exactly_once:
            self._admin().ensure([self.settings.progress_topic], PROGRESS_TOPIC_SETTINGS)
            if self._channel is None and not context.scan:
                # A scan that an earlier process left behind must never be committed.
                self._transactional(self._config(self.settings.producer), scan=True)[0].close()
            self._producer()
            self._progress = self._read_progress(context)
        elif not context.scan:
            # It connects and asks for its id in the background, half a second in which the feed
            # waits for its first change: they are not to be added.
            self._producer()
        self._reasons.clear()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Look topics up, and ask whether the missing ones could be made; nothing is made."""
        self._context = context
        schemas = [self.settings.schema_topic] if self.settings.schema_topic else []
        return self._admin().hindrances([*self._names(), *schemas])

    def interrupt(self) -> None:
        self._reasons.interrupted.set()

    def unanswered(self) -> str:
        return self._reasons.text

    def close(self) -> None:
        self._drop()
        self._topics = None

    def _names(self) -> list[str]:
        targets = self._context.targets if self._context else ()
        return list(dict.fromkeys(target.topic for target in targets))

    def _admin(self) -> Topics:
        if self._topics is None:
            producer = self.settings.producer
            shared = {k: v for k, v in producer.items() if k not in PRODUCER_ONLY}
            shared = {k: v for k, v in shared.items() if not k.startswith("compression")}
            self._topics = Topics(
                self._config(shared),
                self._reasons,
                self.request_seconds,
                form=self.settings.topic_form,
            )
        return self._topics

    def _config(self, settings: Mapping[str, str]) -> dict[str, str]:
        feed = self._context.feed if self._context else "unopened"
        return {"client.id": f"changefeed-{feed}", **self.settings.connection, **settings}

    def _producer(self) -> Channel:
        with self._lock:
            if self._channel is None:
                config = self._config(self.settings.producer)
                if self.settings.exactly_once:
                    self._channel, self._transaction = self._transactional(config)
                elif self._remote:
                    self._channel = _shared.get(config, self.stall_seconds)
                else:
                    self._channel = Channel(config, self._reasons, self.stall_seconds)
            return self._channel

    def _transactional(
        self, config: Mapping[str, str], *, scan: bool = False
    ) -> tuple[Channel, ChannelTransaction]:
        """A producer, after the broker has ended what an earlier one of this feed left open."""
        context = self._opened()
        context = replace(context, scan=context.scan or scan)
        timeout = self.settings.transaction_timeout
        timeout = timeout or (SCAN_TIMEOUT if context.scan else ROUND_TIMEOUT)
        channel = Channel(
            transactional(config, context, timeout), self._reasons, self.stall_seconds
        )
        try:
            channel.init_transactions()
        except ChangefeedError:
            channel.close()
            raise
        return channel, ChannelTransaction(channel)

    def _opened(self) -> SinkContext:
        if self._context is None:
            raise ChangefeedError(Code.SINK_BUSY, "the Kafka sink was not opened")
        return self._context

    def _drop(self) -> None:
        self._schemas.forget()
        with self._lock:
            channel, self._channel = self._channel, None
            transaction, self._transaction = self._transaction, None
        if channel is not None:
            if transaction is not None and transaction.is_open:
                # Else it ends when the next producer registers, or by its timeout.
                with contextlib.suppress(ChangefeedError):
                    channel.abort_transaction()
            _shared.forget(channel)
            channel.close()

    # ------------------------------------------------------------------ rows

    def write(self, batch: Batch) -> Receipt:
        receipt = self._queue(batch)
        if self._remote:
            self._settle()
        return receipt

    def _queue(self, batch: Batch) -> Receipt:
        if batch.rows.num_rows:
            first = (batch.rows.column(name)[0].as_py() for name in ("wall", "logical"))
            self._announce(batch.target, batch.schema, Timestamp(*first))
        channel = self._sending()
        size = 0
        for rows in _record_batches(batch.rows):
            size += self._check_sizes(batch.target, rows)
            headers = rows.column("headers")
            if headers.null_count == len(headers):
                channel.send(batch.target.topic, rows.column("key"), rows.column("value"))
            else:
                _send_with_headers(channel, batch.target.topic, rows)
        return Receipt(batch.partition, batch.rows.num_rows, size)

    def _announce(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        if not self.settings.schema_topic:
            return
        context = self._opened()
        message = self._schemas.message(context, target, schema, at)
        if message is None:
            return
        self._sending().send_one(self.settings.schema_topic, *message)
        if self._transaction is None:  # else readers see it together with the rows
            self._settle()
        self._schemas.delivered(context, target, schema)

    def evolve(self, event: SchemaChange, target: Target) -> None:
        """Send the new schema to the schema topic; topics themselves take any row."""
        self._announce(target, event.new, event.at)
        self._end_transaction()

    def tell_ddl(self, event: Ddl, target: Target) -> None:
        """Send the statement to the schema topic. The table's schema is sent again with its next
        row, so that it stays the newest message of the table in a compacted topic.
        """
        if not self.settings.schema_topic:
            return
        self._sending().send_one(self.settings.schema_topic, *ddl_announcement(target, event))
        self._settle()
        self._end_transaction()
        self._schemas.gone(self._opened(), target)

    def dropped(self, target: Target) -> None:
        """Send the drop to the schema topic; the table's own topic stays as it is."""
        if not self.settings.schema_topic:
            return
        self._sending().send_one(self.settings.schema_topic, *drop_announcement(target))
        self._settle()
        self._end_transaction()
        self._schemas.gone(self._opened(), target)

    def _sending(self) -> Channel:
        channel = self._producer()
        if self._transaction is not None:
            self._transaction.enter()
        return channel

    def _check_sizes(self, target: Target, rows: pa.RecordBatch) -> int:
        """The bytes of the rows, after a check that their topic takes each; errors name no data."""
        total = _size(rows.column("key")) + _size(rows.column("value"))
        # Most batches are smaller than the message that is looked for.
        if total <= LARGE or self.settings.compressed:
            return total
        sizes = pc.add(
            pc.coalesce(pc.binary_length(rows.column("key")), 0),
            pc.coalesce(pc.binary_length(rows.column("value")), 0),
        )
        largest = pc.max(sizes).as_py() or 0
        if largest > LARGE:
            limit = self._admin().limit(target.topic)
            if limit is not None and largest > limit:
                limit = self._admin().limit(target.topic, asks=True)  # it may be raised by now
            if limit is not None and largest > limit:
                raise too_large(target, largest, limit)
        return total

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self._settle()
        self._end_transaction()
        return Durability.DURABLE

    def commit_with(
        self, epoch: Epoch, receipts: Sequence[Receipt], progress: Mapping[str, Timestamp]
    ) -> Durability:
        self._settle()
        context = self._opened()
        self._sending()
        if self._transaction is None:
            raise ChangefeedError(Code.SINK_BUSY, "the feed is not exactly once")
        stated = {**self._progress, **progress}
        try:
            self._transaction.commit(self.settings.progress_topic, context, stated)
        except ChangefeedError:
            self._drop()
            raise
        self._progress = stated
        return Durability.DURABLE

    def progress(self) -> Mapping[str, Timestamp]:
        return dict(self._progress)

    def _consumer(self) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._config({}),
                "group.id": "changefeed",  # asked for; offsets are not stored
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "error_cb": self._reasons.note,
            },
            logger=self._reasons.logger,
        )

    def _read_progress(self, context: SinkContext) -> dict[str, Timestamp]:
        topic = self.settings.progress_topic
        self._admin().known([topic])  # one that was made just now may not be everywhere
        end = self._admin().end(topic)
        return read_progress(self._consumer, topic, end, context, self._reasons, self.stall_seconds)

    # ---------------------------------------------------------------- compares

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        """See :meth:`sinks.base.Sink.compare`.

        Raises:
            ChangefeedError: CF1303 too where the topic's oldest messages are gone by retention.
        """
        # Only VERIFY reads a topic's rows, and this loads the parsers of all formats.
        from sinks.message_copies import MessageComparison, require_envelope

        envelope = str(context.options.get("envelope") or "wrapped")
        refusal = f"a topic of envelope = '{envelope}' cannot be verified"
        require_envelope(envelope, WHOLE_ROWS, refusal)
        self._context, topic = context, target.topic
        form = str(context.options.get("format") or "json")
        with MessageComparison(context, schema, form, envelope) as copy:
            copy.expect_messages(rows)
            if self.settings.registry is not None:
                known = connect(self.settings.registry)
                copy.read_registered(lambda number: known.schema(number, f"topic {topic}").text)
            for partition in range(self._admin().partitions([topic])[topic]):
                copy.replay_bytes(self._messages(topic, partition), partition)
            return copy.differences(limit)

    def _messages(self, topic: str, partition: int) -> Iterator[tuple[bytes | None, bytes | None]]:
        if self._admin().begin(topic, partition):
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"topic {topic} cannot be verified: its oldest messages are gone",
                hint="rows that are only in those would look missing; cleanup.policy = compact "
                "keeps the last message of each key.",
            )
        end = self._admin().end(topic, partition)
        consumer = self._consumer()
        try:
            yield from records(
                consumer, topic, end, self._reasons, self.stall_seconds, partition=partition
            )
        finally:
            consumer.close()

    def _end_transaction(self) -> None:
        try:
            if self._transaction is not None:
                self._transaction.end()
        except ChangefeedError:
            self._drop()
            raise

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._drop()

    def _settle(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            failures = channel.settle()
        except ChangefeedError:
            self._drop()
            raise
        if failures:
            self._drop()
            raise self._failed(failures, channel.reasons)
        channel.reasons.clear()

    def _failed(self, failures: Sequence[DeliveryFailure], reasons: Reasons) -> ChangefeedError:
        over = next((f for f in failures if f.name == "MSG_SIZE_TOO_LARGE"), None)
        if over is None:
            return failure_error(failures, reasons)
        targets = self._context.targets if self._context else ()
        target = next((t for t in targets if t.topic == over.topic), None)
        if target is None:
            return failure_error(failures, reasons)
        return too_large(target, over.size, self._admin().limit(over.topic))

    # ------------------------------------------------------ control messages

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self._send_to_all({name: event.payloads.get(name, payload) for name in self._names()})

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        self._send_to_all({target.topic: payload})

    def _send_to_all(self, payloads: Mapping[str, bytes]) -> None:
        counts = self._admin().known(list(payloads))
        alone = self._transaction is None or not self._transaction.is_open
        channel = self._sending()
        for topic, count in counts.items():
            for partition in range(count):
                channel.send_one(topic, None, payloads[topic], partition=partition)
        self._settle()
        if alone:  # else it is seen together with the rows around it
            self._end_transaction()


def _size(values: pa.Array) -> int:
    offsets = values.buffers()[1]
    if values.null_count or offsets is None:
        return pc.sum(pc.binary_length(values)).as_py() or 0
    # Where there is no null, they lie one behind the other: no kernel has to look at each.
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    return int(ends[-1] - ends[0])


def _record_batches(rows: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows] if isinstance(rows, pa.RecordBatch) else list(rows.to_batches())


def _send_with_headers(channel: Channel, topic: str, rows: pa.RecordBatch) -> None:
    """Row by row: headers are one block of C memory a message."""
    columns = (rows.column(name).to_pylist() for name in ("key", "value", "headers"))
    for key, value, headers in zip(*columns, strict=True):
        channel.send_one(topic, key, value, headers=parse_headers(headers))


def too_large(target: Target, size: int, limit: int | None) -> ChangefeedError:
    """The error for a message no retry can deliver; it names no value."""
    bound = f"the {limit} bytes" if limit is not None else "what"
    return ChangefeedError(
        Code.SINK_CANNOT_TAKE_TABLE,
        f"a message of table {target.table} has {size} bytes, more than {bound} "
        f"topic {target.topic} takes",
        hint=f"raise max.message.bytes of topic {target.topic}, or leave the large column out "
        "with a column list, then RESUME. With on_row_error = 'dead_letter' the feed keeps "
        "such rows apart and goes on.",
        target=target.topic,
        about_row=True,
    )


class _SharedChannels:
    """Producers an executor process keeps between tasks, the newest few.

    A task ends settled, so a kept producer holds nothing that could be lost.
    """

    LIMIT = 4

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[tuple[str, str], ...], Channel] = OrderedDict()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def get(self, config: Mapping[str, str], stall: float) -> Channel:
        key = tuple(sorted(config.items()))
        with self._lock:
            if key not in self._open:
                while len(self._open) >= self.LIMIT:
                    self._open.popitem(last=False)[1].close()
                self._open[key] = Channel(config, Reasons(), stall)
            self._open.move_to_end(key)
            return self._open[key]

    def forget(self, channel: Channel) -> None:
        with self._lock:
            for key in [k for k, c in self._open.items() if c is channel]:
                del self._open[key]

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


_shared = _SharedChannels()
