"""Files of one Delta table: in a folder of this machine, or in a bucket of S3.

Delta's protocol needs one thing of the place: that a commit's file cannot be written twice. A disk
links a whole file to its name; S3 takes an object with ``If-None-Match: *``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from changefeed.core.durable import sync_path
from changefeed.core.extras import installed
from changefeed.core.stores import without_empty
from sinks.lake.files import S3Access
from sinks.lake.place import LakePlace

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

#: The folder of a table's log.
LOG = "_delta_log"
#: An object with more bytes is read in parts.
_WHOLE = 8 << 20
#: Paths in a bucket that need no escapes.
_PLAIN = re.compile(r"[A-Za-z0-9_.=/-]*\Z")
#: Files of a round that go to a bucket at the same time.
_UPLOADS = 4
_SECONDS = timedelta(seconds=30)


class LogFile(NamedTuple):
    """A file in a table's log: its name, and when it was written, in seconds since 1970."""

    name: str
    written: float


class TableFiles(Protocol):
    """The files of a table, by their paths below its folder. Errors of the place are OSErrors."""

    #: The table's name, for people.
    name: str
    #: Whether a write that has failed is there by then, or never will be. A request to a store may
    #: still arrive.
    certain: bool

    def logged(self, after: str = "") -> Iterator[LogFile]:
        """The files in the log whose names follow ``after``, in order, listed as they are taken."""

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file: ``size`` from ``start`` on, or all that follow.

        Raises:
            FileNotFoundError, OSError
        """

    def parquet(self, path: str) -> AbstractContextManager[pq.ParquetFile]:
        """A Parquet file of which parts are read; old timestamps are in microseconds."""

    def add(self, files: Mapping[str, pa.Buffer]) -> None:
        """Write new files, which survive a crash.

        Raises:
            OSError: some of them may be there.
        """

    def commit(self, path: str, content: bytes) -> None:
        """Write a file that must not be there: all of it, or none.

        Raises:
            FileExistsError: there is one.
            OSError: the file may be there.
        """

    def replace(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a file in place of one that may be there.

        Raises:
            OSError: the old one or the new one is there.
        """

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, which may be missing."""

    def refuses(self, path: str) -> bool:
        """Whether :meth:`commit` fails for a file that is there, which it leaves as it is."""


class LocalTableFiles:
    """Files in a folder of this machine."""

    certain = True

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._folder = folder

    def logged(self, after: str = "") -> Iterator[LogFile]:
        for name in sorted(os.listdir(self._folder / LOG)):
            if name > after:
                with contextlib.suppress(FileNotFoundError):  # another writer cleans up, too
                    yield LogFile(name, os.stat(self._folder / LOG / name).st_mtime)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with (self._folder / path).open("rb") as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        with pq.ParquetFile(self._folder / path, coerce_int96_timestamp_unit="us") as opened:
            yield opened

    def add(self, files: Mapping[str, pa.Buffer]) -> None:
        for path, content in files.items():
            _write(self._folder / path, content)
        if files:
            sync_path(self._folder)

    def commit(self, path: str, content: bytes) -> None:
        self._put(path, content, os.link)
        sync_path((self._folder / path).parent)

    def replace(self, path: str, content: bytes | pa.Buffer) -> None:
        self._put(path, content, os.replace)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._folder / path).unlink(missing_ok=True)

    def refuses(self, path: str) -> bool:
        return True

    def _put(
        self, path: str, content: bytes | pa.Buffer, name: Callable[[Path, Path], None]
    ) -> None:
        """Write a file under another name, and ``name`` it when it is whole."""
        whole = self._folder / path
        fresh = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}")
        try:
            _write(fresh, content)
            name(fresh, whole)
        finally:
            fresh.unlink(missing_ok=True)


class StoredTableFiles:
    """Files below ``prefix`` in a bucket; ``access``: how to get there. Connects with the first
    call."""

    certain = False

    def __init__(self, bucket: str, prefix: str, access: S3Access) -> None:
        self.name = prefix.rpartition("/")[2]
        self._bucket, self._prefix = bucket, prefix
        self._access = access
        self._client: S3Store | None = None

    def logged(self, after: str = "") -> Iterator[LogFile]:
        offset = f"{self._prefix}/{LOG}/{after}" if after else None
        head = f"{self._prefix}/{LOG}/"
        with _as_os_errors():
            for some in self._store.list(head, offset=offset):
                for its in some:
                    name = its["path"].removeprefix(head)
                    if "/" not in name:
                        yield LogFile(name, its["last_modified"].timestamp())

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with _as_os_errors():
            if size is not None:
                return bytes(self._store.get_range(self._key(path), start=start, length=size))
            rest: GetOptions = {"range": {"offset": start}} if start else {}
            return bytes(self._store.get(self._key(path), options=rest).bytes())

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        with _as_os_errors():
            found = self._store.get(self._key(path))
            size = found.meta["size"]
            whole = io.BytesIO(found.bytes()) if size <= _WHOLE else None
        source = whole or _StoredParts(self, path, size)
        options = {"coerce_int96_timestamp_unit": "us", "pre_buffer": True}
        with pq.ParquetFile(source, **options) as opened:
            yield opened

    def add(self, files: Mapping[str, pa.Buffer]) -> None:
        def upload(path: str) -> None:
            with _as_os_errors():
                self._store.put(self._key(path), memoryview(files[path]).cast("B"))

        if len(files) == 1:
            upload(*files)
        elif files:
            with ThreadPoolExecutor(_UPLOADS) as threads:
                list(threads.map(upload, files))

    def commit(self, path: str, content: bytes) -> None:
        try:
            self._create(path, content)
        except FileExistsError:
            # The client may have repeated a request that was done.
            if self.read(path) != content:
                raise

    def replace(self, path: str, content: bytes | pa.Buffer) -> None:
        with _as_os_errors():
            self._store.put(self._key(path), memoryview(content).cast("B"))

    def remove(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        if keys:
            with _as_os_errors():
                self._store.delete(keys)

    def refuses(self, path: str) -> bool:
        try:
            self._create(path, self.read(path))  # what an unable store writes is what is there
        except FileExistsError:
            return True
        return False

    def _create(self, path: str, content: bytes) -> None:
        with _as_os_errors():
            self._store.put(self._key(path), content, mode="create", use_multipart=False)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}"

    @property
    def _store(self) -> S3Store:
        if self._client is None:
            self._client = _connected(self._bucket, self._access)
        return self._client


class _StoredParts(io.RawIOBase):
    """An object as a file, each read of which is a request."""

    def __init__(self, files: StoredTableFiles, path: str, size: int) -> None:
        self._files, self._path, self._size = files, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = begin[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        count = left if size < 0 else min(size, left)
        found = self._files.read(self._path, self._at, count) if count else b""
        self._at += count
        return found


def files_by_table(
    place: LakePlace, folder: Path | None, session: Mapping[str, str]
) -> Callable[[str], TableFiles] | None:
    """The files of each table of a place; None: only Spark can write there.

    Args:
        folder: of this machine, if the place is one.
        session: Spark's settings, of which some say more of the store than the place does.
    """
    if folder is not None:
        return lambda name: LocalTableFiles(folder / name)
    address = urlsplit(place.root)
    prefix = address.path.strip("/")
    able = place.format == "delta" and address.scheme == "s3a" and installed("obstore")
    if not (able and prefix and _PLAIN.match(prefix)):
        return None
    access = S3Access.of_writer(_of_bucket(address.netloc, session) | dict(place.settings))
    if access is None:
        return None
    return lambda name: StoredTableFiles(address.netloc, f"{prefix}/{name}", access)


def _of_bucket(bucket: str, session: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings of Hadoop's filesystems: those of the bucket stand before those of all."""
    head, one = "spark.hadoop.", "fs.s3a.bucket."
    found = {n.removeprefix(head): v for n, v in session.items() if n.startswith(head)}
    everywhere = {name: value for name, value in found.items() if not name.startswith(one)}
    own = f"{one}{bucket}."
    return everywhere | {
        f"fs.s3a.{name.removeprefix(own)}": value
        for name, value in found.items()
        if name.startswith(own)
    }


