"""One round of whole rows into a Delta table, by one join.

Delta's MERGE joins the table with the rows three times: to find the files that have a match, to
make the new rows (an outer join, which shuffles the table), and to mark the old ones in deletion
vectors. A changefeed's round needs less. Its rows are whole, so a new row takes nothing from the
old one: old rows are found by their keys and marked, new rows are appended, both in one commit.
Of the table only keys and versions are read, and only where the round's keys may be.

The commit has the actions of a MERGE: conflicts with other writers are found, readers and
DESCRIBE HISTORY see a MERGE. It is made by internal classes of Delta
(:mod:`changefeed.spark.internals.delta`); where these differ, or the table needs more, the round is
an ordinary MERGE.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from changefeed.core.spark_sql import quoted
from changefeed.spark.internals.abilities import DELTA_ROUND, MissingPart, allows
from changefeed.spark.internals.delta import DeltaFiles, DeltaTransaction
from sinks.lake import merge
from sinks.lake.small.commit_log import physical_name
from sinks.lake.staging import OPERATION, VERSION
from sinks.lake.table import RoundRows
from sinks.merged.policy import TablePolicy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("changefeed.sinks.lake")

#: Fewer rows than this go into one file, so that readers have fewer to open.
ONE_FILE = 131_072
#: Bytes of keys and rows that each executor is handed whole; of more, the join shuffles both sides,
#: and of more still it sorts them, which is slower but needs no memory for them.
BROADCAST, HASHED = (32 << 20, 2_000_000), (64 << 20, 4_000_000)
#: Tables that say more of a change than which row stands where: MERGE knows how.
_NEEDS_MERGE = ("delta.enableChangeDataFeed", "delta.enableRowTracking")
#: Columns of the join: a file, the number of a row in it, the version of that row.
_FILE, _ROW, _HAS = "_file", "_row", "_has"

#: Of a key column: bounds of the round, bounds of a file.
_Range = tuple[int, int, int, int]


def commit(session: SparkSession, path: str, policy: TablePolicy, rows: RoundRows) -> bool:
    """Bring ``rows`` into the table at ``path``; false: it takes an ordinary MERGE only, and
    nothing was done.

    Settings of the session say what the commit notes, as for a statement.

    Raises:
        Exception: of Spark or Delta; nothing was committed then.
    """
    if not allows(session, DELTA_ROUND):
        return False
    try:
        return _Round(DeltaTransaction(session, path), policy, rows).commit()
    except MissingPart as failure:
        log.warning("this version of Delta takes ordinary MERGEs only: %s", failure)
        return False


class _Round:
    def __init__(self, transaction: DeltaTransaction, policy: TablePolicy, rows: RoundRows) -> None:
        self._transaction = transaction
        self._policy = policy
        self._rows = rows

    def commit(self) -> bool:
        table = self._transaction
        if any(table.property(name) == "true" for name in _NEEDS_MERGE):
            return False
        if table.property("delta.enableDeletionVectors") != "true":
            return False
        if table.was_executed():
            return True
        files, narrow = self._near(table.files())
        target = table.rows_of(files)
        if not _same_names(target.columns, self._columns()):
            return False
        found = self._found(target, narrow=narrow)
        counts = self._mark(files, found)
        # As many as were found, or two rows of the round are one key to Spark: MERGE says so.
        if counts is not None and table.marked() != counts["deleted"] + counts["updated"]:
            return False
        rows = self._rows.frame
        if counts is None or counts["stale"]:
            rows = rows.join(found.where(~_newer()).select(*self._keys()), self._keys(), "anti")
        updated, deleted = (counts or {}).get("updated", 0), (counts or {}).get("deleted", 0)
        metrics = {
            "operationNumSourceRows": self._rows.count,
            "numTargetRowsUpdated": updated,
            "numTargetRowsMatchedUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsMatchedDeleted": deleted,
        }
        table.commit(self._new(rows, target), metrics, updated)
        return True

    # -- the table --------------------------------------------------------------------------

    def _near(self, files: DeltaFiles) -> tuple[DeltaFiles, bool]:
        """The files that may have a key of the round; and whether its keys lie so close together
        that Parquet should look for them inside of a file, too.

        That look puts the bounds into the code that Spark generates, so the JVM compiles each
        round again and runs it cold: on a table of a million rows a second or two, for nothing
        where the keys are anywhere.
        """
        schema, bounds = self._rows.schema, self._rows.bounds
        fields = self._transaction.fields()
        physical = {field["name"].lower(): physical_name(field) for field in fields}
        limits = {
            physical.get(schema.columns[number].name.lower()): bounds[f"c{number}"]
            for number in schema.key
            if isinstance(bounds.get(f"c{number}", ("",))[0], int)
        }
        if not limits:
            return files, True
        near, ranges = [], []
        for file in files:
            found = _ranges(file, limits)
            if found is None:
                return files, True
            if all(low <= most and high >= least for low, high, least, most in found):
                near.append(file)
                ranges.append(found)
        return self._transaction.only(near), any(map(_small_part, zip(*ranges, strict=True)))

    def _columns(self) -> dict[str, str]:
        """The staged column for each column of the target."""
        names = {c.name: f"c{i}" for i, c in enumerate(self._rows.schema.columns)}
        return names | {self._policy.sequence: VERSION}

    def _keys(self) -> list[str]:
        return [f"c{number}" for number in self._rows.schema.key]

    # -- old rows ---------------------------------------------------------------------------

    def _found(self, target: DataFrame, *, narrow: bool) -> DataFrame:
        """A row of the table and the version that has come for it, for each key of the round."""
        from pyspark.sql import functions as F

        schema, names = self._rows.schema, self._keys()
        limits = merge.within(schema, self._rows.bounds)
        if limits and narrow:
            target = target.alias("target").where(" AND ".join(limits))
        here = target.select(
            *(
                F.col(quoted(schema.columns[number].name)).alias(f"t{number}")
                for number in schema.key
            ),
            F.col(quoted(self._policy.sequence)).alias(_HAS),
            F.col("_metadata.file_path").alias(_FILE),
            F.col("_metadata.row_index").alias(_ROW),
        )
        come = self._rows.frame.select(OPERATION, VERSION, *names)
        come = come.hint(_join(self._rows.key_bytes, self._rows.count))
        same = [here[f"t{number}"] == come[f"c{number}"] for number in schema.key]
        return here.join(come, same, "inner")

    def _mark(self, files: DeltaFiles, found: DataFrame) -> Mapping[str, int] | None:
        """Of what was found, how many rows are deleted, how many updated, and of how many the table
        has a newer version (``stale``); None: not known."""
        from pyspark.sql import functions as F

        deletes = F.col(OPERATION) == "d"
        counts = {
            "stale": F.count_if(~_newer()),
            "deleted": F.count_if(_newer() & deletes),
            "updated": F.count_if(_newer() & ~deletes),
        }
        places = F.col(_FILE), F.col(_ROW)
        return self._transaction.mark(files, found, places, _newer(), counts)

    # -- new rows ---------------------------------------------------------------------------

    def _new(self, rows: DataFrame, target: DataFrame) -> DataFrame:
        """The rows to append, in the table's columns, order and types."""
        from pyspark.sql import functions as F

        staged = {name.lower(): column for name, column in self._columns().items()}
        # As SQL, so that Spark says which column has a value that does not fit.
        rows = rows.where(F.col(OPERATION) != "d").select(
            *(
                F.expr(
                    f"cast({quoted(staged[field.name.lower()])} AS {field.dataType.simpleString()})"
                ).alias(field.name)
                for field in target.schema.fields
            )
        )
        parts = self._transaction.partitions()
        if parts:
            return rows.repartition(*(F.col(quoted(name)) for name in parts))
        return rows.coalesce(1) if self._rows.count < ONE_FILE else rows


