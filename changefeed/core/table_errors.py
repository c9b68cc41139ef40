"""Errors that are about one table of a feed: its other tables go on."""

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
    """An exception that nobody planned for, met while working on one table.

    Its cause is the exception itself.
    """

    def __init__(self, table: TableName) -> None:
        super().__init__(str(table))
        self.table = table


@contextmanager
def about_table(table: TableName) -> Iterator[None]:
    """Whatever goes wrong inside in a way that nobody planned for is about this table.

    Raises:
        TableFailure: for an exception that is no error of ours.
    """
    try:
        yield
    except (ChangefeedError, TableError, TableFailure):
        raise
    except Exception as failure:
        raise TableFailure(table) from failure
