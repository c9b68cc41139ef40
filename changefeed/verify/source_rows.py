"""The rows of a source as the feed would deliver them, for a comparison with its target.

They go through what the feed's own rows go through: its CDC query, then the choice of columns and
rows for a sink of typed rows, or the encoder for a sink of messages. Of a message only what tells
of the row is made: when a change was made, and by whom, the source does not know any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.formats import FORMATS
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.typed_rows import RowPlan
from changefeed.query.of_feed import FeedQuery
from changefeed.scan.table import QUERY_ROWS, TYPED_ROWS

#: When the source's rows were written, as far as their messages say it; any instant will do whose
#: nanoseconds have the usual number of digits.
_INSTANT = Timestamp(1_000_000_000_000_000_000)

#: Rows of a batch, ``a0..an`` -> what the sink compares.
Shape = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class SourceRows:
    """How rows of one version of a table are shaped.

    Attributes:
        schema: of the table at the source.
        plan: what the feed delivers of it.
        query: the feed's CDC query.
        typed: the sink takes typed rows, not messages.
    """

    schema: TableSchema
    plan: MessagePlan
    query: FeedQuery | None
    typed: bool

    def __post_init__(self) -> None:
        if not self.typed:
            _require_readable(self.plan)

    @property
    def seen(self) -> TableSchema:
        """The shape that the sink knows."""
        return RowPlan(self.plan).schema if self.typed else self.plan.schema

    @property
    def batch_rows(self) -> int:
        """About how many rows are shaped in one go."""
        return TYPED_ROWS if self.query is None else QUERY_ROWS

    def shaped(self, batch: pa.Table) -> pa.Table:
        """What the sink compares of a batch of the source's rows."""
        rows = scan_rows(self.schema, batch, _INSTANT)
        if self.query is not None:
            rows = self.query.rows(self.schema, rows, self.plan)
        return RowPlan(self.plan).rows(rows) if self.typed else self._encoded(rows)

    @cached_property
    def _bare(self) -> MessagePlan:
        """The feed's messages without what tells of the change."""
        return replace(
            self.plan,
            updated=False,
            mvcc_timestamp=False,
            diff=False,
            transactions=False,
            key_in_value=False,
            topic_in_value=False,
        )

    def _encoded(self, rows: pa.Table) -> pa.Table:
        made = encode_messages(rows, self._bare, scan=True)
        written = FORMATS[self.plan.format].schemas(self.plan.envelope)
        return made if written is None else _with_key_schema(made, written.key(self._bare).text)

    @property
    def none(self) -> pa.Table:
        """No rows of the source, as a batch."""
        columns = self.schema.columns
        return pa.table({f"a{i}": pa.array([], column.arrow) for i, column in enumerate(columns)})


def _require_readable(plan: MessagePlan) -> None:
    """Of a target only the last message of each key counts: that must be the last of a row."""
    if plan.schema.keyless:
        message = f"{plan.schema.table} has no primary key: its messages cannot be verified"
        raise ChangefeedError(Code.NOT_SUPPORTED, message)
    if plan.message_key != plan.schema.key:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            f"{plan.schema.table} cannot be verified: with key_column = '{plan.key_column}' "
            "several rows may have one message key, and of each key the last message is compared",
        )


def _with_key_schema(messages: pa.Table, schema: str) -> pa.Table:
    """The messages with the schema of their keys beside these, as that of the values is."""
    place = messages.schema.get_field_index("key")
    (name,) = messages.schema.field("value").metadata
    field = messages.schema.field(place).with_metadata({name: schema})
    return messages.set_column(place, field, messages.column(place))
