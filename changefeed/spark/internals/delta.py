"""Delta by its own classes: what a table has recorded, and a commit of rows that were marked and
added.

These classes are no public API of Delta. Read in Delta 4.4:
``ClassicMergeExecutor.writeDVs``, ``DMLWithDeletionVectorsHelper.processUnmodifiedData``,
``VersionChecksum.allFiles``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from changefeed.spark.internals.abilities import MissingPart, elements, jvm_of
from changefeed.spark.internals.sessions import java_session, observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Settings of a session: the application and its number that a commit notes.
TRANSACTION = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
#: In the statistics of a file: its bounds are those of its rows, or of rows that are gone, too.
#: Inside of a value the quotes would be escaped.
TIGHT_BOUNDS, WIDE_BOUNDS = '"tightBounds":true', '"tightBounds":false'


class DeltaTableLog:
    """What the table at a path has recorded, as of now."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._java = jvm_of(session)
        self._session = java_session(session)
        self._path = path

    def exists(self) -> bool:
        """There is a table."""
        found: bool = self._java.io.delta.tables.DeltaTable.isDeltaTable(self._session, self._path)
        return found

    def property(self, name: str) -> str | None:
        """A property of the table."""
        found = self._snapshot().metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def applications(self) -> list[tuple[str, int]]:
        """The transaction identifiers: applications, and the last number of each."""
        found = self._snapshot().transactions()
        return [(str(entry._1()), int(entry._2())) for entry in elements(found)]

    def files(self) -> int:
        """How many data files it has."""
        return int(self._snapshot().numOfFiles())

    def remove(self) -> None:
        """Remove the table's directory."""
        path = self._java.org.apache.hadoop.fs.Path(self._path)
        settings = self._session.sessionState().newHadoopConf()
        path.getFileSystem(settings).delete(path, True)

    def _snapshot(self) -> Any:
        log = self._java.org.apache.spark.sql.delta.DeltaLog.forTable(self._session, self._path)
        none = self._java.scala.Option.empty()
        return log.update(False, none, none)


class DeltaFile:
    """A data file of a table."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry

    @property
    def stats(self) -> Mapping[str, Any]:
        """Its statistics, as Delta's protocol has them; empty if it has none."""
        found: Mapping[str, Any] = json.loads(self.entry.stats() or "{}")
        return found


class DeltaFiles:
    """Data files of a table, which are fetched when they are iterated over."""

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[DeltaFile]:
        return map(DeltaFile, elements(self.entries))


