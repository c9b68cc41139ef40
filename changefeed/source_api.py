"""Everything that the author of a source imports; nothing else here is promised to stay.

The contract is that of :class:`Source` and :class:`Attachment` and docs/source-guide.md;
``changefeed_testing.sources`` has its tests. A source of another package joins by an entry point of
the group ``changefeed.sources``.
"""

from __future__ import annotations

from changefeed.core.clock import Timestamp
from changefeed.core.errors import LOG_LOST, ChangefeedError, Code, Span, raise_all
from changefeed.core.events import (
    Change,
    ChangeBatch,
    Commits,
    Ddl,
    Event,
    Flush,
    Frontier,
    Position,
    SchemaChange,
    Truncate,
)
from changefeed.core.extras import lacking, needs_package
from changefeed.core.partition import Partition
from changefeed.core.schema import (
    BeforeImage,
    Column,
    KeyRange,
    RowKey,
    TableName,
    TableSchema,
)
from changefeed.core.settings import (
    Authority,
    Parameter,
    ParameterKind,
    Settings,
    Tls,
    invalid,
    setting,
)
from changefeed.core.types import Form
from changefeed.core.unread import PartRange
from changefeed.sources.base import (
    Attachment,
    CaptureResult,
    Handover,
    KeySet,
    Memo,
    PartitionInfo,
    ScanPart,
    ScanWorker,
    Snapshot,
    Source,
    Stream,
    StreamFallback,
    StreamRequest,
    TableInfo,
    TableLocations,
    Watch,
    as_sent,
    leading,
    range_of,
)

__all__ = [
    # the source, and what its methods take and return
    "Source", "Attachment", "Memo", "Watch", "TableInfo", "TableLocations", "CaptureResult",
    "Handover", "PartitionInfo", "Partition", "Snapshot", "ScanPart", "ScanWorker", "PartRange",
    "KeySet", "KeyRange", "RowKey", "Stream", "StreamRequest", "StreamFallback", "as_sent",
    "leading", "range_of",
    # what a stream yields
    "Flush", "Frontier", "Position", "Commits", "Event", "ChangeBatch", "Change", "Truncate",
    "SchemaChange", "Ddl", "Timestamp",
    # tables
    "TableName", "TableSchema", "Column", "Form", "BeforeImage",
    # parameters of the URI
    "Settings", "setting", "invalid", "Authority", "Tls", "Parameter", "ParameterKind",
    # errors
    "ChangefeedError", "Code", "Span", "LOG_LOST", "raise_all", "lacking", "needs_package",
]  # fmt: skip
