"""The files and folders of a state directory.

DIR/state.db          the job table (SQLite)
DIR/node.lock         held by the one node that runs this state
DIR/log/<source>/     change log of a source
DIR/spool/<source>/   large transactions on their way in
DIR/source/<source>/  what a source keeps in addition to its change log (a history of schemas)
DIR/images/<source>/  row images of tables of a source (what a feed with row_images needs)
DIR/follow/           logs that another node writes, as far as a process here reads them
DIR/work              folder of temporary files of running feeds; emptied at start. The sinks of
                      a feed stage in its folder feed-<id>
DIR/node.log          what the node did
DIR/spark.log         what Spark and its Python workers printed
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


def _safe(name: str) -> str:
    """A file name for a connection: letters, digits, ``_-``; others as ``%XX``."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda m: "".join(f"%{b:02x}" for b in m[0].encode()), name)


def data_folder() -> Path:
    """The user's data folder of ``changefeed``; not made yet."""
    # Loaded on use: --help needs no folder.
    from platformdirs import user_data_path

    return user_data_path("changefeed", appauthor=False)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The paths under one state directory."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite job table."""
        return self.root / "state.db"

    @property
    def lock(self) -> Path:
        """Held (flock) by the node of this state."""
        return self.root / "node.lock"

    @property
    def node_log(self) -> Path:
        """The node's own log file."""
        return self.root / "node.log"

    @property
    def spark_log(self) -> Path:
        """What the JVM of Spark and its Python workers printed."""
        return self.root / "spark.log"

    @property
    def change_logs(self) -> list[Path]:
        """The change logs that are not empty."""
        try:
            return sorted(log for log in (self.root / "log").iterdir() if any(log.iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def log(self, source: str) -> Path:
        """The change log of one source."""
        return self.root / "log" / _safe(source)

    def spool(self, source: str) -> Path:
        """Where large transactions wait for their commit."""
        return self.root / "spool" / _safe(source)

    def beside_log(self, source: str) -> Path:
        """The folder for a source's own files, which exists as long as its change log."""
        return self.root / "source" / _safe(source)

    def images(self, source: str) -> Path:
        """The row images of the tables of one source."""
        return self.root / "images" / _safe(source)

    @property
    def follow(self) -> Path:
        """Where processes of this host follow logs that another node writes."""
        return self.root / "follow"

    @property
    def work(self) -> Path:
        """Temporary files of running feeds."""
        return self.root / "work"

    def make_private(self) -> None:
        """Create the folders and logs that contain rows, readable only by their owner.

        The state directory itself may be readable by everybody, if a service manager created it.

        Raises:
            OSError: they cannot be made.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (
            *(self.root / name for name in ("log", "spool", "source", "images")),
            self.work,
        ):
            folder.mkdir(exist_ok=True, mode=0o700)
            _close_to_others(folder, 0o700)
        for file in (self.node_log, self.spark_log, self.lock):
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
            _close_to_others(file, 0o600)

    @property
    def open_to_others(self) -> bool:
        """Whether other users may list the state directory."""
        return bool(self.root.stat().st_mode & 0o077)

    def scratch(self, job_id: int) -> Path:
        """Files that the sinks of one feed have staged."""
        return self.work / f"feed-{job_id}"


def _close_to_others(path: Path, mode: int) -> None:
    """Remove permissions that an earlier version or a copy has given to other users."""
    found = path.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        path.chmod(mode)
