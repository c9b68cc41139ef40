"""Files: newline-delimited JSON, CSV, Avro or Parquet, marked with RESOLVED files.

A file is visible only as a whole: on a local disk it is written below ``.tmp``, synced, and
renamed by ``commit``; to an object store it is put whole (:mod:`sinks.files.places`). The key is
part of the value, because a file has no other place for it; rows without a value (tombstones) say
nothing a file could hold and are left out.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Resolved, Truncate
from changefeed.core.schema import TableSchema
from changefeed.core.settings import Parameter
from changefeed.options import Feature
from sinks.base import (
    Batch,
    Capabilities,
    CommitPace,
    Difference,
    Durability,
    Epoch,
    Receipt,
    Sink,
    SinkContext,
    Target,
)
from sinks.files.manifest import Closer
from sinks.files.names import TRUNCATION, Buckets, Namer, new_session
from sinks.files.options import DAY, FilesSettings
from sinks.files.places.base import FilePlace, InspectablePlace, Move, explained
from sinks.files.places.local import LocalPlace
from sinks.files.places.spec import LOCAL, OBJECTS, WEB, PlaceSpec
from sinks.files.staged import OpenFiles, UnpublishedFile
from sinks.files.writers import COMPRESSIONS, FILE_FORMATS, rows_within
from sinks.naming import kafka_topic_name

PUBLISHED = ""
"""Stands in a receipt for the temporary name of a file that has its final name already."""

#: How long Google's client repeats a request by itself; the feed goes on with longer pauses.
GOOGLE_SECONDS = 10.0


class FilesSink(Sink):
    """Messages in files."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        formats=tuple(FILE_FORMATS),
        envelopes=("wrapped", "bare", "enriched"),
        executor=True,
        lanes=True,
        key_in_value=True,
        compressions=COMPRESSIONS,
        shared_topics=True,
        repairs=True,
        continues_scans=True,
        features=frozenset({Feature.TRANSACTIONS, Feature.COMPARISON, Feature.DEAD_LETTERS}),
    )
    parameters: ClassVar[tuple[Parameter, ...]] = FilesSettings.parameters()
    #: How long Google's client repeats a request by itself.
    google_seconds: float = GOOGLE_SECONDS
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings: FilesSettings = FilesSettings.read(uri, options)
        self._job = 0
        self._namer = Namer(self.settings.buckets, self.settings.extension, new_session(self.clock))
        self._remote = False
        self._reset()

    def _reset(self) -> None:
        self._stage = OpenFiles()
        self._number = itertools.count()
        self._closer: Closer | None = None

    @cached_property
    def _place(self) -> FilePlace:
        return open_place(
            self.settings.place,
            lists=self.settings.manifests,
            google_seconds=self.google_seconds,
            clock=self.clock,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "_job": self._job,
            "_namer": self._namer,
            "google_seconds": self.google_seconds,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remote = True
        self._reset()

    def pacing(self) -> CommitPace:
        return CommitPace(self.settings.flush_interval, bytes=self.settings.file_size)

    def files_a_day(self, tables: int) -> tuple[int, int] | None:
        """See :meth:`sinks.base.Sink.files_a_day`: a file has rows of one table and bucket."""
        settings = self.settings
        if not settings.flush_interval:
            return None
        buckets = DAY // (settings.buckets.nanos / 1e9) if settings.buckets.nanos else 0
        rounds = ceil(DAY / settings.flush_interval)
        files = rounds + (int(buckets) if buckets > 1 else 0)
        return files * tables, ceil(DAY / settings.resolved) if settings.resolved else 0

    def topic(self, name: str) -> str:
        """The label of the table ``name`` in file names and in ``topic`` members."""
        return kafka_topic_name(self.settings.topic_prefix + name)

    # ------------------------------------------------------------------ life

    def open(self, context: SinkContext) -> None:
        self._remote = False  # a copy that is opened where it runs is committed there too
        self._job = context.job_id
        with self._explained():
            self._place.prepare(self._job, self._namer.session)
        if self.settings.manifests and self._closer is None:
            self._closer = Closer(self._place, self._namer, self._job)

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Whether a local folder can be written, and whether an HTTP server is there; of a store
        nothing is asked (:meth:`overlooked`)."""
        problem = self._place.look() if isinstance(self._place, InspectablePlace) else None
        return [] if problem is None else [problem]

    def overlooked(self) -> str:
        shown = self.settings.place.shown
        if self.settings.place.kind == LOCAL:
            return ""
        if self.settings.place.kind == WEB:
            return (
                f"of {shown} only the address was checked; whether it accepts files is known when "
                "the feed runs"
            )
        return f"{shown} was not checked; whether it is writable is known when the feed runs"

    def _explained(self) -> Any:
        return explained(self.settings.place.shown)

    def close(self) -> None:
        # What another process wrote for the driver is the driver's to commit or abort.
        self._stage.close(keep=self._remote)
        self._place.close()

    # ------------------------------------------------------------------ rows

    def write(self, batch: Batch) -> Receipt:
        receipt = self._append(batch)
        if self._remote:
            (receipt,) = self._hand_over([receipt])
        return receipt

    def _hand_over(self, receipts: list[Receipt]) -> list[Receipt]:
        with self._explained():
            self._stage.finish()
            if self._place.staging is not None or not self._remote:
                return receipts
            staged = _staged(receipts)
            self._publish(staged)
        return [
            Receipt(r.partition, r.rows, r.bytes, _pairs((PUBLISHED, n) for _, n in _named(r)))
            for r in receipts
        ]

    def _append(self, batch: Batch) -> Receipt:
        staged: dict[str, str] = {}
        size = 0
        field = batch.rows.schema.field("value")
        for stamp, rows in in_buckets(batch, self.settings.buckets):
            key = (
                *(batch.epoch.number, batch.partition, batch.target),
                *(batch.schema.version, batch.after, self.settings.buckets.start(stamp.wall)),
                *(field.type, tuple((field.metadata or {}).items())),
            )
            try:
                with self._explained():
                    for values in _values(rows):
                        size += self._add(key, batch, stamp, field, values, staged)
            except ChangefeedError:
                self._stage.spoil(key)
                raise
        return Receipt(batch.partition, batch.rows.num_rows, size, _pairs(staged.items()))

    def _add(
        self,
        key: Hashable,
        batch: Batch,
        stamp: Timestamp,
        field: pa.Field,
        values: pa.Array,
        staged: dict[str, str],
    ) -> int:
        size = 0
        while len(values):
            file = self._stage.file(key, lambda: self._new(batch, stamp, field))
            count = rows_within(values, self.settings.file_size - file.bytes)
            if not count and file.bytes:
                self._stage.roll(key)
                continue
            before = file.bytes
            # A row above the size of a file has one to itself.
            file.write(values.slice(0, max(1, count)))
            size += file.bytes - before
            staged[file.temporary] = file.name
            values = values.slice(max(1, count))
        return size

    def _new(self, batch: Batch, stamp: Timestamp, field: pa.Field) -> UnpublishedFile:
        name = self._namer.data(
            stamp,
            job=self._job,
            epoch=batch.epoch.number,
            partition=batch.partition,
            number=next(self._number),
            attempt=secrets.token_hex(3),
            topic=batch.target.topic,
            schema=batch.schema.version,
        )
        temporary = f"{self._job}-{self._namer.session}-{secrets.token_hex(8)}"
        settings = self.settings
        return UnpublishedFile(
            self._place.staging, temporary, name, field, settings.format, settings.compression
        )

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        staged = _staged(receipts)
        with self._explained():
            self._stage.finish(staged)
            self._publish(staged)
        return Durability.DURABLE

    def _publish(self, staged: Mapping[str, str]) -> None:
        moves = [Move(t, name, self._stage.get(t)) for t, name in staged.items()]
        if moves:
            self._place.publish(moves)
        self._stage.published(staged)

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._stage.close()
        folder = self._place.staging
        if folder is not None:
            for temporary in _staged(receipts):
                with suppress(OSError):  # what is left is swept later
                    (folder / temporary).unlink()
        else:
            self._place.remove([name for r in receipts for _, name in _named(r)])

    # -------------------------------------------------------------- compares

    def compare(
        self,
        context: SinkContext,
        target: Target,
        schema: TableSchema,
        rows: Iterable[pa.Table],
        limit: int,
    ) -> list[Difference]:
        # Only VERIFY reads files, and this loads the parsers of all their formats.
        from sinks.files import last_rows

        envelope = str(context.options.get("envelope") or "wrapped")
        shown = self.settings.place.shown
        place = last_rows.require_comparable(self._place, shown, envelope)
        with (
            last_rows.FileComparison(context, schema, self.settings.format, envelope) as copy,
            self._explained(),
        ):
            copy.expect_source(rows)
            copy.replay_files(place, context.job_id, target.topic)
            return copy.differences(limit)

    # ------------------------------------------------------ control messages

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """A marker; the buckets that end before it are closed first."""
        with self._explained():
            if self._closer is not None:
                self._closer.close_before(event.at.wall)
            self._place.put(
                self._namer.resolved(event.at), self._text(payload, {"resolved": str(event.at)})
            )

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """A line in a file of its own, stamped with the instant, so that it sorts after all it
        empties.

        Rows of the same instant that came before it are in files with an older stamp. If the feed's
        files hold no lines, it is a file with the extension :data:`TRUNCATION`.
        """
        name = self._namer.data(
            event.at.previous().next(),  # the stamp of what came after it
            job=self._job,
            epoch=0,  # before the rows that have the same stamp: they came after it
            partition=0,
            number=next(self._number),
            attempt=secrets.token_hex(3),
            topic=target.topic,
            schema=event.schema.version,
        )
        text = self._text(payload, {"table": str(target.table), "truncate": str(event.at)})
        if self.settings.files.control_lines:
            content = _packed(text + b"\n", self.settings.compression)
        else:
            name = name.removesuffix(self.settings.extension) + TRUNCATION
            content = text
        with self._explained():
            self._place.put(name, content)

    def _text(self, payload: bytes, mark: Mapping[str, str]) -> bytes:
        """A control message as JSON: the payload where the messages are JSON, else one like it."""
        if self.settings.files.control_lines:
            return payload + (b"\n" if "resolved" in mark else b"")
        return json.dumps(mark, ensure_ascii=False).encode() + b"\n"


def _packed(text: bytes, compression: str) -> bytes:
    if compression == "none":
        return text
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, compression) as stream:
        stream.write(text)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def _values(rows: pa.Table | pa.RecordBatch) -> Iterator[pa.Array]:
    column = rows.column("value")
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        yield chunk.drop_null()


def _named(receipt: Receipt) -> Iterator[tuple[str, str]]:
    return zip(receipt.staged[::2], receipt.staged[1::2], strict=True)


def _pairs(names: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(names))


def _staged(receipts: Sequence[Receipt]) -> dict[str, str]:
    pairs = (pair for receipt in receipts for pair in _named(receipt))
    return {temporary: name for temporary, name in pairs if temporary != PUBLISHED}


def in_buckets(
    batch: Batch, buckets: Buckets
) -> Iterator[tuple[Timestamp, pa.Table | pa.RecordBatch]]:
    """The rows by bucket of their own time, in order, each with the stamp of its file.

    Rows of a time that is over (a scan delivered behind the changes) go into the bucket of
    :attr:`sinks.base.Batch.after`: one that a resolved timestamp has closed never gets more.
    """
    least = _lower_bound(batch)
    rows = batch.rows
    if not rows.num_rows:
        return
    if not buckets.nanos:
        yield least, rows
        return
    bounds = pc.min_max(rows.column("wall")).as_py()
    first, last = (buckets.start(max(least.wall, bounds[end])) for end in ("min", "max"))
    if first == last:
        yield max(least, Timestamp(first)), rows
        return
    walls = rows.column("wall").to_numpy()
    starts = np.maximum(walls - walls % buckets.nanos, buckets.start(least.wall))
    for start in np.unique(starts):
        yield max(least, Timestamp(int(start))), rows.filter(pa.array(starts == start))


def _lower_bound(batch: Batch) -> Timestamp:
    """The smallest timestamp rows of this batch, or of one delivered later, can have.

    Before anything was delivered nothing is resolved either, so the rows' own smallest timestamp
    serves and keeps files out of a folder of 1970.
    """
    if batch.after > Timestamp.ZERO:
        return batch.after.next()
    if not batch.rows.num_rows:
        return Timestamp.ZERO
    wall = batch.rows.column("wall")
    least = pc.min(wall)
    logical = pc.min(pc.filter(batch.rows.column("logical"), pc.equal(wall, least)))
    return Timestamp(least.as_py(), logical.as_py())


def open_place(
    spec: PlaceSpec,
    *,
    lists: bool = False,
    google_seconds: float = GOOGLE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> FilePlace:
    """The place of a checked URI, not yet connected.

    Args:
        lists: its files are looked for later.
        google_seconds: how long Google's client repeats a request by itself.
        clock: says how old files and tokens are.
    """
    if spec.kind == LOCAL:
        return LocalPlace(Path(spec.root), clock)
    if spec.kind == OBJECTS:
        from sinks.files.places.objects import open_objects

        return open_objects(spec, clock, lists=lists, google_seconds=google_seconds)
    from sinks.files.places.web import WebPlace

    return WebPlace(spec)
