"""What was found at each look, as alerts that begin, last and end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from changefeed.alerts.rules import Breach

#: Something that comes and goes within so many seconds is one alert.
QUIET: Final = 60.0
#: An alert that lasts is repeated after so many seconds, as Prometheus' Alertmanager repeats it.
REPEAT: Final = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, as it is sent.

    Attributes:
        breach: what was found when it began or was repeated; with the value of that moment.
        began: when it was found first, ns since 1970.
        ended: when it was found no more; None while it lasts.
        reason: what SHOW CHANGEFEEDS says of the feed, if the alert is about one.
    """

    breach: Breach
    began: int
    ended: int | None = None
    reason: str = ""


@dataclass(slots=True)
class _Entry:
    alert: Alert
    since: float
    seen: float
    said: float | None = None


class AlertBook:
    """The alerts of a node. What was said is kept in memory: after a restart it is said again."""

    def __init__(self) -> None:
        self._entries: dict[object, _Entry] = {}

    def look(self, found: Iterable[Breach], monotonic: float, wall: int) -> list[Alert]:
        """Take what was found now; returns what there is to say: alerts that began, are to be
        repeated, or have ended.

        Args:
            monotonic: seconds of a clock that is never set.
            wall: ns since 1970.
        """
        for breach in found:
            entry = self._entries.get(breach.key)
            if entry is None:
                entry = _Entry(Alert(breach, wall), monotonic, monotonic)
                self._entries[breach.key] = entry
            entry.alert, entry.seen = replace(entry.alert, breach=breach), monotonic
        said = []
        for key, entry in list(self._entries.items()):
            if entry.seen < monotonic:
                if entry.said is not None and monotonic - entry.seen < QUIET:
                    continue
                del self._entries[key]
                if entry.said is not None:
                    said.append(replace(entry.alert, ended=wall))
            elif entry.said is None:
                if monotonic - entry.since >= entry.alert.breach.rule.hold:
                    entry.said = monotonic
                    said.append(entry.alert)
            elif monotonic - entry.said >= REPEAT:
                entry.said = monotonic
                said.append(entry.alert)
        return said
