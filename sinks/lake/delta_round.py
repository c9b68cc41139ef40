"""One round of whole rows into a Delta table, by one join.

Delta's MERGE joins the table with the rows three times: to find the files that have a match, to
make the new rows (an outer join, which shuffles the table), and to mark the old ones in deletion
vectors. A changefeed's round needs less. Its rows are whole, so a new row takes nothing from the
old one: old rows are found by their keys and marked, new rows are appended, both in one commit.
Of the table only keys and versions are read, and only where the round's keys may be.

The commit has the actions of a MERGE: conflicts with other writers are found, readers and
DESCRIBE HISTORY see a MERGE. It is made of classes of Delta that promise nothing to outsiders;
the jar is pinned, and where they are others, or the table needs more than that, the round is an
ordinary MERGE. Read in Delta 4.4: ``ClassicMergeExecutor.writeDVs``,
``DMLWithDeletionVectorsHelper.processUnmodifiedData``, ``VersionChecksum.allFiles``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from changefeed.core.spark_sql import quoted
from sinks.lake import merge
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
#: Settings of a session: the application and its number that a commit notes.
TRANSACTION = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
#: The object with Delta's own work on deletion vectors.
HELPER = "DMLWithDeletionVectorsHelper$"
#: Where a column's name in files stands, in the metadata of its field.
_PHYSICAL = "delta.columnMapping.physicalName"
#: In the statistics of a file whose bounds are those of its rows. Inside of a value the quotes
#: would be escaped.
_TIGHT = '"tightBounds":true'
#: Columns of the join: a file, the number of a row in it, the version of that row.
_FILE, _ROW, _HAS = "_file", "_row", "_has"

#: Of a key column: bounds of the round, bounds of a file.
_Range = tuple[int, int, int, int]


def commit(
    session: SparkSession, path: str, policy: TablePolicy, rows: RoundRows, helper: str = HELPER
) -> bool:
    """Bring ``rows`` into the table at ``path``; false: it takes an ordinary MERGE only, and
    nothing was done.

    Settings of the session say what the commit notes, as for a statement.

    Raises:
        Exception: of Spark or Delta; nothing was committed then.
    """
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    try:
        return _Commit(session, path, policy, rows, helper).run()
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, TypeError) as failure:
        # Not an exception of Java's: a method is not there, or a class, which py4j then takes
        # for a package.
        if isinstance(failure, TypeError) and "JavaPackage" not in str(failure):
            raise
        log.warning("this version of Delta takes ordinary MERGEs only: %s", failure)
        return False


class _Commit:
    def __init__(
        self,
        session: SparkSession,
        path: str,
        policy: TablePolicy,
        rows: RoundRows,
        helper: str,
    ) -> None:
        self._session = session
        self._jsession = session._jsparkSession
        java: Any = session.sparkContext._jvm
        self._java = java
        self._delta: Any = java.org.apache.spark.sql.delta
        self._none = java.scala.Option.empty()
        self._policy = policy
        self._rows = rows
        self._log = self._delta.DeltaLog.forTable(self._jsession, path)
        self._transaction = self._log.startTransaction(self._none, self._none)
        self._snapshot = self._transaction.snapshot()
        self._helper = getattr(getattr(self._delta.commands, helper), "MODULE$")

    def run(self) -> bool:
        if not self._fits():
            return False
        if self._was_executed():
            return True
        files, narrow = self._near(self._files())
        target = self._target(files)
        if not _same_names(target.columns, self._columns()):
            return False
        found = self._found(target, narrow=narrow)
        counts, vectors = self._vectors(files, found)
        touched = self._helper.findFilesWithMatchingRows(
            self._transaction,
            self._helper.generateCandidateFileMap(self._log.dataPath(), files),
            vectors,
        )
        # As many as were found, or two rows of the round are one key to Spark: MERGE says so.
        marked = sum(file.numberOfModifiedRows() for file in _each(touched))
        if counts is not None and marked != counts["deleted"] + counts["updated"]:
            return False
        rows = self._rows.frame
        if counts is None or counts["stale"]:
            rows = rows.join(found.where(~_newer()).select(*self._keys()), self._keys(), "anti")
        added = self._transaction.writeFiles(self._new(rows, target)._jdf)
        noted = self._helper.createSetTransaction(self._jsession, self._log, self._none)
        self._report(counts, added)
        actions = self._buffer()
        for some in (noted.toList(), self._marked(touched), added):
            actions.appendAll(some)
        self._transaction.commit(actions.toSeq(), self._operation())
        return True

    # -- the table --------------------------------------------------------------------------

    def _fits(self) -> bool:
        properties = self._snapshot.metadata().configuration()
        if any(_text(properties.get(name)) == "true" for name in _NEEDS_MERGE):
            return False
        return _text(properties.get("delta.enableDeletionVectors")) == "true"

    def _was_executed(self) -> bool:
        """Whether the commit this session notes is in the table. Asked of the checksum file, as
        Delta's own look-up reads the whole log by three jobs of Spark's."""
        checksum = self._snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else self._none
        if not known.isDefined():
            found: bool = self._helper.hasBeenExecuted(
                self._transaction, self._jsession, self._none
            )
            return found
        application = self._session.conf.get(TRANSACTION[0], None)
        version = self._session.conf.get(TRANSACTION[1], None)
        if application is not None:
            # So that a commit of the same feed in between is a conflict, as Delta's look-up does.
            self._transaction.readTxn().append(application)
        return version is not None and any(
            entry.appId() == application and entry.version() >= int(version)
            for entry in _each(known.get())
        )

    def _files(self) -> Any:
        """The table's files: from the checksum file of its version when they are few enough to
        stand there, else from its log by a job of Spark's."""
        checksum = self._snapshot.checksumOpt()
        if checksum.isDefined() and checksum.get().allFiles().isDefined():
            files = checksum.get().allFiles().get()
            if files.size() == checksum.get().numFiles():
                self._transaction.readWholeTable()
                return files
        return self._transaction.filterFiles()

    def _near(self, files: Any) -> tuple[Any, bool]:
        """The files that may have a key of the round; and whether its keys lie so close together
        that Parquet should look for them inside of a file, too.

        That look puts the bounds into the code that Spark generates, so the JVM compiles each
        round again and runs it cold: on a table of a million rows a second or two, for nothing
        where the keys are anywhere.
        """
        schema, bounds = self._rows.schema, self._rows.bounds
        fields = json.loads(self._snapshot.metadata().schemaString())["fields"]
        physical = {
            field["name"].lower(): field["metadata"].get(_PHYSICAL, field["name"])
            for field in fields
        }
        limits = {
            physical.get(schema.columns[number].name.lower()): bounds[f"c{number}"]
            for number in schema.key
            if isinstance(bounds.get(f"c{number}", ("",))[0], int)
        }
        if not limits:
            return files, True
        near, ranges = self._buffer(), []
        for file in _each(files):
            found = _ranges(file, limits)
            if found is None:
                return files, True
            if all(low <= most and high >= least for low, high, least, most in found):
                near.append(file)
                ranges.append(found)
        return near.toSeq(), any(map(_small_part, zip(*ranges, strict=True)))

    def _target(self, files: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        frame = self._log.createDataFrame(self._snapshot, files, False, self._none)
        return DataFrame(frame, self._session)

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

    def _vectors(self, files: Any, found: DataFrame) -> tuple[Mapping[str, int] | None, Any]:
        """Write the deletion vectors; of what was found, how many rows are deleted, how many
        updated, and of how many the table has a newer version (``stale``). None: Spark dropped
        the count from its plan, as it may where it sees that nothing is left to do."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        deletes = F.col(OPERATION) == "d"
        counted = found.observe(
            seen,
            F.count_if(~_newer()).alias("stale"),
            F.count_if(_newer() & deletes).alias("deleted"),
            F.count_if(_newer() & ~deletes).alias("updated"),
        )
        some = self._java.scala.Option.apply
        vectors = (
            self._delta.commands.DeletionVectorBitmapGenerator
        ).buildRowIndexSetsForFilesMatchingCondition(
            self._jsession,
            self._transaction,
            True,
            counted.where(_newer())._jdf,
            files,
            self._java.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral(),
            some(F.col(_FILE)._jc),
            some(F.col(_ROW)._jc),
        )
        # Not seen.get: that fails where there is no count.
        java: Any = seen._jo
        counts = {str(each._1()): int(each._2()) for each in _each(java.get())}
        return counts or None, vectors

    def _marked(self, touched: Any) -> Any:
        """The files whose rows were found, with their new vectors in place of the old."""
        if any(not _has_stats(file.fileLogEntry()) for file in _each(touched)):
            length = self._delta.stats.StatsCollectionUtils.getDataSkippingStringPrefixLength(
                self._jsession, self._snapshot.metadata()
            )
            return self._helper.processUnmodifiedData(
                self._jsession, touched, self._snapshot, length
            )._1()
        now = self._java.System.currentTimeMillis()
        actions = self._buffer()
        for file in _each(touched):
            entry = file.fileLogEntry()
            if file.isFullyReplaced():
                actions.append(entry.removeWithTimestamp(now, True))
            else:
                pair = _wide(entry).removeRows(file.newDeletionVector(), False, True)
                actions.append(pair._1())
                actions.append(pair._2())
        return actions

    # -- new rows ---------------------------------------------------------------------------

    def _new(self, rows: DataFrame, target: DataFrame) -> DataFrame:
        """The rows to append, in the table's columns, order and types."""
        from pyspark.sql import functions as F

        staged = {name.lower(): column for name, column in self._columns().items()}
        rows = rows.where(F.col(OPERATION) != "d").select(
            *(
                F.col(staged[field.name.lower()]).cast(field.dataType).alias(field.name)
                for field in target.schema.fields
            )
        )
        parts = [str(name) for name in _each(self._snapshot.metadata().partitionColumns())]
        if parts:
            return rows.repartition(*(F.col(quoted(name)) for name in parts))
        return rows.coalesce(1) if self._rows.count < ONE_FILE else rows

    # -- the commit -------------------------------------------------------------------------

    def _report(self, counts: Mapping[str, int] | None, added: Any) -> None:
        """What DESCRIBE HISTORY shows of it."""
        counts = counts or dict.fromkeys(("deleted", "updated"), 0)
        written = self._transaction.getMetric("numOutputRows")
        output = int(written.get().value()) if written.isDefined() else counts["updated"]
        known = {
            "operationNumSourceRows": self._rows.count,
            "numTargetRowsUpdated": counts["updated"],
            "numTargetRowsMatchedUpdated": counts["updated"],
            "numTargetRowsDeleted": counts["deleted"],
            "numTargetRowsMatchedDeleted": counts["deleted"],
            "numTargetRowsInserted": output - counts["updated"],
            "numTargetFilesAdded": added.size(),
        }
        wanted = {str(name) for name in _each(self._delta.DeltaOperationMetrics.MERGE())}
        make = self._java.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        context = self._session.sparkContext._jsc.sc()
        metrics = {}
        for name in wanted | set(known):
            metrics[name] = make(context, name)
            metrics[name].set(int(known.get(name, 0)))
        shared = self._java.org.apache.spark.api.python.PythonUtils.toScalaMap(metrics)
        self._transaction.registerSQLMetrics(self._jsession, shared)

    def _operation(self) -> Any:
        nothing = self._buffer().toSeq()
        return self._delta.DeltaOperations.Merge(
            self._none, self._none, self._none, self._none, nothing, nothing, nothing
        )

    def _buffer(self) -> Any:
        return self._java.scala.collection.mutable.ArrayBuffer()


def _join(key_bytes: int, rows: int) -> str:
    """How so many rows with so many bytes of keys meet the table, as a hint of Spark's."""
    for hint, (most_bytes, most_rows) in (("broadcast", BROADCAST), ("shuffle_hash", HASHED)):
        if key_bytes <= most_bytes and rows <= most_rows:
            return hint
    return "merge"


def _newer() -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(VERSION) >= F.col(_HAS), F.lit(True))


