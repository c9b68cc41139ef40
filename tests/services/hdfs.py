"""An HDFS: a NameNode and a DataNode in one process, started by a class of Hadoop's own tests."""

from __future__ import annotations

import atexit
import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from changefeed.spark.jvm import spark_jars
from sinks.lake.place import place_of
from tests.services.ivy import pinned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = Path(__file__).with_name("hdfs.lock")

#: Jars of PySpark's: Hadoop, and what it logs with.
_OF_SPARK = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j", "log4j")

#: Settings beside the tests' own: small, and ready as soon as the DataNode has told its blocks.
_SETTINGS = {
    "dfs.namenode.safemode.extension": "0",
    "dfs.namenode.handler.count": "4",
    "dfs.datanode.handler.count": "4",
    "dfs.replication": "1",
}

#: Who runs it: the one user whom it refuses nothing, and not the one who runs the tests.
OWNER = "hdfs"


class Hdfs:
    """A filesystem.

    Attributes:
        uri: ``hdfs://host:port``, where its clients find the NameNode.

    Args:
        folder: for its files; what is stored outlives :meth:`stop`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"hdfs://127.0.0.1:{self.port}"
        self.log_file = folder / "hdfs.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> Hdfs:
        """Start and wait until files can be written."""
        told = self.folder / "started.json"
        told.unlink(missing_ok=True)
        stored = self.folder / "stored"
        command: list[str | Path] = [find_java().executable, "-Xmx256m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", f"-Dtest.build.data={self.folder}"]
        command += ["-cp", self._class_path(), "org.apache.hadoop.test.MiniDFSClusterManager"]
        command += ["-datanodes", "1", "-nnport", str(self.port)]
        command += ["-writeDetails", told]
        if not stored.exists():
            command.append("-format")
        for name, value in {**_SETTINGS, "hdfs.minidfs.basedir": str(stored)}.items():
            command += ["-D", f"{name}={value}"]
        self._process = spawn(
            command, log_file=self.log_file, environment={"HADOOP_USER_NAME": OWNER}
        )
        atexit.register(self.stop)
        deadline = time.monotonic() + timeout
        # It writes the details when the NameNode has left its safe mode.
        while not _is_whole(told):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                log = self.log_file.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"HDFS did not start\n{log}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """End both without notice: what clients were told is written stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.stop)
        self._process = None

    def directory(self, session: SparkSession, name: str) -> str:
        """Make a directory that anybody may write in, by Spark's client; its URI."""
        files = self.owned(session)
        java: Any = session.sparkContext._jvm
        path = java.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")
        files.mkdirs(path)
        files.setPermission(path, java.org.apache.hadoop.fs.permission.FsPermission("777"))
        return f"{self.uri}/{name}"

    def read_only(self, session: SparkSession, *, enter: bool) -> None:
        """Have the NameNode enter or leave its safe mode."""
        java: Any = session.sparkContext._jvm
        action = java.org.apache.hadoop.fs.SafeModeAction
        self.owned(session).setSafeMode(action.ENTER if enter else action.LEAVE)

    def owned(self, session: SparkSession) -> Any:
        """Hadoop's client of it, with all rights."""
        java: Any = session.sparkContext._jvm
        settings = java.org.apache.hadoop.conf.Configuration()
        # The first client in a JVM settles for all how long a connection may take.
        for name, value in place_of(f"delta:///{self.uri}/").settings:
            settings.set(name, value)
        return java.org.apache.hadoop.fs.FileSystem.get(
            java.java.net.URI(self.uri), settings, OWNER
        )

    def _class_path(self) -> str:
        jars = sorted(pinned(_LOCK).glob("*.jar"))
        for name in _OF_SPARK:
            jars += spark_jars().glob(f"{name}-*.jar")
        return ":".join(map(str, jars))


def _is_whole(told: Path) -> bool:
    try:
        json.loads(told.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True
