"""The Python data source ``changefeed``: its shape, and its reader for a batch or a stream."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableSchema
from changefeed.core.state import StateLayout
from changefeed.readers.changes import change_schema
from changefeed.readers.reader import Reader, announced_shape, table_name
from changefeed.readers.table_log import Selection, TableLog
from changefeed.shared_logs import followed_logs, is_elsewhere
from changefeed.spark.internals.arrow_types import spark_schema
from changefeed.spark_source.batch import ChangeBatchReader, LogPart, require_staging
from changefeed.spark_source.settings import SparkSourceSettings, settings_of
from changefeed.spark_source.stream import ChangeStreamReader, RefusedStreamReader


class ChangefeedSource(DataSource):
    """``spark.read.format("changefeed")`` and ``spark.readStream.format("changefeed")``."""

    _shape: TableSchema | None = None

    @classmethod
    def name(cls) -> str:
        return "changefeed"

    @property
    def settings(self) -> SparkSourceSettings:
        """The checked options; the connection is created if it does not exist."""
        return settings_of(self.options).located()

    def schema(self) -> StructType:
        """The table's columns, then the operation and its time.

        A reader that does not exist is created here: a query cannot be planned without it.
        """
        # Kept in this object, which the processes of the query get: all of them must use
        # the shape that the query was planned with.
        settings = self.settings
        if settings.source is not None:
            settings.source.retry(settings.reader)
        self._shape = _shape(settings)
        return spark_schema(change_schema(self._shape))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        settings, shape = self.settings, self._planned()
        if settings.reader:
            return ChangeBatchReader(settings, shape)
        if settings.source is not None and not settings.from_log:
            return ChangeBatchReader(settings, shape, as_it_is=True)
        with_log = _log_part(settings)
        return ChangeBatchReader(settings, shape, with_log)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query."""
        try:
            return self._stream_reader()
        except ChangefeedError as error:
            return RefusedStreamReader(error)

    def _stream_reader(self) -> DataSourceStreamReader:
        settings = self.settings
        if not settings.reader:
            raise ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "a streaming query needs the option reader",
                hint="choose a name: the change log is kept for the reader of that name, which "
                "SHOW CHANGEFEEDS lists.",
            )
        if settings.upto is not None:
            raise ChangefeedError(
                Code.OPTIONS_CONTRADICT,
                "a streaming query has no end: leave endingVersion and its like out",
            )
        return ChangeStreamReader(settings, self._planned())

    def _planned(self) -> TableSchema:
        if self._shape is None:
            raise ChangefeedError(
                Code.NOT_SUPPORTED,
                "the columns of the format changefeed are the table's",
                hint="leave .schema(...) out.",
            )
        return self._shape


def _shape(settings: SparkSourceSettings) -> TableSchema:
    if settings.reader:
        reader = Reader.open(settings.state, settings.reader, settings.table, settings.start)
        try:
            return reader.schema()
        finally:
            reader.close()
    catalog = Catalog.open(settings.state, must_exist=True)
    try:
        return announced_shape(catalog, Selection(table_name(settings.table)))
    finally:
        catalog.close()


def _log_part(settings: SparkSourceSettings) -> LogPart:
    """The table that a query without a reader names, in the log.

    Raises:
        ChangefeedError: CF1101, no changefeed watches the table; CF1303 as
            :func:`changefeed.spark_source.batch.require_staging`.
    """
    name = table_name(settings.table)
    catalog = Catalog.open(settings.state, must_exist=True)
    try:
        since = catalog.captured(name.source).get(name)
        if since is None:
            raise ChangefeedError(
                Code.NAME_UNKNOWN,
                f"the change log has no changes of {name}: no changefeed watches it",
                hint="give the option reader, and a reader is made that begins with a scan.",
            )
        copy = None
        if is_elsewhere(catalog, name.source):
            require_staging(settings, name.source)
            copy = followed_logs().open(catalog, name.source)
        root = StateLayout(Path(catalog.directory)).log(name.source).absolute()
    finally:
        catalog.close()
    log = TableLog(
        copy.root if copy is not None else root,
        Selection(name),
        settings.on_truncate,
        settings.range_rows,
    )
    return LogPart(log, since, copy)
