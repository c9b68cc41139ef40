"""Spans of traces: what a feed does and for how long, if a recorder wants to know.

A span is about a delivery, a batch, a commit, or a part of a scan, and never about a single row. It
has names, counts and the code of an error, and neither values of rows nor secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from changefeed.core.errors import ChangefeedError

Attributes = Mapping[str, str | int]


class RecordedSpan(Protocol):
    """A span that a recorder has begun."""

    def end(self, attributes: Attributes, error: str) -> None:
        """It ends now; ``error`` is empty, or the code or class of what ended it."""
        ...


class SpanRecorder(Protocol):
    """Where spans go. Thread-safe."""

    def now(self) -> int:
        """Its time, ns since 1970."""
        ...

    def begin(
        self, name: str, parent: RecordedSpan | None, began: int, attributes: Attributes
    ) -> RecordedSpan:
        """A span that began at ``began``, inside ``parent``."""
        ...


class Span:
    """A span that is under way in this thread, recorded or not."""

    def __init__(
        self,
        recorder: SpanRecorder | None,
        name: str,
        attributes: Attributes,
        parent: Span | None,
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._attributes = dict(attributes)
        self._parent = parent
        self._began = 0 if recorder is None else recorder.now()
        self._recorded: RecordedSpan | None = None

    def note(self, **attributes: str | int) -> None:
        """Say more of it, as is known by now."""
        self._attributes.update(attributes)

    def begin(self) -> RecordedSpan | None:
        """Record it, and those that it is inside of."""
        if self._recorded is None and self._recorder is not None:
            outer = None if self._parent is None else self._parent.begin()
            self._recorded = self._recorder.begin(self._name, outer, self._began, self._attributes)
        return self._recorded

    def end(self, error: str = "") -> None:
        """It is over; nothing is recorded of one that never began."""
        if self._recorded is not None:
            self._recorded.end(self._attributes, error)


_NOT_RECORDED = Span(None, "", {}, None)
_recorders: list[SpanRecorder] = []
_here = threading.local()


@contextmanager
def recording(recorder: SpanRecorder) -> Iterator[None]:
    """Record all spans of this process there."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)


def current() -> Span | None:
    """The innermost span of this thread."""
    found: Span | None = getattr(_here, "span", None)
    return found


@contextmanager
def span(
    name: str, attributes: Attributes, *, inside: Span | None = None, lazily: bool = False
) -> Iterator[Span]:
    """The block is a span, inside of this thread's, or of another thread's ``inside``. One that
    begins ``lazily`` is recorded only if there is a span inside of it."""
    if not _recorders:
        yield _NOT_RECORDED
        return
    outer = current()
    made = Span(_recorders[-1], name, attributes, inside or outer)
    if not lazily:
        made.begin()
    _here.span = made
    try:
        yield made
    except BaseException as error:
        known = isinstance(error, ChangefeedError)
        made.end(error.code.number if known else type(error).__name__)  # type: ignore[attr-defined]
        raise
    else:
        made.end()
    finally:
        _here.span = outer
