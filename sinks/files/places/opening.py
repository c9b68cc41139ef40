"""From a checked URI to its place; a client library is imported when it is used."""

from __future__ import annotations

from pathlib import Path

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from sinks.files.places.base import FilePlace
from sinks.files.places.local import LocalPlace
from sinks.files.places.spec import LOCAL, OBJECTS, PlaceSpec

#: How long Google's client repeats a request by itself; the feed goes on with longer pauses.
GOOGLE_SECONDS = 10.0


def open_place(
    spec: PlaceSpec,
    *,
    lists: bool = False,
    google_seconds: float = GOOGLE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> FilePlace:
    """The place of a checked URI, not yet connected.

    Args:
        lists: its files are looked for later.
        google_seconds: how long Google's client repeats a request by itself.
        clock: says how old files and tokens are.
    """
    if spec.kind == LOCAL:
        return LocalPlace(Path(spec.root), clock)
    if spec.kind == OBJECTS:
        from sinks.files.places.objects import open_objects

        return open_objects(spec, clock, lists=lists, google_seconds=google_seconds)
    from sinks.files.places.web import WebPlace

    return WebPlace(spec)
