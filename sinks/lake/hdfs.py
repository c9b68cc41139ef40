"""Whether an HDFS answers, before Delta or Iceberg asks it for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinks.lake.place import HADOOP, LakePlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reach(session: SparkSession, place: LakePlace) -> None:
    """Ask the NameNode for the tables' directory, which need not be there; nothing on any other
    filesystem.

    A failure is raised as Java's. Delta would pass over it, and look for a table in each directory
    above, each time as long as the client waits.
    """
    if not place.root.lower().startswith("hdfs:"):
        return
    java: Any = session.sparkContext._jvm
    settings = session._jsparkSession.sessionState().newHadoopConf()
    for name, value in place.settings:
        inner = name.removeprefix("hadoop.")
        if inner.startswith(HADOOP):
            settings.set(inner, value)
    path = java.org.apache.hadoop.fs.Path(place.root)
    path.getFileSystem(settings).exists(path)
