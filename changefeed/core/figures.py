"""Durations, sizes and counts as text for people: in plans, notices and listings."""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def duration_text(seconds: float) -> str:
    """``250ms``, ``1.5s``, ``2m 5s``, ``25h``, ``3d 4h``; infinity is ``ever``."""
    if isinf(seconds):
        return "ever"
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if 0 < seconds < 1:
        return f"{sign}{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{sign}{round(seconds, 1):g}s"
    whole = round(seconds)
    parts = []
    for size, unit in _UNITS:
        # 25h reads better than 1d 1h; days only from two on.
        if whole >= (size if unit != "d" else 2 * size):
            parts.append(f"{whole // size}{unit}")
            whole %= size
    if whole:
        parts.append(f"{whole}s")
    return sign + " ".join(parts[:2])


def size_text(size: float) -> str:
    """``0 B``, ``812 B``, ``1.5 kB``, ``3.2 GB``: powers of 1000."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def count_text(count: float) -> str:
    """``1234`` as ``1,234``; one decimal below ten."""
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def names_text(names: Iterable[str]) -> str:
    """The names separated by commas: ``a, b, c``."""
    return ", ".join(names)
