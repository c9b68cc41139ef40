"""The staging place: where the node puts rows for executors that do not see its state directory.

Without one, executors read the files of the state directory under the node's own paths. With one, a
client of the place copies the files of a piece of work there, executors read them, and they are
removed when the work has ended. The client is the one of Spark's JVM, or Arrow's if that JVM is out
of reach. Credentials become properties of Spark's context, for this bucket alone: no plan and no
option of a table contains them.
"""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.stores import connect
from changefeed.core.telemetry import log
from changefeed.spark.failure import kind_of
from changefeed.spark.internals.abilities import FILES, allows
from changefeed.spark.internals.files import HadoopFiles
from changefeed.spark.staging_place import StagingPlace

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyspark.sql import SparkSession

#: The next node removes what a crash left after this time; no piece of work takes a day.
ORPHAN_SECONDS = 24 * 3600.0
#: Files copied at the same time.
_COPIES = 4
#: Bytes of a file that are in memory at the same time.
_BLOCK = 8 << 20

_OURS = "changefeed-rows"


class _Files(Protocol):
    """A client of a staging place; names are those that Spark takes."""

    def make(self, folder: str) -> None: ...

    def copy(self, path: Path, name: str) -> None: ...

    def remove(self, folder: str) -> None: ...

    def folders(self, root: str) -> dict[str, float]: ...


class ArrowFiles:
    """Arrow's client of a place; see :class:`.internals.files.HadoopFiles`, whose methods these
    are.

    Raises:
        OSError: the place is on HDFS, and there is no libhdfs.
    """

    def __init__(self, place: StagingPlace) -> None:
        from pyarrow import fs

        self._prefix = ""
        self._files: Any
        if place.root.startswith("s3a://"):
            self._prefix = "s3a://"
            self._files = connect("s3", place.s3.arguments if place.s3 else {})
        elif place.root.startswith("hdfs://"):
            self._prefix = f"hdfs://{urlsplit(place.root).netloc}"
            self._files, _ = fs.FileSystem.from_uri(place.root)
        else:
            self._files = fs.LocalFileSystem()

    def make(self, folder: str) -> None:
        self._files.create_dir(self._path(folder), recursive=True)

    def copy(self, path: Path, name: str) -> None:
        with path.open("rb") as source, self.create(name) as target:
            shutil.copyfileobj(source, target, _BLOCK)

    def create(self, name: str) -> NativeFile:
        """A new file, which others see when it is closed, or sooner."""
        file: NativeFile = self._files.open_output_stream(self._path(name))
        return file

    def remove(self, folder: str) -> None:
        self._files.delete_dir(self._path(folder))

    def folders(self, root: str) -> dict[str, float]:
        from pyarrow import fs

        base = self._path(root)
        last: dict[str, float] = {}
        for each in self._files.get_file_info(fs.FileSelector(base, True, recursive=True)):
            name = each.path[len(base) :].strip("/").partition("/")[0]
            written = each.mtime.timestamp() if each.is_file and each.mtime else 0.0
            last[name] = max(last.get(name, 0.0), written)
        return last

    def _path(self, name: str) -> str:
        return name.removeprefix(self._prefix)


class StagingArea:
    """Copies files to a staging place and removes them. Safe for threads."""

    def __init__(
        self,
        place: StagingPlace,
        session: Callable[[], SparkSession],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        Args:
            place: where.
            session: returns Spark's session, whose clients do the work.
            clock: for the age of what crashed nodes left."""
        self._clock = clock
        self._place = place
        self._session = session
        self._own = f"{place.root}/{_OURS}-{uuid.uuid4().hex}"
        self._numbers = itertools.count(1)
        self._swept = False

    @contextmanager
    def shared(self, paths: Sequence[str]) -> Iterator[list[str]]:
        """Copies of local files, by the names under which executors read them, as long as the block
        lasts.

        Raises:
            ChangefeedError: CF4002, the place cannot be written.
        """
        with self.folder() as folder:
            names = [f"{folder}/{Path(path).name}" for path in paths]
            with self._translated():
                files = self._files()
                files.make(folder)
                with ThreadPoolExecutor(_COPIES, thread_name_prefix="spark-staging") as threads:
                    list(threads.map(files.copy, map(Path, paths), names))
            yield names

    @contextmanager
    def folder(self) -> Iterator[str]:
        """The name of a folder that executors may create; it is removed at the end of the block."""
        self._sweep()
        folder = f"{self._own}/{next(self._numbers):08d}"
        try:
            yield folder
        finally:
            self._remove(folder)

    def close(self) -> None:
        """Remove this node's folder; Spark must still be there."""
        if self._swept:
            self._remove(self._own)

    def _remove(self, folder: str) -> None:
        try:
            self._files().remove(folder)
        except FileNotFoundError:
            return  # no executor has created it
        except Exception as failure:
            # The rows were read. The text of the failure may contain a secret.
            log.warning("staged files stay in %s: %s", self._place.root, type(failure).__name__)

    def _files(self) -> _Files:
        session = self._session()
        if allows(session, FILES):
            return HadoopFiles(session, self._place.root)
        return ArrowFiles(self._place)

    def _sweep(self) -> None:
        """Once, remove what crashed nodes left."""
        if self._swept:
            return
        self._swept = True
        try:
            files, oldest = self._files(), self._clock.now().wall / 1e9 - ORPHAN_SECONDS
            for name, last in files.folders(self._place.root).items():
                if name.startswith(f"{_OURS}-") and last < oldest:
                    files.remove(f"{self._place.root}/{name}")
        except Exception as failure:
            log.warning("no look at old files of %s: %s", self._place.root, type(failure).__name__)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ChangefeedError:
            raise
        except Exception as failure:
            raise ChangefeedError(
                Code.SPARK_FAILED,
                f"rows cannot be staged in {self._place.root}: {kind_of(failure)}",
                hint="check the address and the rights of the staging place; spark.log in the "
                "state directory has the details.",
            ) from failure
