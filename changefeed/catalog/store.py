"""What every part of the catalog stands on: the database, the clock, small conversions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection as Transaction

from changefeed.catalog.database import Database, server_time
from changefeed.core.clock import Clock, SystemClock, Timestamp


class CatalogPart:
    """Base of the parts of :class:`changefeed.catalog.Catalog`."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        """``clock``: for all times; None: see :meth:`_now` and :meth:`_shared_now`."""
        self._database = database
        self._clock = clock or SystemClock()
        self._own_clock = clock is not None

    def _now(self) -> int:
        """This machine's time, ns: for what people read."""
        return self._clock.now().wall

    def _shared_now(self, transaction: Transaction) -> int:
        """The time, ns, by a clock that all nodes of the state share: the machine's where they are
        on one (SQLite), the server's on PostgreSQL."""
        if self._own_clock or transaction.dialect.name != "postgresql":
            return self._now()
        return server_time(transaction)


def stamp_text(stamp: Timestamp | None) -> str | None:
    """The column value of a timestamp."""
    return None if stamp is None else str(stamp)


def stamp_of(text: str | None) -> Timestamp | None:
    """The inverse of :func:`stamp_text`."""
    return None if text is None else Timestamp.parse(text)


def list_text(values: Sequence[str]) -> str:
    """The column value of a list of texts."""
    return json.dumps(list(values))


def list_of(text: str) -> tuple[str, ...]:
    """The inverse of :func:`list_text`."""
    return tuple(json.loads(text))
