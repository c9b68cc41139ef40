"""Hadoop's clients of a staging place, which Spark's own JVM has."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.spark.internals.abilities import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("changefeed.spark")


def is_of_this_machine(session: SparkSession) -> bool:
    """Whether Spark takes a path without a scheme for one of this machine. False, too, if that is
    not known: of Spark Connect, whose server may be anywhere."""
    try:
        java = jvm_of(session)
        context: Any = session.sparkContext
        settings = context._jsc.hadoopConfiguration()
        default = java.org.apache.hadoop.fs.FileSystem.getDefaultUri(settings)
        return str(default.getScheme()) == "file"
    except Exception as failure:  # whichever way a session refuses its JVM
        log.debug("the default filesystem of Spark is not known: %s", type(failure).__name__)
        return False


class HadoopFiles:
    """The filesystem of ``root``, with the settings of the session's context."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._java = jvm_of(session)
        context: Any = session.sparkContext
        self._settings = context._jsc.hadoopConfiguration()
        self._hadoop = self._java.org.apache.hadoop.fs
        self._files = self._hadoop.Path(root).getFileSystem(self._settings)

    def make(self, folder: str) -> None:
        """Make a folder."""
        self._files.mkdirs(self._hadoop.Path(folder))

    def copy(self, path: Path, name: str) -> None:
        """Copy a file of this machine. Safe for threads."""
        # Not copyFromLocalFile: that of S3 needs more of Amazon's client than there is.
        source, target = self._hadoop.Path(path.absolute().as_uri()), self._hadoop.Path(name)
        self._hadoop.FileUtil.copy(
            self._local(), source, self._files, target, False, True, self._settings
        )

    def remove(self, folder: str) -> None:
        """Remove a folder with all in it."""
        self._files.delete(self._hadoop.Path(folder), True)

    def folders(self, root: str) -> dict[str, float]:
        """The folders in ``root`` and when the last file in each was written, seconds since
        1970."""
        place = self._hadoop.Path(root)
        if not self._files.exists(place):
            return {}
        inside = [s.getPath() for s in self._files.listStatus(place) if s.isDirectory()]
        return {str(each.getName()): self._last(each) for each in inside}

    def _last(self, folder: Any) -> float:
        found, last = self._files.listFiles(folder, True), 0
        while found.hasNext():
            last = max(last, found.next().getModificationTime())
        return last / 1000

    def _local(self) -> Any:
        """Hadoop's client of this machine's files, without checksum files.

        Not ``FileSystem.getLocal``: it casts the object that the JVM keeps for ``file:``, whose
        class is the one of ``fs.file.impl``: changefeed's, unless other code asked for it before
        the session.
        """
        local = self._hadoop.RawLocalFileSystem()
        local.initialize(self._java.java.net.URI("file:///"), self._settings)
        return local
