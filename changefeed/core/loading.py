"""Loading many modules in a row."""

from __future__ import annotations

import atexit
import gc
import sys
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


def _unfreeze() -> None:
    """Let Python free what was loaded when it ends. That takes a tenth of a second, so it is done
    only for the module of DuckDB, which lists on standard error what is not freed."""
    if "_duckdb" in sys.modules:
        gc.unfreeze()


atexit.register(_unfreeze)
