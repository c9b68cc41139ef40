"""``reader:///directory``: one table for a consumer that reads the change log itself.

The directory holds what passes between the feed and its consumer (Spark's ``changefeed`` source, or
``changefeed.subscribe``), so both must reach it::

    OWNER             which feed it belongs to
    scan-<instant>/   rows of an initial scan as Arrow files, removed once they were consumed
    SCAN              which scan is whole: its instant, shape and files
    PLACE             how far the consumer is
    LOCK              held (flock) by the one consumer

The feed writes OWNER, SCAN and the scans, the consumer PLACE. OWNER, SCAN and PLACE begin with
their checksums and are replaced by rename, so no reader sees half of one; SCAN has the checksums of
the scan's files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.durable import read_durable, replace_durably, sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Resolved, Truncate
from changefeed.core.proofs import AlteredBytes, FileProof, ProvedFile
from changefeed.core.schema import TableSchema
from changefeed.core.settings import Settings
from changefeed.options import DELETES, Deletes
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    ConsumerProgress,
    Durability,
    Epoch,
    Receipt,
    ScanFiles,
    Sink,
    SinkContext,
    Target,
)
from sinks.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER, SCAN, PLACE, LOCK = "OWNER", "SCAN", "PLACE", "LOCK"

_LOCK_POLL_SECONDS = 0.05


class ReaderSink(Sink):
    """Keeps scans for one consumer, and how far that consumer is."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        accepts=Accepts.ROWS, resolved=False, ends_scans=True, pulled=True
    )

    #: For how long another process may read.
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, uri: str, options: Mapping[str, object] | None = None) -> None:
        """Take the URI apart; nothing is touched.

        Raises:
            ChangefeedError: CF1201, the URI names no absolute directory.
        """
        url = Settings.read(uri).uri
        if url.hosts or not url.path.strip("/"):
            raise ChangefeedError(
                Code.INVALID_URI,
                "a reader's URI names a directory",
                hint="for example reader:///var/lib/feeds/orders",
            )
        if (options or {}).get(DELETES.name, Deletes.YES) is not Deletes.YES:
            raise ChangefeedError(
                Code.OPTION_DOES_NOT_FIT_SINK,
                "a reader gets deletes: leave the option deletes out",
                hint="filter by _change_type where the rows are read.",
            )
        self.directory = Path("/" + url.path.strip("/"))
        self._written: list[ProvedFile] = []
        self._lock: int | None = None

    # -- the feed's side --------------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        if len(context.targets) != 1:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                f"a reader has one table, and this feed has {len(context.targets)}",
                hint="make a changefeed for each table.",
            )
        owner = Owner.of(context, context.targets[0])
        with self._explained("write"):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self._read(OWNER)
            if found is None:
                self._replace(OWNER, {"owner": owner.text, "feed": owner.feed})
                return
            other = Owner.parse(found["owner"], found["feed"])
            if other.same(owner):
                return
            if other.state == owner.state and (other.job, other.table) not in context.feeds:
                # Its feed was dropped: what it left means nothing to this one.
                self._empty()
                self._replace(OWNER, {"owner": owner.text, "feed": owner.feed})
                return
        raise ChangefeedError(
            Code.TARGET_NOT_OURS,
            f"the directory {self.directory} belongs to {other}",
            hint="give each reader a directory of its own.",
        )

    def check(self, context: SinkContext) -> list[ChangefeedError]:
        """Whether the directory can be written; see :meth:`sinks.base.Sink.check`."""
        place = self.directory
        while not place.exists():
            place = place.parent
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            return []
        return [
            ChangefeedError(Code.SINK_UNREACHABLE, f"{place} is no directory that can be written")
        ]

    def write(self, batch: Batch) -> Receipt:
        if not batch.scan:
            raise AssertionError("the changes of a reader stay in the change log")
        at = batch.epoch.upto
        folder = self._folder(at)
        with self._explained("write"):
            if not folder.exists():
                self._remove_scans()
                folder.mkdir(mode=0o700)
            path = folder / f"{uuid.uuid4().hex}.arrow"
            _write_file(path, batch.rows)
            written = ProvedFile(f"{folder.name}/{path.name}", FileProof.of(path))
        return Receipt(batch.partition, batch.rows.num_rows, written.proof.size, (written.text,))

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Durability:
        self._written += [ProvedFile.parse(text) for r in receipts for text in r.staged]
        return Durability.DURABLE

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        with self._explained("write"):
            for receipt in receipts:
                for text in receipt.staged:
                    (self.directory / ProvedFile.parse(text).name).unlink(missing_ok=True)

    def end_scan(self, target: Target, schema: TableSchema, at: Timestamp) -> None:
        """The scan is whole: its consumer may have it."""
        folder = self._folder(at)
        files = [file for file in self._written if file.name.startswith(f"{folder.name}/")]
        with self._explained("write"):
            if folder.exists():
                sync_path(folder)
            self._replace(
                SCAN,
                {
                    "at": str(at),
                    "schema": schema.to_json(),
                    "version": schema.version,
                    "files": [[file.name, file.proof.size, file.proof.crc] for file in files],
                    "rows": sum(_rows_of(self.directory / file.name) for file in files),
                },
            )
        self._written.clear()

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """The consumer sees by itself how far the log is."""

    def truncate(self, event: Truncate, target: Target, payload: bytes) -> None:
        """The consumer finds it in the log."""

    def close(self) -> None:
        self._written.clear()

    # -- the consumer's side ----------------------------------------------------------------

    def pull(self) -> ReaderSink:
        """A sink object is its consumer's side, too."""
        return self

    def belongs(self, state: str, job_id: int) -> bool:
        """See :class:`sinks.base.LogConsumer`."""
        with self._explained("read"):
            found = self._read(OWNER)
        owner = Owner.parse(found["owner"]) if found is not None else None
        return owner is not None and (owner.state, owner.job) == (state, job_id)

    def consumer(self) -> ConsumerProgress:
        """See :class:`sinks.base.LogConsumer`; a scan that was consumed is removed."""
        with self._explained("read"):
            found = self._read(PLACE)
            if found is None:
                return ConsumerProgress()
            stamps = {name: Timestamp.parse(text) for name, text in found.items()}
            progress = ConsumerProgress(**stamps)
            if progress.committed is not None:
                self._let_go(progress.committed)
            return progress

    def _let_go(self, committed: Timestamp) -> None:
        scan = self._read(SCAN)
        if scan is not None and Timestamp.parse(scan["at"]) <= committed:
            self._remove_scans()

    def move(self, progress: ConsumerProgress) -> None:
        """See :class:`sinks.base.LogConsumer`."""
        fields = {
            "committed": progress.committed,
            "idle": progress.idle,
            "planned": progress.planned,
        }
        with self._explained("write"):
            self._replace(PLACE, {name: str(at) for name, at in fields.items() if at is not None})

    def occupy(self, seconds: float) -> None:
        """See :class:`sinks.base.LogConsumer`."""
        with self._explained("write"):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = self.clock.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self.clock.monotonic() < deadline:
                    self.clock.sleep(_LOCK_POLL_SECONDS)
                    continue
                os.close(lock)
                raise ChangefeedError(
                    Code.WRONG_JOB_STATE,
                    f"the reader at {self.directory} is read by another process",
                    hint="end the other one, or give this one a reader of its own.",
                ) from None
            self._lock = lock
            return

    def leave(self) -> None:
        """See :class:`sinks.base.LogConsumer`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def scanned(self) -> ScanFiles | None:
        """See :class:`sinks.base.LogConsumer`."""
        with self._explained("read"):
            found = self._read(SCAN)
        if found is None:
            return None
        return ScanFiles(
            at=Timestamp.parse(found["at"]),
            schema=TableSchema.from_json(found["schema"], found["version"]),
            files=tuple(str(self.directory / name) for name, *_ in found["files"]),
            proofs=tuple(FileProof(*proof) for _, *proof in found["files"]),
            rows=found["rows"],
        )

    def verify(self) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
        """See :class:`sinks.base.LogConsumer`."""
        for name in (OWNER, PLACE, SCAN):
            try:
                with self._explained("read"):
                    found = self._read(name)
            except ChangefeedError as damage:
                yield self.directory / name, 0, damage
            else:
                if found is not None:
                    yield self.directory / name, len(json.dumps(found)), None
                    if name == SCAN:
                        yield from self._verify_scan(found)

    def _verify_scan(
        self, scan: Mapping[str, Any]
    ) -> Iterator[tuple[Path, int, ChangefeedError | None]]:
        for name, *proof in scan["files"]:
            path = self.directory / name
            try:
                FileProof(*proof).verify(path)
            except (OSError, AlteredBytes) as cause:
                if self._read(SCAN) == scan:  # else it was consumed meanwhile
                    yield path, 0, _damaged(path, cause)
            else:
                yield path, proof[0], None

    # -- files ------------------------------------------------------------------------------

    def _folder(self, at: Timestamp) -> Path:
        return self.directory / f"scan-{at}"

    def _remove_scans(self) -> None:
        (self.directory / SCAN).unlink(missing_ok=True)
        for folder in self.directory.glob("scan-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _empty(self) -> None:
        self._remove_scans()
        (self.directory / PLACE).unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(read_durable(self.directory / name))
        except FileNotFoundError:
            return None
        except AlteredBytes as cause:
            raise _damaged(self.directory / name, cause) from cause
        return found

    def _replace(self, name: str, content: Mapping[str, object]) -> None:
        replace_durably(self.directory / name, json.dumps(content))

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"cannot {doing} the reader's directory {self.directory}: {cause.strerror}",
                hint="node and reader need it, on a disk that both reach.",
            ) from cause


def _damaged(path: Path, cause: Exception) -> ChangefeedError:
    return ChangefeedError(
        Code.LOG_DAMAGED,
        f"a file of the reader is damaged: {path}",
        detail=str(cause),
        hint="put the directory back from a backup and RESUME; or make another reader in a new "
        "directory, which begins with a scan of the table.",
    )


def _write_file(path: Path, rows: pa.Table | pa.RecordBatch) -> None:
    with (
        path.open("wb") as file,
        pa.ipc.new_file(file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as to,
    ):
        to.write(rows)
    sync_path(path)


def _rows_of(path: Path) -> int:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
