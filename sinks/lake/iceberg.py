"""Iceberg tables in a catalog that the URI describes.

What a table has recorded of its feed stands in the summaries of its snapshots
(``changefeed.applied``, ``changefeed.resolved``). Snapshots that others or upkeep made since
are passed over, and the one with the last record is never expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from changefeed.core.spark_sql import literal, quoted
from sinks.lake.place import LakePlace
from sinks.lake.table import APPLIED, LakeTable, columns_sql, parts_sql, properties_sql
from sinks.merged.applied import AppliedVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PROPERTIES = {
    "format-version": "2",
    # A changed row costs its place in a delete file, not the writing of its whole file again.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
#: Each commit writes a metadata file with all versions in it; the last 100 of them stay. Not in a
#: hadoop catalog: a session that is further behind finds its way by them, one after the other.
_EXPIRES = {"write.metadata.delete-after-commit.enabled": "true"}

#: From so many rows on, what a MERGE writes is left in the tasks that made it. Below, it is
#: brought together by file: that writes few files, but all rows that come into an unpartitioned
#: table in one task.
SPREAD_ROWS = 500_000
#: And where at most so many tasks run at a time.
SPREAD_TASKS = 8
_DISTRIBUTION = "spark.sql.iceberg.distribution-mode"
_DISTRIBUTIONS = ("write.distribution-mode", "write.merge.distribution-mode")

#: Session setting that puts a property into the summary of the next snapshot.
_SUMMARY = "spark.sql.iceberg.snapshot-property."


def settings(place: LakePlace) -> dict[str, str]:
    """Of a session that has the catalog of ``place``."""
    head = f"spark.sql.catalog.{place.catalog}"
    own = {
        head: "org.apache.iceberg.spark.SparkCatalog",
        # Whatever others did to the table is seen at once.
        f"{head}.cache-enabled": "false",
        # The filesystem of our own session cannot create a file only where there is none,
        # and that is how a hadoop catalog commits.
        f"{head}.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"{head}.hadoop.fs.file.impl.disable.cache": "true",
    }
    return own | {f"{head}.{name}": value for name, value in place.settings}


class IcebergTable(LakeTable):
    """One table of the namespace."""

    format: ClassVar[str] = "iceberg"
    spread_rows: int = SPREAD_ROWS

    @property
    def _parts(self) -> tuple[str, ...]:
        return (self.place.catalog, *self.place.namespace, self.name)

    @property
    def ident(self) -> str:
        return ".".join(map(quoted, self._parts))

    def exists(self) -> bool:
        return self.session.catalog.tableExists(self.ident)

    def _table(self) -> Any:
        loader = self._java.org.apache.iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self._jsession, self.ident)

    def applied(self) -> AppliedVersion:
        return self._recorded()[0]

    def _recorded(self) -> tuple[AppliedVersion, int]:
        """The last record, and how many snapshots back it is (0: the current one)."""
        table = self._table()
        snapshot, back = table.currentSnapshot(), 0
        while snapshot is not None:
            found = snapshot.summary().get(APPLIED)
            if found is not None:
                return AppliedVersion.parse(found), back
            parent = snapshot.parentId()
            snapshot, back = None if parent is None else table.snapshot(parent), back + 1
        return AppliedVersion(), 0

    def setting(self, name: str) -> str | None:
        found = self._table().properties().get(name)
        return None if found is None else str(found)

    def empty(self) -> bool:
        snapshot = self._table().currentSnapshot()
        return snapshot is None or snapshot.summary().get("total-data-files") == "0"

    def create(self, columns: Mapping[str, str], properties: Mapping[str, str]) -> None:
        namespace = ".".join(map(quoted, self._parts[:-1]))
        self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        partitions = self.layout_columns(self.options.get("partition_by"), columns)
        clusters = self.layout_columns(self.options.get("cluster_by"), columns)
        order = f" PARTITIONED BY ({parts_sql(partitions)})" if partitions else ""
        hadoop = dict(self.place.settings).get("type") == "hadoop"
        own = _PROPERTIES if hadoop else _PROPERTIES | _EXPIRES
        self.session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.ident} ({columns_sql(columns)}) USING iceberg"
            f"{order} {properties_sql({**own, **properties})}"
        )
        if clusters:
            self.session.sql(f"ALTER TABLE {self.ident} WRITE ORDERED BY {parts_sql(clusters)}")

    def run(self, statement: str, rows: int = 0) -> None:
        if rows < self.spread_rows or not self._spreads():
            super().run(statement, rows)
            return
        self.session.conf.set(_DISTRIBUTION, "none")
        try:
            super().run(statement, rows)
        finally:
            self.session.conf.unset(_DISTRIBUTION)

    def _spreads(self) -> bool:
        """Few tasks, and a table without an order of its own: else each task would write a file a
        partition, and one of deletes a file. The setting goes before the table's properties."""
        table = self._table()
        plain = table.spec().isUnpartitioned() and table.sortOrder().isUnsorted()
        own = any(name in table.properties() for name in _DISTRIBUTIONS)
        known: bool = table.operations().current().formatVersion() == 2
        few = self.session.sparkContext.defaultParallelism <= SPREAD_TASKS
        return few and plain and known and not own

    def replace(self, query: str) -> None:
        self.run(f"INSERT OVERWRITE {self.ident} BY NAME {query}")

    def noted(self, notes: Mapping[str, str], applied: AppliedVersion | None) -> dict[str, str]:
        return {f"{_SUMMARY}{name}": value for name, value in notes.items()}

    def append(self, rows: DataFrame) -> None:
        rows.writeTo(self.ident).append()

    def drop(self) -> None:
        self.session.sql(f"DROP TABLE IF EXISTS {self.ident} PURGE")

    def optimize(self) -> None:
        self._call("rewrite_data_files")
        self._call("rewrite_position_delete_files")

    def expire(self, older_than: float) -> None:
        oldest = f"current_timestamp() - make_dt_interval(0, 0, 0, {older_than:.6f})"
        found = self.session.sql(f"SELECT cast({oldest} AS string)").collect()[0][0]
        keep = self._recorded()[1] + 1
        when = f"TIMESTAMP {literal(found)}"
        self._call("expire_snapshots", f"older_than => {when}", f"retain_last => {keep}")

    def _call(self, procedure: str, *arguments: str) -> None:
        table = ".".join(map(quoted, self._parts[1:]))
        given = ", ".join([f"table => {literal(table)}", *arguments])
        self.run(f"CALL {quoted(self.place.catalog)}.system.{procedure}({given})")
