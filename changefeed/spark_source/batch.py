"""A batch query over the changes of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from changefeed.catalog import Catalog
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.log.follower import LogFollower
from changefeed.readers.own_node import OwnNode, own_node, until_begun, until_logged
from changefeed.readers.range_copies import RangeCopies
from changefeed.readers.reader import Reader
from changefeed.readers.snapshot import snapshot
from changefeed.readers.table_log import Range, TableLog, TableRanges, lost_columns
from changefeed.shared_logs import followed_logs
from changefeed.spark_source.settings import OnSchemaChange, SparkSourceSettings


class ChangePartition(InputPartition):
    """One range of changes: the work of one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(None)
        self.part = part


@dataclass
class LogPart:
    """A table in the log.

    Attributes:
        since: the log has all changes of the table above this.
        copy: follows the log, if another node captures the source.
    """

    log: TableLog
    since: Timestamp
    copy: LogFollower | None = None


class ChangeBatchReader(DataSourceReader):
    """Plans the ranges of a batch query in the driver, and reads one in an executor."""

    def __init__(
        self,
        settings: SparkSourceSettings,
        shape: TableSchema,
        part: LogPart | None = None,
        *,
        as_it_is: bool = False,
    ) -> None:
        """
        Args:
            settings: the query's options.
            shape: the shape of all its rows.
            part: the table in the log; None if the settings name a reader.
            as_it_is: the query reads the rows of the table, not changes."""
        self._settings: SparkSourceSettings | None = settings
        self._shape = shape
        self._part = part
        self._as_it_is = as_it_is

    def __getstate__(self) -> dict[str, object]:
        # Executors get only what they need: the settings may contain a password.
        return {"_settings": None, "_shape": self._shape, "_part": None, "_as_it_is": False}

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of the query; reads only the log's index."""
        settings = self._settings
        if settings is None:
            raise AssertionError("planned in the driver")
        with ExitStack() as opened:
            if settings.source is None:
                span = self._span(settings, None, opened)
            else:
                with own_node(settings.state, settings.source.directory()) as node:
                    span = self._span(settings, node, opened)
            check_shapes(span, self._shape, settings.on_schema_change)
            ranges: Sequence[Range] = span.ranges
            if settings.staging:
                # Spark does not say when a batch query has ended: the rows are removed a day later.
                ranges, _ = RangeCopies(settings.staging).stage(ranges)
            return [ChangePartition(part) for part in ranges]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The changes of a range; runs in an executor."""
        return read_partition(partition)

    def _span(
        self, settings: SparkSourceSettings, node: OwnNode | None, opened: ExitStack
    ) -> TableRanges:
        """The work of the query, and what must stay open until its rows are staged."""
        if node is not None and self._as_it_is:
            return snapshot(settings.state, settings.table, self._shape, node)
        if self._part is None:
            return self._of_reader(settings, node, opened)
        if node is not None:
            catalog = Catalog.open(settings.state, must_exist=True)
            try:
                until_logged(catalog, self._part.log.selection.table.source, node)
            finally:
                catalog.close()
        if self._part.copy is not None:
            opened.callback(followed_logs().close, self._part.copy)
        return self._of_log(self._part)

    def _of_log(self, part: LogPart) -> TableRanges:
        settings = self._settings
        if settings is None:
            raise AssertionError("planned in the driver")
        frontier = part.log.frontier()
        if frontier is None:
            return TableRanges((), Timestamp.ZERO)
        upto = frontier if settings.upto is None else min(frontier, settings.upto)
        begin = max(part.since, part.log.log.oldest)
        if settings.latest:
            after = frontier
        elif settings.after is None:
            after = begin
        elif settings.after < begin:
            raise ChangefeedError(
                Code.POSITION_TOO_OLD,
                f"the change log has {part.log.selection.table} above {begin} only",
                detail=f"changes above {settings.after} were asked for",
                hint="startingVersion 'earliest' reads what there is; a reader begins with a scan.",
            )
        else:
            after = settings.after
        try:
            return part.log.span(after, upto, self._shape)
        finally:
            part.log.close()

    def _of_reader(
        self, settings: SparkSourceSettings, node: OwnNode | None, opened: ExitStack
    ) -> TableRanges:
        reader = open_reader(settings, brief=True)
        opened.callback(reader.close)
        if node is not None:
            until_begun(reader, node)
            until_logged(reader.catalog, reader.job().source, node)
        frontier = reader.log().frontier()
        if reader.follows:
            require_staging(settings, reader.job().source)
        committed = reader.consumer_progress().committed
        if frontier is None or (committed is None and reader.begun() is None):
            raise ChangefeedError(
                Code.WRONG_JOB_STATE,
                f'reader "{settings.reader}" has not begun: its initial scan is not done',
                hint="a node has to run; SHOW CHANGEFEEDS shows how far it is.",
            )
        upto = frontier if settings.upto is None else min(frontier, settings.upto)
        after = settings.after if settings.after is not None else committed
        return reader.work(after, upto, self._shape)


def require_staging(settings: SparkSourceSettings, source: str) -> None:
    """Refuse a batch query whose tasks would read a copy of the log that is gone by then.

    Raises:
        ChangefeedError: CF1303.
    """
    if not settings.staging:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"a batch query of {source!r} is planned away from the node that captures it",
            hint="name a place that executors reach with the option staging, run the query where "
            "that node runs (SHOW NODES), or make it a streaming query.",
        )


def open_reader(settings: SparkSourceSettings, *, brief: bool = False) -> Reader:
    """Open the reader that the options name; ``brief``: see :attr:`.Reader.brief`."""
    reader = Reader.open(
        settings.state, settings.reader, settings.table, settings.start, settings.on_truncate
    )
    reader.brief = brief
    try:
        reader.log().range_rows = settings.range_rows
    except BaseException:
        reader.close()
        raise
    return reader


def read_partition(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The changes of a partition; runs in an executor. For a query without partitions Spark asks
    for None."""
    if partition is None:
        return iter(())
    if not isinstance(partition, ChangePartition):
        raise TypeError(f"not a partition of changes: {partition!r}")
    return partition.part.read()


def check_shapes(span: TableRanges, shape: TableSchema, policy: OnSchemaChange) -> None:
    """Refuse rows of a newer version whose columns the query's shape lacks.

    Raises:
        ChangefeedError: CF1302; the query continues after a restart.
    """
    if policy is OnSchemaChange.IGNORE:
        return
    for version in span.versions:
        lost = lost_columns(version, shape) if version.version > shape.version else []
        if lost:
            raise ChangefeedError(
                Code.TARGET_NOT_WATCHABLE,
                f"{shape.table} has changed since the query began: {', '.join(lost)}",
                hint="start the query again: it goes on with the new columns. The option "
                "schemaChange = 'ignore' leaves new columns out instead.",
            )
