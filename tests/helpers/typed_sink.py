"""Sinks that keep what they get in this process, for tests of the engine.

* ``typed://name``: typed rows, merged by key and version, as a warehouse does it;
* ``typed-spark://name``: the same, scans come as DataFrames;
* ``keeping://name``: messages, and the feed's progress with them, as a transactional log does it.

What arrived is in :data:`STORES` under the name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved, SchemaChange, Truncate
from changefeed.core.schema import TableSchema
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    CommitPace,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.registry import BUILT_IN, SchemeEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Key = tuple[Any, ...]


@dataclass
class Store:
    """What a target holds, and what was done to it."""

    rows: dict[str, dict[Key, tuple[int, dict[str, Any] | None]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    #: Version up to which a topic's changes are in.
    applied: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: list[str] = field(default_factory=list)
    #: Rows of each commit that had any.
    commits: list[int] = field(default_factory=list)
    events: list[SchemaChange] = field(default_factory=list)
    ended: list[tuple[str, Timestamp]] = field(default_factory=list)
    resolved: list[Timestamp] = field(default_factory=list)
    messages: list[tuple[str, str, str]] = field(default_factory=list)
    progress: dict[str, Timestamp] = field(default_factory=dict)
    shapes: dict[str, TableSchema] = field(default_factory=dict)
    scratch: set[str] = field(default_factory=set)
    contexts: list[SinkContext] = field(default_factory=list)
    #: Commits that work and say they did not.
    lost_answers: int = 0
    #: Raised by the next calls of these names.
    faults: dict[str, list[ChangefeedError]] = field(default_factory=lambda: defaultdict(list))

    def called(self, name: str) -> None:
        self.calls.append(name)
        if self.faults[name]:
            raise self.faults[name].pop(0)

    def table(self, topic: str) -> dict[Key, dict[str, Any]]:
        """The rows that are there."""
        return {key: row for key, (_, row) in self.rows[topic].items() if row is not None}

    def merge(self, batch: Batch) -> None:
        """Apply a batch in order: newer versions win."""
        schema, rows = batch.schema, self.rows[batch.target.topic]
        assert batch.rows.schema == schema.log_schema()
        self.shapes[batch.target.topic] = schema
        applied = self.applied[batch.target.topic]
        for change in batch.rows.to_pylist():
            version = change["wall"] + change["logical"]
            if not batch.scan and version <= applied:
                continue
            side = "b" if change["op"] == "d" else "a"
            key = tuple(change[f"{side}{i}"] for i in schema.key)
            if key in rows and rows[key][0] > version:
                continue
            row = {c.name: change[f"a{i}"] for i, c in enumerate(schema.columns)}
            rows[key] = (version, None if change["op"] == "d" else row)


STORES: dict[str, Store] = defaultdict(Store)


class TypedSink(Sink):
    """Merges typed rows at commit; what it stages lies in scratch files."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS, exactly_once=True, evolves=True, ends_scans=True
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.store = STORES[uri.partition("://")[2].partition("?")[0]]
        self._staged: list[Batch] = []
        self._context: SinkContext | None = None
        self._pacing = CommitPace(0.05, 1_000_000 if "rounds" in uri else 0)

    def pacing(self) -> CommitPace:
        return self._pacing

    def open(self, context: SinkContext) -> None:
        self._context = context
        self.store.contexts.append(context)
        self.store.called("open")
        self.store.scratch.add(context.scratch)
        if not self._staged:
            assert not list(Path(context.scratch).iterdir())

    def write(self, batch: Batch) -> Receipt:
        self.store.called("write")
        assert self._context is not None
        Path(self._context.scratch, f"{batch.epoch.number}-{batch.partition}").touch()
        self._staged.append(batch)
        return Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self.store.called("commit")
        assert sum(r.rows for r in receipts) == sum(b.rows.num_rows for b in self._staged)
        for batch in self._staged:
            self.store.merge(batch)
        for batch in self._staged:
            if not batch.scan:
                last = batch.rows.slice(batch.rows.num_rows - 1).to_pylist()[0]
                done = self.store.applied
                topic = batch.target.topic
                done[topic] = max(done[topic], last["wall"] + last["logical"])
        if self._staged:
            self.store.commits.append(sum(b.rows.num_rows for b in self._staged))
        self._clear()
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self.store.called("abort")
        self._clear()

    def _clear(self) -> None:
        assert self._context is not None
        for file in Path(self._context.scratch).iterdir():
            file.unlink()
        self._staged.clear()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self.store.resolved.append(event.at)

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        assert not self._staged
        self.store.rows[target.topic].clear()

    def evolve(self, event: SchemaChange, target: Target) -> None:
        assert not self._staged, "everything before it was committed"
        self.store.called("evolve")
        self.store.events.append(event)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        assert not self._staged
        self.store.called("end_scan")
        self.store.ended.append((target.topic, at))
        rows = self.store.rows[target.topic]
        for key in [key for key, (version, _) in rows.items() if version < at.version]:
            del rows[key]

    def close(self) -> None:
        self._staged.clear()


