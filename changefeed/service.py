"""A process that is nothing but a node, from its first moment on. Imports next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from changefeed.capture.standby import Standby
from changefeed.core.loading import loading


@contextmanager
def node_process(state: str) -> Iterator[Standby]:
    """Prepare this process to be the node of ``state``, as its first step.

    Gives a capture process that loads its modules while this process has loaded its own; it ends
    with the block, unless a node took it.
    """
    with closing(Standby(state)) as ready:
        with loading():
            from changefeed.app import load_node

            load_node()
        yield ready