def _join(key_bytes: int, rows: int) -> str:
    """How so many rows with so many bytes of keys meet the table, as a hint of Spark's."""
    for hint, (most_bytes, most_rows) in (("broadcast", BROADCAST), ("shuffle_hash", HASHED)):
        if key_bytes <= most_bytes and rows <= most_rows:
            return hint
    return "merge"


def _newer() -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(VERSION) >= F.col(_HAS), F.lit(True))


def _ranges(file: Any, limits: Mapping[str | None, tuple[object, object]]) -> list[_Range] | None:
    """For each key column the bounds of the round and of the file; None: the file says nothing."""
    stats = file.stats
    found = []
    for name, (low, high) in limits.items():
        least, most = stats.get("minValues", {}).get(name), stats.get("maxValues", {}).get(name)
        known = (low, high, least, most)
        if not all(isinstance(value, int) for value in known):
            return None
        found.append(known)
    return found  # type: ignore[return-value]  # integers, as was just seen


def _small_part(ranges: tuple[_Range, ...]) -> bool:
    """The round's keys lie in less than half of what the files hold."""
    low, high, *_ = ranges[0]
    return (high - low) * 2 < max(r[3] for r in ranges) - min(r[2] for r in ranges)


def _same_names(names: list[str], others: Mapping[str, str]) -> bool:
    return {name.lower() for name in names} == {name.lower() for name in others}
