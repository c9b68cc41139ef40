"""What every part of the catalog stands on: the database, the clock, small conversions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from changefeed.catalog.database import Database
from changefeed.core.clock import Clock, Timestamp


class Store:
    """Base of the parts of :class:`changefeed.catalog.Catalog`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def _now(self) -> int:
        return self._clock.now().wall


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
