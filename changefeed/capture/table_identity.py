"""Decides whether a table is still the one that a feed began with.

A feed identifies a table by its name and the source's number of it. A table that was dropped,
recreated under its name, or renamed is *lost* to the feeds that began with it: they get no more
rows of it, and never rows of another table instead. Feeds that name a table follow a
rename (:mod:`changefeed.feeds.lost_tables`), so a table is captured under its new name, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.core.schema import TableName
from changefeed.core.table_errors import renamed
from changefeed.sources.base import TableLocations

#: A name, and the source's number of the table that a feed means by it (0: not known).
Known = tuple[TableName, int]


@dataclass(frozen=True, slots=True)
class LostTable:
    """What became of a table.

    Attributes:
        error: CF2106, for a feed that names the table. dropped: the table was dropped; else it
        exists under another name. after: all its changes under this name are below this position of
        the source's log. delay: how much further the log must be, ns, before it is certain that it
        has no rename of the table. at: the same as a log timestamp, if it is known already. now:
        the table's present name; None if it was dropped.
    """

    error: ChangefeedError
    dropped: bool
    after: Position = ""
    delay: int = 0
    at: Timestamp | None = None
    now: TableName | None = None


def missing(wanted: Collection[Known], seen: TableLocations) -> dict[Known, ChangefeedError]:
    """The tables whose names now belong to another table or to none, and why.

    A name without a table whose number is not known is not a loss: no feed began with it, and the
    source reports its problem.
    """
    return {
        (table, table_id): _reason(table, table_id, seen)
        for table, table_id in wanted
        if table_id and seen.ids.get(table) != table_id
    }


def _reason(table: TableName, table_id: int, seen: TableLocations) -> ChangefeedError:
    name = f'table "{table.schema}.{table.name}"'
    again = table in seen.ids
    now = seen.names.get(table_id)
    if now is not None:
        return renamed(table, now, "another table has that name now" if again else "")
    if again:
        return ChangefeedError(
            Code.TABLE_REPLACED, f"{name} was dropped and created again: it is another table"
        )
    return ChangefeedError(
        Code.TABLE_REPLACED,
        f"{name} was dropped",
        hint="ALTER CHANGEFEED .. DROP the table, or DROP the feed if it was the only one.",
    )


def capturable(wanted: Collection[Known], seen: TableLocations | None) -> dict[TableName, int]:
    """The names to capture with the number each stands for (0: not known). What was renamed is
    captured on, under its new name: its feeds may follow."""
    if seen is None:
        return {table: 0 for table, _ in wanted}
    numbers: Mapping[TableName, int] = seen.ids
    moved_to = {seen.names[i]: i for _, i in wanted if i in seen.names}
    return moved_to | {
        table: numbers.get(table, 0)
        for table, table_id in wanted
        if not table_id or numbers.get(table) == table_id
    }
