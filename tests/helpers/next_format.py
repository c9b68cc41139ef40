"""The next format of a state, as a program of the next version makes it when it opens the state."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from alembic.operations import Operations
from sqlalchemy import Column, Integer, select

from changefeed.catalog import tables, upgrades
from changefeed.catalog.database import Database, shared_time
from changefeed.core.clock import SYSTEM_CLOCK


def upgrade(place: str | Path, *, compatible: bool, silent: float = 0.0) -> int:
    """Bring a state to the format after the one that it has; returns its number.

    Args:
        compatible: programs of this version may go on.
        silent: for so many seconds nobody has heard of the nodes.

    Raises:
        ChangefeedError: CF6002 nodes use it and may not go on.
    """
    with closing(Database.open(place)) as database, database.write() as transaction:
        found = {row.key: row.value for row in transaction.execute(select(tables.meta))}
        new = int(found["format"]) + 1

        def wider(operations: Operations) -> None:
            for table in (tables.job, tables.node, tables.lease, tables.source_lease):
                column = Column(f"new_{new}", Integer, server_default="7")
                operations.add_column(table.name, column)

        steps = [
            upgrades.Step(number, wider, compatible or number < new)
            for number in range(tables.FORMAT + 1, new + 1)
        ]
        upgrades.upgrade(
            transaction,
            found,
            shown="it",
            now=shared_time(transaction, SYSTEM_CLOCK) + int(silent * 1e9),
            file=None,
            steps=(*upgrades.STEPS, *steps),
        )
    return new
