"""What may happen in a run."""

from __future__ import annotations

from collections.abc import Callable

#: Something to do, with its weight; it says what it did.
Trouble = tuple[float, Callable[[], str]]
