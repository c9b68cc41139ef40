"""Makes values of a source safe for a terminal."""

from __future__ import annotations

_BREAKS = {"\n": " ", "\r": " ", "\t": " "}


def visible(text: str) -> str:
    """``text`` on one line, with control characters of the terminal escaped, as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return _BREAKS.get(character) or character.encode("unicode_escape").decode()