class SparkTypedSink(TypedSink):
    """Scans come as DataFrames."""

    capabilities: ClassVar[Capabilities] = replace(
        TypedSink.capabilities, scans_by_spark=True, continues_scans=True
    )

    def write_scan(
        self, rows: DataFrame, epoch: Epoch, target: Target, schema: TableSchema
    ) -> Receipt:
        self.store.called("write_scan")
        assert self._context is not None
        assert self._context.spark is not None
        table: pa.Table = rows.toArrow().cast(schema.log_schema())
        batch = Batch(self._context.feed, epoch, 0, target, schema, table, scan=True)
        self.store.merge(batch)
        self.store.commits.append(table.num_rows)
        return Receipt(0, table.num_rows, table.nbytes)


class KeepingSink(Sink):
    """Messages and progress in one step; nothing of a commit that fails is seen."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        exactly_once=True, resolved_by_topic=True, keeps_progress=True
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.store = STORES[uri.partition("://")[2].partition("?")[0]]
        self._open: list[Batch] = []

    def open(self, context: SinkContext) -> None:
        self.store.contexts.append(context)
        self.store.called("open")

    def write(self, batch: Batch) -> Receipt:
        self.store.called("write")
        self._open.append(batch)
        return Receipt(batch.partition, batch.rows.num_rows, batch.rows.nbytes)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        raise AssertionError("exactly once commits with progress")

    def commit_with(
        self, epoch: Epoch, receipts: Sequence[Receipt], progress: Mapping[str, Timestamp]
    ) -> Durability:
        self.store.called("commit_with")
        for batch in self._open:
            for message in batch.rows.to_pylist():
                key, value = message["key"].decode(), (message["value"] or b"").decode()
                self.store.messages.append((batch.target.topic, key, value))
        self.store.progress.update(progress)
        self._open.clear()
        if self.store.lost_answers:
            self.store.lost_answers -= 1
            raise ChangefeedError("CF5001", "the answer of the commit was lost")
        return Durability.DURABLE

    def progress(self) -> Mapping[str, Timestamp]:
        return dict(self.store.progress)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._open.clear()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        self.store.resolved.append(event.at)

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        self.store.messages.append((target.topic, "truncate", json.dumps(str(event.at))))

    def close(self) -> None:
        self._open.clear()


_SINKS = {"typed": "TypedSink", "typed-spark": "SparkTypedSink", "keeping": "KeepingSink"}


@contextmanager
def typed_sinks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Store]]:
    """The schemes are known and the stores empty."""
    for scheme, name in _SINKS.items():
        monkeypatch.setitem(BUILT_IN, scheme, SchemeEntry(f"{__name__}:{name}", "for tests"))
    STORES.clear()
    yield STORES
    STORES.clear()
