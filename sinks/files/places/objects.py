"""Object stores and HDFS, by ``pyarrow.fs``: S3, Google Cloud Storage, Azure, HDFS.

On the three stores an object appears when its upload is complete. HDFS shows a file while it is
being written, so there it is written below ``.tmp`` and renamed.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from changefeed.errors import ChangefeedError
from sinks.files.places import remote
from sinks.files.places.base import Listed, Move
from sinks.files.places.spec import PlaceSpec

PROBE = ".probe"
CONNECT_SECONDS = 5.0
TOKEN_SECONDS = 1800.0
"""Half of what Google gives a token."""


class ObjectPlace:
    """A bucket and prefix; or with ``renames`` a folder of a filesystem that has a rename."""

    staging = None

    def __init__(
        self,
        connect: Callable[[], fs.FileSystem],
        root: str,
        address: str,
        *,
        renames: bool = False,
        lifetime: float = math.inf,
    ) -> None:
        """``root`` is the path in the filesystem, ``address`` what stands before names in URLs.

        ``connect`` is called again after ``lifetime`` seconds, for logins that end.
        """
        self._connect = connect
        self._root = root
        self._address = address
        self._renames = renames
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._connected: tuple[fs.FileSystem, float] | None = None

    @property
    def _system(self) -> fs.FileSystem:
        with self._lock:
            if self._connected is None or time.monotonic() > self._connected[1]:
                self._connected = (self._connect(), time.monotonic() + self._lifetime)
            return self._connected[0]

    def prepare(self, job: int, session: str) -> None:
        """Put and remove a hidden file: a key that may write may not be allowed to look."""
        name = f"{PROBE}-{job}-{session}"
        self.put(name, b"")
        self.remove([name])

    def publish(self, moves: Sequence[Move]) -> None:
        remote.publish(moves, self._put)

    def put(self, name: str, content: bytes) -> None:
        self._put(name, pa.py_buffer(content))

    def _put(self, name: str, content: pa.Buffer) -> None:
        path = f"{self._root}/{name}"
        if not self._renames:
            self._upload(path, content)
            return
        temporary = f"{self._root}/.tmp/{secrets.token_hex(8)}"
        for folder in (temporary, path):
            self._system.create_dir(folder.rpartition("/")[0], recursive=True)
        self._upload(temporary, content)
        self._system.move(temporary, path)

    def _upload(self, path: str, content: pa.Buffer) -> None:
        # One write of the whole: an upload that breaks off is never completed, because closing
        # after a failed part fails too.
        with self._system.open_output_stream(path, compression=None) as stream:
            stream.write(content)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._system.delete_file(f"{self._root}/{name}")
            except FileNotFoundError:
                continue
            except (OSError, ChangefeedError):
                return  # away, or the key may only write: the files do no harm

    def folders(self, folder: str) -> list[str]:
        return [info.base_name for info in self._list(folder) if info.type == fs.FileType.Directory]

    def files(self, folder: str) -> list[Listed]:
        found = [info for info in self._list(folder) if info.type == fs.FileType.File]
        return [Listed(info.base_name, int(info.size)) for info in found]

    def _list(self, folder: str) -> list[fs.FileInfo]:
        path = f"{self._root}/{folder}".rstrip("/")
        found: list[fs.FileInfo] = self._system.get_file_info(
            fs.FileSelector(path, allow_not_found=True)
        )
        return found

    def url(self, name: str) -> str:
        return f"{self._address}/{name}"

    def close(self) -> None:
        """The client keeps its connections for the next use."""


def open_objects(spec: PlaceSpec) -> ObjectPlace:
    """The place of a checked URI; it connects at its first use."""
    return ObjectPlace(
        lambda: _SYSTEMS[spec.scheme](dict(spec.arguments)),
        spec.root,
        spec.shown,
        renames=spec.scheme == "hdfs",
        lifetime=TOKEN_SECONDS if "service_account" in spec.arguments else math.inf,
    )


def _s3(arguments: dict[str, Any]) -> fs.FileSystem:
    return fs.S3FileSystem(connect_timeout=CONNECT_SECONDS, **arguments)


def _gs(arguments: dict[str, Any]) -> fs.FileSystem:
    key = arguments.pop("service_account", None)
    if key is not None:
        arguments |= _google_token(key)
    elif "access_token" in arguments:
        # Its end is not known; the client asks for one.
        arguments["credential_token_expiration"] = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    return fs.GcsFileSystem(retry_time_limit=dt.timedelta(seconds=30), **arguments)


def _google_token(key: Mapping[str, Any]) -> dict[str, Any]:
    """A token for a service account's key; ``pyarrow`` takes no key itself.

    Raises:
        ChangefeedError: CF5005, google-auth is missing; CF5002, the key is refused.
    """
    try:
        import google.auth.exceptions
        import google.auth.transport.requests
        from google.oauth2 import service_account
    except ImportError as error:
        raise ChangefeedError(
            "CF5005",
            "gs:// with CREDENTIALS needs the package google-auth, which is not installed",
            hint="pip install 'changefeed[bigquery]', or use AUTH=implicit.",
        ) from error
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    try:
        maker: Any = service_account.Credentials  # its types end here
        credentials = maker.from_service_account_info(key, scopes=[scope])
        credentials.refresh(google.auth.transport.requests.Request())
    except google.auth.exceptions.TransportError as error:
        raise ChangefeedError("CF5001", "cannot reach Google's token server") from error
    except (google.auth.exceptions.GoogleAuthError, ValueError) as error:
        raise ChangefeedError("CF5002", "Google refused the key of CREDENTIALS") from error
    return {
        "access_token": credentials.token,
        "credential_token_expiration": credentials.expiry.replace(tzinfo=dt.UTC),
    }


def _azure(arguments: dict[str, Any]) -> fs.FileSystem:
    return fs.AzureFileSystem(**arguments)


def _hdfs(arguments: dict[str, Any]) -> fs.FileSystem:
    try:
        return fs.HadoopFileSystem(**arguments)
    except OSError as error:
        if "libhdfs" in str(error) or "libjvm" in str(error):
            raise ChangefeedError(
                "CF5005",
                "hdfs:// needs Hadoop's native library, which was not found",
                hint="set HADOOP_HOME, and CLASSPATH to the output of hadoop classpath --glob.",
            ) from error
        raise


_SYSTEMS: Mapping[str, Callable[[dict[str, Any]], fs.FileSystem]] = {
    "s3": _s3,
    "gs": _gs,
    "azure": _azure,
    "hdfs": _hdfs,
}
