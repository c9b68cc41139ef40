"""When a feed's progress is saved, and when consumers get resolved timestamps.

A resolved timestamp is emitted only after the progress that it states was saved, so a crash never
invalidates it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from changefeed.core.clock import Clock, Timestamp
from changefeed.core.faults import Point, fault_point
from changefeed.core.timings import Timings
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import SinkSession
from changefeed.options import MIN_CHECKPOINT_FREQUENCY, RESOLVED


class Checkpoint:
    """Saves the progress of one feed and emits its resolved timestamps."""

    def __init__(
        self,
        sink_session: SinkSession,
        joining: Callable[[], bool],
        clock: Clock,
        timings: Timings,
    ) -> None:
        """``joining``: whether a statement has added a table that the feed does not know yet."""
        self._sink_session = sink_session
        self._joining = joining
        self._clock = clock
        self._timings = timings
        self._wanted = threading.Event()
        self._awaited: Timestamp | None = None
        self._saved_at = 0.0
        self._resolved_at = 0.0
        self._resolved: Timestamp | None = None

    @property
    def resolved(self) -> Timestamp | None:
        """The last timestamp that this run resolved for consumers."""
        return self._resolved

    def want(self, upto: Timestamp | None = None) -> None:
        """Save at the next turn, whatever the time, and once more as soon as the feed has reached
        ``upto``; safe from any thread.
        """
        if upto is not None:
            self._awaited = upto
        self._wanted.set()

    def turn(self, feed: Feed, *, moved: bool) -> None:
        """Save progress and emit a resolved timestamp, if they are due."""
        now = self._clock.monotonic()
        often = min(self._timings.save, feed.options[MIN_CHECKPOINT_FREQUENCY])
        every = often if moved or feed.changed else self._timings.save_idle
        resolve = self._resolve_due(feed, now)
        reached = self._reaches_awaited(feed)
        if not (resolve or reached or self._wanted.is_set() or now - self._saved_at >= every):
            return
        if reached:
            self._awaited = None
        self._wanted.clear()
        feed.save()
        self._saved_at = now
        fault_point(Point.RUNNER_AFTER_SAVE)
        if resolve:
            self._resolve(feed)

    def last(self, feed: Feed) -> None:
        """Save progress and emit a last resolved timestamp, because the feed ends."""
        feed.save()
        if feed.options[RESOLVED] is not None and self._sink_session.resolves:
            self._resolve(feed)

    def _reaches_awaited(self, feed: Feed) -> bool:
        awaited = self._awaited
        high = None if awaited is None else feed.high_water()
        return awaited is not None and high is not None and high >= awaited

    def _resolve_due(self, feed: Feed, now: float) -> bool:
        every = feed.options[RESOLVED]
        if every is None or now - self._resolved_at < every:
            return False
        high = self._reached(feed)
        return high is not None and high != self._resolved and self._sink_session.resolves

    def _resolve(self, feed: Feed) -> None:
        high = self._reached(feed)
        if high is None or (self._resolved is not None and high <= self._resolved):
            return
        # Asked after the timestamp is known: commits to an added table, after its statement has
        # returned, are above everything that was resolved without the table.
        if self._joining():
            return
        self._sink_session.resolved(high)
        self._resolved = high
        self._resolved_at = self._clock.monotonic()

    def _reached(self, feed: Feed) -> Timestamp | None:
        return feed.resolved(by_topic=self._sink_session.resolves_by_topic)