def _connected(bucket: str, access: S3Access) -> S3Store:
    from obstore.store import S3Store
    from pyarrow import fs

    config = {
        "access_key_id": access.key,
        "secret_access_key": access.secret,
        "session_token": access.token,
        "endpoint": access.endpoint,
        "region": access.region,
    }
    regions = {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys()
    with _as_os_errors():
        if not (access.region or access.endpoint or regions):
            config["region"] = fs.resolve_s3_region(bucket)
        return S3Store(
            bucket,
            config=cast("Any", without_empty(config)),
            client_options={"allow_http": access.plain, "timeout": _SECONDS},
            retry_config={"max_retries": 2, "retry_timeout": _SECONDS},
        )


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Errors of the client as errors of a disk. Its texts, which may name keys, are left out."""
    from obstore import exceptions

    kinds = (
        (exceptions.NotFoundError, FileNotFoundError(errno.ENOENT, "no such object")),
        (exceptions.AlreadyExistsError, FileExistsError(errno.EEXIST, "the object exists")),
        (exceptions.PreconditionError, FileExistsError(errno.EEXIST, "the object exists")),
        (exceptions.PermissionDeniedError, PermissionError(errno.EACCES, "access denied")),
        (exceptions.UnauthenticatedError, PermissionError(errno.EACCES, "login refused")),
    )
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object") from None
    except exceptions.BaseError as failure:
        for kind, error in kinds:
            if isinstance(failure, kind):
                raise error from None
        raise OSError(errno.EIO, f"the store failed ({type(failure).__name__})") from None


def _write(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a new file whose content survives a crash of the machine."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
