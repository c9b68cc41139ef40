"""When a feed's progress is saved, and when consumers get resolved timestamps.

A resolved timestamp is emitted only after the progress that it states was saved, so a crash never
invalidates it. A feed that only watches time pass has its progress saved together with that of the
others, so that hundreds of them write once a second and not hundreds of times.
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

#: Progress is offered to the write for all feeds this often, seconds: that is a look at each table
#: of the feed, while the log may grow hundreds of times a second by other tables.
OFFER_SECONDS = 0.25


class Checkpoint:
    """Saves the progress of one feed and emits its resolved timestamps."""

    def __init__(
        self,
        sink_session: SinkSession,
        joining: Callable[[], bool],
        clock: Clock,
        timings: Timings,
        *,
        with_others: bool = False,
    ) -> None:
        """
        Args:
            joining: whether a statement has added a table that the feed does not know yet.
            with_others: this process calls :meth:`changefeed.catalog.Catalog.save_offered`.
        """
        self._sink_session = sink_session
        self._joining = joining
        self._clock = clock
        self._timings = timings
        self._with_others = with_others
        self._wanted = threading.Event()
        self._awaited: Timestamp | None = None
        self._saved_at = 0.0
        self._resolved_at = 0.0
        self._resolved: Timestamp | None = None
        #: What is to be resolved for consumers when it has been saved with the others.
        self._promised: Timestamp | None = None

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

    def turn(self, feed: Feed) -> None:
        """Save progress and emit a resolved timestamp, if they are due."""
        now = self._clock.monotonic()
        waits = not feed.changed and self._may_wait(feed)
        if not waits:
            self._promised = None
        elif self._promised is not None:
            self._keep_promise(feed, self._promised)
        every = self._timings.save_idle
        if feed.changed:
            every = min(self._timings.save, feed.options[MIN_CHECKPOINT_FREQUENCY])
        elif waits:
            every = OFFER_SECONDS
        resolve = self._promised is None and self._resolve_due(feed, now)
        reached = self._reaches_awaited(feed)
        asked = reached or self._wanted.is_set()
        if not (resolve or asked or now - self._saved_at >= every):
            return
        if reached:
            self._awaited = None
        self._wanted.clear()
        self._saved_at = now
        if waits:
            offered = feed.offer_high_water(soon=asked)
            if offered is not None:
                self._promised = offered if resolve else self._promised
                return
        feed.save()
        fault_point(Point.RUNNER_AFTER_SAVE)
        if resolve:
            self._resolve(feed)

    def prompt(self, feed: Feed) -> bool:
        """Whether the next resolved timestamp, or a timestamp that a caller of :meth:`want` waits
        for, is due as soon as the log reaches it."""
        return self._awaited is not None or self._often_resolved(feed)

    def _may_wait(self, feed: Feed) -> bool:
        """Whether a write for all feeds, up to a second later, is soon enough."""
        return self._with_others and not self._often_resolved(feed)

    def _often_resolved(self, feed: Feed) -> bool:
        every = feed.options[RESOLVED]
        return every is not None and every < self._timings.save_idle

    def _keep_promise(self, feed: Feed, promised: Timestamp) -> None:
        saved = feed.saved_with_others
        if saved is not None and saved >= promised:
            self._promised = None
            fault_point(Point.RUNNER_AFTER_SAVE)
            self._resolve(feed, saved)

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

    def _resolve(self, feed: Feed, saved: Timestamp | None = None) -> None:
        """``saved``: what was saved, if the feed may be further by now."""
        high = self._reached(feed)
        if high is not None and saved is not None:
            high = min(high, saved)
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
