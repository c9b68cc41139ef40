"""Functions of CDC queries: names for what Python modules define."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, delete, insert, select

from changefeed.catalog import tables
from changefeed.catalog.rows import Function
from changefeed.catalog.store import CatalogPart, list_of, list_text
from changefeed.core.errors import ChangefeedError, Code

_table = tables.function


class Functions(CatalogPart):
    """Part of :class:`changefeed.catalog.Catalog`."""

    def create_function(self, function: Function, if_not_exists: bool = False) -> bool:
        """Keep a function; False when its name was there and may be.

        Raises:
            ChangefeedError: CF1102 the name is taken.
        """
        with self._database.write() as transaction:
            same = select(_table).where(_table.c.name == function.name)
            if transaction.execute(same).one_or_none() is not None:
                if if_not_exists:
                    return False
                raise ChangefeedError(Code.NAME_TAKEN, f'function "{function.name}" already exists')
            transaction.execute(
                insert(_table).values(
                    name=function.name,
                    arguments=list_text([f"{name} {kind}" for name, kind in function.arguments]),
                    returns=function.returns,
                    reference=function.reference,
                    path=function.path,
                    vectorized=function.vectorized,
                    created=self._now(),
                )
            )
            return True

    def drop_function(self, name: str) -> bool:
        """Forget a function; False when it was not there."""
        with self._database.write() as transaction:
            return transaction.execute(delete(_table).where(_table.c.name == name)).rowcount > 0

    def functions(self) -> list[Function]:
        """All functions by name."""
        with self._database.read() as transaction:
            rows = transaction.execute(select(_table).order_by(_table.c.name))
            return [_function(row) for row in rows]


def _function(row: Row[Any]) -> Function:
    arguments = tuple(tuple(text.rsplit(" ", 1)) for text in list_of(row.arguments))
    return Function(
        row.name,
        arguments,  # type: ignore[arg-type]
        row.returns,
        row.reference,
        row.path,
        row.vectorized,
        row.created,
    )
