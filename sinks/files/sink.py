"""``file:///dir``: newline-delimited JSON (or CSV of a scan), marked with RESOLVED files.

A file is visible only when it is complete and durable: it is written below ``.tmp``, synced, and
renamed by ``commit``; a crash leaves nothing but names a reader never looks at. The key is part
of the value, because a line has no other place for it; rows without a value (tombstones) say
nothing a file could hold and are left out.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.clock import Timestamp
from changefeed.errors import ChangefeedError
from changefeed.events import Resolved, Truncate
from sinks.base import Batch, Capabilities, Delivery, Epoch, Receipt, SinkContext, Target
from sinks.files.names import Namer
from sinks.files.options import FilesSettings, parse
from sinks.files.stage import Stage
from sinks.files.staged import SUFFIXES, StagedFile, explained, publish, rows_within
from sinks.naming import kafka_topic_name

TEMPORARY = ".tmp"
ORPHAN_SECONDS = 3600.0
"""Age at which a temporary file of another run is nobody's any more."""


class FilesSink:
    """Messages as lines of files in a local directory."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        formats=("json", "csv"),
        envelopes=("wrapped", "bare", "diff", "enriched", "debezium"),
        executor=True,
        key_in_value=True,
        compressions=tuple(SUFFIXES),
        pace=1.0,
    )

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        self.settings: FilesSettings = parse(uri, options or {})
        self._job = 0
        self._namer = Namer(
            self.settings.partition_format, self.settings.extension, secrets.token_hex(8)
        )
        self._remote = False
        self._reset()

    def _reset(self) -> None:
        self._stage = Stage(self.settings.compression)
        self._number = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "_job": self._job, "_namer": self._namer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings, self._job = state["settings"], state["_job"]
        self._namer = state["_namer"]
        self._remote = True
        self._reset()

    def topic(self, name: str) -> str:
        """The label of the table ``name`` in file names and in ``topic`` members."""
        return kafka_topic_name(self.settings.topic_prefix + name)

    # ------------------------------------------------------------------ life

    @property
    def _temporary(self) -> Path:
        return self.settings.directory / TEMPORARY

    def open(self, context: SinkContext) -> None:
        self._remote = False  # a copy that is opened where it runs is committed there too
        self._job = context.job_id
        with explained(self.settings.directory):
            self._temporary.mkdir(parents=True, exist_ok=True)
            probe = self._temporary / f"{self._mine()}.probe"
            probe.touch()
            probe.unlink()
            self._sweep()

    def _mine(self) -> str:
        return f"{self._job}-{self._namer.session}"

    def _new_temporary(self) -> Path:
        return self._temporary / f"{self._mine()}-{secrets.token_hex(8)}"

    def _sweep(self) -> None:
        """Remove what an earlier run of this job left behind."""
        for path in self._temporary.glob(f"{self._job}-*"):
            if path.name.startswith(self._mine()):
                continue
            try:
                if time.time() - path.stat().st_mtime > ORPHAN_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue  # another run of the job swept it first

    def close(self) -> None:
        # What another process wrote for the driver is the driver's to commit or abort.
        self._stage.close(keep=self._remote)

    # ------------------------------------------------------------------ rows

    def write(self, batch: Batch) -> Receipt:
        receipt = self._append(batch)
        if self._remote:
            with explained(self.settings.directory):
                self._stage.finish()
        return receipt

    def write_all(self, batches: Iterable[Batch]) -> Iterator[Receipt]:
        """One executor task: small batches of a table share a file; synced once at the end."""
        receipts = [self._append(batch) for batch in batches]
        with explained(self.settings.directory):
            self._stage.finish()
        yield from receipts

    def _append(self, batch: Batch) -> Receipt:
        key = (
            *(batch.epoch.number, batch.partition, batch.target),
            *(batch.schema.version, batch.frontier),
        )
        staged: dict[str, str] = {}
        size = 0
        try:
            with explained(self.settings.directory):
                for values in _values(batch.rows):
                    size += self._add(key, batch, values, staged)
        except ChangefeedError:
            self._stage.spoil(key)
            raise
        pairs = itertools.chain.from_iterable(staged.items())
        return Receipt(batch.partition, batch.rows.num_rows, size, tuple(pairs))

    def _add(self, key: Hashable, batch: Batch, values: pa.Array, staged: dict[str, str]) -> int:
        """Append to the file of ``key``, and to the next where it is full; returns bytes."""
        size = 0
        while len(values):
            file = self._stage.file(key, lambda: self._names(batch))
            count = rows_within(values, self.settings.file_size - file.bytes)
            if not count and file.bytes:
                self._stage.roll(key)
                continue
            before = file.bytes
            # A row above the size of a file has one to itself.
            file.write(values.slice(0, max(1, count)))
            size += file.bytes - before
            staged[file.path.name] = file.name
            values = values.slice(max(1, count))
        return size

    def _names(self, batch: Batch) -> tuple[Path, str]:
        name = self._namer.data(
            _lower_bound(batch),
            job=self._job,
            epoch=batch.epoch.number,
            partition=batch.partition,
            number=next(self._number),
            attempt=secrets.token_hex(3),
            topic=batch.target.topic,
            schema=batch.schema.version,
        )
        return self._new_temporary(), name

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Delivery:
        staged = _staged(receipts)
        folder = self._temporary
        with explained(self.settings.directory):
            self._stage.finish(staged)
            publish(self.settings.directory, [(folder / t, name) for t, name in staged.items()])
        self._stage.published(staged)
        return Delivery.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._stage.close()
        for temporary in _staged(receipts):
            (self._temporary / temporary).unlink(missing_ok=True)

    # ----------------------------------------------------------------- marks

    def resolved(self, mark: Resolved, payload: bytes) -> None:
        self._publish_one(payload, self._namer.resolved(mark.at))

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """A line of its own file, stamped with the instant: behind all it empties.

        Rows of the same instant that came before it are in files with an older stamp.
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
        self._publish_one(payload, name)

    def _publish_one(self, payload: bytes, name: str) -> None:
        compression = "none" if name.endswith(".RESOLVED") else self.settings.compression
        with explained(self.settings.directory):
            temporary = self._new_temporary()
            file = StagedFile(temporary, name, compression)
            file.write(pa.array([payload], pa.binary()))
            file.finish()
            publish(self.settings.directory, [(temporary, name)])


def _values(rows: pa.Table | pa.RecordBatch) -> Iterator[pa.Array]:
    """The message values in order, without the rows that have none."""
    column = rows.column("value")
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        yield chunk.drop_null()


def _staged(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Temporary name -> final name of every file the receipts stand for."""
    return {
        temporary: name
        for receipt in receipts
        for temporary, name in zip(receipt.staged[::2], receipt.staged[1::2], strict=True)
    }


def _lower_bound(batch: Batch) -> Timestamp:
    """The smallest timestamp rows of this batch, or of one delivered later, can have.

    Before anything was delivered there is no frontier, and no mark either, so the rows' own
    smallest timestamp serves and keeps files out of a folder of 1970.
    """
    if batch.frontier > Timestamp.ZERO:
        return batch.frontier.next()
    if not batch.rows.num_rows:
        return Timestamp.ZERO
    wall = batch.rows.column("wall")
    least = pc.min(wall)
    logical = pc.min(pc.filter(batch.rows.column("logical"), pc.equal(wall, least)))
    return Timestamp(least.as_py(), logical.as_py())
