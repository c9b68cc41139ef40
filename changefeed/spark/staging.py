"""The staging place: where the node puts rows for executors that do not see its state directory.

Without one, executors read the files of the state directory under the node's own paths. With one,
Spark's own client of the place copies the files of a piece of work there, executors read them, and
they are removed when the work has ended. Credentials become properties of Spark's context, for this
bucket alone: no plan and no option of a table contains them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.spark.staging_place import StagingPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The next node removes what a crash left after this time; no piece of work takes a day.
ORPHAN_SECONDS = 24 * 3600.0
#: Files copied at the same time.
_COPIES = 4

_OURS = "changefeed-rows"


class StagingArea:
    """Copies files to a staging place and removes them. Safe for threads."""

    def __init__(self, place: StagingPlace, session: Callable[[], SparkSession]) -> None:
        """
        Args:
            place: where.
            session: returns Spark's session, whose clients do the work."""
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
            context = self._session().sparkContext
            hadoop: Any = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
            settings = context._jsc.hadoopConfiguration()
            with self._translated():
                files, local = self._files(), _local_files(context)

                def copy(path: str) -> str:
                    name = f"{folder}/{Path(path).name}"
                    source = hadoop.Path(Path(path).absolute().as_uri())
                    # Not copyFromLocalFile: that of S3 needs more of Amazon's client than there is.
                    hadoop.FileUtil.copy(
                        local, source, files, hadoop.Path(name), False, True, settings
                    )
                    return name

                files.mkdirs(hadoop.Path(folder))
                with ThreadPoolExecutor(_COPIES, thread_name_prefix="spark-staging") as threads:
                    copies = list(threads.map(copy, paths))
            yield copies

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
            java: Any = self._session().sparkContext._jvm
            self._files().delete(java.org.apache.hadoop.fs.Path(folder), True)
        except Exception as failure:
            # The rows were read. The text of the failure may contain a secret.
            log.warning("staged files stay in %s: %s", self._place.root, type(failure).__name__)

    def _files(self) -> Any:
        context = self._session().sparkContext
        java: Any = context._jvm
        root = java.org.apache.hadoop.fs.Path(self._place.root)
        return root.getFileSystem(context._jsc.hadoopConfiguration())

    def _sweep(self) -> None:
        """Once, remove what crashed nodes left."""
        if self._swept:
            return
        self._swept = True
        try:
            self._remove_orphans()
        except Exception as failure:
            log.warning("no look at old files of %s: %s", self._place.root, type(failure).__name__)

    def _remove_orphans(self) -> None:
        java: Any = self._session().sparkContext._jvm
        files = self._files()
        root = java.org.apache.hadoop.fs.Path(self._place.root)
        if not files.exists(root):
            return
        oldest = java.System.currentTimeMillis() - int(ORPHAN_SECONDS * 1000)
        for status in files.listStatus(root):
            folder = status.getPath()
            if status.isDirectory() and folder.getName().startswith(f"{_OURS}-"):
                found = files.listFiles(folder, True)
                fresh = False
                while found.hasNext() and not fresh:
                    fresh = found.next().getModificationTime() > oldest
                if not fresh:
                    files.delete(folder, True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ChangefeedError:
            raise
        except Exception as failure:
            kind = _java_kind(failure)
            raise ChangefeedError(
                Code.SPARK_FAILED,
                f"rows cannot be staged in {self._place.root}: {kind}",
                hint="check the address and the rights of the staging place; spark.log in the "
                "state directory has the details.",
            ) from failure


def _local_files(context: Any) -> Any:
    """Hadoop's client of this machine's files, without checksum files.

    Not ``FileSystem.getLocal``: it casts the object that the JVM keeps for ``file:``, whose class
    is the one of ``fs.file.impl``: changefeed's, unless other code asked for it before the session.
    """
    java: Any = context._jvm
    local = java.org.apache.hadoop.fs.RawLocalFileSystem()
    local.initialize(java.java.net.URI("file:///"), context._jsc.hadoopConfiguration())
    return local


def _java_kind(failure: Exception) -> str:
    java = getattr(failure, "java_exception", None)
    return str(java.getClass().getName()) if java is not None else type(failure).__name__
