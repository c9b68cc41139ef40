"""Instants in listings: exact for programs, readable for people."""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache, partial

from changefeed.core.clock import Timestamp
from changefeed.core.figures import duration_text
from changefeed.statements.values import ShownText

#: A timestamp of the log in a sentence.
_STAMP = re.compile(r"\b\d{19}\.\d{10}\b")


def ago(ns: int, now: int) -> str:
    """``2s ago``, ``14m ago``, ``3h 20m ago``; ``in 5m`` of what is to come."""
    seconds = round((now - ns) / 1e9)
    if seconds < 0:
        return f"in {_coarse(-seconds)}"
    return f"{_coarse(seconds)} ago" if seconds else "now"


def _coarse(seconds: int) -> str:
    """Without the seconds of minutes, and the minutes of days: nobody counts them."""
    if seconds >= 60:
        seconds -= seconds % 60
    if seconds >= 2 * 86_400:
        seconds -= seconds % 3_600
    return duration_text(seconds)


def moment(ns: int | None, now: int) -> ShownText | None:
    """``2026-11-21 21:24:52.123456`` in UTC, which sorts in time order; for people
    ``2026-11-21 21:24:52 UTC (3m ago)``."""
    if ns is None:
        return None
    exact = _exact(ns)
    return ShownText(exact, partial(_moment_words, ns, now))


def _moment_words(ns: int, now: int) -> str:
    return f"{date(ns).words} ({ago(ns, now)})"


def date(ns: int) -> ShownText:
    """:func:`moment` without the age, of what no longer changes."""
    exact = _exact(ns)
    return ShownText(exact, f"{exact[:19]} UTC")


def instant(at: Timestamp | None, now: int) -> ShownText | None:
    """A timestamp of the log, digit for digit; for people its time of day and age."""
    if at is None:
        return None
    return ShownText(str(at), partial(clock_text, at, now))


def clock_text(at: Timestamp, now: int) -> str:
    """``21:24:52 UTC (2s ago)``, with the date where that is another day than now."""
    time, today = _utc(at.wall), _utc(now)
    form = "%H:%M:%S" if time.date() == today.date() else "%Y-%m-%d %H:%M:%S"
    return f"{time.strftime(form)} UTC ({ago(at.wall, now)})"


def readable(text: str, now: int) -> ShownText:
    """A text in which timestamps of the log are times of day for people."""
    return ShownText(text, _STAMP.sub(lambda at: clock_text(Timestamp(int(at[0][:19])), now), text))


@lru_cache(4096)
def _exact(ns: int) -> str:
    """``2026-11-21 21:24:52.123456``; a listing has hundreds, most of them again and again."""
    return _utc(ns).isoformat(" ", "microseconds")[:26]


def _utc(ns: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ns // 10**9, dt.UTC).replace(microsecond=ns // 1000 % 10**6)
