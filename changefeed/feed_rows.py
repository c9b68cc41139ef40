"""Rows of a feed as lines for a person: one row a line, in the prompt and in the demo.

::

    + orders       [5]        8 ms {"after": {"id": 5, "status": "new"}, "before": null, ...
    ~ orders       [3]        6 ms status "new" → "paid"
    - orders       [2]        5 ms {"after": null, ...
"""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

_COLOURS = ("cyan", "magenta", "blue", "yellow", "green")
_HIGHLIGHT = JSONHighlighter()

#: ``+`` a new row, or one that a scan read; ``~`` a changed one; ``-`` one that is gone.
_MARKS = {
    "c": ("+", "green"),
    "r": ("+", "green"),
    "u": ("~", "yellow"),
    "d": ("-", "red"),
    "t": ("-", "red"),
}

#: Of a value of a changed column so many characters are shown.
_SHOWN = 60


class RowLines:
    """Prints rows to a rich console: coloured and cut to its width on a terminal, whole elsewhere.

    Attributes:
        rows: how many were printed; resolved timestamps do not count.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows = 0
        self._colour_of: dict[str, str] = {}

    def row(
        self, table: str | None, key: str | None, value: str | None, op: str, *, live: bool = False
    ) -> None:
        """A message of the feed, see :class:`~changefeed.core.events.ClientRow`.

        Of a changed row whose message has the row before, too, only what changed is shown. A
        ``live`` row says how long ago the source committed it.
        """
        if table is None:
            self.line(Text(f"    {value}", style="dim"))
            return
        self.rows += 1
        envelope = _envelope(value)
        mark, style = _MARKS[op]
        line = Text("  ")
        line.append(mark, style=f"bold {style}")
        line.append(f" {table:<12}", style=self._colour(table))
        line.append(f" {key or '':<7}", style="bold")
        line.append(f"{_age(envelope):>8} " if live else " ", style="dim")
        changes = _changes(envelope) if op == "u" else ""
        line.append_text(_HIGHLIGHT(changes or value or ""))
        self.line(line)

    def line(self, line: Text) -> None:
        """A line among the rows."""
        if self.console.is_terminal:
            self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.console.print(line, soft_wrap=True)

    def _colour(self, table: str) -> str:
        return self._colour_of.setdefault(table, _COLOURS[len(self._colour_of) % len(_COLOURS)])


def committed_at(value: str | None) -> float | None:
    """When the source committed the row, seconds since 1970; None where it does not say."""
    updated = _envelope(value).get("updated")
    return int(updated.partition(".")[0]) / 1e9 if isinstance(updated, str) else None


def _envelope(value: str | None) -> dict[str, Any]:
    """The value's fields; none of a value that is no JSON object."""
    try:
        found = json.loads(value, parse_float=Decimal) if value else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _changes(envelope: dict[str, Any]) -> str:
    """``status "new" → "paid", total 1.50 → 2.00``; empty where the message has not both rows."""
    envelope = envelope.get("payload", envelope)
    after, before = envelope.get("after"), envelope.get("before")
    if not (isinstance(after, dict) and isinstance(before, dict) and after.keys() <= before.keys()):
        return ""
    return ", ".join(
        f"{name} {_token(before[name])} → {_token(value)}"
        for name, value in after.items()
        if value != before[name]
    )


def _token(value: Any) -> str:
    """JSON, with the digits of a number as they came."""
    whole = isinstance(value, Decimal)
    text = str(value) if whole else json.dumps(value, ensure_ascii=False, default=float)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _age(envelope: dict[str, Any]) -> str:
    """How long ago the source committed it, from ``updated``: milliseconds, or what it is less than
    in seconds where the source says when in whole seconds."""
    updated = envelope.get("updated")
    if not isinstance(updated, str):
        return ""
    committed = int(updated.partition(".")[0])
    seconds = max(0.0, time.time() - committed / 1e9)
    if committed % 1_000_000_000 == 0:
        return f"< {int(seconds) + 1} s"
    return f"{seconds * 1000:,.0f} ms"