def _has_stats(file: Any) -> bool:
    """The file's statistics are there, and need but a word to stay true with more rows gone.

    Counts of nulls of a file with a vector may be of its live rows only, as long as its bounds
    are tight.
    """
    if not file.numPhysicalRecords().isDefined():
        return False
    if _text(file.tightBounds()) == "false":
        return True
    return file.deletionVector() is None and file.stats().count(_TIGHT) == 1


def _wide(file: Any) -> Any:
    """The file with bounds that hold what it may have had. The text is changed, and not read and
    written: Delta's own way takes decimals for doubles, and a reader skips the file by those."""
    if _text(file.tightBounds()) == "false":
        return file
    return file.copy(
        file.path(),
        file.partitionValues(),
        file.size(),
        file.modificationTime(),
        file.dataChange(),
        file.stats().replace(_TIGHT, '"tightBounds":false'),
        file.tags(),
        file.deletionVector(),
        file.baseRowId(),
        file.defaultRowCommitVersion(),
        file.clusteringProvider(),
        file.backReference(),
        file.amtPassthrough(),
    )


def _ranges(file: Any, limits: Mapping[str | None, tuple[object, object]]) -> list[_Range] | None:
    """For each key column the bounds of the round and of the file; None: the file says nothing."""
    stats = json.loads(file.stats() or "{}")
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


def _text(option: Any) -> str:
    return str(option.get()).lower() if option.isDefined() else ""


def _each(items: Any) -> list[Any]:
    found, iterator = [], items.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def _same_names(names: list[str], others: Mapping[str, str]) -> bool:
    return {name.lower() for name in names} == {name.lower() for name in others}
