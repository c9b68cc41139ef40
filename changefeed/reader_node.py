"""``python -m changefeed.reader_node DESCRIPTOR``: the node that a reader starts for itself.

It runs the feeds of a state like ``changefeed start``, until SIGTERM, which it also gets when the
process that started it has ended (:mod:`changefeed.readers.own_node`). It inherits the state's
lock as DESCRIPTOR.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from changefeed.core.errors import ChangefeedError
from changefeed.readers.own_node import LOCK_VARIABLE, STATE_VARIABLE
from changefeed.service import node_process, serve_until_stopped, stop_on_signals


def main(descriptor: int) -> int:
    """Run the node; returns the exit status. Errors go to standard error."""
    stopping = stop_on_signals()
    state = os.environ.pop(STATE_VARIABLE)
    path = Path(os.environ.pop(LOCK_VARIABLE))
    with node_process(state) as ready:
        from changefeed.app import Application
        from changefeed.core.node_lock import NodeLock

        lock = NodeLock.passed_on(path, descriptor)
        try:
            with Application(state, ready=ready, lock=lock) as application:
                application.start_node()
                serve_until_stopped(application, stopping)
        except ChangefeedError as error:
            print(f"{error.code.number}: {error.message}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
