"""The store of a shared log or the state misbehaves: feeds say why they wait, the source keeps what
was not acknowledged, nothing is lost, and the log is whole afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from changefeed.catalog import Catalog, Status
from changefeed.stored_files import verify_files
from tests.conftest import PostgresFactory
from tests.e2e.test_shared_log import Team
from tests.helpers.hosts import Host, catalog_of, hosts
from tests.helpers.waiting import until
from tests.services.http_faults import FaultyProxy, answer, late, lose_answer
from tests.services.postgres import Database
from tests.services.s3 import SECRET, S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.extended]

DENIED = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>no</Message></Error>'

#: So often a client of the store asks before it gives up.
ATTEMPTS = 3


class Trouble(Team):
    """One host, whose log is in a bucket behind a proxy and whose state has a role of its own."""

    def __init__(
        self, shop: Database, state: Database, role: str, catalog: Catalog, host: Host, folder: Path
    ) -> None:
        super().__init__(shop, catalog, [host, host], folder)
        self._state, self._role = state, role
        self._large = 0

    def write_large(self) -> None:
        """A transaction that is too large for a row of the state."""
        self._large += 1
        self.shop.execute(
            "insert into t select g, md5(g::text) || md5((g + 1)::text) || md5((g + 2)::text)"
            f" from generate_series({self._large}00000, {self._large}04000) g"
        )

    def waits_for(self, why: str) -> bool:
        """Whether SHOW CHANGEFEEDS says that the feed is stalled, and why."""
        row = self.query("SHOW CHANGEFEEDS")[0]
        return row[2] == "stalled" and why in f"{row[3]} {row[9]}"

    @property
    def end(self) -> str:
        """Where the source's log ends now."""
        ((found,),) = self.shop.execute("select pg_current_wal_lsn()::text")
        return str(found)

    def keeps(self, since: str) -> bool:
        """Whether the source still has its log from a place on."""
        query = "select confirmed_flush_lsn <= %s::pg_lsn from pg_replication_slots"
        found = self.shop.execute(f"{query} where slot_name = %s", [since, *self.shop.slots()])
        return bool(found[0][0])

    def whole(self) -> None:
        """All has arrived, in order, and every byte of the log is as it was written."""
        until(self.arrived, "all rows arrive")
        until(lambda: self.catalog.job("f").status is Status.RUNNING, "the feed runs")
        self.check()
        found = verify_files(self.catalog)
        assert found.failure is None and not [row for row in found.rows if row[5]]

    def alter_state(self, change: str) -> None:
        """Change the role of the state for new sessions, and end those that there are."""
        self._state.execute(f"alter role {self._role} {change}")
        self._state.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s",
            [self._role],
        )


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    """Before the store; it forwards until a test gives it faults."""
    with FaultyProxy(s3.port, matching="/") as proxy:
        yield proxy


@contextmanager
def trouble(factory: PostgresFactory, folder: Path, log: str) -> Iterator[Trouble]:
    """A feed that runs and has delivered its first rows."""
    with ExitStack() as stack:
        server = factory()
        role = f"feeds_{uuid.uuid4().hex[:8]}"
        server.execute(f"create role {role} login")
        stack.callback(server.execute, f"drop role {role}")
        shop, state = (stack.enter_context(server.database()) for _ in range(2))
        server.execute(f"alter database {state.name} owner to {role}")
        uri = state.uri.replace("postgres@", f"{role}@")
        catalog = stack.enter_context(catalog_of(uri, folder / "client"))
        (host,) = stack.enter_context(hosts(folder, uri, "one", log=log))
        found = Trouble(shop, state, role, catalog, host, folder)
        host.start()
        until(lambda: catalog.live_nodes(), "the node lives")
        found.create()
        found.write(3)
        until(found.arrived, "the first rows arrive")
        yield found


def test_a_store_that_misbehaves(
    postgres_server: PostgresFactory, s3: S3Server, proxy: FaultyProxy, tmp_path: Path
) -> None:
    place = s3.uri(f"{s3.bucket(f'logs-{uuid.uuid4().hex[:8]}')}/x", port=proxy.port)
    with trouble(postgres_server, tmp_path, place) as it:
        for fault, why in (
            (answer(503), "SERVICE_UNAVAILABLE"),
            (answer(403, DENIED, content_type="application/xml"), "ACCESS_DENIED"),
        ):
            proxy.always = fault
            before = it.end
            it.write_large()
            until(partial(it.waits_for, why), why)
            assert it.keeps(before)
            proxy.always = None
            it.whole()

        # A request that was carried out, and whose answer was lost: it is made again.
        seen = len(proxy.seen)
        proxy.script.extend([lose_answer] * 2 * ATTEMPTS)
        it.write_large()
        it.whole()
        assert not proxy.script
        names = {request.path for request in proxy.seen[seen:] if request.method == "PUT"}
        assert len({name for name in names if "/journal-" in name}) >= 3

        # A slow one holds up large transactions only.
        proxy.always = late(1.5)
        it.write_large()
        it.write(2)
        it.whole()
        assert SECRET not in it.one.printed


def test_a_state_that_misbehaves(postgres_server: PostgresFactory, tmp_path: Path) -> None:
    with trouble(postgres_server, tmp_path, str(tmp_path / "store")) as it:
        for change, undo in (
            ("set default_transaction_read_only = on", "reset default_transaction_read_only"),
            ("connection limit 0", "connection limit -1"),
        ):
            logged = it.one.printed.count("ERROR node:")
            it.alter_state(change)
            before = it.end
            it.write(2)
            it.write_large()
            # Longer than a capture takes to start again.
            time.sleep(4)
            assert it.keeps(before)
            # What lasts is said once by each thread of the node, not ten times a second.
            assert 0 < it.one.printed.count("ERROR node:") - logged < 15
            it.alter_state(undo)
            it.whole()
        # As after a restart or a failover.
        it.alter_state("connection limit -1")
        it.write(2)
        it.whole()
