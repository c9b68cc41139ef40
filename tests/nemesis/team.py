"""Nodes on machines of their own, one state and one shared log, and what befalls them."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from changefeed.catalog import Catalog
from changefeed.drain import drain
from tests.helpers import next_format
from tests.helpers.hosts import Host
from tests.helpers.waiting import PATIENCE, until
from tests.nemesis.service import Nodes, kill_child, last_lines
from tests.nemesis.trouble import Trouble
from tests.services.http_faults import Fault, FaultyProxy, answer, late
from tests.services.network import Network
from tests.services.postgres import PostgresCluster

#: Seconds. The least that a node takes.
LEASE = 3.0
#: Of a machine, and of a store that is a directory; in MiB.
DISK, STORE = 192, 128
#: Seconds that a slow store takes for a request.
SLOW = 2.0
#: Seconds by which the clock of a machine is wrong.
JUMP = 300.0


@contextmanager
def disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own at ``folder``, which can be filled."""
    folder.mkdir()
    size = f"size={mebibytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte more goes into the file system at ``folder``."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass  # it is full
        yield
    finally:
        ballast.unlink()


@dataclass(frozen=True)
class Event:
    """What befalls a machine for a while, or what all need; ``away``: others must go on without
    the machine."""

    weight: float
    happens: Callable[[str], AbstractContextManager[str]]
    away: bool = False


