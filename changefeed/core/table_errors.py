"""Errors that concern one table of a feed: its other tables continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName


class TableError(Exception):
    """An error that stops one table of the feed and no other."""

    def __init__(self, table: TableName, error: ChangefeedError) -> None:
        super().__init__(error.message)
        self.table = table
        self.error = error


class TableFailure(Exception):
    """An unexpected exception during work on one table.

    Its cause is the exception itself.
    """

    def __init__(self, table: TableName) -> None:
        super().__init__(str(table))
        self.table = table


@contextmanager
def about_table(table: TableName) -> Iterator[None]:
    """Attribute unexpected exceptions in the block to this table.

    Raises:
        TableFailure: for an exception that is not a :class:`ChangefeedError`.
    """
    try:
        yield
    except (ChangefeedError, TableError, TableFailure):
        raise
    except Exception as failure:
        raise TableFailure(table) from failure
