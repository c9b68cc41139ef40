"""Nodes on several hosts with one state and a shared log: a host that dies, freezes or is lost with
its disk takes nothing with it, and another goes on."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import changefeed
from changefeed.api import Interpreter, Session
from changefeed.app import Application
from changefeed.catalog import Catalog, Status
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.drain import drain, undo_drain
from changefeed.log.objects import ObjectStore
from changefeed.shared_logs import keep_logs_at
from changefeed.stored_files import bring_logs_home, verify_files
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import read_files
from changefeed_testing.sinks.validators import OrderValidator, ResolvedValidator, validate
from tests.conftest import PostgresFactory
from tests.helpers.hosts import Host, catalog_of, hosts
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


class Team:
    """Two hosts, a client elsewhere, and a feed of a small table into files."""

    def __init__(
        self, shop: Database, catalog: Catalog, machines: list[Host], folder: Path
    ) -> None:
        self.shop = shop
        #: Where nodes find the shop.
        self.source = shop.uri
        self.catalog = catalog
        self.one, self.two = machines
        self.out = folder / "out"
        self.store = folder / "store"
        self._interpreter = Interpreter(catalog)
        self._session = Session(client="tests")
        self._rows = 0

    def execute(self, sql: str) -> None:
        """A statement of a client on a third machine."""
        self._interpreter.execute(sql, self._session)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement of such a client."""
        return list(self._interpreter.execute(sql, self._session).rows)

    def create(self) -> None:
        """A table that does not send old rows, and a feed that asks for them."""
        self.shop.execute("create table t (id int primary key, note text)")
        self.execute(f"CREATE EXTERNAL CONNECTION shop AS '{self.source}'")
        self.execute(
            f"CREATE CHANGEFEED f FOR TABLE shop.public.t INTO 'file://{self.out}"
            "?flush_interval=0s' WITH resolved = '200ms', updated, diff, row_images = 'store'"
        )
        until(lambda: self.catalog.job("f").status is Status.RUNNING, "the feed runs")

    def begin(self) -> None:
        """The first host delivers rows, and the second one has come after it."""
        self.one.start()
        until(lambda: self.catalog.live_nodes(), "the first node lives")
        self.create()
        self.write()
        until(self.arrived, "the first rows arrive")
        self.two.start()
        until(lambda: len(self.catalog.live_nodes()) == 2, "the second node lives")

    def write(self, rows: int = 20) -> None:
        """New rows, and a change of each old one."""
        for _ in range(rows):
            self._rows += 1
            self.shop.execute("update t set note = note || '.' where id = %s", [self._rows - 7])
            self.shop.execute("insert into t values (%s, %s)", [self._rows, f"n{self._rows}"])

    def messages(self) -> list[Message]:
        """What a consumer reads."""
        return read_files(self.out, ["t"]) if self.out.exists() else []

    def arrived(self) -> bool:
        """Whether a consumer has the table as it is. It leaves out repeats of older versions: those
        of a node that died may have names that sort after what came later."""
        notes: dict[int, str] = {}
        for message in sorted(self.messages(), key=lambda m: m.at or Timestamp.ZERO):
            if message.after is not None:
                notes[message.after["id"]] = message.after["note"]
        return notes == dict(self.shop.execute("select id, note from t"))

    def check(self) -> None:
        """Nothing is lost, nothing that was promised is broken, and changes have their old rows."""
        until(self.arrived, "all rows arrive")
        found = self.messages()
        validate(found, OrderValidator(), ResolvedValidator())
        for message in found:
            if message.after is not None:
                note = message.after["note"]
                old = {**message.after, "note": note[:-1]} if note.endswith(".") else None
                assert message.before == old

    def owner(self) -> str | None:
        """The node that captures the source."""
        return self.catalog.source_holders().get("shop")


