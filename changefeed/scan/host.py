"""What a scan needs of the feed that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName, TableSchema

# Spark's workers import this module, and need none of these.
if TYPE_CHECKING:
    import pyarrow as pa

    from changefeed.capture.source_runtime import SourceRuntime
    from changefeed.core.engines import EngineOption
    from changefeed.core.sizes import Sizes
    from changefeed.core.work_stages import Stages
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

    @property
    def check_lease(self) -> Callable[[], None]:
        """Raises LeaseLost when another node has the job."""
        ...

    def keeps(self, sink: Sink) -> bool:
        """The feed is exactly once by progress that this sink keeps."""
        ...


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How hard a scan reads its source.

    Attributes:
        readers: parts that are read at the same time, in this process.
        rate: bytes a second, all readers together; None: as fast as it goes.
        option: the option of the feed that sets one of them; empty: none does.
    """

    readers: int = 4
    rate: int | None = None
    option: str = ""


@dataclass(frozen=True)
class ScanHost:
    """The feed of a scan, as it is when the scan begins: an ALTER ends the scan.

    The functions are called from the scan's threads.

    Attributes:
        name, job_id: the feed's.
        state: id of the state that has it.
        source_runtime: the source whose tables are read.
        spark: Spark, started on first use.
        sinks: the feed's sink objects.
        sizes: how much is done in one go.
        stages: measures what is read and encoded in this process.
        asked_engine: where the feed, or else the node, wants scans to run.
        limits: how hard the source is read.
        history: what the feed's tables keep of the past.
        needs_spark: Spark merges what the feed delivers; else it only helps with large scans.
        has_query: rows go through a CDC query, which runs in this process and not in Spark's
            workers.
        promised: returns up to where consumers may count on having everything; None: nowhere.
        note_engine: records for SHOW that a table is scanned elsewhere than in the node.
        recognise: raises CF2106 unless the table is the one that the feed began with.
        intern_schema: returns a shape with the version that the catalog knows it by.
        plan: returns how rows of a table version become messages.
        form: returns a digest of what determines the form of delivered rows of a table version.
        messages: ``plan`` with its schemas known to the feed's registry, for encoding.
        row_plan: returns what a sink of typed rows sees of a table version.
        rows: turns rows of a table's log into rows of the log of what the feed delivers.
        target: returns the table as the sink sees it.
        wake: lets the feed's thread look at the scan.
        refuse_row: keeps a row that is refused, in the log's columns, as a dead letter; takes also
            how many rows of the table the scan has delivered. None: the feed keeps none.
    """

    name: str
    job_id: int
    source_runtime: SourceRuntime
    spark: NodeSpark
    sinks: ScanSinks
    sizes: Sizes
    stages: Stages
    asked_engine: EngineOption
    limits: ScanLimits
    history: History
    needs_spark: bool
    has_query: bool
    promised: Callable[[], Timestamp | None]
    note_engine: Callable[[TableName, str], None]
    recognise: Callable[[TableSchema], None]
    intern_schema: Callable[[TableSchema], TableSchema]
    plan: Callable[[TableSchema], MessagePlan]
    form: Callable[[TableSchema], str]
    messages: Callable[[TableSchema], MessagePlan]
    row_plan: Callable[[TableSchema], RowPlan]
    rows: Callable[[TableSchema, pa.Table], pa.Table]
    target: Callable[[TableName], Target]
    wake: Callable[[], None]
    refuse_row: Callable[[TableSchema, pa.Table, ChangefeedError, int], None] | None = None
    state: str = ""


def scan_progress_key(table: TableName) -> str:
    """Under what name a sink that keeps progress knows the last whole scan of a table."""
    return f"{table}#scan"
