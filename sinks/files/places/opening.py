"""From a checked URI to its place; a client library is imported when it is used."""

from __future__ import annotations

from pathlib import Path

from sinks.files.places.base import Place
from sinks.files.places.local import LocalPlace
from sinks.files.places.spec import LOCAL, OBJECTS, PlaceSpec


def open_place(spec: PlaceSpec, *, lists: bool) -> Place:
    """The place of ``spec``, not yet connected; ``lists``: its files are looked for later."""
    if spec.kind == LOCAL:
        return LocalPlace(Path(spec.root))
    if spec.kind == OBJECTS:
        from sinks.files.places.objects import open_objects

        return open_objects(spec, lists=lists)
    from sinks.files.places.web import WebPlace

    return WebPlace(spec)
