"""The change log of a source, as a feed reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from changefeed.core.clock import Timestamp
from changefeed.core.schema import TableName
from changefeed.log import Slice


class LogAccess(Protocol):
    """Reads a change log that grows meanwhile. Thread-safe: callers hold no lock."""

    @property
    def oldest(self) -> Timestamp:
        """Everything above this is in the log; MAX while it is empty."""
        ...

    def slice(
        self, bounds: Mapping[TableName, Timestamp], upto: Timestamp, max_rows: int, max_bytes: int
    ) -> Slice:
        """The changes of tables above their ``bounds``, up to ``upto``.

        Raises:
            ChangefeedError: CF3002 the log no longer goes back to a bound, CF3001 it is damaged.
        """
        ...
