"""Durations and sizes as people write them: ``1h30m``, ``64MB``."""

from __future__ import annotations

import re
from fractions import Fraction

_NANOS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_WORDS = {
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hr": "h",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_UNITS = {**_NANOS, **{word: _NANOS[unit] for word, unit in _WORDS.items()}}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([^\W\d_]*)\s*")

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?i?B?)\Z", re.IGNORECASE)
_SIZES = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}


def parse_duration(text: str) -> float:
    """Seconds of ``1h30m``, ``500ms``, ``10 seconds``, ``0``; a sign in front is allowed.

    Raises:
        ValueError: it is no duration.
    """
    return parse_nanos(text) / 1e9


def parse_nanos(text: str) -> int:
    """As :func:`parse_duration`, but nanoseconds, and exact."""
    body = text.strip().lower()
    sign = -1 if body.startswith("-") else 1
    body = body[1:].lstrip() if body[:1] in "+-" else body
    if body == "0":
        return 0
    total = Fraction(0)
    position = 0
    while position < len(body):
        part = _PART.match(body, position)
        if not part:
            raise ValueError(f'invalid duration "{text}"')
        total += Fraction(part[1].rstrip(".") or "0") * _unit(part[2], text)
        position = part.end()
    if not body:
        raise ValueError(f'invalid duration "{text}"')
    return sign * round(total)


def _unit(word: str, text: str) -> int:
    if not word:
        raise ValueError(f'missing unit in duration "{text}"')
    unit = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
    if unit is None:
        raise ValueError(f'unknown unit "{word}" in duration "{text}"')
    return unit


def parse_size(text: str) -> int:
    """Bytes of ``512MiB`` (powers of 1024), ``64MB`` (of 1000) or a plain number.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.match(text.strip())
    if not match:
        raise ValueError(f'invalid size "{text}"')
    unit = match[2].lower().removesuffix("b")
    if unit not in _SIZES:
        raise ValueError(f'invalid size "{text}"')
    return int(Fraction(match[1].rstrip(".")) * _SIZES[unit])