@pytest.fixture
def team(postgres_server: PostgresFactory, tmp_path: Path) -> Iterator[Team]:
    with ExitStack() as stack:
        shop = stack.enter_context(postgres_server().database())
        state = stack.enter_context(postgres_server().database())
        catalog = stack.enter_context(catalog_of(state.uri, tmp_path / "client"))
        machines = stack.enter_context(
            hosts(
                tmp_path,
                state.uri,
                *("one", "two"),
                log=str(tmp_path / "store"),
                more=("--max-copies", "1MiB"),
            )
        )
        yield Team(shop, catalog, machines, tmp_path)


def test_a_host_that_is_gone_with_its_disk(team: Team) -> None:
    team.begin()
    first = team.owner()
    team.write(3)
    team.one.kill(disk=True)
    team.write()
    team.check()
    assert team.owner() not in (None, first)
    # The first machine comes back empty, and the second ends in good order.
    team.one.start()
    until(lambda: len(team.catalog.live_nodes()) == 2, "the first node is back")
    team.two.stop()
    team.write()
    team.check()
    # Every object is there, and a damaged one is named.
    assert [row for row in verify_files(team.catalog).rows if row[5]] == []
    objects = [path for path in team.store.rglob("*") if path.is_file()]
    whole = objects[0].read_bytes()
    objects[0].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = verify_files(team.catalog)
    assert damaged.failure is not None
    assert len([row for row in damaged.rows if row[5]]) == 1
    objects[0].write_bytes(whole)
    team.execute("DROP CHANGEFEED f")
    until(lambda: not list(ObjectStore(str(team.store)).names("")), "its objects are removed")
    until(lambda: team.shop.slots() == [], "the slot is removed")


def test_a_node_gives_its_feeds_away_and_takes_them_again(team: Team) -> None:
    lease = 60.0  # its end is not waited for
    team.catalog.set_lease_seconds(lease)
    team.begin()
    until(lambda: team.two.waits, "a capture waits there")
    first = team.owner()
    assert first is not None
    assert drain(team.catalog, first, 60.0).endswith("is drained")
    team.write()
    until(team.arrived, "the second node goes on", lease / 2)
    second = team.owner()
    assert second not in (None, first)
    assert {node.id for node in team.catalog.live_nodes()} == {first, second}
    undo_drain(team.catalog, first)
    until(lambda: team.one.waits, "a capture waits on the first node")
    team.two.stop()
    team.write()
    until(team.arrived, "the first node goes on", lease / 2)
    assert team.owner() == first
    team.check()


