"""Tables of a source whose changes may be missing in the change log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from changefeed.catalog import Catalog, Gap
from changefeed.catalog.cached import CachedRead
from changefeed.core.clock import Clock, SystemClock
from changefeed.core.schema import TableName
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings

_SECONDS = "%Y-%m-%d %H:%M:%S"


class TableGaps:
    """The gaps that the state knows, read again when the state has changed."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        clock: Clock | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._catalog = catalog
        self._name = name
        self._known: Mapping[TableName, Gap] = {}
        self._saved = CachedRead(catalog.version, partial(catalog.gaps, name))
        #: When the state is asked again.
        self._due = 0.0
        #: When the last check found the source in order.
        self.looked: datetime | None = None

    def add(self, reasons: Mapping[TableName, str]) -> None:
        """Record for the feeds of these tables that changes may be missing."""
        now = f"{datetime.now(UTC):{_SECONDS}}"
        when = f"between {self.looked:{_SECONDS}} and {now}" if self.looked else f"before {now}"
        texts = {
            table: f'changes to table "{table.schema}.{table.name}" {when} UTC may be missing: '
            f"{why}"
            for table, why in reasons.items()
        }
        ids = self._catalog.captured_table_ids(self._name)
        found = self._catalog.add_gaps(texts)
        for table, gap in found.items():
            log.warning("source %s: %s", self._name, gap.reason)
            self._catalog.fail_idle_tables(table, ids.get(table, 0), gap.error, gap.at)
        self._due = 0.0

    def known(self) -> Mapping[TableName, Gap]:
        """The gaps by table, found by any process."""
        now = self._clock.monotonic()
        if now >= self._due:
            # Feeds ask in each of their rounds.
            self._due = now + self._timings.gaps
            self._known = self._saved()
        return self._known
