"""Loading many modules in a row."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Switch the garbage collector off while modules are loaded, and exclude what was loaded.

    Modules create many objects and free almost none: the collector would scan them repeatedly and
    find nothing. This would take a tenth of the loading time, and time in each full collection of
    a process that runs for weeks.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
