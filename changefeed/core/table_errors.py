"""Errors that concern one table of a feed: its other tables continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code, Scope
from changefeed.core.schema import TableName


class TableError(Exception):
    """An error that stops one table of the feed and no other; of a row that was refused also the
    transaction ``at`` that it belongs to, where that is known."""

    def __init__(
        self, table: TableName, error: ChangefeedError, at: Timestamp | None = None
    ) -> None:
        super().__init__(error.message)
        self.table = table
        self.error = error
        self.at = at


class TableFailure(Exception):
    """An unexpected exception during work on one table.

    Its cause is the exception itself.
    """

    def __init__(self, table: TableName) -> None:
        super().__init__(str(table))
        self.table = table


def renamed(
    table: TableName, now: TableName, why: str = "", *, rescan: bool = False
) -> ChangefeedError:
    """CF2106: a table has another name, and its feed did not follow it.

    Args:
        table: the name that the feed knows.
        now: the present name.
        why: what kept the feed from it, if that is more than the time.
        rescan: RESCAN continues with the table in spite of that; without a ``why`` it always does.
    """
    was, name = (f"{known.schema}.{known.name}" for known in (table, now))
    hint = f"ALTER CHANGEFEED .. RESCAN {was} continues with the table under its present name."
    if why and not rescan:
        hint = (
            f"ALTER CHANGEFEED .. DROP {was} ADD {name} scans it again; a feed that has failed "
            "then needs RESUME. The feed of a CDC query has to be created again."
        )
    return ChangefeedError(
        Code.TABLE_REPLACED,
        f'table "{was}" was renamed to "{name}"' + f"; {why}" * bool(why),
        hint=hint,
    )


def before_log(
    cursor: Timestamp, table: TableName, begin: Timestamp | None, hint: str
) -> ChangefeedError:
    """CF3002: the change log of a table does not go back to a cursor.

    Args:
        begin: where the log of the table begins; None: it has nothing of it yet.
    """
    begins = f"begins at {begin}" if begin else "has nothing of it yet"
    return ChangefeedError(
        Code.POSITION_TOO_OLD,
        f"cursor {cursor} is before the change log of {table}, which {begins}",
        hint=hint,
    )


@contextmanager
def about_table(table: TableName) -> Iterator[None]:
    """An error in the block stops this table, and no other.

    Raises:
        TableError: for an error of scope table.
        TableFailure: for an exception that is not a :class:`ChangefeedError`.
        ChangefeedError: one of another scope.
    """
    try:
        yield
    except ChangefeedError as error:
        if error.scope is Scope.TABLE:
            raise TableError(table, error) from error
        raise
    except (TableError, TableFailure):
        raise
    except Exception as failure:
        raise TableFailure(table) from failure
