"""Rows of the log as a sink of :attr:`sinks.base.Accepts.ROWS` gets them: typed, not encoded.

The same rows as the messages of the feed would have: those of its key range, with or without
deletes, and only the columns it names. All functions work on whole Arrow columns::

    log rows -> deletes, superseded, key range -> wanted columns, a0..an and b* renumbered
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from changefeed.core.arrow import METADATA
from changefeed.core.clock import Timestamp
from changefeed.core.log_rows import scan_rows
from changefeed.core.schema import TableSchema
from changefeed.core.shapes import Deletes
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.reused_keys import end_unsent
from changefeed.encoding.select import wanted_rows
from changefeed.encoding.unsent import refuse_unsent


@dataclass(frozen=True)
class RowPlan:
    """Makes the rows of one version of a table for a typed-row sink. Pickles into executors.

    Attributes:
        plan: what the feed asks for; what concerns the writing of messages is ignored.
    """

    plan: MessagePlan

    @cached_property
    def schema(self) -> TableSchema:
        """The table with the wanted columns alone, keys renumbered.

        The table's own schema, version and all, where every column is wanted.
        """
        whole, wanted = self.plan.schema, self.plan.columns
        if len(wanted) == len(whole.columns):
            return whole
        place = {old: new for new, old in enumerate(wanted)}
        return replace(
            whole,
            columns=tuple(whole.columns[i] for i in wanted),
            key=tuple(place[i] for i in whole.key if i in place),
        )

    @cached_property
    def _uncollapsed(self) -> MessagePlan:
        return replace(self.plan, collapse=False)

    def rows(self, table: pa.Table, *, superseded: bool = False) -> pa.Table:
        """The rows of the log's ``table`` that the feed wants, in ``schema.log_schema()``.

        A row that a later row of its transaction supersedes is left out, unless a value is
        ``missing`` in some row of ``table``: the superseded row may have it.

        Args:
            superseded: keep such rows in any case, because rows outside ``table`` lack values.

        Raises:
            ChangefeedError: CF1302, the key range cannot be compared with this key; CF4001, with
                one of its values, or a value was not sent that the plan insists on.
        """
        if not superseded and table["missing"].null_count == table.num_rows:
            return self._projected(wanted_rows(table, self.plan))
        rows = wanted_rows(table, self._uncollapsed)
        refuse_unsent(rows, self.plan)
        if self.plan.deletes is Deletes.NO and not self.plan.schema.keyless:
            rows = wanted_rows(end_unsent(table, self.plan), self._uncollapsed)
        return self._projected(rows)

    def scanned(self, batch: pa.RecordBatch | pa.Table, at: Timestamp) -> pa.Table:
        """As :meth:`rows`, for rows (``a0..an``) that a scan read at ``at``."""
        return self.rows(scan_rows(self.plan.schema, batch, at))

    def _projected(self, table: pa.Table) -> pa.Table:
        schema = self.schema
        if schema is self.plan.schema:
            return table
        wanted, target = self.plan.columns, schema.log_schema()
        names = [field.name for field in METADATA]
        names += [f"a{i}" for i in wanted]
        names += [f"b{wanted[i]}" for i in schema.before_ordinals]
        return pa.table([table[name] for name in names], schema=target)
