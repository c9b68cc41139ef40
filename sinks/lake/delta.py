"""Delta tables: one directory each under the root.

What a table has recorded of its feed is Delta's own transaction identifier: application
``changefeed`` with the version, or for a part of a transaction ``changefeed:<version>`` with
the sequence number. It is written in the commit of the rows and kept in checkpoints, and Delta
itself skips a commit whose number is not higher. The commit's userMetadata says the same for
readers, with the timestamp.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.schema import TableSchema
from changefeed.core.spark_sql import quoted
from changefeed.spark.internals.abilities import DELTA_LOG, allows
from changefeed.spark.internals.delta import TRANSACTION, DeltaTableLog
from changefeed.spark.internals.sessions import settings_of
from sinks.lake import delta_round
from sinks.lake.shape import OTHER_TYPE, cannot
from sinks.lake.small.commit_log import UNREADABLE, CommitLog
from sinks.lake.small.creation import create_table
from sinks.lake.small.rounds import SmallLimits
from sinks.lake.small.table_files import LocalTableFiles
from sinks.lake.table import (
    APPLIED,
    LakeTable,
    RoundRows,
    as_json,
    columns_sql,
    parts_sql,
    properties_sql,
)
from sinks.merged.applied import AppliedVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("changefeed.sinks.lake")

APPLICATION = "changefeed"

#: Of a session that merges into Delta tables.
SETTINGS = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The state of a table's log: the default of 50 partitions is for a large cluster.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Up to so many files are listed in the checksum file of each version, 50 by default: a round
    # then needs no job of Spark's to know them.
    "spark.databricks.delta.allFilesInCrc.thresholdNumFiles": "500",
    # A stage without rows takes the counts of a round out of its plan, stale rows among them.
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    # The source is files that do not change: reading them twice gives the same, and a copy
    # of it would cost a job of its own in every MERGE.
    "spark.databricks.delta.merge.materializeSource": "none",
    # VACUUM lists in as many tasks as this says, 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # The retention is what the option says; readers are warned in the docs.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}

_PROPERTIES = {
    # A rename then changes the log and no file; names may hold any character.
    "delta.columnMapping.mode": "name",
    # A changed row costs its place in a bitmap, not the writing of its whole file again.
    "delta.enableDeletionVectors": "true",
    # A checkpoint takes as long as some rounds, and rows wait for it. Each tenth commit is too
    # often where a commit comes every few seconds; readers open this many small files at most.
    "delta.checkpointInterval": "50",
}

_DEFAULTS = "spark.databricks.delta.properties.defaults."

#: How long files of removed rows stay, 7 days by default, and how long versions can be read, 30
#: days: Delta takes no log that is shorter than those. And as we set them.
_RETENTION = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
_OURS = re.compile(r"interval \d+ seconds")


class DeltaTable(LakeTable):
    """One directory."""

    format: ClassVar[str] = "delta"
    #: Of this machine; None: the table is elsewhere, or that is not known.
    folder: Path | None = None
    #: Says when it was created.
    clock: Clock = SYSTEM_CLOCK

    @property
    def path(self) -> str:
        """The table's directory."""
        return f"{self.place.root}/{self.name}"

    @property
    def ident(self) -> str:
        return f"delta.{quoted(self.path)}"

    def exists(self) -> bool:
        return self._commits is not None or self._recorded.exists()

    def setting(self, name: str) -> str | None:
        commits = self._commits
        return self._recorded.property(name) if commits is None else commits.setting(name)

    def applied(self) -> AppliedVersion:
        commits, found = self._commits, AppliedVersion()
        if commits is None:
            applications = self._recorded.applications()
        else:
            applications = [(its["appId"], its["version"]) for its in commits.applications.values()]
        for name, number in applications:
            application, _, version = name.partition(":")
            if application == APPLICATION:
                said = AppliedVersion(int(version), number) if version else AppliedVersion(number)
                found = found.latest(said)
        return found

    def empty(self) -> bool:
        commits = self._commits
        return not (self._recorded.files() if commits is None else commits.files)

    @property
    def _commits(self) -> CommitLog | None:
        """The log in its folder, if it is on this machine and of a form that is read here. Spark
        computes what it says by a job."""
        if self.folder is not None:
            with suppress(OSError, *UNREADABLE):
                return CommitLog(LocalTableFiles(self.folder), SmallLimits().files)
        return None

    @property
    def _recorded(self) -> DeltaTableLog | _ByStatements:
        if allows(self.session, DELTA_LOG):
            return DeltaTableLog(self.session, self.path)
        return _ByStatements(self.session, self.path)

    def create(self, columns: Mapping[str, str], properties: Mapping[str, str]) -> None:
        options = self.options
        partitions = self.layout_columns(options.get("partition_by"), columns)
        clusters = self.layout_columns(options.get("cluster_by"), columns)
        order = f" PARTITIONED BY ({parts_sql(partitions)})" if partitions else ""
        if clusters and not partitions:
            order = f" CLUSTER BY ({parts_sql(clusters)})"
        wanted = {**_PROPERTIES, **self.given_properties, **properties}
        plain = not order and not self.given_properties and not self._has_defaults()
        if self.folder is not None and plain:
            millis = self.clock.now().wall // 1_000_000
            if create_table(self.folder, columns, wanted, millis):
                return
        self.session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.ident} ({columns_sql(columns)}) USING delta{order} "
            f"{properties_sql(wanted)}"
        )

    def _has_defaults(self) -> bool:
        """Whether the session has properties for each new table."""
        return any(name.startswith(_DEFAULTS) for name in settings_of(self.session))

    def noted(self, notes: Mapping[str, str], applied: AppliedVersion | None) -> dict[str, str]:
        settings = {"spark.databricks.delta.commitInfo.userMetadata": as_json(notes)}
        if applied is not None:
            application, number = application_of(applied)
            settings |= zip(TRANSACTION, (application, str(number)), strict=True)
        return settings

    def replace(self, query: str) -> None:
        self.run(f"INSERT OVERWRITE {self.ident} BY NAME {query}")

    def upsert(self, rows: RoundRows) -> bool:
        return delta_round.commit(self.session, self.path, self.policy, rows)

    def append(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(self.path)

    def drop(self) -> None:
        self._recorded.remove()

    def optimize(self) -> None:
        self.run(f"OPTIMIZE {self.ident}")

    def expire(self, older_than: float) -> None:
        self._expire_log(older_than)
        self.run(f"VACUUM {self.ident} RETAIN {older_than / 3600:.6f} HOURS")

    def _expire_log(self, older_than: float) -> None:
        """Let checkpoints remove the log of versions whose files go: each commit leaves two files
        there, thousands a day, and on most filesystems every commit lists them all."""
        wanted = dict.fromkeys(_RETENTION, f"interval {max(1, int(older_than))} seconds")
        present = {name: self.setting(name) for name in wanted}
        # Written in another way, it is the setting of another.
        free = all(text is None or _OURS.fullmatch(text) for text in present.values())
        if free and present != wanted:
            self.session.sql(f"ALTER TABLE {self.ident} SET {properties_sql(wanted)}")

    def _widen(self, schema: TableSchema, name: str, kind: str) -> None:
        self.session.sql(
            f"ALTER TABLE {self.ident} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        )
        try:
            super()._widen(schema, name, kind)
        except Exception as failure:
            if _CANNOT_WIDEN not in str(failure):
                raise
            raise cannot(
                schema,
                f"Delta of Spark {self.session.version} cannot make column {name} {kind}",
                OTHER_TYPE,
            ) from failure


def application_of(applied: AppliedVersion) -> tuple[str, int]:
    """The transaction identifier of a commit that makes a table complete to there."""
    if applied.seq is None:
        return APPLICATION, applied.version
    return f"{APPLICATION}:{applied.version}", applied.seq


class _ByStatements:
    """:class:`DeltaTableLog` by statements of SQL."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._path = path
        self._ident = f"delta.{quoted(path)}"

    def exists(self) -> bool:
        from pyspark.errors import AnalysisException

        try:
            return self._session.catalog.tableExists(self._ident)
        except AnalysisException as failure:
            if failure.getCondition() in _NO_TABLE:
                return False
            raise

    def property(self, name: str) -> str | None:
        rows = self._session.sql(f"SHOW TBLPROPERTIES {self._ident}").collect()
        return next((str(row["value"]) for row in rows if row["key"] == name), None)

    def applications(self) -> list[tuple[str, int]]:
        """As the commits say that DESCRIBE HISTORY still shows. Of older ones it is not known that
        they came; Delta itself knows, and skips them when they come again."""
        said = self._session.sql(f"DESCRIBE HISTORY {self._ident}").select("userMetadata")
        found = []
        for row in said.where("userMetadata IS NOT NULL").collect():
            with suppress(ValueError, AttributeError):  # the words of another writer
                if (text := json.loads(row[0]).get(APPLIED)) is not None:
                    applied = AppliedVersion.parse(text)
                    if applied.seq is None:
                        found.append((APPLICATION, applied.version))
                    else:
                        found.append((f"{APPLICATION}:{applied.version}", applied.seq))
        return found

    def files(self) -> int:
        detail = self._session.sql(f"DESCRIBE DETAIL {self._ident}").select("numFiles").collect()
        return int(detail[0][0])

    def remove(self) -> None:
        """On another filesystem than this machine's the table only becomes empty."""
        root = self._path.removeprefix("file:")
        if root.startswith("/"):
            shutil.rmtree(Path(root))
            return
        self._session.sql(f"DELETE FROM {self._ident}").collect()
        log.warning("this Spark cannot remove %s: the table is empty now", self._path)


#: The condition of Delta before 4.0 about an integer that is to be a bigint, and others.
_CANNOT_WIDEN = "DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP"
#: Conditions of an error that mean: there is no table.
_NO_TABLE = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")
