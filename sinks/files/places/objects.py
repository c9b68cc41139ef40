"""Object stores and HDFS, by ``pyarrow.fs``: S3, Google Cloud Storage, Azure, HDFS.

In S3 and Google's store an object appears when its upload is complete. HDFS and the client of
Azure show a file while it is being written (Azure's begins with an empty blob), so there it is
written below ``.tmp`` and then renamed, or copied by the store, which shows the copy as a whole.

Google's client lists no folder that has no object of its own, so where buckets are to be found
again each folder gets one (an empty object whose name ends in ``/``, as its console makes them).
"""

from __future__ import annotations

import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.stores import StoreClient, connect, login_seconds
from sinks.files.places.base import ListedFile, Move, PublishedFile, publish_whole
from sinks.files.places.spec import PlaceSpec

PROBE = ".probe"
ORPHAN_SECONDS = 3600.0
"""Age at which a file below ``.tmp`` no longer belongs to an upload: none takes that long."""

TEMPORARY = ".tmp"

_FAILED = (OSError, pa.ArrowException)
"""What clients raise; Azure's a plain ArrowException where a login fails."""

PUT, COPY, MOVE = "put", "copy", "move"

_WAYS = {
    "azure": COPY,  # the client moves files only in accounts with a hierarchical namespace
    "hdfs": MOVE,
}

_OURS = {COPY: re.compile(r"([0-9a-f]{16})/part"), MOVE: re.compile(r"([0-9a-f]{16})")}
"""What :meth:`ObjectPlace._temporary` calls its files, below ``.tmp``."""


