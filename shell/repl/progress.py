"""The initial scan of a new feed, as a bar with the time left, on standard error."""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from changefeed.core.errors import ChangefeedError, Code
from grammar import nodes
from grammar.printer import name as name_sql
from grammar.printer import to_sql
from shell.render.widths import clip
from shell.waiting import quiet_keys

if TYPE_CHECKING:
    from shell.client import Client

#: Seconds between two looks, and over how long the rate is taken.
EVERY = 0.25
WINDOW = 10.0

_BAR = 24
_WAITS = ("starting", "retrying", "degraded")


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """How far a scan is: what SHOW CHANGEFEED and the summary say."""

    name: str
    status: str
    reason: str
    wanted: bool
    rows: int = 0
    total: int = 0
    error: str = ""


class RateMeter:
    """Rows a second over the last :data:`WINDOW` seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, at: float, rows: int) -> None:
        """At a moment, so many rows were read. The time before the first row does not count."""
        if rows == 0:
            self._seen.clear()
        self._seen.append((at, rows))
        while len(self._seen) > 2 and at - self._seen[0][0] > WINDOW:
            self._seen.popleft()

    def left(self, rows: int) -> float | None:
        """Seconds until ``rows`` more are read; None while nothing moves."""
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        if now <= before or last <= first:
            return None
        return rows * (last - first) / (now - before)


def follow(client: Client, name: str) -> None:
    """Show the scan of a feed until it is over or Ctrl-C; the feed goes on either way."""
    out = client.diagnostics.stream
    if not client.settings.progress or not out.isatty():
        return
    rate = RateMeter()
    clock = client.clock
    begun = clock.monotonic()
    drawn, rows = False, 0
    try:
        with quiet_keys():
            while (scan := look(client, name)) is not None and going_on(scan):
                now = clock.monotonic()
                rate.add(now, scan.rows)
                rows = max(rows, scan.total)
                _draw(out, bar(scan, rate))
                drawn = True
                clock.sleep(EVERY)
    except KeyboardInterrupt:
        _draw(out, "")
        client.diagnostics.note(
            f"the scan continues; SHOW CHANGEFEED {name_sql(name)} shows its progress"
        )
        return
    if drawn:
        _draw(out, "")
        client.diagnostics.remark(ending(scan, clock.monotonic() - begun, rows))


def look(client: Client, name: str) -> ScanProgress | None:
    """The scan now; None when the feed is gone."""
    statement = nodes.ShowChangefeed(nodes.FeedRef(name=name))
    try:
        result = client.backend.execute(statement, to_sql(statement))
    except ChangefeedError as error:
        if error.code is Code.NAME_UNKNOWN:
            return None
        raise
    feed = dict(zip(result.columns, result.rows[0], strict=True))
    rows, total = client.backend.facts.summary().scanning.get(name, (0, 0))
    return ScanProgress(
        name,
        str(feed["status"]),
        str(feed["running_status"] or ""),
        feed["scan_progress"] is not None,
        rows,
        total,
        str(feed["error"] or ""),
    )


def going_on(scan: ScanProgress) -> bool:
    """Whether there is something to wait for."""
    return scan.status == "scanning" or (scan.wanted and scan.status in _WAITS)


def bar(scan: ScanProgress, rate: RateMeter) -> str:
    """One line: name, bar, share, rows, time left."""
    if scan.status not in ("scanning", "degraded") or not scan.total:
        return f"{scan.name}: {scan.reason or 'preparing the initial scan'}"
    share = min(0.99, scan.rows / scan.total)  # it is over when its status says so
    full = round(share * _BAR)
    left = rate.left(scan.total - scan.rows)
    eta = "" if left is None or left < 1 else f"  ETA {_clock(left)}"
    drawn = "█" * full + "░" * (_BAR - full)
    return f"{scan.name} {drawn} {share:4.0%}  {scan.rows:,} of about {scan.total:,} rows{eta}"


def ending(scan: ScanProgress | None, seconds: float, rows: int = 0) -> str:
    """What is said when the bar is gone; ``rows`` is the last estimate of how many there were."""
    if scan is None:
        return "the feed is gone"
    if scan.error:
        return f"{scan.name} is {scan.status}: {scan.error}"
    if scan.wanted:
        read = f": {scan.rows:,} of about {scan.total:,} rows" if scan.total else ""
        return f"{scan.name} is {scan.status} before its initial scan is done{read}"
    counted = f" of about {rows:,} rows ({rows / seconds:,.0f} rows/s)" if rows else ""
    return f"{scan.name}: initial scan{counted} done in {_clock(seconds)}, it is {scan.status}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def _draw(out: TextIO, text: str) -> None:
    out.write("\r\x1b[2K" + clip(text, shutil.get_terminal_size().columns - 1))
    out.flush()
