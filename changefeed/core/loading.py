"""Loading many modules in a row."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector away while modules are loaded, and from what was loaded.

    Modules make objects and drop hardly any: the collector would look at all of them again and
    again and find nothing, for a tenth of the time of loading, and later in each full collection
    of a process that runs for weeks.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
