"""What is known of a transaction while its rows are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.decoded.rows import DecodedRows
from changefeed.sources.decoded.spans import Places
from changefeed.sources.decoded.superseded import CollapsedRows
from changefeed.sources.postgres.columns import Block
from changefeed.sources.postgres.logical_messages import LOGICAL_OID
from changefeed.sources.postgres.pgoutput import MESSAGE

#: Makes of a table's rows the changes of their transactions: oid, schema, rows, and for each row
#: its message's place in the stretch.
Collapse = Callable[[int, TableSchema, DecodedRows, Places], CollapsedRows]


@dataclass(slots=True)
class OpenTransaction:
    """A transaction being read.

    ``lsn`` is the place of its commit record, ``previous`` the timestamp before it; ``rows`` counts
    what was given out so far, ``touched`` says that it has rows of ours, ``spoke`` that it has
    logical messages.
    """

    lsn: int
    xid: int
    at: Timestamp
    previous: Timestamp
    commit_us: int
    skip: bool = False
    rows: int = 0
    touched: bool = False
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class Shapes:
    """What tables look like from some place of the stream on, by oid.

    ``changes`` has those that look otherwise than before.
    """

    schemas: Mapping[int, TableSchema]
    changes: Mapping[int, ShapeChange]


@dataclass(frozen=True, slots=True)
class RowMessages:
    """Row messages of one stretch without schema changes, with the transaction of each.

    Attributes:
        writers: the transaction's number, or that of its subtransaction where it is known.
    """

    tags: Places
    of: Places
    transactions: Sequence[OpenTransaction]
    writers: Places
    streamed: bool = False

    def part(self, first: int, upto: int) -> RowMessages:
        """Those of the messages from ``first`` on and before ``upto``."""
        if first == 0 and upto == len(self.tags):
            return self
        cut = slice(first, upto)
        return replace(self, tags=self.tags[cut], of=self.of[cut], writers=self.writers[cut])

    def of_tables(self, oids: Places, chosen: Collection[int]) -> RowMessages:
        """Those of the messages whose table, in ``oids``, is among the chosen."""
        mine = np.isin(oids, np.array(sorted(chosen), np.int64))
        return replace(self, tags=self.tags[mine], of=self.of[mine], writers=self.writers[mine])


def table_oids(block: Block, tags: Places, *, streamed: bool) -> Places:
    """Which table each row message is about."""
    oids = block.word(tags + (5 if streamed else 1)) & 0xFFFFFFFF
    logical = block.data[tags] == MESSAGE
    if logical.any():
        oids[logical] = LOGICAL_OID
    return oids
