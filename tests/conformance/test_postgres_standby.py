"""A standby is read, and the publication is made on its primary: the list of what every source must
do, what hinders it, and a promotion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.base import Source, Watch
from changefeed.sources.postgres import PostgresSource, standby
from changefeed.sources.postgres.connect import connect
from changefeed_testing.sources.conformance import CASES, Case, run_case
from changefeed_testing.sources.reader import State, reading
from tests.conformance.test_source_conformance import PostgresHarness
from tests.conftest import PostgresFactory
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.waiting import until
from tests.services.cache import server_folder
from tests.services.postgres import DEFAULT_MAJOR, Database, PostgresCluster

pytestmark = [pytest.mark.postgres]

#: The cases that a standby could break; the others are in the second half of the tests.
OFTEN = frozenset(
    {
        "a_lost_log_is_an_error",
        "a_snapshot_stands_still",
        "columns_come_and_go",
        "scan_and_stream_are_the_table",
    }
)


@dataclass
class Pair:
    """A primary, and a standby that follows it."""

    primary: PostgresCluster
    standby: PostgresCluster

    def uri(self, database: str, user: str = "postgres") -> str:
        """Of a source that reads from the standby."""
        primary, standby = (f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://{user}@{primary}/{database}?read_from={standby}"

    @contextmanager
    def source(
        self, database: str = "postgres", user: str = "postgres"
    ) -> Iterator[PostgresSource]:
        source = PostgresSource("shop", self.uri(database, user))
        try:
            yield source
        finally:
            source.close()


@contextmanager
def pair(primary: PostgresCluster, **settings: str) -> Iterator[Pair]:
    """A standby for a server that nobody uses now."""
    primary.execute("select pg_create_physical_replication_slot('standby')")
    primary.stop()
    given = {"primary_slot_name": "standby", "hot_standby_feedback": "on", **settings}
    standby = primary.standby("standby", slots=False, **given)
    primary.start()
    with standby:
        yield Pair(primary, standby)


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    """For all tests of the module that break neither server."""
    with server_folder("pair") as folder:
        primary = PostgresCluster.make(DEFAULT_MAJOR, folder).start()
        try:
            with pair(primary) as made:
                yield made
        finally:
            primary.stop()


@contextmanager
def replicated(pair: Pair) -> Iterator[Database]:
    """A database of the primary that the standby has; dropped afterwards with its slots there."""
    with pair.primary.database() as made:
        known = "select 1 from pg_database where datname = %s"
        until(lambda: pair.standby.execute(known, [made.name]))
        yield made
        for name in Database(pair.standby, made.name).slots():
            drop_slot(pair.standby, name)


@pytest.fixture
def database(shared: Pair) -> Iterator[Database]:
    with replicated(shared) as made:
        yield made


class StandbyHarness(PostgresHarness):
    """One database of a server that another one is read for."""

    def __init__(self, pair: Pair, database: Database, other: Database, folder: Path) -> None:
        super().__init__(database, other, folder)
        self._pair = pair

    def _open(self, database: Database) -> Source:
        source = PostgresSource("shop", self._pair.uri(database.name))
        self._opened.callback(source.close)
        return source

    def lose_log(self, memo: Any) -> None:
        drop_slot(self._pair.standby, memo["slot"])


@pytest.fixture
def harness(shared: Pair, database: Database, tmp_path: Path) -> Iterator[StandbyHarness]:
    with replicated(shared) as other:
        made = StandbyHarness(shared, database, other, tmp_path)
        yield made
        made.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.name in OFTEN else pytest.mark.extended)
        for case in CASES
    ],
    ids=str,
)
def test_a_standby_is_a_source(case: Case, harness: StandbyHarness) -> None:
    assert run_case(case, harness) == ""


def problems(uri: str, *tables: str) -> list[ChangefeedError]:
    source = PostgresSource("shop", uri)
    try:
        return source.attach("tests", None).check([Watch(table) for table in tables])
    finally:
        source.close()


def test_what_is_made_where(shared: Pair, database: Database, tmp_path: Path) -> None:
    """Nothing is held on the primary but the publication."""
    database.execute("create table t (id int primary key)")
    uri = shared.uri(database.name)
    assert problems(uri, "t") == []
    with shared.source(database.name) as source:
        assert source.warnings() == [
            "max_slot_wal_keep_size is unlimited: while no changefeed node runs, the slot retains "
            "WAL without limit and may fill the server's disk. "
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; sets a limit."
        ]
        state = State(tmp_path)
        state.capture(source, "t")
        on_standby = Database(shared.standby, database.name)
        assert database.slots() == [] and len(on_standby.slots()) == 1
        published = "select tablename from pg_publication_tables"
        assert database.execute(published) == on_standby.execute(published) == [("t",)]
        state.attach(source).release()
        assert on_standby.slots() == [] == database.execute("select * from pg_publication")


def test_a_standby_by_itself_is_refused(shared: Pair, database: Database) -> None:
    """A publication cannot be made there; the hint says how the standby can be read."""
    database.execute("create table t (id int primary key)")
    found = problems(shared.standby.uri(database.name))
    assert [p.code.number for p in found] == ["CF2003"]
    assert "is a standby" in found[0].message and "read_from=host:port" in found[0].hint


def test_another_server_is_no_standby(shared: Pair, database: Database, postgres: Database) -> None:
    database.execute("create table t (id int primary key)")
    stranger = f"127.0.0.1:{postgres.server.port}"
    uri = f"{database.uri}?read_from={stranger}".replace(database.name, "postgres")
    [problem] = problems(uri)
    assert problem.code.number == "CF2003" and "no standby of the primary" in problem.message
    postgres.server.execute("create table stranger (id int primary key)")
    source = PostgresSource("shop", uri)
    with pytest.raises(ChangefeedError) as caught:
        source.attach("tests", None).capture(
            [source.describe(None, "stranger").table], resume=False
        )
    assert caught.value.message == problem.message
    for made in ("pg_replication_slots", "pg_publication"):
        assert postgres.server.execute(f"select * from {made}") == []
    source.close()
    postgres.server.execute("drop table stranger")


@pytest.mark.extended
@pytest.mark.parametrize("postgres", [14], indirect=True)
def test_an_old_standby_cannot_be_read(postgres: Database) -> None:
    address = f"127.0.0.1:{postgres.server.port}"
    [problem] = problems(f"{postgres.uri}?read_from={address}")
    assert problem.code.number == "CF2003" and "16 is the oldest" in problem.message


def test_a_role_that_may_not_prompt_the_primary(shared: Pair, database: Database) -> None:
    """It waits longer, is told so, and the statement in the notice changes that."""
    role = f"role_{database.name}"
    shared.primary.execute(f"create role {role} login replication")
    until(lambda: shared.standby.execute("select 1 from pg_roles where rolname = %s", [role]))
    with shared.source(database.name, role) as source:
        [*_, prompt] = source.warnings()
        grant = prompt.partition(". ")[2].partition(";")[0]
        assert grant == f"GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO {role}"
        database.execute(grant)
        with connect(source.address.primary) as primary:
            assert standby.prompts(primary)
        assert not any("pg_log_standby_snapshot" in word for word in source.warnings())
    database.execute(f"drop owned by {role}; drop role {role}")


def test_time_waits_for_what_the_standby_has_not_replayed(
    shared: Pair, database: Database, tmp_path: Path
) -> None:
    """A standby that stands still has everything that it knows, and not what its primary has."""
    database.execute("create table t (id int primary key)")
    on_standby = Database(shared.standby, database.name)
    state = State(tmp_path)
    with shared.source(database.name) as source:
        state.capture(source, "t")
        with reading(state, source) as reader:
            reader.catch_up()
            on_standby.execute("select pg_wal_replay_pause()")
            try:
                until(
                    lambda: (
                        on_standby.execute("select pg_get_wal_replay_pause_state()")
                        == [("paused",)]
                    )
                )
                database.execute("insert into t values (1)")
                done = time.time_ns()
                time.sleep(3)  # nothing to wait for: the standby answers, and has nothing
                assert state.frontier is not None
                assert state.frontier.at.version <= done
            finally:
                on_standby.execute("select pg_wal_replay_resume()")
            reader.wait(lambda: ids(state) == [1])
            [change] = state.changes()
            assert change.at.version <= done
            reader.wait(lambda: state.frontier and state.frontier.at.version > done)
        state.attach(source).release()


def ids(state: State) -> list[int]:
    return [change.after["id"] for change in state.changes() if change.after]


def test_the_standby_that_is_read_is_promoted(
    own_postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    """Before that it is refused as long as its primary does not know what it needs."""
    primary = own_postgres_factory(DEFAULT_MAJOR)
    primary.execute("create table t (id int primary key)")
    with pair(primary, primary_slot_name="", hot_standby_feedback="off") as made:
        with made.source() as source:
            [problem] = problems(made.uri("postgres"), "t")
            assert problem.code.number == "CF2003"
            assert "hot_standby_feedback is off" in problem.message
            assert any("no primary_slot_name" in word for word in source.warnings())
            made.standby.settings["hot_standby_feedback"] = "on"
            made.standby.restart()
            state = State(tmp_path)
            state.capture(source, "t")
            with reading(state, source, patient=True) as reader:
                primary.execute("insert into t values (1)")
                reader.catch_up()
                primary.execute("insert into t values (2)")
                reader.wait(lambda: ids(state) == [1, 2])
                primary.kill()
                reader.wait(lambda: reader.retried)  # until there is a primary
                assert {error.code for error in reader.retried} == {Code.SOURCE_UNREACHABLE}
                made.standby.promote()
                made.standby.execute("insert into t values (3)")
                reader.wait(lambda: ids(state) == [1, 2, 3])
            # The old primary is back, and is not mistaken for the one that is read.
            primary.start()
            primary.execute("insert into t values (100)")
            made.standby.execute("create table u (id int primary key)")
            state.capture(source, "t", "u")
            made.standby.execute("insert into t values (4); insert into u values (5)")
            with reading(state, source) as reader:
                reader.catch_up()
            assert ids(state) == [1, 2, 3, 4, 5]
            assert any("is not a standby (or was promoted)" in word for word in source.warnings())
            state.attach(source).release()
            assert made.standby.execute("select slot_name from pg_replication_slots") == []


@pytest.mark.parametrize("major", [pytest.param(17, marks=pytest.mark.extended), 18])
def test_a_failover_slot_goes_on_at_the_promoted_standby(
    own_postgres_factory: PostgresFactory, tmp_path: Path, major: int
) -> None:
    """One connection with both hosts, and a primary that waits for its standby before it sends."""
    primary = own_postgres_factory(major)
    primary.execute("create table t (id int primary key)")
    primary.execute("create table later (id int primary key)")
    synchronised = {"sync_replication_slots": "on"}
    with pair(primary, **synchronised) as made:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (primary, made.standby))
        uri = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=primary"
        source, state = PostgresSource("shop", uri), State(tmp_path)
        assert problems(uri, "t") == []
        until(lambda: primary.execute("select 1 from pg_replication_slots where active"))
        [*_, word] = source.warnings()
        mend = "ALTER SYSTEM SET synchronized_standby_slots = 'standby';"
        assert "synchronized_standby_slots is empty" in word and mend in word
        primary.execute(mend.rstrip(";"))
        primary.reload()
        until(lambda: not any("synchronized_standby" in word for word in source.warnings()))
        state.capture(source, "t")
        slot = state.memo["slot"] if state.memo else ""
        failover = "select failover from pg_replication_slots where slot_name = %s"
        assert primary.execute(failover, [slot]) == [(True,)]
        # As an upgrade from 16, or a copy of another slot, leaves it.
        drop_slot(primary, slot)
        primary.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        state.capture(source, "t", "later")
        assert primary.execute(failover, [slot]) == [(True,)]
        # And as the connection says.
        for asked in (False, True):
            other = PostgresSource("shop", f"{uri}&failover={str(asked).lower()}")
            state.capture(other, "t", "later")
            other.close()
            assert primary.execute(failover, [slot]) == [(asked,)]
        with reading(state, source) as reader:
            primary.execute("insert into t values (1)")
            reader.catch_up()

            def kept() -> bool:
                """The standby keeps the slot; until then the primary's has to move."""
                primary.execute("select pg_log_standby_snapshot()")
                reader.catch_up()
                return bool(
                    made.standby.execute(
                        "select 1 from pg_replication_slots"
                        " where slot_name = %s and synced and not temporary",
                        [slot],
                    )
                )

            until(kept)
            primary.execute("insert into t values (2); insert into later values (3)")
            reader.catch_up()
            primary.kill()
            assert reader.failed().code.number in ("CF2001", "CF2101")
        made.standby.promote()
        made.standby.execute("insert into t values (4)")
        state.capture(source, "t", "later")
        with reading(state, source) as reader:
            reader.catch_up()
        assert ids(state) == [1, 2, 3, 4]
        source.close()
