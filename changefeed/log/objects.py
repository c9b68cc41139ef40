"""The store of a shared log: a bucket of S3 or Google Cloud Storage, a container of Azure, or a
directory that all nodes see.

An object is written once under a name that nothing else has ever had, and never changed.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyarrow import fs

from changefeed.core.durable import UNFINISHED, sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import invalid
from changefeed.core.stores import (
    StoreClient,
    StoreLogin,
    connect,
    login_seconds,
    store_problem,
)
from changefeed.core.telemetry import log

#: Of the client of S3.
_LIMITS: Final[dict[str, Any]] = {
    "request_timeout": 60.0,
    "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=3),
}
if int(pa.__version__.partition(".")[0]) >= 21:
    # A small object is one request instead of three.
    _LIMITS["allow_delayed_open"] = True

#: What the clients raise.
_FAILED: Final = (OSError, pa.ArrowException)

_HINT: Final = (
    "write s3://bucket/folder, gs://bucket/folder, azure://container/folder or a directory that "
    "all nodes see."
)


@dataclass(frozen=True, kw_only=True)
class LogStoreSettings(StoreLogin):
    """The address of a store. Without a key the machine's login is used."""

    called: ClassVar[str] = "log store"

    def check(self) -> Iterator[ChangefeedError]:
        if self.uri.scheme not in ("s3", "gs", "azure") or not self.uri.host:
            yield invalid("logs cannot be kept there", _HINT, Code.INVALID_URI)
        elif self.role and self.s3.access_key:
            yield invalid("ASSUME_ROLE does not go with a key in the address")


class ObjectStore:
    """A place for objects by name; may be used by several threads."""

    def __init__(self, address: str) -> None:
        """``address`` as ``--log`` has it. Connects with the first call.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207: it is no such address.
        """
        self.address = address
        self._client = StoreClient(fs.LocalFileSystem)
        self._local = address.startswith("/")
        if self._local:
            self._root = self.shown = address.rstrip("/")
        else:
            settings = LogStoreSettings.read(address)
            scheme, arguments = settings.uri.scheme, settings.arguments
            client = partial(connect, scheme, arguments, **_LIMITS)
            self._client = StoreClient(
                client,
                lifetime=login_seconds(arguments),
                s3=arguments if scheme == "s3" else None,
            )
            self._root = f"{settings.uri.host}/{settings.uri.path.strip('/')}".rstrip("/")
            self.shown = f"{settings.uri.scheme}://{self._root}"

    @property
    def _system(self) -> fs.FileSystem:
        return self._client.system

    def put(self, name: str, data: bytes | Path) -> None:
        """Store bytes, or a file; durable on return.

        Raises:
            ChangefeedError: CF3007; the object may be there or not.
        """
        path = f"{self._root}/{name}"
        with self._reported("written"):
            if self._local:
                _write_whole(Path(path), data)
                return
            with self._system.open_output_stream(path) as target:
                if isinstance(data, bytes):
                    target.write(data)
                else:
                    with pa.memory_map(str(data)) as source:
                        target.write(source.read_buffer())

    def put_new(self, name: str, data: bytes | Path) -> str:
        """:meth:`put` under a name that begins with ``name`` and that nothing else has ever had;
        returns it."""
        found = f"{name}-{uuid.uuid4().hex[:12]}"
        self.put(found, data)
        return found

    def get(self, name: str) -> bytes:
        """The bytes of an object.

        Raises:
            ChangefeedError: CF3007.
        """
        with (
            self._reported("read", name),
            self._system.open_input_file(f"{self._root}/{name}") as source,
        ):
            return bytes(source.read())

    def fetch(self, name: str, path: Path, size: int) -> None:
        """Copy an object of ``size`` bytes to a file, which appears when it is whole.

        Raises:
            ChangefeedError: CF3007, also if the object has another size.
        """
        fresh = path.with_name(path.name + UNFINISHED)
        with self._reported("read", name):
            with self._system.open_input_stream(f"{self._root}/{name}") as source:
                with open(fresh, "wb") as target:
                    while block := source.read(1 << 20):
                        target.write(block)
            if (found := fresh.stat().st_size) != size:
                raise OSError(f"{name} has {found} bytes instead of {size}")
        fresh.replace(path)

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name.

        Raises:
            ChangefeedError: CF3007.
        """
        with self._reported("read", name):
            found = self._system.get_file_info(f"{self._root}/{name}")
        return found.type is fs.FileType.File

    def remove(self, names: list[str]) -> None:
        """Remove objects; those that are not there are no error.

        Raises:
            ChangefeedError: CF3007; some may be left.
        """
        for name in names:
            with self._reported("written"):
                try:
                    self._client.delete(f"{self._root}/{name}")
                except FileNotFoundError:
                    continue

    def discard(self, names: list[str]) -> None:
        """Remove objects that are no longer needed. Those that are left are removed by a later
        sweep (:meth:`changefeed.log.shared.SharedLog.sweep`)."""
        try:
            self.remove(names)
        except ChangefeedError as error:
            log.warning("change log: %s", error.message)

    def names(self, folder: str) -> Iterator[tuple[str, int]]:
        """The objects below a folder, and when each was written (ns), in no order.

        Raises:
            ChangefeedError: CF3007.
        """
        selector = fs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        with self._reported("listed"):
            found = self._system.get_file_info(selector)
        for info in found:
            if info.type is fs.FileType.File:
                yield info.path.removeprefix(f"{self._root}/"), info.mtime_ns or 0

    def probe(self) -> None:
        """Write, read and remove an object.

        Raises:
            ChangefeedError: CF3007, one of them cannot be done.
        """
        name, data = f".probe-{uuid.uuid4().hex}", b"changefeed"
        self.put(name, data)
        if self.get(name) != data:
            raise ChangefeedError(
                Code.LOG_STORE_UNREACHABLE, f"{self.shown} does not give back what was written"
            )
        self.remove([name])

    @contextmanager
    def _reported(self, done: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except _FAILED as error:
            # The text of a client may name keys.
            reason = error.strerror if isinstance(error, OSError) else None
            why = store_problem(error)[1] or reason or type(error).__name__
            raise ChangefeedError(
                Code.LOG_STORE_UNREACHABLE,
                f"the change log cannot be {done} in {self.shown}: {why}",
                detail=f"object {name}" if name else "",
            ) from None
        except ChangefeedError as error:
            raise ChangefeedError(
                Code.LOG_STORE_UNREACHABLE,
                f"the change log cannot be {done} in {self.shown}: {error.message}",
            ) from None


def _write_whole(path: Path, data: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(path.name + UNFINISHED)
    try:
        if isinstance(data, bytes):
            fresh.write_bytes(data)
        else:
            shutil.copyfile(data, fresh)
        sync_path(fresh)
        fresh.replace(path)
    except OSError:
        # The next try has another name: on a full disk the parts would never make room.
        fresh.unlink(missing_ok=True)
        raise
    sync_path(path.parent)
