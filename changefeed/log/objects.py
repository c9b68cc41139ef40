"""The store of a shared log: a bucket of S3 or Google Cloud Storage, a container of Azure, or a
directory that all nodes see.

An object is written once under a name that nothing else has ever had, and never changed.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

from changefeed.core.durable import UNFINISHED, sync_path
from changefeed.core.errors import ChangefeedError, Code

#: Seconds a request may take to connect, and to be answered.
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 60.0

#: What the clients raise.
_FAILED: Final = (OSError, pa.ArrowException)

_HINT: Final = (
    "write s3://bucket/folder?AWS_REGION=.., gs://bucket/folder, azure://account/container/folder "
    "or a directory that all nodes see."
)

_S3: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT",
)
_AZURE: Final = ("AZURE_ACCOUNT_KEY", "AZURE_SAS_TOKEN", "AZURE_ENDPOINT")
_GCS: Final = ("GCS_ENDPOINT",)


class ObjectStore:
    """A place for objects by name; may be used by several threads."""

    def __init__(self, address: str) -> None:
        """``address`` as ``--log`` has it. Connects with the first call.

        Raises:
            ChangefeedError: CF1201, CF1202: it is no such address; without its text, which may
                contain a secret.
        """
        self._connect, self._root, self.shown = _place(address)
        self._local = "://" not in self.shown
        self._lock = threading.Lock()
        self._connected: fs.FileSystem | None = None

    @property
    def _system(self) -> fs.FileSystem:
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

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

    def get(self, name: str) -> bytes:
        """The bytes of an object.

        Raises:
            ChangefeedError: CF3007.
        """
        with self._reported("read"), self._system.open_input_file(f"{self._root}/{name}") as source:
            return bytes(source.read())

    def fetch(self, name: str, path: Path, size: int) -> None:
        """Copy an object of ``size`` bytes to a file, which appears when it is whole.

        Raises:
            ChangefeedError: CF3007, also if the object has another size.
        """
        fresh = path.with_name(path.name + UNFINISHED)
        with self._reported("read"):
            with self._system.open_input_stream(f"{self._root}/{name}") as source:
                with open(fresh, "wb") as target:
                    while block := source.read(1 << 20):
                        target.write(block)
            if (found := fresh.stat().st_size) != size:
                raise OSError(f"{name} has {found} bytes instead of {size}")
        fresh.replace(path)

    def remove(self, names: list[str]) -> None:
        """Remove objects; those that are not there are no error.

        Raises:
            ChangefeedError: CF3007; some may be left.
        """
        for name in names:
            with self._reported("written"):
                try:
                    self._system.delete_file(f"{self._root}/{name}")
                except FileNotFoundError:
                    continue

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
    def _reported(self, done: str) -> Iterator[None]:
        try:
            yield
        except _FAILED as error:
            # The text of a client may name keys; its first words are the status.
            why = error.strerror if isinstance(error, OSError) and error.strerror else _kind(error)
            raise ChangefeedError(
                Code.LOG_STORE_UNREACHABLE,
                f"the change log cannot be {done} in {self.shown}: {why}",
            ) from None


def _write_whole(path: Path, data: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(path.name + UNFINISHED)
    with open(fresh, "wb") as target:
        target.write(data if isinstance(data, bytes) else data.read_bytes())
        target.flush()
        os.fsync(target.fileno())
    fresh.replace(path)
    sync_path(path.parent)


def _kind(error: BaseException) -> str:
    """What a store's client reports, in words that name no key."""
    text = str(error)
    for sign, words in (
        ("ACCESS_DENIED", "access denied"),
        ("NO_SUCH_BUCKET", "no such bucket"),
        ("NETWORK_CONNECTION", "no connection"),
        ("SLOW_DOWN", "the store asks to slow down"),
        ("SERVICE_UNAVAILABLE", "the store is not available"),
        ("timeout", "no answer in time"),
        ("INTERNAL_FAILURE", "the store failed"),
    ):
        if sign in text:
            return words
    return type(error).__name__


def _place(address: str) -> tuple[Callable[[], fs.FileSystem], str, str]:
    """How to connect, the path of the place in that filesystem, and the place without secrets."""
    if address.startswith("/"):
        root = address.rstrip("/") or "/"
        return fs.LocalFileSystem, root, root
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ChangefeedError(Code.INVALID_URI, "--log is no URL", hint=_HINT) from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = parts.path.strip("/")
    if not parts.hostname or port or "@" in parts.netloc or parts.fragment:
        raise ChangefeedError(Code.INVALID_URI, "--log names no place for objects", hint=_HINT)
    root = f"{parts.netloc}/{path}".rstrip("/")
    shown = f"{parts.scheme}://{root}"
    if parts.scheme == "s3":
        _only(given, _S3)
        return lambda: _s3(given), root, shown
    if parts.scheme == "gs":
        _only(given, _GCS)
        return lambda: _gcs(given), root, shown
    if parts.scheme == "azure" and path:
        _only(given, _AZURE)
        return lambda: _azure(parts.netloc, given), path, shown
    raise ChangefeedError(Code.INVALID_URI, "--log cannot be kept there", hint=_HINT)


def _only(given: dict[str, str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ChangefeedError(
                Code.UNKNOWN_PARAMETER,
                f"--log has no parameter {name}",
                hint=f"known: {', '.join(known)}.",
            )


def _s3(given: dict[str, str]) -> fs.FileSystem:
    scheme, _, host = given.get("AWS_ENDPOINT", "").rpartition("://")
    return fs.S3FileSystem(
        access_key=given.get("AWS_ACCESS_KEY_ID"),
        secret_key=given.get("AWS_SECRET_ACCESS_KEY"),
        session_token=given.get("AWS_SESSION_TOKEN"),
        region=given.get("AWS_REGION"),
        scheme=scheme or "https",
        endpoint_override=host or None,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_ANSWER_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )


def _gcs(given: dict[str, str]) -> fs.FileSystem:
    scheme, _, host = given.get("GCS_ENDPOINT", "").rpartition("://")
    return fs.GcsFileSystem(
        anonymous=bool(host), scheme=scheme or "https", endpoint_override=host or None
    )


def _azure(account: str, given: dict[str, str]) -> fs.FileSystem:
    scheme, _, host = given.get("AZURE_ENDPOINT", "").rpartition("://")
    return fs.AzureFileSystem(
        account,
        account_key=given.get("AZURE_ACCOUNT_KEY"),
        sas_token=given.get("AZURE_SAS_TOKEN"),
        blob_storage_authority=host or None,
        blob_storage_scheme=scheme or None,
    )
