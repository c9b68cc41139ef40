"""Nodes on machines of their own that lose their link to the source or to the state: packets are
lost, and nothing says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import PostgresFactory
from tests.e2e.test_shared_log import Team
from tests.helpers.hosts import Host, catalog_of
from tests.helpers.waiting import PATIENCE, until
from tests.services.network import Network, missing, network
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.extended,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

#: Reads the state until that fails, and says how.
READER = """
import sys, time
from pathlib import Path
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError
catalog = Catalog.open(sys.argv[1], directory=Path(sys.argv[2]))
print("reads", flush=True)
try:
    while True:
        catalog.version()
        time.sleep(0.01)
except ChangefeedError as error:
    print(error.code.number)
"""


class Links:
    """A network with a source and a state, each with an address of its own."""

    def __init__(self, net: Network, source: Database, state: Database) -> None:
        self.net = net
        self._addresses = {"source": net.service(), "state": net.service()}
        for word, database in (("source", source), ("state", state)):
            server = database.server
            server.set_hba(*(f"host {db} all {net.range} trust" for db in ("all", "replication")))
            server.settings["listen_addresses"] = f"127.0.0.1,{self._addresses[word]}"
            server.restart()
        self.source, self.state = (
            database.uri.replace("127.0.0.1", self._addresses[word])
            for word, database in (("source", source), ("state", state))
        )

    def cut(self, machine: str, service: str) -> None:
        """Nothing passes between a machine and the source or the state any more."""
        self.net.cut(machine, self._addresses[service])


@pytest.fixture
def shop(own_postgres_factory: PostgresFactory) -> Iterator[Database]:
    with own_postgres_factory().database() as found:
        yield found


@pytest.fixture
def links(own_postgres_factory: PostgresFactory, shop: Database) -> Iterator[Links]:
    with network() as net, own_postgres_factory().database() as state:
        yield Links(net, shop, state)


def test_a_state_that_vanishes_amid_a_query_is_noticed(links: Links, tmp_path: Path) -> None:
    """Without a limit of its own, the kernel sends the query again and again for a quarter of an
    hour."""
    within = links.net.machine("m1")
    reader = subprocess.Popen(
        [*within, sys.executable, "-c", READER, links.state, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        links.cut("m1", "state")
        said, _ = reader.communicate(timeout=PATIENCE)
        assert said == "CF6001\n"
    finally:
        reader.kill()
        reader.wait()


def test_a_node_that_loses_the_source_gives_way_to_one_that_reaches_it(
    links: Links, shop: Database, tmp_path: Path
) -> None:
    """It keeps its feeds' leases and the state, so nothing but the source shows it."""
    with ExitStack() as stack:
        catalog = stack.enter_context(catalog_of(links.state, tmp_path / "client"))
        catalog.set_lease_seconds(3.0)
        flags = ("--log", str(tmp_path / "store"))
        machines = [
            Host(tmp_path / name, links.state, *flags, within=links.net.machine(name))
            for name in ("one", "two")
        ]
        for machine in machines:
            stack.callback(machine.kill)
        team = Team(shop, catalog, machines, tmp_path)
        team.source = f"{links.source}?tcp_user_timeout=3000&connect_timeout=2"
        team.begin()
        before = team.owner()
        links.cut("one", "source")
        team.write()
        until(team.arrived, "the other node delivers")
        assert team.owner() not in (before, None)
        assert len(catalog.live_nodes()) == 2, "the first node still lives"
        team.check()
        # The feed's node is the one that captures; the first one can still be given it back.
        now = team.owner()
        team.write()
        until(team.arrived, "it goes on")
        assert team.owner() == now
