"""Rows of a feed as lines for a person: one row a line, in the prompt and in the demo.

::

    + orders       [5]        8 ms {"after": {"id": 5, "status": "new"}, "before": null, ...
    ~ orders       [3]        6 ms {"after": {"id": 3, "status": "paid"}, "before": {"id": 3, ...
    - orders       [2]        5 ms {"after": null, ...
"""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

_COLOURS = ("cyan", "magenta", "blue", "yellow", "green")
_HIGHLIGHT = JSONHighlighter()

_INSERTED, _UPDATED, _DELETED = ("+", "green"), ("~", "yellow"), ("-", "red")

#: A row as it is now, where the message does not say whether it was there before.
_WRITTEN = ("*", "cyan")

#: ``op`` of the enriched envelope.
_OPERATIONS = {"c": _INSERTED, "r": _INSERTED, "u": _UPDATED, "d": _DELETED}


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
        self, table: str | None, key: str | None, value: str | None, *, live: bool = False
    ) -> None:
        """A message of the feed. ``table`` and ``key`` are None for a resolved timestamp.

        A ``live`` row says how long ago the source committed it.
        """
        if table is None:
            self.line(Text(f"    {value}", style="dim"))
            return
        self.rows += 1
        envelope = _envelope(value)
        mark, style = _mark(envelope, value)
        line = Text("  ")
        line.append(mark, style=f"bold {style}")
        line.append(f" {table:<12}", style=self._colour(table))
        line.append(f" {key or '':<7}", style="bold")
        line.append(f"{_age(envelope):>8} " if live else " ", style="dim")
        line.append_text(_value(value or "", envelope))
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
        found = json.loads(value) if value else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _mark(envelope: dict[str, Any], value: str | None) -> tuple[str, str]:
    """``+`` a new row, ``~`` a changed one, ``-`` a row that is gone, ``*`` new or changed."""
    operation = _OPERATIONS.get(str(envelope.get("op")))
    if operation is not None:
        return operation
    if value is None or ("after" in envelope and envelope["after"] is None):
        return _DELETED
    if "before" not in envelope:
        return _WRITTEN
    return _UPDATED if envelope["before"] else _INSERTED


def _value(value: str, envelope: dict[str, Any]) -> Text:
    """The value as it is, with the names of the columns that changed marked."""
    text = _HIGHLIGHT(value)
    after, before = envelope.get("after"), envelope.get("before")
    if isinstance(after, dict) and isinstance(before, dict):
        begin = max(0, value.find('"after"'))
        for name in after:
            if name in before and after[name] != before[name]:
                written = f"{json.dumps(name, ensure_ascii=False)}:"
                at = value.find(written, begin)
                if at >= 0:
                    text.stylize("bold reverse yellow", at, at + len(written) - 1)
    return text


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