class Team(Nodes):
    """Machines with a disk, a network and a host name of their own, all with one state.

    Args:
        machines: by their names; the last one is in reserve.
        services: the addresses of what nodes need, by a word for it.
        state: the server of the state.
        store: before the store, if that speaks HTTP; else its directory.
    """

    def __init__(
        self,
        place: str,
        catalog: Catalog,
        machines: Sequence[Host],
        network: Network,
        services: dict[str, str],
        state: PostgresCluster,
        store: FaultyProxy | Path,
    ) -> None:
        super().__init__(place, catalog)
        self._machines = {machine.home.name: machine for machine in machines}
        self._reserve = machines[-1].home.name
        self._network = network
        self._services = services
        self._state = state
        self._store = store

    # -- the processes --------------------------------------------------------------------

    def start(self, faults: str = "") -> None:
        assert not faults, "machines take no faults of code"
        for name, machine in self._machines.items():
            if name != self._reserve and not machine.runs:
                machine.start()

    def kill(self) -> None:
        self._machines[self.captor() or self._working()[0]].kill()

    def stop(self) -> None:
        for machine in self._machines.values():
            machine.stop()

    def kill_child(self, part: str) -> bool:
        machine = self._machines[self.captor() or self._working()[0]]
        return kill_child(psutil.Process(machine.pid).children(recursive=True), part)

    def last_words(self, lines: int = 60) -> str:
        logs = [machine.home.parent / f"{name}.log" for name, machine in self._machines.items()]
        return last_lines(logs, lines)

    def _working(self) -> list[str]:
        return [name for name in self._machines if name != self._reserve]

    def _node(self, machine: str) -> str | None:
        """The id of the node on a machine that runs."""
        pid = self._machines[machine].pid
        return next((node.id for node in self.catalog.live_nodes() if node.pid == pid), None)

    def captor(self) -> str | None:
        """The machine whose node captures the source."""
        holders = set(self.catalog.source_holders().values())
        return next((name for name in self._working() if self._node(name) in holders), None)

    # -- what goes wrong ------------------------------------------------------------------

    def troubles(
        self, chance: random.Random, meanwhile: Callable[[], None], goes_on: Callable[[], None]
    ) -> list[Trouble]:
        """What may happen, with its weight.

        Args:
            meanwhile: changes something at the source.
            goes_on: waits until the feeds have all changes, while a node is away.
        """
        return [
            (event.weight, partial(self._happen, event, chance, meanwhile, goes_on))
            for event in self._events()
        ]

    def _events(self) -> Sequence[Event]:
        found = [
            Event(2, partial(self._killed, disk=False), away=True),
            Event(1, partial(self._killed, disk=True), away=True),
            Event(2, self._frozen, away=True),
            *(Event(1, partial(self._cut, to=to), away=to == "state") for to in self._services),
            Event(1, self._stopped, away=True),
            Event(1, self._replaced, away=True),
            Event(1, self._upgraded),
            *(Event(0.5, partial(self._clock_set, seconds=jump)) for jump in (JUMP, -JUMP)),
            Event(1, self._disk_full),
            Event(1, self._state_restarted),
        ]
        if isinstance(self._store, Path):
            return [*found, Event(1, self._store_full)]
        slow = Event(1, partial(self._answers, fault=late(SLOW), word="slow"))
        return [*found, slow, Event(1, partial(self._answers, fault=answer(503), word="away"))]

    def _happen(
        self,
        event: Event,
        chance: random.Random,
        meanwhile: Callable[[], None],
        goes_on: Callable[[], None],
    ) -> str:
        victim = self.captor() if chance.random() < 0.6 else None
        victim = victim or chance.choice(self._working())
        seconds = chance.choice([0.5, LEASE, 2 * LEASE])
        without = event.away and chance.random() < 0.5
        with event.happens(victim) as said:
            _during(seconds, meanwhile)
            if without:
                goes_on()
                said += ", and the feeds went on without it"
        return said

    @contextmanager
    def _killed(self, name: str, disk: bool) -> Iterator[str]:
        self._machines[name].kill(disk=disk)
        yield f"kill -9 of the node on {name}{', its disk is lost' * disk}"
        self._machines[name].start()

    @contextmanager
    def _frozen(self, name: str) -> Iterator[str]:
        self._machines[name].freeze()
        try:
            yield f"{name} stood still"
        finally:
            self._machines[name].thaw()

    @contextmanager
    def _cut(self, name: str, to: str) -> Iterator[str]:
        self._network.cut(name, self._services[to])
        try:
            yield f"no link between {name} and the {to}"
        finally:
            self._network.mend(name, self._services[to])

    @contextmanager
    def _stopped(self, name: str) -> Iterator[str]:
        self._machines[name].stop()
        yield f"a clean stop of {name}"
        self._machines[name].start()

    @contextmanager
    def _replaced(self, name: str) -> Iterator[str]:
        """A node is added, and one that was there gives everything away and ends."""
        added = self._reserve
        self._machines[added].start()
        until(lambda: self._node(added), f"{added} joins")
        self._drained(name)
        self._reserve = name
        yield f"{added} was added, and {name} drained and stopped"

    def _drained(self, name: str) -> None:
        """A node gives everything away and ends."""
        until(lambda: self._node(name), f"{name} is there")
        drained = drain(self.catalog, self._node(name), PATIENCE)
        assert drained.endswith("is drained"), drained
        self._machines[name].stop()

    @contextmanager
    def _upgraded(self, name: str) -> Iterator[str]:
        """As when a version takes the place of another: the format of the state is the next one
        while the nodes of this version run, and one machine after the other is started again."""
        number = next_format.upgrade(self.place, compatible=True)
        for one in self._working():
            self._drained(one)
            self._machines[one].start()
            until(partial(self._node, one), f"{one} is there again")
        yield f"the state has format {number}; each machine in turn was drained and started again"

    @contextmanager
    def _clock_set(self, name: str, seconds: float) -> Iterator[str]:
        """A machine whose clock is set leaves it so until another time."""
        self._machines[name].set_clock(seconds)
        yield f"the clock of {name} was set, to {seconds:+.0f} s"

    @contextmanager
    def _disk_full(self, name: str) -> Iterator[str]:
        with full(self._machines[name].home):
            yield f"the disk of {name} was full"

    @contextmanager
    def _state_restarted(self, name: str) -> Iterator[str]:
        self._state.kill()
        try:
            yield "the state's server was killed and came again"
        finally:
            self._state.start()

    @contextmanager
    def _store_full(self, name: str) -> Iterator[str]:
        assert isinstance(self._store, Path)
        with full(self._store):
            yield "the disk of the store was full"

    @contextmanager
    def _answers(self, name: str, fault: Fault, word: str) -> Iterator[str]:
        assert isinstance(self._store, FaultyProxy)
        self._store.always = fault
        try:
            yield f"the store was {word}"
        finally:
            self._store.always = None


def _during(seconds: float, meanwhile: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.05)  # nothing to wait for: the trouble lasts
