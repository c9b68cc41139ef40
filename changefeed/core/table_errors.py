"""Errors that concern one table of a feed: its other tables continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.core.errors import ChangefeedError, Code
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


def renamed(table: TableName, now: TableName, hindrance: str = "") -> ChangefeedError:
    """CF2106: a table has another name, and its feed did not follow it.

    ``hindrance`` is why it cannot; without one RESCAN goes on with the table under its new name.
    """
    was, name = (f"{known.schema}.{known.name}" for known in (table, now))
    hint = f"ALTER CHANGEFEED .. RESCAN {was} continues with the table under its present name."
    if hindrance:
        hint = f"ALTER CHANGEFEED .. DROP {was}, then ADD {name}: it is scanned again."
    return ChangefeedError(
        Code.TABLE_REPLACED,
        f'table "{was}" was renamed to "{name}"' + f"; {hindrance}" * bool(hindrance),
        hint=hint,
    )


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