def test_the_log_is_read_on_any_host(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no node runs: a reader, rows for a client, a cursor in the past, a comparison. Reader
    and client go on when another node takes the source over."""
    home = team.out.parent / "elsewhere"
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    team.catalog.set_lease_seconds(3.0)
    team.one.start()
    until(lambda: team.catalog.live_nodes(), "the first node lives")
    team.create()
    team.write(3)
    until(team.arrived, "the first rows arrive")
    begun = max(message.at for message in team.messages() if message.at)
    team.execute(f"CREATE CHANGEFEED r FOR TABLE shop.public.t INTO 'reader://{home}/r'")
    team.shop.execute(f"create database {team.shop.uri.rpartition('/')[2]}_copy")
    target = f"{team.shop.uri}_copy"
    team.execute(f"CREATE CHANGEFEED c FOR TABLE shop.public.t INTO '{target}?schema=public'")
    with ExitStack() as stack:
        elsewhere = stack.enter_context(Application(team.one.state))
        reader = stack.enter_context(changefeed.subscribe(team.one.state, reader="r"))
        over = threading.Event()
        session = Session(client="tests", gone=over.is_set)

        def stream_of(more: str = "") -> Any:
            sql = f"CREATE CHANGEFEED FOR TABLE shop.public.t {more}"
            return elsewhere.interpreter.execute(sql, session).stream

        with pytest.raises(ChangefeedError, match="row images of 'shop' are with the node"):
            next(stream_of("WITH row_images = 'store'"))
        stream = stream_of()
        sent: list[str] = []
        taking = threading.Thread(
            target=lambda: sent.extend(row[1] or "" for row in stream), daemon=True
        )
        taking.start()
        read: list[int] = []

        def seen() -> bool:
            part = reader.next(timeout=0.1)
            if part is not None:
                rows = part.table().to_pylist()
                read.extend(row["id"] for row in rows if row["_change_type"] == "insert")
            ids = [row[0] for row in team.shop.execute("select id from t order by id")]
            return read == ids and {f"[{i}]" for i in ids} <= set(sent)

        until(seen, "reader and client have the table")
        team.write()
        until(seen, "they have what came later")
        team.execute(
            f"CREATE CHANGEFEED past FOR TABLE shop.public.t INTO 'file://{team.out}-past"
            f"?flush_interval=0s' WITH updated, cursor = '{begun}'"
        )
        with pytest.raises(ChangefeedError, match="before the change log"):
            team.execute(
                "CREATE CHANGEFEED older FOR TABLE shop.public.t INTO 'null://' WITH cursor = '1'"
            )
        team.execute("SYNC CHANGEFEED c")
        with psycopg.connect(target) as connection:
            connection.execute("update public.t set note = 'another' where id = 5")
        found = elsewhere.interpreter.execute("VERIFY CHANGEFEED c", session)
        assert [row[:3] for row in found.rows] == [("public.t", "[5]", "changed")]
        team.two.start()
        until(lambda: len(team.catalog.live_nodes()) == 2, "the second node lives")
        first = team.owner()
        team.one.kill(disk=True)
        team.write()
        until(seen, "they go on where another node writes")
        assert team.owner() not in (None, first)
        assert len(read) == len(set(read))
        over.set()
        taking.join()
    team.check()
    past = read_files(Path(f"{team.out}-past"), ["t"])
    assert min(message.at for message in past if message.at) > begun
    assert {message.after["id"] for message in past if message.after} >= set(range(4, 24))
    assert not list(home.rglob("log-*")), "nobody follows"


@pytest.mark.extended
def test_a_host_that_freezes_and_wakes_up(team: Team) -> None:
    team.begin()
    first = team.owner()
    team.one.freeze()
    team.write()
    until(lambda: team.owner() not in (None, first), "the lease ends and the second has it")
    until(team.arrived, "the second node goes on")
    team.one.thaw()
    until(lambda: "another node has taken it" in team.one.printed, "the first notices")
    team.write()
    team.check()


@pytest.mark.extended
def test_clocks_of_hosts_that_are_minutes_apart_and_jump(team: Team) -> None:
    """Nobody loses a lease by that, and each takes over what the other had."""
    team.catalog.set_lease_seconds(3.0)
    team.one.set_clock(300)
    team.two.set_clock(-300)
    team.begin()
    first = team.owner()

    def tokens() -> list[Any]:
        """How often each lease was taken, and by whom last."""
        with psycopg.connect(team.one.state) as connection:
            query = "select node, token from changefeed.{}"
            return [
                connection.execute(query.format(table)).fetchall()
                for table in ("capture_lease", "job_lease")
            ]

    def renewed(before: dict[str, int]) -> bool:
        """Whether both nodes have lived for longer than a lease lasts since then."""
        lived = {node.id: node.seen - before[node.id] for node in team.catalog.live_nodes()}
        return len(lived) == 2 and min(lived.values()) > 4e9

    before = tokens()
    (began, *_) = team.catalog.events(team.catalog.job("f").id, kinds=["status"])
    assert 200 < began.at / 1e9 - time.time() < 400, "the node's clock is another one"
    for one, two in ((-300, 300), (300, -300), (0, 0)):
        team.one.set_clock(one)
        team.two.set_clock(two)
        seen = {node.id: node.seen for node in team.catalog.live_nodes()}
        until(partial(renewed, seen), "both renew their leases")
        team.write(3)
        until(team.arrived, "the feed goes on")
    assert team.owner() == first and tokens() == before
    team.one.set_clock(300)
    team.two.set_clock(-300)
    team.one.kill(disk=True)
    team.write()
    team.check()
    second = team.owner()
    assert second not in (None, first)
    team.one.start()
    until(lambda: team.one.waits, "a capture waits on the first machine")
    team.two.stop()
    team.write()
    team.check()
    assert team.owner() not in (None, first, second)


def test_logs_of_one_host_move_to_the_store(
    postgres_server: PostgresFactory, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    with ExitStack() as stack:
        shop, state = (stack.enter_context(postgres_server().database()) for _ in range(2))
        catalog = stack.enter_context(catalog_of(state.uri, tmp_path / "client"))
        (alone,) = stack.enter_context(hosts(tmp_path, state.uri, "one"))
        alone.start()
        until(lambda: catalog.live_nodes(), "the node lives")
        with pytest.raises(ChangefeedError, match="keeps its logs on its own disk"):
            keep_logs_at(catalog, store)
        team = Team(shop, catalog, [alone, alone], tmp_path)
        team.create()
        team.write()
        until(team.arrived, "the first rows arrive")
        team.execute("PAUSE CHANGEFEED f")
        team.write(3)
        until(lambda: not catalog.job("f").status.active, "the feed is paused")
        alone.stop()
        one, two = stack.enter_context(hosts(tmp_path, state.uri, "one", "two", log=store))
        two.start()
        until(
            lambda: "is on the disk of another node" in catalog.source_state("shop").error,
            "a node that does not have the log begins none",
        )
        team.execute("RESUME CHANGEFEED f")
        until(
            lambda: "is on the disk of another node" in catalog.job("f").reason, "the feed says so"
        )
        assert catalog.job("f").status is Status.STALLED
        team.execute("PAUSE CHANGEFEED f")
        one.start()
        until(lambda: team.owner() and not catalog.unmoved_logs(), "the log is shared")
        until(
            lambda: any(name.startswith("images/") for name in catalog.log_notes("shop")),
            "its row images are shared",
        )
        one.kill(disk=True)
        team.execute("RESUME CHANGEFEED f")
        team.write()
        team.check()
        # And back, to a machine that has nothing of it, with changes that nobody has delivered.
        with pytest.raises(ChangefeedError, match=r"node \w+ on .* runs this state"):
            bring_logs_home(catalog)
        two.stop()
        shutil.rmtree(two.home)
        (home,) = stack.enter_context(hosts(tmp_path, state.uri, "home", log="local"))
        team.write(3)
        home.start()
        until(lambda: catalog.log_place is None and not catalog.source_holders(), "it moves")
        team.write()
        team.check()
        assert list(ObjectStore(store).names("")) == []
        home.kill()
        (again,) = stack.enter_context(hosts(tmp_path, state.uri, "home"))
        again.start()
        team.write()
        team.check()


def test_where_logs_cannot_be_kept(postgres_server: PostgresFactory, tmp_path: Path) -> None:
    with ExitStack() as stack:
        state = stack.enter_context(postgres_server().database())
        catalog = stack.enter_context(catalog_of(state.uri, tmp_path / "client"))
        local = stack.enter_context(catalog_of(str(tmp_path / "state"), tmp_path / "state"))
        with pytest.raises(ChangefeedError, match="a state that all nodes reach"):
            keep_logs_at(local, str(tmp_path / "store"))
        for address, why in {
            "ftp://host/x": "cannot be kept there",
            "s3://bucket/x?AWS_KEY=secret-1": "unknown log store query parameters: .AWS_KEY.",
            "/proc/nowhere": "cannot be written in /proc/nowhere",
        }.items():
            with pytest.raises(ChangefeedError, match=why) as refused:
                keep_logs_at(catalog, address)
            assert "secret-1" not in str(refused.value)
        assert catalog.log_place is None
        keep_logs_at(catalog, str(tmp_path / "store"))
        keep_logs_at(catalog, str(tmp_path / "store"))
        with pytest.raises(ChangefeedError, match=f"are in {tmp_path}/store"):
            keep_logs_at(catalog, str(tmp_path / "another"))
