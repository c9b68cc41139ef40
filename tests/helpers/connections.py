"""Connections of ``changefeed.connect`` to a served world: in this process, and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from changefeed.api import Interpreter, Session
from changefeed.backend import LocalBackend, RemoteBackend
from changefeed.core.clock import Clock
from changefeed.dbapi import Connection
from tests.golden.world import NOW, StillClock
from tests.helpers.served import Bench

#: A state in this process, a node over HTTP.
KINDS = ("state", "node")


class WorldApplication:
    """A state whose node runs elsewhere."""

    is_node = False

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.starts = 0

    def node_running(self) -> bool:
        return self.interpreter.host.node_running()

    def start_node(self) -> bool:
        self.starts += 1
        return False

    def close(self) -> None:
        """Nothing: the world is closed by its test."""


class WorldBackend(LocalBackend):
    """The state of a world."""

    def __init__(self, bench: Bench) -> None:
        super().__init__("postgresql://state:s3cret@db/states")
        self.opened_here = WorldApplication(bench.world.interpreter)

    def _open(self) -> None:
        self._opened = self.opened_here  # type: ignore[assignment]
        self._session = Session(client="python")


class Steps(StillClock):
    """Each pause of a wait is the next step of a test; the last step is done again and again."""

    def __init__(self, steps: Iterable[Callable[[], object]]) -> None:
        super().__init__(NOW)
        self.steps: Iterator[Callable[[], object]] = iter(steps)
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        next(self.steps)()


def connected(bench: Bench, kind: str, clock: Clock | None = None) -> Connection:
    """A connection of a kind."""
    backend = WorldBackend(bench) if kind == "state" else RemoteBackend(bench.server.address, "")
    return Connection(backend) if clock is None else Connection(backend, clock=clock)
