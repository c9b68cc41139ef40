"""The rows of the source at every instant, with which the validators compare."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from changefeed.core.clock import Timestamp
from changefeed_testing.sinks.messages import Row


class RowHistory:
    """Every version of every row of some tables, by topic and key (the key's JSON text).

    ``since`` is the instant from which on the history is complete; earlier versions are unknown.
    """

    def __init__(self, since: Timestamp = Timestamp.ZERO) -> None:
        self.since = since
        self._rows: dict[tuple[str, str], dict[Timestamp, Row | None]] = {}
        self._times: dict[tuple[str, str], list[Timestamp]] = {}

    def put(self, topic: str, key: str, at: Timestamp, row: Row | None) -> None:
        """The row is ``row`` from ``at`` on; None deletes it."""
        versions = self._rows.setdefault((topic, key), {})
        if at not in versions:
            insort(self._times.setdefault((topic, key), []), at)
        versions[at] = row

    def truncate(self, topic: str, at: Timestamp) -> None:
        """Every row of the table is gone from ``at`` on."""
        for owner, key in list(self._rows):
            if owner == topic and self.row(topic, key, at) is not None:
                self.put(topic, key, at, None)

    def row(self, topic: str, key: str, at: Timestamp) -> Row | None:
        """The row as of ``at``, None when there is none."""
        times = self._times.get((topic, key), [])
        place = bisect_right(times, at)
        return self._rows[topic, key][times[place - 1]] if place else None

    def table(self, topic: str, at: Timestamp) -> dict[str, Row]:
        """The whole table as of ``at``."""
        found = {k: self.row(t, k, at) for t, k in self._rows if t == topic}
        return {key: row for key, row in found.items() if row is not None}

    def versions(
        self, topic: str, after: Timestamp, upto: Timestamp
    ) -> Iterator[tuple[str, Timestamp]]:
        """Key and timestamp of every version with ``after < timestamp <= upto``."""
        for (owner, key), times in self._times.items():
            if owner == topic:
                for at in times[bisect_right(times, after) : bisect_right(times, upto)]:
                    yield key, at

    def before(self, topic: str, key: str, at: Timestamp) -> Row | None:
        """The row just before ``at``."""
        times = self._times.get((topic, key), [])
        place = bisect_left(times, at)
        return self._rows[topic, key][times[place - 1]] if place else None
