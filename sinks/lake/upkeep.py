"""Small files and old versions: what ``optimize`` and ``expire`` do, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from sinks.lake.table import LakeTable

log = logging.getLogger("changefeed.sinks.lake")

#: Old versions are looked for this often at most, seconds.
EXPIRE_EVERY = 86_400.0


class Upkeep:
    """When which table was last cared for, in this process.

    It runs between two merges of the feed, in its thread: a compaction beside a merge would
    fail one of the two.

    Args:
        optimize: seconds between two compactions of a table that is written; None: never.
        expire: seconds older versions are kept; None: for ever.
    """

    def __init__(
        self,
        optimize: float | None,
        expire: float | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._optimize = optimize
        self._expire = expire
        self._clock = clock
        self._optimized: dict[str, float] = {}
        self._expired: dict[str, float] = {}

    def due(self, name: str) -> bool:
        """Whether :meth:`after_commit` has something to do for this table, or has not seen it."""
        now = self._clock.monotonic()
        wanted = ((self._optimized, self._optimize), (self._expired, self._expires_every))
        return any(
            every is not None and now - last.get(name, -every) >= every for last, every in wanted
        )

    @property
    def _expires_every(self) -> float | None:
        return None if self._expire is None else min(EXPIRE_EVERY, max(self._expire, 1.0))

    def after_commit(self, table: LakeTable) -> None:
        """Care for a table that was just written, if it is time. A failure is logged: the data
        is safe, and it is tried again next time."""
        now = self._clock.monotonic()
        optimized = self._due(self._optimized, table.name, self._optimize, now)
        if optimized:
            self._try(table.optimize, "optimize", table)
        keep = self._expire
        if keep is None:
            return
        if self._due(self._expired, table.name, self._expires_every, now) or optimized:
            self._expired[table.name] = now
            self._try(lambda: table.expire(keep), "expire", table)

    def _due(self, last: dict[str, float], name: str, every: float | None, now: float) -> bool:
        if every is None:
            return False
        if now - last.setdefault(name, now) < every:
            return False
        last[name] = now
        return True

    def _try(self, work: Callable[[], None], what: str, table: LakeTable) -> None:
        try:
            work()
        except Exception as failure:  # whatever it is, the rows are committed
            log.warning("%s of %s failed: %s", what, table.name, type(failure).__name__)
