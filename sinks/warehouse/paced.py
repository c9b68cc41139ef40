"""Warehouses whose every job costs money or counts against a quota: rounds at an interval."""

from __future__ import annotations

from collections.abc import Mapping

from changefeed.core.events import Resolved
from sinks.merged.pace import IntervalPace
from sinks.warehouse.dialect import Warehouse
from sinks.warehouse.sink import WarehouseSink


class PacedSink(WarehouseSink):
    """A :class:`WarehouseSink` whose rounds are at least ``interval`` seconds apart; changes
    gather in the change log meanwhile."""

    def __init__(
        self, warehouse: Warehouse, options: Mapping[str, object] | None, interval: float
    ) -> None:
        super().__init__(warehouse, options)
        self.pace = IntervalPace(interval)
        self._interval = interval
        self._stated: float | None = None

    def resolved(self, event: Resolved, payload: bytes) -> None:
        """Like the base class, but at most once per round: a later timestamp is enough."""
        now = self.clock.monotonic()
        if self._stated is not None and now - self._stated < self._interval:
            return
        super().resolved(event, payload)
        self._stated = now
