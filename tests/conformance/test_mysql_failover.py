"""A replica takes the place of its primary: what was read goes on there, by GTID, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.mysql import MySQLSource
from changefeed_testing.sources.reader import State, reading
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.mysql import SERVERS, BinlogServer
from tests.services.python import Unavailable

_ACCOUNT = "CREATE USER replica IDENTIFIED BY 'replica'"
_REPLICATE = {
    "mariadb": "CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, "
    "master_user='replica', master_password='replica', master_use_gtid=slave_pos, "
    "master_ssl_verify_server_cert=0",
    "mysql8": "CHANGE REPLICATION SOURCE TO source_host='127.0.0.1', source_port={port}, "
    "source_user='replica', source_password='replica', source_auto_position=1, "
    "get_source_public_key=1",
}


@dataclass
class Replication:
    """A primary and a replica of it, which writes what it replicates to its own binlog."""

    primary: BinlogServer
    replica: BinlogServer

    def begin(self) -> None:
        """The replica is made of a copy of the (empty) primary: it knows where to go on."""
        mariadb = self.primary.flavor == "mariadb"
        executed, given = (
            ("gtid_binlog_pos", "gtid_slave_pos") if mariadb else ("gtid_executed", "gtid_purged")
        )
        self.primary.run(_ACCOUNT, "GRANT REPLICATION SLAVE ON *.* TO replica")
        [(place,)] = self.primary.run(f"SELECT @@GLOBAL.{executed}")
        self.replica.run(
            "RESET MASTER",
            f"SET GLOBAL {given} = '{place}'",
            _REPLICATE[self.primary.kind].format(port=self.primary.port),
            "START SLAVE",
            "SET GLOBAL read_only = 1",
        )

    def replicated(self, table: str, rows: int) -> bool:
        """The replica has so many rows."""
        try:
            return self.replica.run(f"SELECT COUNT(*) FROM {table}") == [(rows,)]
        except Exception as error:
            assert "doesn't exist" in str(error) or "Unknown database" in str(error), error
            return False

    def promote(self) -> None:
        """The primary is gone; the replica takes writes."""
        self.primary.stop()
        self.replica.run("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")


@pytest.fixture(params=["mariadb", "mysql8"])
def replication(request: pytest.FixtureRequest) -> Iterator[Replication]:
    with ExitStack() as stack:
        servers = []
        for number in (1, 2):
            folder = stack.enter_context(server_folder(request.param))
            options = [f"--server-id={number}", "--log-slave-updates=1"]
            if request.param == "mariadb":
                options.append("--gtid-strict-mode=1")
            try:
                server = SERVERS[request.param](folder, *options).start()
            except Unavailable as reason:
                pytest.skip(str(reason))
            stack.callback(server.stop)
            servers.append(server)
        made = Replication(*servers)
        made.begin()
        yield made


def ids(state: State) -> list[int]:
    return [change.after["id"] for change in state.changes() if change.after]


def source_at(server: BinlogServer, server_id: str = "") -> MySQLSource:
    return MySQLSource("shop", server.uri("shop") + server_id)


def captured(server: BinlogServer, folder: Path) -> State:
    """A state that captures the table."""
    source, state = source_at(server), State(folder)
    state.capture(source, "t")
    source.close()
    return state


def read(state: State, server: BinlogServer) -> None:
    """Read on, up to everything that committed before now."""
    source = source_at(server)
    with reading(state, source) as reader:
        reader.catch_up()
    source.close()


def refused(state: State, server: BinlogServer) -> tuple[str, str]:
    """Reading is refused, and nothing comes: the code and the detail."""
    before = ids(state)
    with pytest.raises(ChangefeedError) as caught:
        read(state, server)
    assert ids(state) == before
    return caught.value.code.number, caught.value.detail


def test_a_promoted_replica_goes_on(replication: Replication, tmp_path: Path) -> None:
    """One that has all that was read; nothing is lost and nothing comes twice."""
    primary, replica = replication.primary, replication.replica
    primary.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    state = captured(primary, tmp_path / "one")
    until(lambda: replication.replicated("shop.t", 0), "the replica has it")
    # The stream of a replica does not end when it becomes the primary.
    follower, followed = (
        captured(replica, tmp_path / "follower"),
        source_at(replica, "?server_id=77"),
    )
    with reading(follower, followed) as stays:
        promoted(replication, state, tmp_path)
        stays.wait(lambda: ids(follower) == [1, 2, 4])
    followed.close()

    # The log goes on at the new primary: captured tables, scans and later restarts, too.
    goes_on(state, replica)

    # The old primary is back with a transaction that nobody else has.
    primary.start()
    code, detail = refused(state, primary)
    assert code == "CF2103" and "another server took its place" in detail


def promoted(replication: Replication, state: State, folder: Path) -> None:
    """Two readers, one of which has seen what the replica never gets."""
    primary, replica = replication.primary, replication.replica
    primary.run("INSERT INTO shop.t VALUES (1)", "INSERT INTO shop.t VALUES (2)")
    read(state, primary)
    until(lambda: replication.replicated("shop.t", 2), "the replica has it")

    replica.run("STOP SLAVE")
    primary.run("INSERT INTO shop.t VALUES (3)")
    ahead = replace(state, folder=folder / "ahead", flushes=list(state.flushes))
    read(ahead, primary)
    assert (ids(state), ids(ahead)) == ([1, 2], [1, 2, 3])

    replication.promote()
    replica.run("INSERT INTO shop.t VALUES (4)")
    read(state, replica)
    assert ids(state) == [1, 2, 4]
    code, detail = refused(ahead, replica)
    assert code == "CF2104" and "has not the transactions that were read" in detail


def goes_on(state: State, replica: BinlogServer) -> None:
    """A table joins, is scanned, and both are read on."""
    replica.run("CREATE TABLE shop.u (id INT PRIMARY KEY)", "INSERT INTO shop.u VALUES (50)")
    source = source_at(replica)
    state.capture(source, "t", "u")
    tables = [source.describe(None, name) for name in ("t", "u")]
    with source.snapshot(tables) as snapshot:
        seen = [
            row["a0"]
            for table in tables
            for part in snapshot.parts(table)
            for batch in part.read()
            for row in batch.to_pylist()
        ]
        assert sorted(seen) == [1, 2, 4, 50]
        assert state.frontier is not None and snapshot.position > state.frontier.position
    source.close()
    replica.run("INSERT INTO shop.u VALUES (51)", "INSERT INTO shop.t VALUES (5)")
    read(state, replica)
    assert ids(state)[:3] == [1, 2, 4] and ids(state)[-2:] == [51, 5]