class DeltaTransaction:
    """A transaction of a table; nothing is written before :meth:`commit`, but files of no version.

    Its methods come in the order in which they are defined here.

    Raises:
        MissingPart: this Delta has other classes.
        Exception: of Spark or Delta; nothing was committed then.
    """

    #: The object with Delta's own work on deletion vectors.
    helper: ClassVar[str] = "DMLWithDeletionVectorsHelper$"

    def __init__(self, session: SparkSession, path: str) -> None:
        with _missing():
            self._session = session
            self._jsession = java_session(session)
            self._java = jvm_of(session)
            self._delta: Any = self._java.org.apache.spark.sql.delta
            self._none = self._java.scala.Option.empty()
            self._helper = getattr(getattr(self._delta.commands, self.helper), "MODULE$")
            self._log = self._delta.DeltaLog.forTable(self._jsession, path)
            self._transaction = self._log.startTransaction(self._none, self._none)
            self._snapshot = self._transaction.snapshot()
            self._metadata = self._snapshot.metadata()
        self._touched: Any = None

    # -- the table --------------------------------------------------------------------------

    def property(self, name: str) -> str:
        """A property of the table, in lower case; empty if it is not set."""
        return _text(self._metadata.configuration().get(name))

    def fields(self) -> list[dict[str, Any]]:
        """Its columns, as Spark writes a schema in JSON."""
        found: list[dict[str, Any]] = json.loads(self._metadata.schemaString())["fields"]
        return found

    def partitions(self) -> list[str]:
        """The columns that it is partitioned by."""
        return [str(name) for name in elements(self._metadata.partitionColumns())]

    def was_executed(self) -> bool:
        """Whether the commit this session notes is in the table. Asked of the checksum file, as
        Delta's own look-up reads the whole log by three jobs of Spark's."""
        with _missing():
            checksum = self._snapshot.checksumOpt()
            known = checksum.get().setTransactions() if checksum.isDefined() else self._none
            if not known.isDefined():
                return bool(
                    self._helper.hasBeenExecuted(self._transaction, self._jsession, self._none)
                )
            application, version = (self._session.conf.get(name, None) for name in TRANSACTION)
            if application is not None:
                # So that a commit of the same feed in between is a conflict, as Delta's look-up
                # does.
                self._transaction.readTxn().append(application)
            return version is not None and any(
                entry.appId() == application and entry.version() >= int(version)
                for entry in elements(known.get())
            )

    def files(self) -> DeltaFiles:
        """The table's files: from the checksum file of its version when they are few enough to
        stand there, else from its log by a job of Spark's."""
        with _missing():
            checksum = self._snapshot.checksumOpt()
            if checksum.isDefined() and checksum.get().allFiles().isDefined():
                files = checksum.get().allFiles().get()
                if files.size() == checksum.get().numFiles():
                    self._transaction.readWholeTable()
                    return DeltaFiles(files)
            return DeltaFiles(self._transaction.filterFiles())

    def only(self, files: Iterable[DeltaFile]) -> DeltaFiles:
        """These of the table's files."""
        made = self._buffer()
        for file in files:
            made.append(file.entry)
        return DeltaFiles(made.toSeq())

    def rows_of(self, files: DeltaFiles) -> DataFrame:
        """The rows of these files."""
        from pyspark.sql import DataFrame

        with _missing():
            found = self._log.createDataFrame(self._snapshot, files.entries, False, self._none)
            return DataFrame(found, self._session)

    # -- rows that go -----------------------------------------------------------------------

    def mark(
        self,
        files: DeltaFiles,
        found: DataFrame,
        places: tuple[Column, Column],
        marked: Column,
        counts: Mapping[str, Column],
    ) -> dict[str, int] | None:
        """Write deletion vectors for rows of ``files``.

        Args:
            found: has a row for each row of the table that is looked at.
            places: of ``found``, the file and the number of the row in it.
            marked: whether the row goes.
            counts: aggregates over ``found``.

        Returns:
            The values of ``counts``; None if Spark dropped them from its plan, as it may where it
            sees that nothing is left to do.
        """
        from pyspark.sql import Observation

        seen = Observation()
        counted: Any = found.observe(seen, *(its.alias(name) for name, its in counts.items()))
        some = self._java.scala.Option.apply
        columns: Any = places
        with _missing():
            vectors = (
                self._delta.commands.DeletionVectorBitmapGenerator
            ).buildRowIndexSetsForFilesMatchingCondition(
                self._jsession,
                self._transaction,
                True,
                counted.where(marked)._jdf,
                files.entries,
                self._java.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral(),
                *(some(column._jc) for column in columns),
            )
            self._touched = self._helper.findFilesWithMatchingRows(
                self._transaction,
                self._helper.generateCandidateFileMap(self._log.dataPath(), files.entries),
                vectors,
            )
            return observed(seen)

    def marked(self) -> int:
        """How many rows were marked."""
        return sum(file.numberOfModifiedRows() for file in elements(self._touched))

    # -- the commit -------------------------------------------------------------------------

    def commit(self, rows: DataFrame, metrics: Mapping[str, int], updated: int) -> None:
        """Mark the rows and append ``rows``, as a MERGE.

        Args:
            rows: in the table's columns, order and types.
            metrics: for DESCRIBE HISTORY; rows inserted and files added are counted here.
            updated: how many of ``rows`` are in place of marked ones.
        """
        appended: Any = rows
        with _missing():
            added = self._transaction.writeFiles(appended._jdf)
            noted = self._helper.createSetTransaction(self._jsession, self._log, self._none)
            written = self._transaction.getMetric("numOutputRows")
            output = int(written.get().value()) if written.isDefined() else updated
            known = {"numTargetRowsInserted": output - updated, "numTargetFilesAdded": added.size()}
            self._report(known | dict(metrics))
            actions = self._buffer()
            for some in (noted.toList(), self._replaced(), added):
                actions.appendAll(some)
            nothing = self._buffer().toSeq()
            merge = self._delta.DeltaOperations.Merge(*[self._none] * 4, *[nothing] * 3)
            self._transaction.commit(actions.toSeq(), merge)

    def _replaced(self) -> Any:
        """The files whose rows were marked, with their new vectors in place of the old."""
        if any(not _has_stats(file.fileLogEntry()) for file in elements(self._touched)):
            length = self._delta.stats.StatsCollectionUtils.getDataSkippingStringPrefixLength(
                self._jsession, self._metadata
            )
            return self._helper.processUnmodifiedData(
                self._jsession, self._touched, self._snapshot, length
            )._1()
        now = self._java.System.currentTimeMillis()
        actions = self._buffer()
        for file in elements(self._touched):
            entry = file.fileLogEntry()
            if file.isFullyReplaced():
                actions.append(entry.removeWithTimestamp(now, True))
            else:
                pair = _wide(entry).removeRows(file.newDeletionVector(), False, True)
                actions.append(pair._1())
                actions.append(pair._2())
        return actions

    def _report(self, known: Mapping[str, int]) -> None:
        wanted = {str(name) for name in elements(self._delta.DeltaOperationMetrics.MERGE())}
        make = self._java.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        context: Any = self._session.sparkContext
        metrics = {}
        for name in wanted | set(known):
            metrics[name] = make(context._jsc.sc(), name)
            metrics[name].set(int(known.get(name, 0)))
        shared = self._java.org.apache.spark.api.python.PythonUtils.toScalaMap(metrics)
        self._transaction.registerSQLMetrics(self._jsession, shared)

    def _buffer(self) -> Any:
        return self._java.scala.collection.mutable.ArrayBuffer()


@contextmanager
def _missing() -> Iterator[None]:
    """Raise MissingPart where a method is not there, or a class, which py4j then takes for a
    package."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    try:
        yield
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, TypeError) as failure:
        if isinstance(failure, TypeError) and "JavaPackage" not in str(failure):
            raise
        raise MissingPart(str(failure)) from failure


def _has_stats(file: Any) -> bool:
    """The file's statistics are there, and need but a word to stay true with more rows gone.

    Counts of nulls of a file with a vector may be of its live rows only, as long as its bounds
    are tight.
    """
    if not file.numPhysicalRecords().isDefined():
        return False
    if _text(file.tightBounds()) == "false":
        return True
    return file.deletionVector() is None and file.stats().count(TIGHT_BOUNDS) == 1


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
        file.stats().replace(TIGHT_BOUNDS, WIDE_BOUNDS),
        file.tags(),
        file.deletionVector(),
        file.baseRowId(),
        file.defaultRowCommitVersion(),
        file.clusteringProvider(),
        file.backReference(),
        file.amtPassthrough(),
    )


def _text(option: Any) -> str:
    return str(option.get()).lower() if option.isDefined() else ""
