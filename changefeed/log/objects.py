"""The store of a shared log: a bucket of S3 or Google Cloud Storage, a container of Azure, or a
directory that all nodes see.

An object is written once under a name that nothing else has ever had, and never changed.
"""

from __future__ import annotations

import datetime as dt
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyarrow import fs

from changefeed.core.durable import UNFINISHED, sync_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import ParameterKind, Settings, invalid, setting
from changefeed.core.telemetry import log

#: Seconds a request may take to connect, and to be answered.
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 60.0

#: What the clients raise.
_FAILED: Final = (OSError, pa.ArrowException)

_HINT: Final = (
    "write s3://bucket/folder, gs://bucket/folder, azure://container/folder or a directory that "
    "all nodes see."
)

_S3, _GS, _AZURE = ("s3",), ("gs",), ("azure",)


def _server(text: str) -> tuple[str, str]:
    """Scheme and ``host[:port]`` of a server; https if it names no scheme."""
    scheme, mark, host = text.rpartition("://")
    return (scheme if mark else "https", host.rstrip("/"))


def _endpoint(name: str, schemes: tuple[str, ...]) -> Any:
    summary = "Another store with the same protocol."
    return setting(None, summary, ParameterKind.URL, name=name, schemes=schemes, convert=_server)


@dataclass(frozen=True, kw_only=True)
class LogStoreSettings(Settings):
    """The address of a store. Parameters have the names that they have for file sinks; without a
    key the machine's login is used."""

    called: ClassVar[str] = "log store"

    access_key: str = setting("", "The access key.", name="AWS_ACCESS_KEY_ID", schemes=_S3)
    secret_key: str = setting(
        "", "Its secret.", name="AWS_SECRET_ACCESS_KEY", secret=True, schemes=_S3
    )
    session_token: str = setting(
        "",
        "The token of a temporary access key.",
        name="AWS_SESSION_TOKEN",
        secret=True,
        schemes=_S3,
    )
    region: str = setting("", "The bucket's region.", name="AWS_REGION", schemes=_S3)
    s3_endpoint: tuple[str, str] | None = _endpoint("AWS_ENDPOINT", _S3)
    bearer_token: str = setting(
        "", "An OAuth token.", name="BEARER_TOKEN", secret=True, schemes=_GS
    )
    gcs_endpoint: tuple[str, str] | None = _endpoint("GCS_ENDPOINT", _GS)
    account_name: str = setting(
        "", "The storage account; always needed.", name="AZURE_ACCOUNT_NAME", schemes=_AZURE
    )
    account_key: str = setting(
        "", "The account's key.", name="AZURE_ACCOUNT_KEY", secret=True, schemes=_AZURE
    )
    azure_endpoint: tuple[str, str] | None = _endpoint("AZURE_ENDPOINT", _AZURE)

    def check(self) -> Iterator[ChangefeedError]:
        if self.uri.scheme not in (*_S3, *_GS, *_AZURE) or not self.uri.host:
            yield invalid("logs cannot be kept there", _HINT, Code.INVALID_URI)
        elif self.uri.scheme in _AZURE and not self.account_name:
            yield invalid("param AZURE_ACCOUNT_NAME must be provided")

    def connect(self) -> fs.FileSystem:
        """A client of the store; it connects with its first call."""
        if self.uri.scheme in _S3:
            return fs.S3FileSystem(
                access_key=self.access_key or None,
                secret_key=self.secret_key or None,
                session_token=self.session_token or None,
                region=self.region or None,
                connect_timeout=_CONNECT_SECONDS,
                request_timeout=_ANSWER_SECONDS,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
                **_at(self.s3_endpoint),
            )
        if self.uri.scheme in _GS:
            login: dict[str, Any] = {}
            if self.bearer_token:
                # It says itself when it ends.
                login["access_token"] = self.bearer_token
                login["credential_token_expiration"] = dt.datetime.max
            return fs.GcsFileSystem(
                **login,
                retry_time_limit=dt.timedelta(seconds=_CONNECT_SECONDS),
                **_at(self.gcs_endpoint),
            )
        arguments = {}
        if self.azure_endpoint is not None:
            # Where accounts have no host of their own, their name begins the path; the client adds
            # it.
            scheme, host = self.azure_endpoint
            for service in ("blob", "dfs"):
                arguments[f"{service}_storage_scheme"] = scheme
                arguments[f"{service}_storage_authority"] = host.removesuffix(
                    f"/{self.account_name}"
                )
        return fs.AzureFileSystem(
            self.account_name, account_key=self.account_key or None, **arguments
        )


def _at(endpoint: tuple[str, str] | None) -> dict[str, str]:
    return {} if endpoint is None else {"endpoint_override": endpoint[1], "scheme": endpoint[0]}


class ObjectStore:
    """A place for objects by name; may be used by several threads."""

    def __init__(self, address: str) -> None:
        """``address`` as ``--log`` has it. Connects with the first call.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207: it is no such address.
        """
        self.address = address
        self._connect: Callable[[], fs.FileSystem] = fs.LocalFileSystem
        self._local = address.startswith("/")
        if self._local:
            self._root = self.shown = address.rstrip("/")
        else:
            settings = LogStoreSettings.read(address)
            self._connect = settings.connect
            self._root = f"{settings.uri.host}/{settings.uri.path.strip('/')}".rstrip("/")
            self.shown = f"{settings.uri.scheme}://{self._root}"
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
                    self._system.delete_file(f"{self._root}/{name}")
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
            # The text of a client may name keys; its first words are the status.
            why = error.strerror if isinstance(error, OSError) and error.strerror else _kind(error)
            raise ChangefeedError(
                Code.LOG_STORE_UNREACHABLE,
                f"the change log cannot be {done} in {self.shown}: {why}",
                detail=f"object {name}" if name else "",
            ) from None


def _write_whole(path: Path, data: bytes | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(path.name + UNFINISHED)
    if isinstance(data, bytes):
        fresh.write_bytes(data)
    else:
        shutil.copyfile(data, fresh)
    sync_path(fresh)
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
