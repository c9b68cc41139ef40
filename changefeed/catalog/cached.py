"""Values of the state that are asked for often and change rarely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class CachedRead(Generic[T]):
    """Something read from the state, which is read again only after the state has changed."""

    def __init__(self, version: Callable[[], int], read: Callable[[], T]) -> None:
        """``version``: :meth:`changefeed.catalog.Catalog.version`."""
        self._version = version
        self._read = read
        self._seen: tuple[int, T] | None = None

    def __call__(self) -> T:
        """The value as of now."""
        # Before the value: a change in between makes the next call read again.
        version = self._version()
        seen = self._seen
        if seen is None or seen[0] != version:
            self._seen = seen = version, self._read()
        return seen[1]
