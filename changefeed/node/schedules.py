"""Makes the feeds of schedules when they are due; each has a thread, because the source is asked.

Every node of a state tries. The state lets one of them make a run
(:mod:`changefeed.catalog.schedules`), so it does not matter which, and nothing is lost with a node
that dies.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from changefeed.catalog import Catalog, RunConflict, Schedule, ScheduledRun
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.recurring import next_time
from changefeed.core.telemetry import log
from changefeed.statements.schedules import run_sql


class ScheduledFeeds:
    """Used by the node's loop only."""

    def __init__(
        self, catalog: Catalog, clock: Clock, make: Callable[[str, ScheduledRun], object]
    ) -> None:
        """``make`` executes the statement of a run."""
        self._catalog = catalog
        self._clock = clock
        self._make = make
        self._failures = FailureCounter(clock)
        #: The version of the state at the last look, whether a run was under way then, and the
        #: time of the next run: until one of these tells otherwise there is nothing to do.
        self._seen: int | None = None
        self._under_way = False
        self._next = 0.0
        #: By schedule; a run that is being made is not made again.
        self._making: dict[int, threading.Thread] = {}

    def look(self, version: int) -> None:
        """Note how runs ended, and make those that are due; returns at once.

        ``version`` of the state was read before. How a feed of a run ends does not raise it.
        """
        now = self._clock.now().wall
        if version == self._seen and not self._under_way and now < self._next:
            return
        for name, error in self._catalog.end_runs():
            log.warning("schedule %s: %s", name, error)
        schedules = self._catalog.schedules()
        self._seen = version
        self._under_way = any(schedule.under_way for schedule in schedules)
        self._next = min((s.due for s in schedules if not s.paused), default=math.inf)
        for schedule in schedules:
            making = self._making.get(schedule.id)
            if schedule.paused or schedule.due > now or (making and making.is_alive()):
                continue
            # From now on: times that were missed are made up for by one run.
            run = ScheduledRun(schedule.id, schedule.due, next_time(schedule.recurring, now))
            if not schedule.under_way or schedule.on_running == "start":
                name = f"schedule-{schedule.name}"
                thread = threading.Thread(
                    target=self._begin, args=(schedule, run), name=name, daemon=True
                )
                self._making[schedule.id] = thread
                thread.start()
            elif schedule.on_running == "skip":
                self._catalog.skip_run(run)
                log.info("schedule %s: skipped, %s runs", schedule.name, schedule.under_way[-1])

    def _begin(self, schedule: Schedule, run: ScheduledRun) -> None:
        with self._failures.survived(f"schedule {schedule.name}"):
            try:
                self._make(run_sql(schedule, run.due), run)
            except RunConflict:
                return  # by another node
            except ChangefeedError as error:
                failed = error
            except Exception as failure:
                failed = self._failures.error(f"schedule {schedule.name}", failure)
            else:
                return
            text = f"{failed.code.number} {failed.message}"
            if self._catalog.fail_run(run, f"a run could not begin: {text}"):
                log.warning("schedule %s: a run could not begin: %s", schedule.name, text)
