"""Everything that the author of a sink imports; nothing else here is promised to stay.

The contract is the docstring of :class:`Sink` and docs/sink-guide.md; ``changefeed_testing.sinks``
has its tests. A sink of another package joins by an entry point of the group ``changefeed.sinks``.
"""

from __future__ import annotations

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.events import ClientRow, Ddl, Resolved, SchemaChange, Truncate
from changefeed.core.extras import lacking, needs_package
from changefeed.core.proofs import FileProof
from changefeed.core.schema import BeforeImage, Column, KeyRange, TableName, TableSchema
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
from changefeed.options import Feature, OptionRow, own_option
from changefeed.options.types import ByteSize, Choice, Duration, Flag, Json, Text, Words
from sinks.base import (
    Accepts,
    Batch,
    Capabilities,
    CommitPace,
    ConsumerProgress,
    Difference,
    Durability,
    Epoch,
    LogConsumer,
    PartPlace,
    PartWriter,
    Receipt,
    ScanFiles,
    Sink,
    SinkContext,
    SparkAccess,
    Target,
)
from sinks.ownership import Claim, Owner, claim

__all__ = [
    # the sink, and what its methods take and return
    "Sink", "Capabilities", "Accepts", "CommitPace", "SinkContext", "SparkAccess", "Target",
    "Batch", "Receipt", "Epoch", "Durability", "Difference", "LogConsumer", "ConsumerProgress",
    "PartPlace", "PartWriter", "ScanFiles", "FileProof",
    "ClientRow", "Resolved", "Truncate", "SchemaChange", "Ddl",
    # rows and messages
    "MESSAGE_SCHEMA", "TableName", "TableSchema", "Column", "Form", "BeforeImage", "KeyRange",
    "Timestamp",
    # parameters of the URI, and options of feeds
    "Settings", "setting", "invalid", "Authority", "Tls", "Parameter", "ParameterKind",
    "Feature", "OptionRow", "own_option", "Text", "Flag", "Words", "Choice", "Duration",
    "ByteSize", "Json",
    # errors
    "ChangefeedError", "Code", "raise_all", "lacking", "needs_package",
    # whose a target is
    "Claim", "Owner", "claim",
]  # fmt: skip
