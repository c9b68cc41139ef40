"""What a scan needs of the feed that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName, TableSchema

# Spark's workers import this module, and need none of these.
if TYPE_CHECKING:
    import pyarrow as pa

    from changefeed.capture.source_runtime import SourceRuntime
    from changefeed.core.engines import EngineOption
    from changefeed.core.sizes import Sizes
    from changefeed.encoding.plan import MessagePlan
    from changefeed.encoding.typed_rows import RowPlan
    from changefeed.options import History
    from changefeed.spark.session import NodeSpark
    from sinks.base import Sink, SinkContext, Target


class ScanSinks(Protocol):
    """The sink objects of the feed, as far as a scan uses them."""

    def for_scan(self, unfinished: Mapping[TableName, Timestamp]) -> Sink:
        """The scan thread's own opened sink. ``unfinished``: from which instant on scans of a
        table do not count as whole."""
        ...

    def new_sink(self) -> Sink:
        """Another sink object of the feed, not opened."""
        ...

    def context(self, *, scan: bool = False, here: bool = True) -> SinkContext:
        """What the sink may know; ``here`` is false for a copy that leaves this process."""
        ...

    def in_workers(self, sink: Sink) -> bool:
        """Spark's executors may write what this sink object takes."""
        ...

    def keeps(self, sink: Sink) -> bool:
        """The feed is exactly once by progress that this sink keeps."""
        ...


class ScanHost(Protocol):
    """The feed of a scan. Called from the scan's threads."""

    @property
    def name(self) -> str:
        """The feed's name."""
        ...

    @property
    def job_id(self) -> int:
        """The feed's job."""
        ...

    @property
    def source_runtime(self) -> SourceRuntime:
        """The source whose tables are read."""
        ...

    @property
    def spark(self) -> NodeSpark:
        """Spark, started on first use."""
        ...

    @property
    def asked_engine(self) -> EngineOption:
        """Where the feed, or else the node, wants scans to run."""
        ...

    @property
    def sizes(self) -> Sizes:
        """How much is done in one go."""
        ...

    @property
    def history(self) -> History:
        """What the feed's tables keep of the past."""
        ...

    def note_engine(self, table: TableName, text: str) -> None:
        """Write down for SHOW that a table is scanned elsewhere than in the node."""
        ...

    @property
    def sinks(self) -> ScanSinks:
        """The feed's sink objects."""
        ...

    @property
    def promised(self) -> Timestamp | None:
        """Consumers may have been told that everything up to here was delivered."""
        ...

    @property
    def needs_spark(self) -> bool:
        """Spark merges what the feed delivers; else it only helps with large scans."""
        ...

    def wake(self) -> None:
        """Let the feed's thread look at the scan."""
        ...

    def recognise(self, schema: TableSchema) -> None:
        """Raise CF2106 unless the table is the one that the feed began with."""
        ...

    def intern_schema(self, schema: TableSchema) -> TableSchema:
        """The same shape with the version that the catalog knows it by."""
        ...

    def plan(self, schema: TableSchema) -> MessagePlan:
        """How rows of a table version become messages."""
        ...

    def messages(self, schema: TableSchema) -> MessagePlan:
        """:meth:`plan` with its schemas known to the feed's registry, for encoding."""
        ...

    def row_plan(self, schema: TableSchema) -> RowPlan:
        """What a sink of typed rows sees of a table version."""
        ...

    @property
    def has_query(self) -> bool:
        """Rows go through a CDC query, which runs in this process and not in Spark's workers."""
        ...

    def rows(self, schema: TableSchema, rows: pa.Table) -> pa.Table:
        """Rows of a table's log as rows of the log of what the feed delivers."""
        ...

    def target(self, table: TableName) -> Target:
        """The table as the sink sees it."""
        ...


def scan_progress_key(table: TableName) -> str:
    """Under what name a sink that keeps progress knows the last whole scan of a table."""
    return f"{table}#scan"
