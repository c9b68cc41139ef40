"""Machines with a network of their own: namespaces of Linux behind one bridge.

Each service gets an address of the bridge, each machine a namespace with one interface, so that
the link between one machine and one service can be cut. Nobody hears of the cut: packets are lost.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: A station that is not there: what is sent to it is lost.
_NOBODY = "02:00:00:00:00:01"


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if absent:
        return f"no program {', '.join(absent)}"
    made = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, check=False)
    return made.stderr.decode()


def _ip(*words: str, namespace: str = "") -> None:
    within = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *within, *words], check=True)


class Network:
    """Addresses of services and of machines; made by :func:`network`."""

    def __init__(self) -> None:
        number = os.getpid()
        self._bridge = f"cf{number}"
        self._prefix = f"10.{128 + number // 250 % 120}.{number % 250}"
        self._services = itertools.count(2)
        self._machines: dict[str, str] = {}
        self._cuts: set[tuple[str, str]] = set()
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")

    @property
    def range(self) -> str:
        """All addresses of the network."""
        return f"{self._prefix}.0/24"

    def service(self) -> str:
        """A new address where this process and its children may listen."""
        address = f"{self._prefix}.{next(self._services)}"
        _ip("addr", "add", f"{address}/24", "dev", self._bridge)
        return address

    def machine(self, name: str) -> Sequence[str]:
        """A new machine; returns the beginning of the command line of whatever runs there."""
        number = len(self._machines)
        namespace = f"{self._bridge}-{name}"
        address = f"{self._prefix}.{100 + number}"
        _ip("netns", "add", namespace)
        self._machines[name] = address
        ends = [f"{self._bridge}{side}{number}" for side in "ab"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", namespace)
        _ip("link", "set", ends[0], "master", self._bridge, "up")
        _ip("addr", "add", f"{address}/24", "dev", ends[1], namespace=namespace)
        for end in ("lo", ends[1]):
            _ip("link", "set", end, "up", namespace=namespace)
        named = f'hostname {name}; exec "$@"'
        return (
            *("nsenter", f"--net=/run/netns/{namespace}"),
            *("unshare", "--uts", "sh", "-c", named, "sh"),
        )

    def cut(self, machine: str, service: str) -> None:
        """Nothing passes between a machine and a service any more."""
        self._cuts.add((machine, service))
        number = list(self._machines).index(machine)
        to = ("to", service, "lladdr", _NOBODY, "nud", "permanent")
        _ip(
            *("neigh", "replace", *to, "dev", f"{self._bridge}b{number}"),
            namespace=f"{self._bridge}-{machine}",
        )
        _ip("rule", "add", "from", service, "to", self._machines[machine], "blackhole")

    def mend(self, machine: str, service: str) -> None:
        """All passes again."""
        self._cuts.remove((machine, service))
        number = list(self._machines).index(machine)
        _ip(
            *("neigh", "del", service, "dev", f"{self._bridge}b{number}"),
            namespace=f"{self._bridge}-{machine}",
        )
        _ip("rule", "del", "from", service, "to", self._machines[machine], "blackhole")

    def close(self) -> None:
        """Take it all away; what runs there must have ended."""
        for machine, service in list(self._cuts):
            self.mend(machine, service)
        for name in self._machines:
            _ip("netns", "del", f"{self._bridge}-{name}")
        _ip("link", "del", self._bridge)


@contextmanager
def network() -> Iterator[Network]:
    """A network for this process alone."""
    made = Network()
    try:
        yield made
    finally:
        made.close()
