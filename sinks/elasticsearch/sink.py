"""``elasticsearch://``: each row a document, its key the id, its commit timestamp the version.

A document is written only over an older one, so nothing here depends on the order of requests, and
rows that come again change nothing. Deletes have versions too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved, Truncate
from changefeed.core.schema import TableSchema
from changefeed.core.settings import Parameter
from changefeed.options import ExistingTarget, Feature
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
from sinks.copies import CopyComparison, Row, exact, row_of, whole_row
from sinks.elasticsearch import body
from sinks.elasticsearch.bulk import PATIENCE_SECONDS, Bulk
from sinks.elasticsearch.client import Cluster
from sinks.elasticsearch.indices import Indices, one_index_each
from sinks.elasticsearch.letters import DeadLetters
from sinks.elasticsearch.marks import Marks, show
from sinks.elasticsearch.options import ElasticsearchSettings
from sinks.elasticsearch.sweep import FOREIGN_BELOW, delete_below, documents

#: A batch of more bytes is made operations in several goes: an array of Arrow holds 2 GiB.
_SLICE_BYTES = 256 << 20


class ElasticsearchSink(Sink):
    """Messages to Elasticsearch indices."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        envelopes=("row", "wrapped", "bare"),
        executor=True,
        lanes=True,
        exactly_once=True,
        compressions=("none", "gzip"),
        owns_targets=True,
        repairs=True,
        continues_scans=True,
        features=frozenset({Feature.EXISTING_TARGETS, Feature.COMPARISON, Feature.DEAD_LETTERS}),
        ends_scans=True,
    )
    parameters: ClassVar[tuple[Parameter, ...]] = ElasticsearchSettings.parameters()
    patience_seconds: float = PATIENCE_SECONDS
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings: ElasticsearchSettings = ElasticsearchSettings.read(uri, options)
        self._context: SinkContext | None = None
        self._remote = False
        self._reset()

    def _reset(self) -> None:
        self._cluster = Cluster(self.settings)
        self._indices = Indices(self._cluster, self.settings, self._sender, self._context)
        self._letters = DeadLetters(self._cluster, self.settings.dead_letter_index)
        self._bulk: Bulk | None = None
        self._marks = Marks(self._cluster, self.settings.resolved_index)

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "_context": self._context}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remote = True
        self._reset()

    def topic(self, name: str) -> str:
        """The index of the table (or topic alias) ``name``."""
        return self.settings.index_of(name)

    def claims(self, topic: str) -> tuple[str, ...]:
        return (topic,)

    def reserved(self) -> tuple[str, ...]:
        """See :meth:`sinks.base.Sink.reserved`: documents of these are not of any table."""
        settings = self.settings
        return tuple(filter(None, (settings.dead_letter_index, settings.resolved_index)))

    # ------------------------------------------------------------------ life

    def open(self, context: SinkContext) -> None:
        one_index_each(context.targets)
        self._context = self._indices.context = context
        self._remote = False  # a copy that is opened where it runs is committed there too
        server = self._cluster.hello()
        self._sender().limit(server.max_content_bytes)
        self._letters.prepare()
        self._indices.forget()
        self._marks.forget()

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Ask the cluster who it is and whose the indices are; none is made."""
        one_index_each(context.targets)
        self._cluster.hello()
        self._indices.context = context
        return self._indices.strangers(context.targets)

    def unanswered(self) -> str:
        bulk = self._bulk
        return "" if bulk is None else bulk.trouble

    def close(self) -> None:
        bulk, self._bulk = self._bulk, None
        if bulk is not None:
            bulk.close()
        self._cluster.close()

    def _sender(self) -> Bulk:
        if self._bulk is None:
            self._bulk = Bulk(
                self._cluster,
                self.settings,
                self._letters.take,
                self.patience_seconds,
                self.clock,
            )
        return self._bulk

    # ------------------------------------------------------------------ rows

    def write(self, batch: Batch) -> Receipt:
        receipt = self._queue(batch)
        if self._remote:
            self._sender().settle()
        return receipt

    def _queue(self, batch: Batch) -> Receipt:
        index, size = batch.target.topic, 0
        for rows in _record_batches(batch.rows):
            self._indices.prepare(batch.target, batch.schema, _sample(rows))
            lines = body.operations(index, batch.schema, rows)
            size += self._sender().add(batch.target, lines)
        self._marks.wrote(index)
        return Receipt(batch.partition, batch.rows.num_rows, size, (index,))

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self._sender().settle()
        self._show_scan({index for receipt in receipts for index in receipt.staged})
        return Durability.DURABLE

    def _show_scan(self, indices: Iterable[str]) -> None:
        """Let searches see the rows of a scan, of which the object that sets the marks does not
        know."""
        context = self._context
        if context is not None and context.scan and context.resolved:
            show(self._cluster, sorted(indices))

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._sender().abandon()

    # ------------------------------------------------------ control messages

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        if self._delete_below(target, event.at.version):
            self._marks.wrote(target.topic)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """Rows of a scan have the version of ``at``: what is older was not found by it."""
        if self._delete_below(target, at.version):
            self._marks.wrote(target.topic)
            self._show_scan([target.topic])

    def holds_target(self, target: Target) -> bool:
        return self._indices.exists(target)

    def _delete_below(self, target: Target, version: int) -> int:
        """Delete older documents; those that others put into the index stay where the option says
        so.

        Raises:
            ChangefeedError: CF5008, the index belongs to another feed.
        """
        self._indices.claim(target)
        least = FOREIGN_BELOW if self.settings.existing is ExistingTarget.MERGE else 0
        return delete_below(self._cluster, self._sender(), target, version, least=least)

    # ---------------------------------------------------------------- compares

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        self._cluster.hello()
        least = FOREIGN_BELOW if self.settings.existing is ExistingTarget.MERGE else 0
        envelope = self.settings.envelope
        with CopyComparison(context.scratch, schema, read=context.read) as copy:
            return compare(
                self._cluster,
                copy,
                target,
                schema,
                rows,
                envelope=envelope,
                least=least,
                limit=limit,
            )

    def resolved(self, event: Resolved, payload: bytes) -> None:
        context = self._context
        if context is not None and context.targets:
            self._marks.set(self._sender(), context.feed, context.targets, event.at)


def _record_batches(rows: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    for batch in batches:
        pieces = batch.nbytes // _SLICE_BYTES + 1
        step = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _sample(rows: pa.RecordBatch) -> bytes | None:
    value = rows.column("value")
    place = pc.index(pc.and_(pc.is_valid(value), pc.not_equal(rows.column("op"), "d")), True)
    found: bytes | None = value[place.as_py()].as_py() if place.as_py() >= 0 else None
    return found


def compare(
    cluster: Cluster,
    copy: CopyComparison,
    target: Target,
    schema: TableSchema,
    messages: Iterable[pa.Table],
    *,
    envelope: str,
    least: int,
    limit: int,
) -> list[Difference]:
    """Rows that source and index do not have alike.

    Args:
        copy: empty.
        messages: of the rows at the source.
        least: documents of lower versions are not the feed's.
    """
    for table in messages:
        for batch in table.to_batches():
            copy.expect(_expected(batch, schema, envelope))
    show(cluster, [target.topic])
    for hits in documents(cluster, target, source=True):
        copy.hold(
            (hit["_id"], row_of(envelope, hit["_source"]))
            for hit in hits
            if hit["_version"] >= least
        )
    return copy.differences(limit)


def _expected(
    batch: pa.RecordBatch, schema: TableSchema, envelope: str
) -> Iterator[tuple[str, Row]]:
    ids = body.id_tokens(batch.column("key"), body.plain_key(schema)).to_pylist()
    for token, value in zip(ids, batch.column("value").to_pylist(), strict=True):
        yield json.loads(token), whole_row(envelope, exact(value))
