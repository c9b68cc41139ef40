"""When a feed's progress is made durable, and when consumers are told how far they are.

Resolved is emitted only after the progress it states was saved, so it can never be taken back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from changefeed.core.clock import Timestamp
from changefeed.core.faults import Point, fault_point
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import Outlet
from changefeed.options import MIN_CHECKPOINT_FREQUENCY, RESOLVED

#: Progress of a feed that delivers is saved about this often (seconds).
SAVE_SECONDS = 1.0
#: Progress of a feed that only watches time pass is saved this often.
SAVE_IDLE_SECONDS = 2.0


class Checkpoint:
    """Saves the progress of one feed and emits its resolved timestamps."""

    def __init__(self, outlet: Outlet, joining: Callable[[], bool]) -> None:
        """``joining``: a statement has given the feed a table that it does not know yet."""
        self._outlet = outlet
        self._joining = joining
        self._wanted = threading.Event()
        self._saved_at = 0.0
        self._resolved_at = 0.0
        self._resolved: Timestamp | None = None

    @property
    def resolved(self) -> Timestamp | None:
        """What consumers were told last, by this run."""
        return self._resolved

    def want(self) -> None:
        """Save at the next chance, whatever the time; safe from any thread."""
        self._wanted.set()

    def turn(self, feed: Feed, *, moved: bool) -> None:
        """Save and resolve if it is time to."""
        now = time.monotonic()
        often = min(SAVE_SECONDS, feed.options[MIN_CHECKPOINT_FREQUENCY])
        every = often if moved or feed.changed else SAVE_IDLE_SECONDS
        resolve = self._resolve_due(feed, now)
        if not (resolve or self._wanted.is_set() or now - self._saved_at >= every):
            return
        self._wanted.clear()
        feed.save()
        self._saved_at = now
        fault_point(Point.RUNNER_AFTER_SAVE)
        if resolve:
            self._resolve(feed)

    def last(self, feed: Feed) -> None:
        """Save, and emit resolved if the feed has it: the feed ends."""
        feed.save()
        if feed.options[RESOLVED] is not None and self._outlet.resolves:
            self._resolve(feed)

    def _resolve_due(self, feed: Feed, now: float) -> bool:
        every = feed.options[RESOLVED]
        if every is None or now - self._resolved_at < every:
            return False
        high = self._reached(feed)
        return high is not None and high != self._resolved and self._outlet.resolves

    def _resolve(self, feed: Feed) -> None:
        high = self._reached(feed)
        if high is None or (self._resolved is not None and high <= self._resolved):
            return
        # Asked after the place is known: what commits in a table after the statement that
        # added it has answered is above all that was resolved without it.
        if self._joining():
            return
        self._outlet.resolved(high)
        self._resolved = high
        self._resolved_at = time.monotonic()

    def _reached(self, feed: Feed) -> Timestamp | None:
        return feed.resolved(by_topic=self._outlet.resolves_by_topic)
