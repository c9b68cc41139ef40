"""Sources that the node which captures them cannot reach, and that this node reaches.

A node that has lost its link to a source still renews the source's lease, so nothing else would
end its capture. Where the capture has had no success for as long as a lease lasts, the other nodes
try to reach the source, and the first that does takes it. If none does, the source itself is away,
and it stays where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from changefeed.catalog import CaptureNews, Catalog
from changefeed.core.clock import Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.internal_errors import log_failure
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.sources.registry import open_source

_LOST: Final = {Code.SOURCE_UNREACHABLE.number, Code.STREAM_BROKE.number}


@dataclass(slots=True)
class _Loss:
    """Of the capture by ``captor``, which has not gone beyond ``frontier``. ``reached``: this node
    reaches the source; ``why`` it does not."""

    captor: str
    frontier: Timestamp | None
    next_try: float
    reached: bool = False
    why: str = ""


class LostSources:
    """The node's loop looks; a thread for each source tries to reach it."""

    def __init__(
        self, catalog: Catalog, clock: Clock, timings: Timings, changed: Callable[[], None]
    ) -> None:
        """``changed``: called when this node has reached a source."""
        self._catalog = catalog
        self._clock = clock
        self._timings = timings
        self._changed = changed
        self._losses: dict[str, _Loss] = {}
        self._trying: dict[str, threading.Thread] = {}

    def look(self, captors: Mapping[str, str], news: Mapping[str, CaptureNews]) -> None:
        """Take note of what the captures of other nodes say, and try what is due.

        Args:
            captors: the other nodes that live and capture a source, by source.
        """
        now = self._clock.monotonic()
        for name in self._losses.keys() - captors.keys():
            del self._losses[name]
        for name, captor in captors.items():
            error = news.get(name, CaptureNews()).error
            if name not in self._losses and (error is None or error[0] not in _LOST):
                continue
            # The error may be gone while capture tries again; the frontier shows a success.
            frontier = self._catalog.source_state(name).frontier
            loss = self._losses.get(name)
            if loss is None or (loss.captor, loss.frontier) != (captor, frontier):
                self._losses.pop(name, None)
                if error is not None and error[0] in _LOST:
                    self._losses[name] = _Loss(captor, frontier, now + self._timings.lease)
            elif now >= loss.next_try and not loss.reached and name not in self._trying:
                loss.next_try = now + self._timings.source_look
                # The thread may outlive the node, and does not use the state.
                thread = threading.Thread(
                    target=self._try,
                    args=(name, self._catalog.connection(name).uri, loss),
                    name=f"reach-{name}",
                    daemon=True,
                )
                self._trying[name] = thread
                thread.start()

    def reached(self, name: str) -> str | None:
        """The node that has lost a source which this one reaches."""
        loss = self._losses.get(name)
        return loss.captor if loss is not None and loss.reached else None

    def _try(self, name: str, uri: str, loss: _Loss) -> None:
        try:
            open_source(name, uri).current_position()
        except ChangefeedError as error:
            if loss.why != error.message:
                loss.why = error.message
                log.info("source %s: not reached from here either: %s", name, error.message)
        except Exception as failure:
            log_failure(f"source {name} cannot be tried", failure)
        else:
            loss.reached = True
            self._changed()
        finally:
            del self._trying[name]
