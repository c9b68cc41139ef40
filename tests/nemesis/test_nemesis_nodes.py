"""Three nodes, each on a machine of its own, one state and one shared log: machines die, freeze,
lose their disk or a link, and come and go at random.

``CHANGEFEED_NEMESIS_ROUNDS`` says how often something goes wrong (default 4), ``CHANGEFEED_SEED``
in which order; without a seed a fixed one runs.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import PostgresFactory
from tests.helpers.hosts import Host, catalog_of
from tests.helpers.waiting import PATIENCE
from tests.nemesis.conftest import running
from tests.nemesis.copies import DuckDBCopy
from tests.nemesis.ends import Bus, Files
from tests.nemesis.origin import Origin
from tests.nemesis.postgres_origin import PostgresOrigin
from tests.nemesis.readers import ReaderCopy
from tests.nemesis.run import Run
from tests.nemesis.team import DISK, LEASE, STORE, Team, disk
from tests.services.cache import server_folder
from tests.services.http_faults import FaultyProxy
from tests.services.kafka import KafkaBroker
from tests.services.network import missing, network
from tests.services.postgres import Database
from tests.services.s3 import S3Server

pytestmark = [
    pytest.mark.nemesis,
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.kafka,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

ROUNDS = int(os.environ.get("CHANGEFEED_NEMESIS_ROUNDS", "4"))
MACHINES = ("m1", "m2", "m3", "m4")
#: By store.
SEEDS = {"directory": "5", "s3": "8"}
#: Feeds that one node runs; there are more, so others take part.
ROOM = 2


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """A broker that can be given an address before it starts."""
    with server_folder("kafka") as folder:
        made = KafkaBroker(folder)
        yield made
        made.kill()


@pytest.fixture(params=["directory", "s3"])
def nodes_run(
    request: pytest.FixtureRequest,
    origin_database: Database,
    own_postgres_factory: PostgresFactory,
    broker: KafkaBroker,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:
    """A run over PostgreSQL with nodes on several machines."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "client"))
    if "CHANGEFEED_SEED" not in os.environ:
        monkeypatch.setenv("CHANGEFEED_SEED", SEEDS[request.param])
    with ExitStack() as stack:
        net = stack.enter_context(network())
        services = {word: net.service() for word in ("state", "source", "sink")}
        state = own_postgres_factory(listen_addresses=f"127.0.0.1,{services['state']}")
        source = origin_database.server
        for server in (state, source):
            server.set_hba(*(f"host {db} all {net.range} trust" for db in ("all", "replication")))
        source.settings["listen_addresses"] = f"127.0.0.1,{services['source']}"
        source.restart()
        broker.listen_at(services["sink"])
        broker.start()
        store: FaultyProxy | Path
        if request.param == "s3":
            services["store"] = net.service()
            store = stack.enter_context(FaultyProxy(s3.port, "/", host=services["store"]))
            bucket = s3.bucket(f"nodes-{uuid.uuid4().hex[:8]}")
            log = s3.uri(f"{bucket}/x", store.port).replace("127.0.0.1", services["store"])
        else:
            store = stack.enter_context(disk(tmp_path / "store", STORE))
            log = str(store)
        database = stack.enter_context(state.database())
        place = database.uri.replace("127.0.0.1", services["state"])
        catalog = stack.enter_context(catalog_of(place, tmp_path / "client"))
        catalog.set_lease_seconds(LEASE)
        flags = ("--log", log, "--max-feeds", str(ROOM))
        machines = [
            Host(
                stack.enter_context(disk(tmp_path / name, DISK)),
                place,
                *flags,
                within=net.machine(name),
                supervised=True,
            )
            for name in MACHINES
        ]
        for machine in machines:
            stack.callback(machine.kill)
        team = Team(place, catalog, machines, net, services, state, store)

        def origin(chance: random.Random) -> Origin:
            made = PostgresOrigin(origin_database, tmp_path, chance)
            made.uri = made.uri.replace("127.0.0.1", services["source"])
            return made

        with running(tmp_path, origin, team) as made:
            yield made


def all_ends(
    run: Run, broker: KafkaBroker, folder: Path
) -> list[Files | Bus | DuckDBCopy | ReaderCopy]:
    """A feed into each kind of end."""
    bus = Bus(run.ledger, broker)
    if run.chance.random() < 0.5:
        bus.options = f"{bus.options}, delivery = 'exactly_once'"
    return [
        Files(run.ledger, folder / "out"),
        bus,
        DuckDBCopy(run.ledger, folder / "target.duckdb"),
        ReaderCopy(run.ledger, run.service.place, folder / "reader"),
    ]


@pytest.mark.timeout(6 * PATIENCE + 60 * ROUNDS)
def test_feeds_go_on_whatever_befalls_their_machines(
    nodes_run: Run, broker: KafkaBroker, tmp_path: Path
) -> None:
    run = nodes_run
    assert isinstance(run.service, Team)
    ends = all_ends(run, broker, tmp_path)
    run.create_feeds(ends)
    # A machine that stands still may have the DuckDB file open.
    free = [end for end in ends if not isinstance(end, DuckDBCopy)]

    def goes_on() -> None:
        run.end_transactions()  # scans wait for them
        for end in free:
            run.wait_for(end)

    weights, troubles = zip(*run.service.troubles(run.chance, run.meanwhile, goes_on), strict=True)
    for number in range(ROUNDS):
        run.go_wrong(1.0, run.writer.doings())
        run.note(f"round {number + 1}")
        run.note(run.chance.choices(troubles, weights)[0]())
    run.settle()
    run.prove()
    print(f"{ROUNDS} rounds")
