"""A feed as its scans see it: :class:`changefeed.scan.host.ScanHost` for one scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog import Catalog
from changefeed.core.clock import Timestamp
from changefeed.core.engines import EngineOption
from changefeed.core.schema import TableName, TableSchema
from changefeed.core.sizes import Sizes
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_rows import RowPlan
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import SinkSession
from changefeed.options import HISTORY, History
from changefeed.spark.session import NodeSpark
from sinks.base import Target


@dataclass(frozen=True)
class FeedScanHost:
    """The feed as it is when the scan begins: an ALTER ends the scan.

    Attributes:
        feed: the job with its options, tables and plans.
        catalog: the state.
        source_runtime: the source.
        spark: Spark.
        sinks: the feed's sink objects.
        resolved: the last resolved timestamp that consumers got, if any.
        sizes: how much is done in one go.
    """

    feed: Feed
    catalog: Catalog
    source_runtime: SourceRuntime
    spark: NodeSpark
    sinks: SinkSession
    resolved: Callable[[], Timestamp | None]
    sizes: Sizes

    @property
    def name(self) -> str:
        """The feed's present name."""
        return self.feed.job.name

    @property
    def job_id(self) -> int:
        """The feed's job."""
        return self.feed.job.id

    @property
    def promised(self) -> Timestamp | None:
        """Consumers may have been told that everything up to here was delivered."""
        known = [self.feed.job.high_water, self.resolved()]
        return max((at for at in known if at is not None), default=None)

    @property
    def history(self) -> History:
        """What the feed's tables keep of the past."""
        return self.feed.options[HISTORY]

    @property
    def asked_engine(self) -> EngineOption:
        """Where the feed, or else the node, wants scans to run."""
        return self.feed.asked_engine(self.spark.preferred)

    def note_engine(self, table: TableName, text: str) -> None:
        """Write down for SHOW that a table is scanned elsewhere than in the node."""
        self.catalog.record_event(self.job_id, "engine", text, table=str(table))

    @property
    def needs_spark(self) -> bool:
        """Spark merges what the feed delivers; else it only helps with large scans."""
        return self.feed.needs_spark

    def wake(self) -> None:
        """Let the feed's thread look at the scan."""
        self.source_runtime.log.wake()

    def recognise(self, schema: TableSchema) -> None:
        """Raise CF2106 unless the table is the one that the feed began with."""
        self.feed.recognise(schema)

    def intern_schema(self, schema: TableSchema) -> TableSchema:
        """The same shape with the version that the catalog knows it by."""
        return self.catalog.intern_schema(schema)

    def plan(self, schema: TableSchema) -> MessagePlan:
        """How rows of a table version become messages."""
        return self.feed.plan(schema)

    def messages(self, schema: TableSchema) -> MessagePlan:
        """:meth:`plan` with its schemas known to the feed's registry, for encoding."""
        return self.feed.messages(schema)

    def row_plan(self, schema: TableSchema) -> RowPlan:
        """What a sink of typed rows sees of a table version."""
        return self.feed.row_plan(schema)

    @property
    def has_query(self) -> bool:
        """Rows go through a CDC query, which runs in this process and not in Spark's workers."""
        return self.feed.query is not None

    def rows(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        """Rows of a table's log as rows of the log of what the feed delivers."""
        return self.feed.rows(schema, rows)

    def target(self, table: TableName) -> Target:
        """The table as the sink sees it."""
        return self.feed.target(table)