class ObjectPlace:
    """A bucket and prefix, or a folder of HDFS."""

    staging = None

    def __init__(
        self,
        connect: Callable[[], fs.FileSystem],
        root: str,
        address: str,
        clock: Clock,
        *,
        way: str = PUT,
        marks: bool = False,
        lifetime: float = math.inf,
        s3: Mapping[str, Any] | None = None,
    ) -> None:
        """``root`` is the path in the filesystem, ``address`` what stands before names in URLs.

        ``way`` says how a file gets its name: ``PUT``, or from ``.tmp`` by ``COPY`` or ``MOVE``.
        ``marks``: folders need an object of their own to be found. ``connect`` is called again
        after ``lifetime`` seconds, for logins that end. ``s3``: see :class:`StoreClient`.
        """
        self._client = StoreClient(connect, lifetime=lifetime, clock=clock, s3=s3)
        self._root = root
        self._address = address
        self._clock = clock
        self._way = way
        self._marks = marks
        self._marked: set[str] = set()

    @property
    def _system(self) -> fs.FileSystem:
        return self._client.system

    def prepare(self, job: int, session: str) -> None:
        """Put and remove a hidden file: a key that may write may not be allowed to look."""
        if self._way == COPY:
            self._forget(self._temporary(pa.py_buffer(b"")))
        else:
            name = f"{PROBE}-{job}-{session}"
            self.put(name, b"")
            self.remove([name])
        if self._way != PUT:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what a crash left below ``.tmp``, and nothing that has not our form of name.

        An upload that is swept by mistake fails and is tried again.
        """
        selector = fs.FileSelector(
            f"{self._root}/{TEMPORARY}", recursive=True, allow_not_found=True
        )
        try:
            found = self._system.get_file_info(selector)
        except _FAILED:
            return  # the key may not look: what is left does no harm
        folder = f"{self._root.rstrip('/')}/{TEMPORARY}/"
        below = [
            (info, info.path.partition(folder)[2])
            for info in found
            if info.type == fs.FileType.File
        ]
        # Azure's folder goes as a whole: not where another's file is in it.
        shared = Counter(name.partition("/")[0] for _, name in below)
        for info, name in below:
            age = (self._clock.now().wall - (info.mtime_ns or math.inf)) / 1e9
            ours = _OURS[self._way].fullmatch(name)
            if ours and shared[ours.group(1)] == 1 and age > ORPHAN_SECONDS:
                self._forget(info.path)

    def publish(self, moves: Sequence[Move]) -> None:
        publish_whole(moves, self._put)

    def put(self, name: str, content: bytes) -> None:
        self._put(name, pa.py_buffer(content))

    def _put(self, name: str, content: pa.Buffer) -> None:
        path = f"{self._root}/{name}"
        if self._marks and "/" in name:
            self._mark(name.rpartition("/")[0])
        if self._way == PUT:
            self._upload(path, content)
            return
        temporary = self._temporary(content)
        if self._way == MOVE:
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
            self._system.move(temporary, path)
        else:
            self._system.copy_file(temporary, path)
            self._forget(temporary)

    def _temporary(self, content: pa.Buffer) -> str:
        """The path of a new file below ``.tmp``; for Azure in a folder of its own."""
        folder = f"{self._root}/{TEMPORARY}"
        path = f"{folder}/{secrets.token_hex(8)}"
        if self._way == MOVE:
            self._system.create_dir(folder, recursive=True)
        else:
            path += "/part"
        self._upload(path, content)
        return path

    def _forget(self, temporary: str) -> None:
        """Remove a file that :meth:`_temporary` made, where that is possible; never raises,
        because a file that has its name by now would be written again.

        Azure's client takes a lease on a file that it removes, gives it back when the file is
        gone, and then waits for seconds; and it leaves an object for the folder. It removes
        folders without either.
        """
        try:
            if self._way == COPY:
                self._system.delete_dir(temporary.rpartition("/")[0])
            else:
                self._system.delete_file(temporary)
        except (*_FAILED, ChangefeedError):
            return  # away, or the key may only write: swept later

    def _mark(self, folder: str) -> None:
        """Make the objects that stand for the folder and those it is in, outermost first, before
        anything is in it: a crash leaves no file that is not found."""
        if folder in self._marked:
            return
        parts = f"{self._root}/{folder}".split("/")
        for end in range(2, len(parts) + 1):  # one by one: else it would make a bucket, too
            path = "/".join(parts[:end])
            try:
                self._system.create_dir(path, recursive=False)
            except OSError as error:
                # pyarrow's own words: it has no error number for this.
                if "conflicts with an existing file" not in str(error):
                    raise
                # Another program made the folder above, without the client's own sign on it.
                self._system.create_dir(path, recursive=True)
        if len(self._marked) > 1000:
            self._marked.clear()
        self._marked.add(folder)

    def _upload(self, path: str, content: pa.Buffer) -> None:
        # One write of the whole: an upload that breaks off is never completed, because closing
        # after a failed part fails too.
        with self._system.open_output_stream(path, compression=None) as stream:
            stream.write(content)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._client.delete(f"{self._root}/{name}")
            except FileNotFoundError:
                continue
            except (*_FAILED, ChangefeedError):
                return  # away, or the key may only write: the files do no harm

    def folders(self, folder: str) -> list[str]:
        return [info.base_name for info in self._list(folder) if info.type == fs.FileType.Directory]

    def files(self, folder: str) -> list[ListedFile]:
        found = [info for info in self._list(folder) if info.type == fs.FileType.File]
        return [ListedFile(info.base_name, int(info.size)) for info in found]

    def _list(self, folder: str) -> list[fs.FileInfo]:
        path = f"{self._root}/{folder}".rstrip("/")
        found: list[fs.FileInfo] = self._system.get_file_info(
            fs.FileSelector(path, allow_not_found=True)
        )
        return found

    def every(self) -> list[PublishedFile]:
        infos = self._system.get_file_info(
            fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        )
        return [
            PublishedFile(path, info.mtime_ns or 0)
            for info in infos
            if info.type == fs.FileType.File
            # HDFS says the address, too.
            and not (path := info.path.partition(f"{self._root}/")[2]).startswith(".")
        ]

    def open(self, path: str) -> pa.NativeFile:
        return self._system.open_input_stream(f"{self._root}/{path}", compression=None)

    def url(self, name: str) -> str:
        return f"{self._address}/{name}"

    def close(self) -> None:
        """The client keeps its connections for the next use."""


def open_objects(
    spec: PlaceSpec, clock: Clock, *, lists: bool, google_seconds: float
) -> ObjectPlace:
    """The place of a checked URI (:func:`sinks.files.sink.open_place`), not yet connected.

    ``lists``: what is put there has to be found by :meth:`ObjectPlace.folders`.
    """

    def system() -> fs.FileSystem:
        if spec.scheme == "hdfs":
            return _hdfs(spec.arguments)
        return connect(spec.scheme, spec.arguments, google_seconds=google_seconds)

    return ObjectPlace(
        system,
        spec.root,
        spec.shown,
        clock,
        way=_WAYS.get(spec.scheme, PUT),
        marks=lists and spec.scheme == "gs",
        lifetime=login_seconds(spec.arguments),
        s3=spec.arguments if spec.scheme == "s3" else None,
    )


def _hdfs(arguments: Mapping[str, Any]) -> fs.FileSystem:
    try:
        return fs.HadoopFileSystem(**arguments)
    except OSError as error:
        # The names of the libraries that the loader did not find; there is no number.
        if "libhdfs" in str(error) or "libjvm" in str(error):
            raise ChangefeedError(
                Code.SINK_NEEDS_EXTRA,
                "hdfs:// needs Hadoop's native library, which was not found",
                hint="set HADOOP_HOME, and CLASSPATH to the output of hadoop classpath --glob.",
            ) from error
        raise
