"""Iceberg tables in a catalog that the URI describes.

What a table has recorded of its feed stands in the summaries of its snapshots
(``changefeed.applied``, ``changefeed.resolved``). Snapshots that others or upkeep made since
are passed over, and the one with the last record is never expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from changefeed.core.spark_sql import literal, quoted
from changefeed.spark.internals.sessions import core_count
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
#: Up to so many rows, a MERGE shuffles only those rows of the table whose keys are in a Bloom
#: filter of the round's: 4,000,000 is the most that Spark puts into one.
FILTER_ROWS = 4_000_000
#: The filter takes a read of the round, so a table below so many bytes is shuffled whole.
FILTERED_BYTES = 32 << 20
_FILTER = "spark.sql.optimizer.runtime.bloomFilter"
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


def _filter_of(rows: int, least: int) -> dict[str, str]:
    """Settings by which Spark filters a table of at least so many bytes by the keys of so many rows
    before it joins them.

    The join keeps rows without a match in the table, so Spark can broadcast neither side. It
    makes a filter only where it may not broadcast at all.
    """
    return {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        f"{_FILTER}.enabled": "true",
        f"{_FILTER}.applicationSideScanSizeThreshold": str(least),
        f"{_FILTER}.creationSideThreshold": str(1 << 40),
        f"{_FILTER}.expectedNumItems": str(rows),
        f"{_FILTER}.numBits": str(max(8 * rows, 1 << 20)),
    }


class IcebergTable(LakeTable):
    """One table of the namespace."""

    format: ClassVar[str] = "iceberg"
    spread_rows: int = SPREAD_ROWS
    filtered_bytes: int = FILTERED_BYTES

    @property
    def _parts(self) -> tuple[str, ...]:
        return (self.place.catalog, *self.place.namespace, self.name)

    @property
    def ident(self) -> str:
        return ".".join(map(quoted, self._parts))

    def exists(self) -> bool:
        return self.session.catalog.tableExists(self.ident)

    def applied(self) -> AppliedVersion:
        return self._recorded()[0]

    def _recorded(self) -> tuple[AppliedVersion, int]:
        """The last record, and how many snapshots back it is (0: the current one)."""
        snapshots = self._snapshots()
        number, back = self._current(), 0
        while number in snapshots:
            parent, summary = snapshots[number]
            if (found := summary.get(APPLIED)) is not None:
                return AppliedVersion.parse(found), back
            number, back = parent, back + 1
        return AppliedVersion(), 0

    def _snapshots(self) -> dict[int | None, tuple[int | None, Mapping[str, str]]]:
        """The parent and the summary of each snapshot."""
        found = self.session.table(f"{self.ident}.snapshots")
        rows = found.select("snapshot_id", "parent_id", "summary").collect()
        return {number: (parent, summary) for number, parent, summary in rows}

    def _properties(self) -> dict[str, str]:
        """Those of the table, and its state: ``format-version``, ``current-snapshot-id``,
        ``sort-order`` if it has one."""
        return dict(self.session.sql(f"SHOW TBLPROPERTIES {self.ident}").collect())

    def _current(self) -> int | None:
        number = self._properties()["current-snapshot-id"]
        return None if number == "none" else int(number)

    def setting(self, name: str) -> str | None:
        return self._properties().get(name)

    def empty(self) -> bool:
        current = self._current()
        return current is None or self._snapshots()[current][1].get("total-data-files") == "0"

    def create(self, columns: Mapping[str, str], properties: Mapping[str, str]) -> None:
        namespace = ".".join(map(quoted, self._parts[:-1]))
        self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        partitions = self.layout_columns(self.options.get("partition_by"), columns)
        clusters = self.layout_columns(self.options.get("cluster_by"), columns)
        order = f" PARTITIONED BY ({parts_sql(partitions)})" if partitions else ""
        hadoop = dict(self.place.settings).get("type") == "hadoop"
        own = {**_PROPERTIES, **({} if hadoop else _EXPIRES), **self.given_properties}
        if self.policy.variant:
            own = own | {"format-version": "3"}
        self.session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.ident} ({columns_sql(columns)}) USING iceberg"
            f"{order} {properties_sql({**own, **properties})}"
        )
        if clusters:
            self.session.sql(f"ALTER TABLE {self.ident} WRITE ORDERED BY {parts_sql(clusters)}")

    def run(self, statement: str, rows: int = 0, *, by_key: bool = False) -> None:
        settings = (
            _filter_of(rows, self.filtered_bytes) if by_key and 0 < rows <= FILTER_ROWS else {}
        )
        if rows >= self.spread_rows and self._spreads():
            settings[_DISTRIBUTION] = "none"
        with self.set_for_now(settings):
            super().run(statement, rows)

    def _spreads(self) -> bool:
        """Few tasks, and a table without an order of its own: else each task would write a file a
        partition, and one of deletes a file. The setting goes before the table's properties."""
        properties = self._properties()
        if core_count(self.session) > SPREAD_TASKS:
            return False
        if properties["format-version"] != "2" or "sort-order" in properties:
            return False
        if any(name in properties for name in _DISTRIBUTIONS):
            return False
        return "partition" not in self.session.table(f"{self.ident}.partitions").columns

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
