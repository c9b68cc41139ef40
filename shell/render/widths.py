"""How wide a text is on a terminal, and texts made short for one: the lines of the prompt."""

from __future__ import annotations

import textwrap
import unicodedata


def width(text: str) -> int:
    """Columns that ``text`` takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, room: int) -> str:
    """``text`` cut to ``room`` columns, ``…`` at its end when something is missing."""
    if width(text) <= room:
        return text
    kept, used = [], 0
    for character in text:
        used += _cells(character)
        if used > room - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def pad(text: str, room: int, *, right: bool = False) -> str:
    """``text`` filled with spaces to ``room`` columns; ``right`` puts it at the right side."""
    fill = " " * max(0, room - width(text))
    return fill + text if right else text + fill


def wrap(text: str, room: int) -> list[str]:
    """``text`` on lines of at most ``room`` columns, at least one line."""
    letters = room if text.isascii() else max(1, room // 2)
    return textwrap.wrap(text, letters, break_on_hyphens=False) or [""]
