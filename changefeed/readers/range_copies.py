"""Copies of ranges in a staging place, for executors that do not see the change log.

The planner of a read makes them, an object for each range of the log and for each file of a scan,
and removes them (:mod:`.staged_rows` reads them). The keys of S3 stay with the process that signs
URLs.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Ddl, SchemaChange, Truncate
from changefeed.core.proofs import FileProof
from changefeed.core.row_parts import put_part
from changefeed.core.s3_urls import S3Signer
from changefeed.core.schema import TableSchema
from changefeed.core.stores import StoreClient, connect
from changefeed.readers.staged_rows import RowLocations
from changefeed.readers.table_log import Range
from changefeed.spark.staging_place import staging_place

#: What a planner left that did not end well is removed after so long, seconds.
ORPHAN_SECONDS = 24 * 3600.0
_OURS = re.compile(r"changefeed-ranges-[0-9a-f]{32}(/|\Z)")
_FAILED = (OSError, pa.ArrowException)


@dataclass
class RangeCopies:
    """The planner's side: copies ranges to a place, and removes them.

    Args:
        url: a directory, or ``s3://bucket/folder`` with parameters; see
            :func:`changefeed.spark.staging_place.staging_place`.
    """

    url: str = field(repr=False)
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False)

    def __post_init__(self) -> None:
        self._store = _store(self.url, self.clock)
        self._folder = f"{self._store.root}/changefeed-ranges-{uuid.uuid4().hex}"
        self._count = 0
        self._swept = False

    def stage(self, ranges: Sequence[Range]) -> tuple[tuple[Range, ...], tuple[str, ...]]:
        """The ranges as executors take them, and the names to give to :meth:`remove`.

        Raises:
            ChangefeedError: CF4002 the place cannot be written; what reading the log raises.
        """
        names: list[str] = []
        try:
            self._sweep()
            staged = tuple(self._staged(part, names) for part in ranges)
        except BaseException:
            self.remove(names)
            raise
        return staged, tuple(names)

    def _staged(self, part: Range, names: list[str]) -> Range:
        if part.files:
            for path, _ in part.verified_files():
                names.append(self._name())
                self._put(names[-1], path)
            found = tuple(self._store.location(name) for name in names[-len(part.files) :])
            return replace(part, files=(), proofs=(), staged=RowLocations(found, part.proofs))
        versions: dict[TableSchema, int] = {}
        with tempfile.TemporaryDirectory(prefix="changefeed-range-") as folder:
            path = Path(folder) / "rows"
            with path.open("wb") as made:
                for event in part.events():
                    if isinstance(event, SchemaChange | Ddl):
                        continue
                    number = versions.setdefault(event.schema, len(versions))
                    if isinstance(event, Truncate):
                        put_part(made, {"version": number, "truncated": str(event.at)})
                    else:
                        put_part(made, {"version": number}, event.load())
            names.append(self._name())
            proof = FileProof.of(path)
            self._put(names[-1], path)
        location = self._store.location(names[-1])
        return replace(part, staged=RowLocations((location,), (proof,), tuple(versions)))

    def _name(self) -> str:
        self._count += 1
        return f"{self._folder}/{self._count:08d}"

    def _put(self, name: str, path: Path) -> None:
        system = self._store.system
        try:
            if isinstance(system, fs.LocalFileSystem):
                os.makedirs(self._folder, exist_ok=True)
            with pa.memory_map(str(path)) as source, system.open_output_stream(name) as target:
                target.write(source.read_buffer())
        except _FAILED as failure:
            # Texts of the store's client may name keys.
            raise ChangefeedError(
                Code.SPARK_FAILED,
                f"rows cannot be staged in {self._store.shown}: {type(failure).__name__}",
                hint="check the address and the rights of the staging place.",
            ) from None

    def remove(self, names: Sequence[str]) -> None:
        """Remove what was staged; what cannot be removed now is removed a day later."""
        for name in names:
            with contextlib.suppress(*_FAILED):
                self._store.delete(name)

    def close(self) -> None:
        with contextlib.suppress(*_FAILED):
            self._store.system.delete_dir(self._folder)

    def _sweep(self) -> None:
        if self._swept:
            return
        self._swept = True
        selector = fs.FileSelector(self._store.root, recursive=True, allow_not_found=True)
        oldest = self.clock.now().wall - int(ORPHAN_SECONDS * 1e9)
        with contextlib.suppress(*_FAILED):  # who may not list leaves nothing behind mostly
            for info in self._store.system.get_file_info(selector):
                inner = info.path.removeprefix(f"{self._store.root}/")
                old = (info.mtime_ns or oldest) < oldest
                if info.type is fs.FileType.File and old and _OURS.match(inner):
                    self._store.delete(info.path)


@dataclass(frozen=True)
class _Store:
    """A filesystem, what removes a file of it, the place in it, and how executors address a name in
    it."""

    system: fs.FileSystem
    delete: Callable[[str], None]
    root: str
    shown: str
    location: Callable[[str], str]


def _store(url: str, clock: Clock) -> _Store:
    place = staging_place(url)
    if place.root.startswith("hdfs:"):
        raise ChangefeedError(
            Code.INVALID_OPTION_VALUE,
            "rows of a reader are staged in S3 or in a directory, not in HDFS",
            hint="Python has no client of HDFS without Hadoop's native library.",
        )
    if place.s3 is None:
        local = fs.LocalFileSystem()
        return _Store(local, local.delete_file, place.root, place.root, str)
    root = place.root.removeprefix("s3a://")
    signer = S3Signer.of(place.s3.arguments)
    arguments = place.s3.arguments
    client = StoreClient(partial(connect, "s3", arguments), clock=clock, s3=arguments)

    def location(name: str) -> str:
        if signer is None:
            return f"s3://{name}"
        bucket, _, key = name.partition("/")
        return signer.url(bucket, key, clock.now().datetime())

    return _Store(client.system, client.delete, root, place.root, location)
