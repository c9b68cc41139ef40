"""What every state database must do: one list, run on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection, Engine, event, func, literal_column, select, text

from changefeed.catalog import (
    AnyLease,
    Catalog,
    LeaseLost,
    LogClaim,
    RunConflict,
    Schedule,
    ScheduledRun,
    UserRight,
)
from changefeed.catalog.model import (
    DesiredStatus,
    JobSpec,
    RowRepair,
    Status,
    TableProgress,
    TableState,
)
from changefeed.catalog.schedules import RETRY_AFTER
from changefeed.catalog.tables import metadata
from changefeed.core.clock import ManualClock, SystemClock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Frontier
from changefeed.core.log_manifest import LogChange, TailPart
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.timings import NODE_TTL
from changefeed.core.types import LogicalType
from tests.helpers.waiting import until
from tests.services.postgres import Database

URI = "postgresql://app:s3cret@127.0.0.1:5432/shop"
ORDERS = TableName("shop", "public", "orders")
ITEMS = TableName("shop", "public", "items")


class State:
    """One state that several catalogs open, as several processes would."""

    def __init__(self, place: str | Path) -> None:
        self.place = place
        self.clock = ManualClock(1_700_000_000_000_000_000)
        self._opened: list[Catalog] = []

    def open(self, key: str | None = None) -> Catalog:
        catalog = Catalog.open(self.place, clock=self.clock, key=key)
        self._opened.append(catalog)
        return catalog

    def close(self) -> None:
        for catalog in self._opened:
            catalog.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    if request.param == "sqlite":
        place: str | Path = tmp_path / "state"
    else:
        place = request.getfixturevalue("postgres").uri
    state = State(place)
    yield state
    state.close()


@pytest.fixture
def catalog(state: State) -> Catalog:
    return state.open()


def spec(name: str | None = "f", *tables: TableName, sink: str | None = "null://") -> JobSpec:
    return JobSpec(
        source="shop",
        targets=tuple(t.name for t in tables or (ORDERS,)),
        tables=tuple(TableProgress(t, topic=t.name) for t in tables or (ORDERS,)),
        name=name,
        sink_uri=sink,
        options={"updated": "", "resolved": "10s"},
        statement="CREATE CHANGEFEED ...",
    )


def shape(*columns: str, table: TableName = ORDERS) -> TableSchema:
    made = tuple(
        Column(name, "integer", LogicalType.parse("int32"), column_id=number)
        for number, name in enumerate(columns, 1)
    )
    return TableSchema(table, made, key=(0,))


def refused(code: str, call: Callable[[], object]) -> str:
    """The message of the error with ``code`` that ``call`` must raise."""
    with pytest.raises(ChangefeedError) as caught:
        call()
    assert caught.value.code.number == code
    return caught.value.message


# -- the state as a whole -----------------------------------------------------------------


def test_a_state_keeps_its_id(state: State) -> None:
    first = state.open()
    assert first.state_id == state.open().state_id
    assert first.state_id.isalnum() and first.state_id.islower()


@pytest.mark.parametrize("number", ["11", "99"])
def test_another_format_is_refused(state: State, number: str) -> None:
    from sqlalchemy import update

    from changefeed.catalog import tables

    catalog = state.open()
    with catalog._database.write() as transaction:
        made = tables.meta.c.key.in_(["format", "readers"])
        transaction.execute(update(tables.meta).where(made).values(value=number))
    message = refused("CF6002", state.open)
    assert (
        f"has format {number}, this version of changefeed reads format {tables.FORMAT}" in message
    )
    assert "s3cret" not in message


def test_the_change_counter_rises_for_what_others_must_notice(catalog: Catalog) -> None:
    seen = catalog.version()

    def risen() -> bool:
        nonlocal seen
        before, seen = seen, catalog.version()
        return seen > before

    catalog.create_connection("shop", URI)
    assert risen()
    job = catalog.create_job(spec())
    assert risen()
    catalog.request(job.id, DesiredStatus.PAUSED)
    assert risen()
    lease = catalog.acquire_lease(job.id, "n1", 10)
    assert lease
    assert catalog.heartbeat("n1", [lease], 10) == set()
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(5))
    catalog.record_event(job.id, "notice", "x")
    assert not risen()


def test_a_waiter_wakes_when_another_process_changes_something(state: State) -> None:
    one, other = state.open(), state.open()
    seen = one.version()
    assert one.wait(seen, timeout=0.01) == seen
    done = threading.Thread(target=lambda: other.create_connection("a", URI))
    done.start()
    assert one.wait(seen, timeout=20) > seen
    done.join()


def test_many_threads_and_two_catalogs_lose_nothing(state: State) -> None:
    catalogs = [state.open(), state.open()]
    failures: list[BaseException] = []

    def make(number: int) -> None:
        try:
            for turn in range(5):
                catalogs[number % 2].create_connection(f"c{number}_{turn}", URI)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(catalogs[0].connections()) == 40


_WRITER = """
import sys
from changefeed.catalog import Catalog
from changefeed.catalog.model import JobSpec
catalog = Catalog.open(sys.argv[1])
for number in range(10):
    catalog.create_job(JobSpec("shop", (), (), sink_uri="null://"))
catalog.close()
"""


def test_two_processes_at_once(state: State) -> None:
    """Both make the state's tables, or find them, and write side by side."""
    children = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(state.place)]) for _ in range(2)
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    jobs = state.open().jobs()
    assert len({job.id for job in jobs}) == len({job.name for job in jobs}) == 20


# -- connections --------------------------------------------------------------------------


def test_connections(catalog: Catalog) -> None:
    assert catalog.create_connection("shop", URI)
    assert not catalog.create_connection("shop", "other", if_not_exists=True)
    assert refused("CF1102", lambda: catalog.create_connection("shop", "x")) == (
        'external connection "shop" already exists'
    )
    found = catalog.connection("shop")
    assert found.uri == URI
    assert "s3cret" not in found.redacted and "s3cret" not in repr(found)
    catalog.alter_connection("shop", URI.replace("s3cret", "other"))
    assert "other" in catalog.connection("shop").uri
    assert catalog.drop_connection("shop")
    assert not catalog.drop_connection("shop", if_exists=True)
    refused("CF1101", lambda: catalog.drop_connection("shop"))
    refused("CF1101", lambda: catalog.alter_connection("shop", URI))


@pytest.mark.parametrize("sink", ["null://", "external://out", "external://out?topic_name=t"])
def test_a_connection_in_use_cannot_be_dropped(catalog: Catalog, sink: str) -> None:
    catalog.create_connection("shop", URI)
    catalog.create_connection("out", "kafka://k")
    job = catalog.create_job(spec("f", sink=sink))
    assert refused("CF1301", lambda: catalog.drop_connection("shop")) == (
        'external connection "shop" is used by f'
    )
    if sink != "null://":
        refused("CF1301", lambda: catalog.drop_connection("out"))
    before = job.generation
    catalog.alter_connection("shop", URI)
    assert catalog.job("f").generation == before + 1
    catalog.delete_job(job.id)
    assert catalog.drop_connection("shop") and catalog.drop_connection("out")


# -- schema versions ----------------------------------------------------------------------


def test_schema_versions(state: State) -> None:
    one, other = state.open(), state.open()
    first = one.intern_schema(shape("a"))
    assert first.version > 0
    assert other.intern_schema(shape("a")).version == first.version
    second = one.intern_schema(shape("a", "b"))
    assert second.version > first.version
    # The old shape again is a new version: versions follow the log.
    third = one.intern_schema(shape("a"))
    assert third.version > second.version
    elsewhere = one.intern_schema(shape("a", table=ITEMS))
    assert elsewhere.version > third.version
    assert other.schema(second.version) == shape("a", "b")
    assert other.schema(second.version).version == second.version
    latest = other.announced_schema(ORDERS)
    assert latest is not None and latest.version == third.version
    assert other.announced_schema(TableName("shop", "public", "none")) is None
    refused("CF3001", lambda: one.schema(10_000))


def test_what_all_feeds_of_a_table_know_of_its_shape(catalog: Catalog) -> None:
    def known() -> int:
        found = catalog.announced_schema(ORDERS)
        assert found is not None
        return found.version

    def feed(name: str, **progress: object) -> None:
        job = catalog.create_job(spec(name, ORDERS))
        lease = catalog.acquire_lease(job.id, "n", 60)
        assert lease is not None
        [table] = catalog.tables(job.id)
        table = replace(table, state=TableState.RUNNING, done_upto=Timestamp(5), **progress)  # type: ignore[arg-type]
        catalog.save_progress(job.id, {ORDERS: table}, lease=lease)

    first = catalog.intern_schema(shape("a")).version
    feed("scanned", schema_version=first)
    feed("no scan")
    second = catalog.intern_schema(shape("a", "b")).version
    assert known() == first, "a scan that was begun elsewhere tells the feed nothing"
    feed("later", schema_version=second)
    assert known() == first
    catalog.announce_schemas({second})
    assert known() == second
    third = catalog.intern_schema(shape("a", "b", "c")).version
    feed("last", schema_version=third)
    assert known() == second, "the feeds before have heard of the second alone"
    for name in ("scanned", "no scan", "later"):
        catalog.delete_job(catalog.job(name).id)
    assert known() == third, "nobody is left who does not know it"


def test_a_feed_without_a_scan_knows_what_was_announced(catalog: Catalog) -> None:
    first = catalog.intern_schema(shape("a")).version
    catalog.announce_schemas([first])
    job = catalog.create_job(spec("f", ORDERS))
    lease = catalog.acquire_lease(job.id, "n", 60)
    assert lease is not None
    [table] = catalog.tables(job.id)
    running = replace(table, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(5))
    catalog.save_progress(job.id, {ORDERS: running}, lease=lease)
    catalog.intern_schema(shape("a", "b"))
    found = catalog.announced_schema(ORDERS)
    assert found is not None and found.version == first


# -- sources ------------------------------------------------------------------------------


def test_source_state_changes_only_what_is_given(catalog: Catalog) -> None:
    assert catalog.source_state("shop").memo == {}
    catalog.save_source_state("shop", memo={"slot": "s"}, holds="slot s", identity="77")
    seen = catalog.version()
    catalog.save_source_state("shop", position="0A", frontier=Timestamp(7, 1))
    assert catalog.version() == seen
    catalog.save_source_state("shop", error="down", error_code="CF2001", status="retrying")
    assert catalog.version() > seen
    state = catalog.source_state("shop")
    assert (state.memo, state.holds, state.identity) == ({"slot": "s"}, "slot s", "77")
    assert (state.position, state.frontier) == ("0A", Timestamp(7, 1))
    assert (state.error, state.error_code) == ("down", "CF2001")
    catalog.save_source_state("shop", error="", error_code="")
    assert catalog.source_state("shop").error == ""
    assert [s.name for s in catalog.source_states()] == ["shop"]
    catalog.forget_source("shop")
    assert catalog.source_states() == []


def test_captured_tables_keep_their_time(catalog: Catalog) -> None:
    catalog.set_captured("shop", {ORDERS: Timestamp(3)})
    catalog.set_captured("shop", {ORDERS: Timestamp(9), ITEMS: Timestamp(9)})
    assert catalog.captured("shop") == {ORDERS: Timestamp(3), ITEMS: Timestamp(9)}
    catalog.set_captured("shop", {ITEMS: Timestamp(20)})
    assert catalog.captured("shop") == {ITEMS: Timestamp(9)}
    assert catalog.captured("other") == {}
    for oid, since in ((7, 9), (7, 9), (8, 22)):  # another table under the name begins afresh
        catalog.set_captured("shop", {ITEMS: Timestamp(22)}, {ITEMS: oid})
        assert catalog.captured("shop") == {ITEMS: Timestamp(since)}
        assert catalog.captured_table_ids("shop") == {ITEMS: oid}
    catalog.set_captured("shop", {})
    catalog.set_captured("shop", {ITEMS: Timestamp(9)})
    catalog.forget_source("shop")
    assert catalog.captured("shop") == {}


def test_leases_are_renewed_together(catalog: Catalog) -> None:
    jobs = [catalog.create_job(spec(name)) for name in "abc"]
    leases = [catalog.acquire_lease(job.id, "n1", 10) for job in jobs]
    sources = [catalog.acquire_source(name, "n1", 10) for name in ("shop", "bank")]
    held = [lease for lease in (*leases, *sources) if lease]
    for lost in (held[1], held[3]):
        catalog.release_lease(lost)
    catalog.acquire_lease(jobs[1].id, "n2", 10)
    catalog.acquire_source("shop", "n2", 10)
    assert catalog.heartbeat("a", held, 50) == {held[1], held[3]}
    assert catalog.lease_holder(jobs[1].id) == "n2"
    assert catalog.source_holders() == {"shop": "n2", "bank": "n1"}
    assert catalog.acquire_lease(jobs[0].id, "n2", 10) is None
    assert catalog.acquire_source("bank", "n2", 10) is None
    assert catalog.heartbeat("a", [], 10) == set()


def _taken(catalog: Catalog, names: str, seconds: float) -> list[AnyLease]:
    """Leases of node n1 on new jobs."""
    taken = [
        catalog.acquire_lease(catalog.create_job(spec(name)).id, "n1", seconds) for name in names
    ]
    return [lease for lease in taken if lease]


def test_one_that_is_not_named_is_not_renewed(catalog: Catalog) -> None:
    """Its feed has ended, or is about to begin."""
    leases = _taken(catalog, "ab", 0)
    first, second = (job.id for job in catalog.jobs())
    assert catalog.heartbeat("n1", [leases[0]], 50) == set()
    assert catalog.job_holders() == {first: "n1"}
    assert catalog.heartbeat("n1", leases, 50) == set()
    assert catalog.job_holders() == {first: "n1", second: "n1"}


def test_the_statements_of_a_pulse_are_as_short_for_many_leases(catalog: Catalog) -> None:
    """PostgreSQL's driver reads each statement that it has not seen, word by word."""
    said: list[tuple[str, int]] = []

    def note(_1: Any, _2: Any, statement: str, parameters: Any, _3: Any, _4: Any) -> None:
        said.append((statement, len(parameters)))

    leases: list[AnyLease] = []
    spoken = []
    event.listen(Engine, "before_cursor_execute", note)
    try:
        for names in ("a", "bcdefg"):
            leases += _taken(catalog, names, 50)
            said.clear()
            assert catalog.heartbeat("n1", leases, 50) == set()
            spoken.append(list(said))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert spoken[0] == spoken[1]


def test_what_the_log_must_keep(catalog: Catalog) -> None:
    assert catalog.oldest_needed("shop") is None
    one = catalog.create_job(spec("one"))
    assert catalog.oldest_needed("shop") is None  # its scan will begin later than now
    lease = catalog.acquire_lease(one.id, "n", 10)
    assert lease
    table = TableProgress(ORDERS, "orders", state=TableState.SCANNING, scan_at=Timestamp(50))
    catalog.save_progress(one.id, {ORDERS: table}, lease=lease)
    assert catalog.oldest_needed("shop") == Timestamp(50)
    running = replace(table, state=TableState.RUNNING, done_upto=Timestamp(60))
    catalog.save_progress(one.id, {ORDERS: running}, lease=lease, high_water=Timestamp(60))
    catalog.save_progress(one.id, {}, lease=lease, high_water=Timestamp(90))
    assert catalog.oldest_needed("shop") == Timestamp(90)
    unknown = TableProgress(ITEMS, "items", scan_wanted=False, start="00FF")
    two = catalog.create_job(replace(spec("two"), tables=(unknown,)))
    assert catalog.oldest_needed("shop") == Timestamp.ZERO
    catalog.transition(two.id, Status.PAUSED, reason="x")
    assert catalog.oldest_needed("shop") == Timestamp.ZERO  # paused feeds count
    catalog.delete_job(two.id)
    catalog.transition(one.id, Status.SUCCEEDED, reason="x")
    assert catalog.oldest_needed("shop") is None


def test_a_feed_of_a_user_needs_every_right_that_it_uses(catalog: Catalog) -> None:
    for name in ("shop", "out"):
        catalog.create_connection(name, "null://")
    catalog.create_user("bob", "viewer", None)
    table, schema = UserRight("bob", "shop", "public", "orders"), UserRight("bob", "shop", "public")
    uses = [UserRight("bob", "shop"), UserRight("bob", "out")]
    catalog.grant([table, *uses])
    catalog.grant([table])
    assert [each.parts for each in catalog.grants("bob")] == [
        ("out",),
        ("shop",),
        ("shop", "public", "orders"),
    ]
    spec = JobSpec(
        "shop",
        ("public.orders",),
        (TableProgress(ORDERS, "orders"),),
        sink_uri="external://out",
        owner="bob",
    )
    job = catalog.create_job(spec).id
    # A pattern needs the schema, also while no table matches it; DATABASE needs an admin.
    for targets in (("SCHEMA public INCLUDE TABLES x*",), ('SCHEMA "public"',), ("DATABASE shop",)):
        with pytest.raises(ChangefeedError) as refused:
            catalog.create_job(replace(spec, targets=targets, tables=()))
        assert refused.value.code == "CF1403"
    joined = replace(spec, tables=(TableProgress(ORDERS, "orders", joined=True),))
    with pytest.raises(ChangefeedError, match=r"ON SCHEMA shop\.public"):
        catalog.create_job(joined)
    catalog.grant([schema])
    pattern = catalog.create_job(replace(joined, targets=("SCHEMA public",))).id
    assert catalog.revoke([table]) == [], "the schema covers the table"
    assert catalog.revoke([schema]) == [job, pattern]
    assert {each.wanted for each in catalog.jobs()} == {DesiredStatus.PAUSED}
    lacking = catalog.hindrance(job)
    assert lacking is not None and catalog.stands_still(job).reason == lacking.message
    # Nothing sets it going: not RESUME, nor the end of its claim on the log.
    with pytest.raises(ChangefeedError, match=r"shop\.public\.orders"):
        catalog.request(job, DesiredStatus.RUNNING)
    with pytest.raises(ChangefeedError, match=r"shop\.public\.orders"):
        catalog.create_job(spec)
    assert catalog.end_claim(LogClaim(job, False, Timestamp.ZERO), "too old")
    assert catalog.job(job).wanted is DesiredStatus.PAUSED
    catalog.grant([table])
    assert catalog.request(job, DesiredStatus.RUNNING).wanted is DesiredStatus.RUNNING
    # Each of the connections counts, and so does the user.
    for use in uses:
        assert catalog.revoke([use]) == [job, pattern]
        catalog.grant([use])
        catalog.request(job, DesiredStatus.RUNNING)
    catalog.alter_user("bob", role="admin")
    assert catalog.hindrance(pattern) is None and catalog.owner_rights("bob") is None
    assert catalog.alter_user("bob", role="viewer")[1] == [pattern]
    assert catalog.drop_user("bob") == [job, pattern] and catalog.grants() == []
    catalog.create_user("bob", "admin", None)
    lacking = catalog.hindrance(job)
    assert lacking is not None and "was dropped" in lacking.message
    assert catalog.adopt(job) and not catalog.adopt(job) and catalog.hindrance(job) is None


def test_what_each_feed_claims_of_the_log(catalog: Catalog) -> None:
    one = catalog.create_job(spec("one", ORDERS, ITEMS))
    two = catalog.create_job(spec("two"))
    lease = catalog.acquire_lease(one.id, "n", 10)
    assert lease
    assert catalog.claims("shop") == []  # they will scan
    orders = TableProgress(
        ORDERS, "orders", state=TableState.RUNNING, scan_at=Timestamp(50), done_upto=Timestamp(60)
    )
    items = TableProgress(ITEMS, "items", state=TableState.SCANNING, scan_at=Timestamp(70))
    catalog.save_progress(one.id, {ORDERS: orders, ITEMS: items}, lease=lease)
    assert catalog.claims("shop") == []  # while one table is scanned, the log must go on
    items = replace(items, state=TableState.RUNNING, done_upto=Timestamp(80))
    catalog.save_progress(one.id, {ITEMS: items}, lease=lease)
    assert catalog.claims("shop") == [LogClaim(one.id, False, Timestamp(60))]
    catalog.delete_job(one.id)
    catalog.transition(two.id, Status.SUCCEEDED, reason="x")
    assert catalog.claims("shop") == []


def test_the_tables_of_many_jobs_are_read_at_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the node's loop reads all of them, and a statement waits for it."""
    jobs = [catalog.create_job(spec(name, ORDERS, ITEMS)).id for name in "abc"]
    empty = catalog.create_job(replace(spec("d"), tables=())).id
    one_by_one = {job_id: catalog.tables(job_id) for job_id in (*jobs, empty)}
    reads, read = [], catalog._database.read

    def counted() -> AbstractContextManager[Connection]:
        reads.append(1)
        return read()

    monkeypatch.setattr(catalog._database, "read", counted)
    assert catalog.tables_of_jobs([*jobs, empty]) == one_by_one
    assert len(one_by_one[jobs[0]]) == 2 and one_by_one[empty] == [] and len(reads) == 1


def test_the_claim_of_a_feed_that_does_not_work_is_ended(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    orders = TableProgress(ORDERS, "orders", state=TableState.RUNNING, done_upto=Timestamp(60))
    catalog.save_progress(job.id, {ORDERS: orders}, lease=lease)
    [claim] = catalog.claims("shop")
    assert not catalog.end_claim(claim, "its node ends it")
    assert catalog.oldest_needed("shop") == Timestamp(60)
    catalog.request(job.id, DesiredStatus.PAUSED)
    catalog.transition(job.id, Status.PAUSED, reason="paused by the user")
    assert catalog.end_claim(claim, "too much on disk")
    ended = catalog.job("f")
    assert (ended.status, ended.wanted) == (Status.FAILED, DesiredStatus.RUNNING)
    assert (ended.error, ended.error_code) == ("too much on disk", "CF3006")
    told = [(event.kind, event.code) for event in catalog.events(job.id, limit=2)]
    assert told == [("error", "CF3006"), ("status", None)]
    assert catalog.claims("shop") == [] and catalog.oldest_needed("shop") is None
    catalog.transition(job.id, Status.STARTING, reason="resumed")
    assert catalog.claims("shop") == [claim]  # from where it is, if the log still has that
    catalog.delete_job(job.id)
    assert not catalog.end_claim(claim, "it is gone")


def test_the_claim_of_tables_that_failed_is_ended_without_their_feed(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    orders = TableProgress(ORDERS, "orders", state=TableState.RUNNING, done_upto=Timestamp(60))
    items = TableProgress(ITEMS, "items", state=TableState.FAILED, done_upto=Timestamp(20))
    catalog.save_progress(job.id, {ORDERS: orders, ITEMS: items}, lease=lease)
    catalog.transition(job.id, Status.RUNNING, reason="running")
    works, failed = sorted(catalog.claims("shop"))
    assert works == LogClaim(job.id, False, Timestamp(60))
    assert failed == LogClaim(job.id, True, Timestamp(20))
    assert catalog.end_claim(failed, "too much on disk")
    assert catalog.claims("shop") == [works] and catalog.oldest_needed("shop") == Timestamp(60)
    assert catalog.job("f").status is Status.RUNNING
    [table] = [t for t in catalog.tables(job.id) if t.table == ITEMS]
    assert (table.state, table.error_code) == (TableState.FAILED, "CF3006")
    catalog.retry_tables(job.id)
    assert catalog.oldest_needed("shop") == Timestamp(20)


@pytest.mark.parametrize("taken", [False, True])
def test_a_paused_table_keeps_its_place_and_the_log(catalog: Catalog, taken: bool) -> None:
    """``taken``: the feed's runner knows of it. One that does not saves what it did meanwhile."""
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    known = {
        name: replace(
            TableProgress(name, name.name),
            state=TableState.RUNNING,
            scan_wanted=False,
            done_upto=Timestamp(20),
        )
        for name in (ORDERS, ITEMS)
    }
    catalog.save_progress(job.id, known, lease=lease, high_water=Timestamp(20))
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(40))
    catalog.transition(job.id, Status.RUNNING, reason="running")
    catalog.pause_tables(job.id, [ITEMS], by="ann")
    assert catalog.job("f").generation == job.generation + 1
    found = {t.table: t for t in catalog.tables(job.id)}
    assert {name: t.state for name, t in found.items()} == {
        ORDERS: TableState.RUNNING,
        ITEMS: TableState.PAUSED,
    }
    assert (found[ITEMS].done_upto, found[ITEMS].paused_by) == (Timestamp(40), "ann")
    if not taken:
        late = replace(known[ITEMS], emitted_rows=7, done_upto=Timestamp(45))
        catalog.save_progress(job.id, {ITEMS: late}, lease=lease, high_water=Timestamp(45))
        found = {t.table: t for t in catalog.tables(job.id)}
    place = found[ITEMS].done_upto
    assert (found[ITEMS].state, place) == (TableState.PAUSED, Timestamp(40 + 5 * (not taken)))
    paused = {ITEMS: found[ITEMS]}
    catalog.save_progress(job.id, paused, lease=lease, high_water=Timestamp(60))
    assert catalog.oldest_needed("shop") == place
    assert catalog.claims("shop") == [
        LogClaim(job.id, False, Timestamp(60)),
        LogClaim(job.id, True, place or Timestamp.ZERO),
    ]
    [troubled] = catalog.troubled_tables()[job.id]
    assert (troubled.state, troubled.done_upto) == (TableState.PAUSED, place)
    assert catalog.retry_tables(job.id) == [], "it has not failed"
    catalog.resume_tables(job.id, [ITEMS], by="bob")
    # A runner that does not know of it yet.
    catalog.save_progress(job.id, paused, lease=lease)
    [back] = [t for t in catalog.tables(job.id) if t.table == ITEMS]
    assert (back.state, back.done_upto, back.paused_by) == (TableState.PENDING, place, "")
    said = [(event.table, event.text) for event in catalog.events(job.id, limit=5)]
    assert {(str(ITEMS), "paused (by ann)"), (str(ITEMS), "resumed (by bob)")} < set(said)


def test_the_claim_of_a_paused_table_is_ended_and_the_table_fails(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    orders = TableProgress(ORDERS, "orders", state=TableState.RUNNING, done_upto=Timestamp(60))
    items = TableProgress(ITEMS, "items", state=TableState.PAUSED, done_upto=Timestamp(20))
    catalog.save_progress(job.id, {ORDERS: orders, ITEMS: items}, lease=lease)
    catalog.pause_tables(job.id, [ITEMS])
    catalog.transition(job.id, Status.RUNNING, reason="running")
    works, paused = sorted(catalog.claims("shop"))
    assert paused == LogClaim(job.id, True, Timestamp(20))
    assert catalog.end_claim(paused, "too much on disk")
    assert catalog.claims("shop") == [works]
    [table] = [t for t in catalog.tables(job.id) if t.table == ITEMS]
    assert (table.state, table.error_code, table.paused) == (TableState.FAILED, "CF3006", 0)


# -- jobs ---------------------------------------------------------------------------------


def test_a_new_job(catalog: Catalog, state: State) -> None:
    job = catalog.create_job(
        replace(spec("f", sink="kafka://u:s3cret@k"), cursor=Timestamp(1, 2), end_time=Timestamp(9))
    )
    assert (job.status, job.wanted, job.generation) == (Status.STARTING, DesiredStatus.RUNNING, 1)
    assert job.created == job.modified == state.clock.wall
    assert job.options == {"updated": "", "resolved": "10s"}
    assert (job.cursor, job.end_time) == (Timestamp(1, 2), Timestamp(9))
    assert job.sink_uri == "kafka://u:s3cret@k" and "s3cret" not in job.redacted_sink_uri
    assert catalog.job("f") == catalog.job(job.id) == job
    assert catalog.find_job("nothing") is None
    assert refused("CF1101", lambda: catalog.job("g")) == 'changefeed "g" does not exist'
    assert refused("CF1101", lambda: catalog.job(-1)) == "could not load job with job id -1"
    (table,) = catalog.tables(job.id)
    assert (table.table, table.state, table.added_at) == (ORDERS, TableState.PENDING, job.created)


def test_a_run_of_a_schedule_is_made_once(state: State) -> None:
    """By several nodes at the same moment, in the transaction of its feed."""
    catalogs = [state.open() for _ in range(3)]
    first = catalogs[0]
    made = first.create_schedule(
        Schedule("shop", URI, ("orders",), {"initial_scan": "only"}, "@daily", "retry", "wait", 5)
    )
    assert (made.name, made.sink_uri, made.created) == ("schedule_1", URI, state.clock.wall)
    run = ScheduledRun(made.id, 5, 10)
    refused: list[RunConflict] = []

    def make(catalog: Catalog) -> None:
        try:
            catalog.create_job(spec(None, ORDERS), run)
        except RunConflict as error:
            refused.append(error)

    threads = [threading.Thread(target=make, args=(catalog,)) for catalog in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (job,) = first.jobs()
    assert len(refused) == 2 and first.scheduled_jobs() == {job.id}
    (schedule,) = first.schedules()
    assert (schedule.due, schedule.last_due, schedule.job_id) == (10, 5, job.id)
    assert schedule.under_way == (job.name,)
    assert first.end_runs() == []


def test_what_follows_the_runs_of_a_schedule(catalog: Catalog, state: State) -> None:
    now = state.clock.wall
    day = 86_400 * 10**9
    made = catalog.create_schedule(
        Schedule("shop", "null://", ("orders",), {}, "@daily", "retry", "wait", now, name="s")
    )

    def run(due: int) -> int:
        return catalog.create_job(spec(None), ScheduledRun(made.id, due, due + day)).id

    def due() -> int:
        (schedule,) = catalog.schedules()
        return schedule.due

    failed = run(now)
    error = ChangefeedError("CF5001", "the sink is gone")
    catalog.transition(failed, Status.FAILED, reason="", error=error)
    said = "run feed_1 has failed: the sink is gone"
    assert catalog.end_runs() == [("s", said)] and catalog.end_runs() == []
    assert due() == now + RETRY_AFTER
    second = run(due())
    assert [job.id for job in catalog.jobs()] == [second], "the failed one is gone"
    assert catalog.schedules()[0].error == said
    catalog.transition(second, Status.SUCCEEDED, reason="")
    assert catalog.end_runs() == [] and catalog.schedules()[0].error is None
    catalog.skip_run(ScheduledRun(made.id, 1, 2))
    after = due()
    catalog.skip_run(ScheduledRun(made.id, after, after + day))
    assert due() == after + day
    assert catalog.fail_run(ScheduledRun(made.id, due(), due() + day), "no")
    catalog.pause_schedule(made.id)
    with pytest.raises(RunConflict):
        run(due())
    assert not catalog.fail_run(ScheduledRun(made.id, due(), due() + day), "no")
    catalog.resume_schedule(made.id, now + 7)
    assert catalog.schedules()[0].error == "no", "until a run succeeds"
    third = run(now + 7)
    catalog.drop_schedule(made.id)
    assert catalog.schedules() == [] and catalog.scheduled_jobs() == {second, third}
    catalog.transition(third, Status.FAILED, reason="", error=error)
    assert catalog.end_runs() == []
    assert [job.id for job in catalog.jobs()] == [second, third]


def test_names_are_unique_until_dropped(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f"))
    assert refused("CF1102", lambda: catalog.create_job(spec("f"))) == (
        'changefeed "f" already exists'
    )
    catalog.delete_job(job.id)
    again = catalog.create_job(spec("f"))
    assert again.id > job.id


def test_made_up_names_avoid_taken_ones(catalog: Catalog) -> None:
    first = catalog.create_job(spec(None))
    assert first.name == f"feed_{first.id}"
    catalog.create_job(spec(f"feed_{first.id + 2}"))
    third = catalog.create_job(spec(None))
    assert third.name == f"feed_{third.id}_2"


def test_rename(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f"))
    catalog.create_job(spec("g"))
    refused("CF1102", lambda: catalog.rename_job(job.id, "g"))
    assert catalog.rename_job(job.id, "h").name == "h"
    assert catalog.rename_job(job.id, "h").name == "h"
    assert catalog.find_job("f") is None


def test_moves(catalog: Catalog, state: State) -> None:
    job = catalog.create_job(spec())
    state.clock.advance(1)
    job = catalog.transition(job.id, Status.SCANNING, reason="12 %")
    assert (job.started, job.modified) == (state.clock.wall, state.clock.wall)
    state.clock.advance(1)
    trouble = ChangefeedError("CF5001", "cannot reach the sink")
    job = catalog.transition(job.id, Status.RETRYING, reason="attempt 1", error=trouble)
    assert (job.error, job.error_code, job.hint) == (trouble.message, "CF5001", trouble.hint)
    job = catalog.transition(job.id, Status.RUNNING, reason="")
    assert (job.error, job.error_code, job.hint) == (None, None, None)
    job = catalog.transition(job.id, Status.FAILED, reason="gave up", error=trouble)
    assert job.finished == state.clock.wall and job.error == trouble.message
    message = refused("CF1301", lambda: catalog.transition(job.id, Status.RUNNING, reason=""))
    assert message == f"job {job.id} is failed and cannot become running"
    job = catalog.transition(job.id, Status.STARTING, reason="resumed")
    assert job.finished is None and job.error == trouble.message
    kinds = [event.kind for event in catalog.events(job.id)]
    assert kinds == [
        *("status", "error", "status", "status", "retry", "status", "status"),
        "status",  # created
    ]


def test_the_same_status_with_another_reason_is_no_move(catalog: Catalog, state: State) -> None:
    job = catalog.create_job(spec())
    job = catalog.transition(job.id, Status.RUNNING, reason="a")
    state.clock.advance(5)
    again = catalog.transition(job.id, Status.RUNNING, reason="b")
    assert again.reason == "b" and again.modified == job.modified
    assert [event.text for event in catalog.events(job.id)] == ["starting -> running: a", "created"]


def test_what_the_source_did_is_noted_once(catalog: Catalog, state: State) -> None:
    """A feed that goes back after a crash meets it again; the same again later is another event."""
    job, other = catalog.create_job(spec("f")), catalog.create_job(spec("g"))

    def emptied(job_id: int, at: int, table: str = "shop.s.a") -> None:
        catalog.record_event(job_id, "truncate", "gone", table=table, at=Timestamp(at))

    emptied(job.id, 7)
    state.clock.advance(5)
    emptied(job.id, 7)
    assert [(e.at, e.table, e.text) for e in catalog.events(job.id, kinds=["truncate"])] == [
        (7, "shop.s.a", "gone")
    ]
    emptied(job.id, 8)
    emptied(job.id, 7, "shop.s.b")
    emptied(other.id, 7)
    assert len(catalog.events(job.id, kinds=["truncate"])) == 3
    assert len(catalog.events(other.id, kinds=["truncate"])) == 1


def test_alter_says_what_it_changed_and_who_did(catalog: Catalog) -> None:
    job = catalog.create_job(replace(spec("f"), options={"key_column": "a", "diff": ""}))
    options = {"webhook_auth_header": "s3cret", "diff": ""}
    noted = ["key_column unset, was 'a'"]
    catalog.alter_job(job.id, options=options, add=[], noted=noted, drop=[ORDERS], by="ann")
    catalog.alter_job(job.id, options=options, by="ann")  # nothing
    catalog.rename_job(job.id, "f", by="ann")  # nothing
    catalog.rename_job(job.id, "g", by="ann")
    catalog.rename_job(job.id, "h")
    assert [e.text for e in catalog.events(job.id, kinds=["altered"])] == [
        'renamed from "g" to "h"',
        'renamed from "f" to "g" (by ann)',
        f"tables dropped: {ORDERS}; key_column unset, was 'a' (by ann)",
    ]


def test_listing(catalog: Catalog) -> None:
    ids = [catalog.create_job(spec(f"f{n}")).id for n in range(4)]
    catalog.transition(ids[0], Status.FAILED, reason="")
    catalog.transition(ids[1], Status.SUCCEEDED, reason="")
    catalog.delete_job(ids[2])
    assert [job.id for job in catalog.jobs()] == [ids[0], ids[1], ids[3]]
    assert [job.id for job in catalog.jobs(include_finished=False)] == [ids[0], ids[3]]
    catalog.request(ids[1], DesiredStatus.DROPPED)
    assert [job.id for job in catalog.jobs(include_finished=False)] == [ids[0], ids[1], ids[3]]
    assert [job.id for job in catalog.dropped_jobs()] == [ids[2]]
    assert [job.id for job in catalog.source_jobs("shop")] == [ids[0], ids[3]]
    assert catalog.source_jobs("other") == []


def test_alter_raises_the_generation_and_checks_it(catalog: Catalog) -> None:
    job = catalog.create_job(spec())
    altered = catalog.alter_job(
        job.id, options={"diff": ""}, targets=("a", "SCHEMA s"), sink_uri="null://x", generation=1
    )
    assert altered.generation == 2 and altered.has_patterns and not job.has_patterns
    assert (altered.options, altered.sink_uri) == ({"diff": ""}, "null://x")
    refused("CF1301", lambda: catalog.alter_job(job.id, options={}, generation=1))
    assert catalog.alter_job(job.id, sink_uri=None).sink_uri is None


def test_a_dropped_job_leaves_no_secret_and_no_progress(catalog: Catalog) -> None:
    job = catalog.create_job(
        replace(spec("f", sink="kafka://u:s3cret@k"), options={"webhook_auth_header": "s3cret"})
    )
    catalog.acquire_lease(job.id, "n", 10)
    catalog.record_event(job.id, "notice", "x")
    catalog.delete_job(job.id)
    catalog.delete_job(job.id)
    gone = catalog.job(job.id)
    assert gone.status is Status.DROPPED and "s3cret" not in repr(gone)
    assert catalog.tables(job.id) == [] and catalog.events(job.id) == []
    assert catalog.lease_holder(job.id) is None


def test_dropped_jobs_are_bounded(catalog: Catalog) -> None:
    assert catalog.kept_dropped > 10
    catalog.kept_dropped = 2
    ids = [catalog.create_job(spec(None)).id for _ in range(4)]
    for job_id in ids:
        catalog.delete_job(job_id)
    assert [job.id for job in catalog.dropped_jobs()] == ids[2:]


# -- progress -----------------------------------------------------------------------------


def test_progress_is_one_step_under_the_lease(catalog: Catalog, state: State) -> None:
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n1", 10)
    assert lease
    saved = TableProgress(
        ORDERS,
        "orders",
        schema_version=3,
        state=TableState.RUNNING,
        scan_wanted=False,
        scan_at=Timestamp(40, 2),
        done_upto=Timestamp(50),
        scan_rows=7,
        scan_total=9,
        emitted_rows=7,
        emitted_bytes=700,
        added_at=job.created,
    )
    catalog.save_progress(job.id, {ORDERS: saved}, lease=lease, high_water=Timestamp(50))
    items, orders = catalog.tables(job.id)
    assert orders == saved
    assert items.state is TableState.PENDING and items.done_upto is None
    assert catalog.job(job.id).high_water == Timestamp(50)

    state.clock.advance(11)
    other = catalog.acquire_lease(job.id, "n2", 10)
    assert other and other.token > lease.token
    with pytest.raises(LeaseLost):
        catalog.save_progress(job.id, {ORDERS: saved}, lease=lease, high_water=Timestamp(99))
    with pytest.raises(LeaseLost):
        catalog.transition(job.id, Status.RUNNING, reason="", lease=lease)
    assert catalog.job(job.id).high_water == Timestamp(50)


def test_the_high_water_lifts_running_tables(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n1", 10)
    assert lease
    running = TableProgress(ORDERS, "orders", state=TableState.RUNNING, done_upto=Timestamp(5))
    broken = TableProgress(ITEMS, "items", done_upto=Timestamp(4)).failed(
        ChangefeedError("CF4001", "value cannot be encoded")
    )
    catalog.save_progress(
        job.id, {ORDERS: running, ITEMS: broken}, lease=lease, high_water=Timestamp(5)
    )
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(30))
    assert catalog.job(job.id).high_water == Timestamp(30)
    items, orders = catalog.tables(job.id)
    assert orders.done_upto == Timestamp(30)
    assert items.done_upto == Timestamp(4)
    assert (items.error, items.error_code) == ("value cannot be encoded", "CF4001")


def test_a_table_that_tries_again_is_not_lifted_over_what_it_owes(catalog: Catalog) -> None:
    """It failed at 4, the feed went on to 30: after RESUME it owes 4 to 30, the other nothing."""
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n1", 10)
    assert lease
    orders = TableProgress(
        ORDERS, "orders", state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(5)
    )
    items = TableProgress(ITEMS, "items", scan_wanted=False, done_upto=Timestamp(4))
    broken = items.failed(ChangefeedError("CF4001", "value cannot be encoded"))
    catalog.save_progress(
        job.id, {ORDERS: orders, ITEMS: broken}, lease=lease, high_water=Timestamp(5)
    )
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(30))
    catalog.retry_tables(job.id)
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(31))  # not yet told
    assert catalog.tables(job.id)[0].done_upto == Timestamp(4)
    placed = replace(items, state=TableState.RUNNING)
    catalog.save_progress(job.id, {ITEMS: placed}, lease=lease, high_water=Timestamp(4))
    assert catalog.job(job.id).high_water == Timestamp(4)
    assert [t.done_upto for t in catalog.tables(job.id)] == [Timestamp(4), Timestamp(31)]
    assert catalog.oldest_needed("shop") == Timestamp(4)
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(20))
    assert [t.done_upto for t in catalog.tables(job.id)] == [Timestamp(20), Timestamp(31)]


def test_a_running_table_below_the_high_water_pulls_it_back(catalog: Catalog) -> None:
    """The runner gives no high-water while another table has none."""
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n1", 10)
    assert lease
    orders = TableProgress(ORDERS, "orders", state=TableState.RUNNING, done_upto=Timestamp(30))
    catalog.save_progress(job.id, {ORDERS: orders}, lease=lease, high_water=Timestamp(30))
    items = replace(orders, table=ITEMS, done_upto=Timestamp(4))
    catalog.save_progress(job.id, {ITEMS: items}, lease=lease)
    assert [t.done_upto for t in catalog.tables(job.id)] == [Timestamp(4), Timestamp(30)]
    assert catalog.job(job.id).high_water == Timestamp(4)


def test_rates_follow_the_counters_and_die_down(catalog: Catalog, state: State) -> None:
    job = catalog.create_job(spec())
    lease = catalog.acquire_lease(job.id, "n1", 50)
    assert lease
    rows = 0
    for _ in range(20):
        state.clock.advance(0.5)
        rows += 50
        table = TableProgress(ORDERS, "orders", emitted_rows=rows, emitted_bytes=rows * 10)
        catalog.save_progress(job.id, {ORDERS: table}, lease=lease)
    job = catalog.job(job.id)
    assert (job.emitted_rows, job.emitted_bytes) == (1000, 10_000)
    assert job.rows_per_second == pytest.approx(100, rel=0.25)
    assert job.bytes_per_second == pytest.approx(1000, rel=0.25)
    state.clock.advance(11)
    assert catalog.job(job.id).rows_per_second == 0


def test_the_rows_of_a_scan_count_for_the_rates_as_it_goes_on(catalog: Catalog) -> None:
    job = catalog.create_job(spec())
    lease = catalog.acquire_lease(job.id, "n1", 50)
    assert lease
    table, found = TableProgress(ORDERS, "orders"), []
    for scanned in (100, 300, 350):
        ended = scanned == 350
        given = replace(
            table, scan_wanted=not ended, scan_rows=scanned, emitted_rows=350 if ended else 0
        )
        catalog.save_progress(job.id, {ORDERS: given}, lease=lease)
        job = catalog.job(job.id)
        found.append((job.rows_per_second, job.emitted_rows))
    assert found == [(20, 0), (60, 0), (70, 350)], "in five seconds, and none of them twice"


def test_tables_come_and_go(catalog: Catalog) -> None:
    job = catalog.create_job(spec())
    extra = TableProgress(
        ITEMS, "it", columns=("a", "b"), values_from=("1",), values_to=("9",), joined=True
    )
    catalog.add_tables(job.id, [extra])
    assert catalog.job(job.id).generation == 2
    added = catalog.tables(job.id)[0]
    assert replace(added, added_at=0) == extra
    message = refused("CF1302", lambda: catalog.add_tables(job.id, [extra]))
    assert message == 'target "public.items" already watched by changefeed'
    assert catalog.watched("shop") == {ORDERS: ["f"], ITEMS: ["f"]}
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    catalog.drop_tables(job.id, [ITEMS])
    assert catalog.job(job.id).generation == 3
    catalog.save_progress(job.id, {ITEMS: extra}, lease=lease)  # the runner did not know yet
    assert [table.table for table in catalog.tables(job.id)] == [ORDERS]


# -- leases, nodes, events ----------------------------------------------------------------


@pytest.mark.parametrize("of", ["job", "source"])
def test_a_lease_excludes_until_it_ends(catalog: Catalog, state: State, of: str) -> None:
    job = catalog.create_job(spec())

    def acquire(node: str) -> AnyLease | None:
        if of == "job":
            return catalog.acquire_lease(job.id, node, 10)
        return catalog.acquire_source("shop", node, 10)

    def holder() -> str | None:
        return catalog.lease_holder(job.id) if of == "job" else catalog.source_holders().get("shop")

    lease = acquire("n1")
    assert lease and holder() == "n1"
    assert acquire("n2") is None
    state.clock.advance(9)
    assert catalog.heartbeat("n1", [lease], 10) == set()
    state.clock.advance(9)
    assert acquire("n2") is None
    state.clock.advance(2)
    assert holder() is None
    assert catalog.heartbeat("n1", [lease], 0) == set()  # late, but nobody came
    other = acquire("n2")
    assert other and other.token > lease.token
    assert catalog.heartbeat("n1", [lease], 10) == {lease}
    catalog.release_lease(lease)
    assert holder() == "n2"
    catalog.release_lease(other)
    third = acquire("n1")
    assert third and third.token > other.token


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_by_a_day_keeps_no_job_from_running(
    catalog: Catalog, state: State, jump: float
) -> None:
    """The node that held the lease died at the jump, on another machine."""
    job = catalog.create_job(spec())
    catalog.register_node("dead", 1, "another.host")
    lease = catalog.acquire_lease(job.id, "dead", 15)
    assert lease
    state.clock.advance(jump)
    assert catalog.live_nodes() == []
    other = catalog.acquire_lease(job.id, "n2", 15)
    assert other and other.token > lease.token
    assert catalog.heartbeat("dead", [lease], 15) == {lease}


def test_the_next_id_is_known(catalog: Catalog) -> None:
    for name in (None, "a", None):
        known = catalog.next_id()
        assert catalog.create_job(spec(name)).id == known
    catalog.request(known, DesiredStatus.DROPPED)
    catalog.delete_job(known)
    assert catalog.next_id() == known + 1


def test_high_waters_of_feeds_at_rest_are_written_together(catalog: Catalog) -> None:
    jobs = [catalog.create_job(spec(name)) for name in "abc"]
    leases = [catalog.acquire_lease(job.id, "n1", 10) for job in jobs]
    for at, lease in enumerate(leases):
        assert lease is not None
        catalog.offered.offer(lease, Timestamp(10 + at), soon=at == 2)
    assert catalog.offered.hurried.is_set()
    lost = leases[1]
    assert lost is not None and leases[0] is not None
    catalog.release_lease(lost)
    catalog.acquire_lease(jobs[1].id, "n2", 10)
    catalog.save_progress(jobs[0].id, {}, lease=leases[0], high_water=Timestamp(4))
    catalog.save_offered()
    # The first has saved other progress since, the second belongs to another node.
    marks = [catalog.job(job.id).high_water for job in jobs]
    assert marks == [Timestamp(4), None, Timestamp(12)]
    assert catalog.offered.saved == {jobs[2].id: Timestamp(12)}
    assert not catalog.offered and not catalog.offered.hurried.is_set()


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_node_outlives_a_clock_that_jumps_by_a_day(
    catalog: Catalog, state: State, jump: float
) -> None:
    job = catalog.create_job(spec())
    catalog.register_node("n1", 1, "another.host")
    lease = catalog.acquire_lease(job.id, "n1", 15)
    assert lease
    state.clock.advance(jump)
    assert catalog.heartbeat("n1", [lease], 15) == set()
    assert [node.id for node in catalog.live_nodes()] == ["n1"]
    assert catalog.lease_holder(job.id) == "n1"
    assert catalog.acquire_lease(job.id, "n2", 15) is None


@pytest.mark.postgres
@pytest.mark.parametrize("behind", [-86_400, -100, 100, 86_400])
def test_clocks_of_machines_that_differ_move_no_job(
    postgres: Database, monkeypatch: pytest.MonkeyPatch, behind: float
) -> None:
    """A state that machines share has one clock for leases, whatever theirs say."""
    one, other = Catalog.open(postgres.uri), Catalog.open(postgres.uri)
    try:
        job = one.create_job(spec())
        one.register_node("n1", 1, "one.host")
        lease = one.acquire_lease(job.id, "n1", 15)
        assert lease
        wrong = ManualClock(SystemClock().now().wall + int(behind * 1e9))
        monkeypatch.setattr(other, "_clock", wrong)
        other.register_node("n2", 1, "other.host")
        assert other.acquire_lease(job.id, "n2", 15) is None
        assert other.lease_holder(job.id) == "n1"
        assert one.heartbeat("n1", [lease], 15) == set()
        for catalog in (one, other):
            assert [node.id for node in catalog.live_nodes()] == ["n1", "n2"]
        one.release_lease(lease)
        taken = other.acquire_lease(job.id, "n2", 15)
        assert taken
        assert one.acquire_lease(job.id, "n1", 15) is None
        assert other.heartbeat("n2", [taken], 15) == set()
        other.heartbeat("n2")
        assert [node.id for node in one.live_nodes()] == ["n1", "n2"]
        question = one.ask("verify", "a")
        assert other.awaited(question, 60)
        other.renew_question(question)
        assert one.awaited(question, 60)
    finally:
        one.close()
        other.close()


def test_two_takers_of_a_free_lease(state: State) -> None:
    job = state.open().create_job(spec())
    catalogs = [state.open() for _ in range(4)]
    taken: list[object] = []

    def take(number: int) -> None:
        taken.append(catalogs[number].acquire_lease(job.id, f"n{number}", 10))

    threads = [threading.Thread(target=take, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in taken) == 1


def test_the_lease_of_a_process_that_died_here_is_free_at_once(catalog: Catalog) -> None:
    job = catalog.create_job(spec())
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    catalog.register_node("dead", child.pid)
    catalog.register_node("far", child.pid, "another.host")
    catalog.register_node("here", os.getpid())
    # In a container that uses the machine's host name: its process ids are its own.
    catalog.register_node("boxed", child.pid, socket.gethostname())
    assert {node.id for node in catalog.live_nodes()} == {"far", "here", "boxed"}
    boxed = catalog.acquire_lease(job.id, "boxed", 50)
    assert boxed and catalog.acquire_lease(job.id, "dead", 50) is None
    catalog.release_lease(boxed)
    assert catalog.acquire_lease(job.id, "dead", 50)
    assert catalog.acquire_lease(job.id, "far", 50)
    assert catalog.acquire_lease(job.id, "here", 50) is None


def test_what_others_save_of_a_source_meanwhile_stays(
    catalog: Catalog, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pulse saves how far the log is while a statement asks for a new one."""
    catalog.save_source_state("shop", memo={"slot": "s"})
    write = catalog._database.write

    def late(*, notify: bool = True) -> AbstractContextManager[Connection]:
        monkeypatch.undo()
        state.open().save_source_state("shop", renewal=True)
        return write(notify=notify)

    monkeypatch.setattr(catalog._database, "write", late)
    catalog.save_source_state("shop", frontier=Timestamp(9))
    found = catalog.source_state("shop")
    assert found.renewal and found.frontier == Timestamp(9) and found.memo == {"slot": "s"}


def test_a_new_log_is_asked_for_with_the_change_of_the_job(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS))
    catalog.save_source_state(job.source, error="gone", error_code="CF2104")
    catalog.alter_job(job.id, rescan={ORDERS: 0})
    assert not catalog.source_state(job.source).renewal
    catalog.alter_job(job.id, rescan={ORDERS: 0}, renew_log=True)
    assert catalog.source_state(job.source).renewal
    assert catalog.source_state(job.source).error == "gone"


def test_nodes_live_by_heartbeat(catalog: Catalog, state: State) -> None:
    catalog.register_node("a", os.getpid())
    state.clock.advance(NODE_TTL)
    catalog.heartbeat("a")
    state.clock.advance(NODE_TTL)
    assert [node.id for node in catalog.live_nodes()] == ["a"]
    state.clock.advance(1)
    assert catalog.live_nodes() == []
    catalog.heartbeat("a")
    assert [node.id for node in catalog.live_nodes()] == ["a"]
    catalog.unregister_node("a")
    assert catalog.live_nodes() == []


def test_events_are_newest_first_and_bounded(catalog: Catalog) -> None:
    assert catalog.kept_events >= 100
    catalog.kept_events = 3
    one, two = catalog.create_job(spec("one")), catalog.create_job(spec("two"))
    catalog.record_event(two.id, "notice", "stays")
    for number in range(6):
        kind = "error" if number % 2 else "retry"
        catalog.record_event(one.id, kind, str(number), table="public.t", code=f"CF{number}")
    assert [event.text for event in catalog.events(one.id)] == ["5", "4", "3"]
    assert [event.text for event in catalog.events(one.id, kinds=["error"])] == ["5", "3"]
    assert [event.text for event in catalog.events(one.id, limit=1)] == ["5"]
    assert catalog.events(one.id)[0].table == "public.t"
    assert [event.text for event in catalog.events(two.id)] == ["stays", "created"]


def test_a_source_that_was_forgotten_stays_so(catalog: Catalog) -> None:
    """The thread that saves how far logs reach may be late."""
    reached = Frontier(Timestamp(7), "0A")
    catalog.save_source_state("shop", holds="slot s")
    catalog.save_frontier("shop", reached)
    state = catalog.source_state("shop")
    assert (state.position, state.frontier, state.holds) == ("0A", Timestamp(7), "slot s")
    catalog.forget_source("shop")
    catalog.save_frontier("shop", reached)
    assert catalog.source_states() == []


def test_a_read_is_of_one_instant(catalog: Catalog, state: State) -> None:
    """However many questions it has: what a shared log consists of is three."""
    count = select(func.count()).select_from(metadata.tables["job"])
    catalog.create_job(spec("one"))
    with catalog._database.read() as transaction:
        assert transaction.execute(count).scalar_one() == 1
        state.open().create_job(spec("two"))
        assert transaction.execute(count).scalar_one() == 1
    with catalog._database.read() as transaction:
        assert transaction.execute(count).scalar_one() == 2
    with catalog._database.write() as transaction:  # the next transaction of a connection
        assert transaction.execute(count).scalar_one() == 2


def test_one_cause_is_one_event_however_long_it_lasts(catalog: Catalog, state: State) -> None:
    """An outage of hours leaves the history as it was, and says how often and when last."""
    job = catalog.create_job(spec("f"))
    catalog.alter_job(job.id, noted=["diff set"], by="ann")
    began = state.clock.wall
    for attempt in range(35):
        state.clock.advance(30)
        # The text of a client has a port or a duration, which is another one each time.
        trouble = ChangefeedError("CF5001", f"no broker answers: connect failed in {attempt}ms")
        reason = f"attempt {attempt}, next try at 10:00:00 UTC"
        catalog.transition(job.id, Status.RETRYING, reason=reason, error=trouble)
        if attempt % 7 == 0:  # it recovers now and then
            catalog.transition(job.id, Status.RUNNING, reason="running")
    found = {(e.kind, e.text): (e.times, e.last - e.at) for e in catalog.events(job.id)}
    whole = 34 * 30 * 10**9
    assert found.pop(("retry", "no broker answers: connect failed in 34ms")) == (35, whole)
    assert found.pop(("status", "retrying -> running"))[0] == 5
    assert found.pop(("status", "running -> retrying"))[0] == 5
    assert found.keys() == {
        ("status", "starting -> retrying"),
        ("altered", "diff set (by ann)"),
        ("status", "created"),
    }
    [first] = [e for e in catalog.events(job.id) if e.kind == "altered"]
    assert (first.at, first.times, first.last) == (began, 1, began)
    other = ChangefeedError("CF5004", "no broker answers")
    catalog.transition(job.id, Status.RETRYING, reason="", error=other)
    assert catalog.events(job.id)[0].times == 1, "another code is another cause"


def test_external_uris(catalog: Catalog) -> None:
    catalog.create_connection("out", "kafka://k:9092?topic_prefix=a")
    catalog.create_connection("plain", "kafka://k:9092")
    catalog.create_connection("loop", "external://out")
    assert catalog.resolve_uri("null://") == "null://"
    assert catalog.resolve_uri("external://out") == "kafka://k:9092?topic_prefix=a"
    assert catalog.resolve_uri("external://out/?x=1") == "kafka://k:9092?topic_prefix=a&x=1"
    assert catalog.resolve_uri("external://plain?x=1") == "kafka://k:9092?x=1"
    refused("CF1101", lambda: catalog.resolve_uri("external://none"))
    refused("CF1201", lambda: catalog.resolve_uri("external://loop"))


def test_alter_changes_tables_and_topics_in_one_step(catalog: Catalog) -> None:
    third = TableName("shop", "public", "third")
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    altered = catalog.alter_job(
        job.id, add=[TableProgress(third, "third")], drop=[ITEMS], topics={ORDERS: "new"}
    )
    assert altered.generation == job.generation + 1
    assert {t.table: t.topic for t in catalog.tables(job.id)} == {ORDERS: "new", third: "third"}
    refused(
        "CF1302", lambda: catalog.alter_job(job.id, add=[TableProgress(third, "t")], options={})
    )
    assert catalog.job(job.id).options == job.options  # nothing of it happened


def test_failed_tables_try_again(catalog: Catalog) -> None:
    third = TableName("shop", "public", "third")
    job = catalog.create_job(spec("f", ORDERS, ITEMS, third))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    bad = ChangefeedError("CF4001", "value cannot be encoded")
    scanned = TableProgress(ORDERS, "orders", scan_wanted=False, done_upto=Timestamp(4))
    progress = {
        ORDERS: scanned.failed(bad),
        ITEMS: TableProgress(ITEMS, "items").failed(bad),
        third: replace(scanned, table=third, state=TableState.RUNNING),
    }
    catalog.save_progress(job.id, progress, lease=lease)
    assert sorted(catalog.retry_tables(job.id)) == [ITEMS, ORDERS]
    after = {t.table: (t.state, t.error) for t in catalog.tables(job.id)}
    assert after == {
        ORDERS: (TableState.PENDING, None),
        ITEMS: (TableState.PENDING, None),
        third: (TableState.RUNNING, None),
    }
    assert catalog.tables(job.id)[1].done_upto == Timestamp(4)
    generation = catalog.job(job.id).generation
    assert catalog.retry_tables(job.id) == []
    assert catalog.job(job.id).generation == generation == job.generation + 1


def test_a_transaction_is_skipped_in_the_tables_that_failed_at_it(catalog: Catalog) -> None:
    third = TableName("shop", "public", "third")
    job = catalog.create_job(spec("f", ORDERS, ITEMS, third))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    bad = ChangefeedError("CF4001", "value cannot be encoded")
    known = {t.table: t for t in catalog.tables(job.id)}
    failed = {
        ORDERS: known[ORDERS].failed(bad, Timestamp(7, 1)),
        ITEMS: known[ITEMS].failed(bad, Timestamp(7, 2)),
        third: known[third].failed(bad),
    }
    catalog.save_progress(job.id, failed, lease=lease)
    assert catalog.retry_tables(job.id, skip=Timestamp(7)) == []
    assert catalog.retry_tables(job.id, skip=Timestamp(7, 1), by="ann") == [ORDERS]
    after = {t.table: t for t in catalog.tables(job.id)}
    assert {name: t.state is TableState.FAILED for name, t in after.items()} == {
        ORDERS: False,
        ITEMS: True,
        third: True,
    }
    assert {name: t.skipped for name, t in after.items()} == {
        ORDERS: Timestamp(7, 1),
        ITEMS: None,
        third: None,
    }
    assert after[ORDERS].skips and not replace(after[ORDERS], done_upto=Timestamp(7, 1)).skips
    event = catalog.events(job.id)[0]
    assert (event.kind, event.table) == ("notice", str(ORDERS))
    assert event.text.startswith(f"the transaction at {Timestamp(7, 1)} was skipped (by ann)")
    # What a runner saves undoes nothing of it.
    catalog.save_progress(job.id, {ORDERS: replace(known[ORDERS], emitted_rows=1)}, lease=lease)
    assert {t.table: t.skipped for t in catalog.tables(job.id)}[ORDERS] == Timestamp(7, 1)


# -- RESCAN ---------------------------------------------------------------------------------


def test_a_rescan_is_not_undone_by_progress_made_before_it(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS, ITEMS))
    lease = catalog.acquire_lease(job.id, "n", 60)
    assert lease is not None
    running = {
        t.table: replace(t, state=TableState.RUNNING, scan_wanted=False, done_upto=Timestamp(5))
        for t in catalog.tables(job.id)
    }
    running[ITEMS] = running[ITEMS].failed(ChangefeedError("CF5003", "refused"))
    assert not catalog.save_progress(job.id, running, lease=lease)
    catalog.save_progress(job.id, {}, lease=lease, high_water=Timestamp(9))
    altered = catalog.alter_job(job.id, rescan={ORDERS: 0, ITEMS: 0})
    assert altered.generation == job.generation + 1
    by_name = {t.table: t for t in catalog.tables(job.id)}
    for table, done in ((ORDERS, 9), (ITEMS, 5)):
        owed = by_name[table]
        assert (owed.state, owed.error, owed.done_upto) == (
            TableState.PENDING,
            None,
            Timestamp(done),
        )
        assert owed.rescan_owed and owed.scan_at == Timestamp(done).next()
    # The runner has not heard of it yet.
    late = {ORDERS: replace(running[ORDERS], done_upto=Timestamp(12))}
    assert catalog.save_progress(job.id, late, lease=lease, high_water=Timestamp(12)) == {ORDERS}
    assert {t.table: t for t in catalog.tables(job.id)}[ORDERS] == by_name[ORDERS]
    done_now = replace(
        by_name[ORDERS],
        state=TableState.RUNNING,
        scan_wanted=False,
        rescanned=by_name[ORDERS].rescan,
    )
    assert not catalog.save_progress(job.id, {ORDERS: done_now}, lease=lease)
    assert not {t.table: t for t in catalog.tables(job.id)}[ORDERS].rescan_owed
    catalog.alter_job(job.id, rescan={ORDERS: 0})
    asked = {t.table: t for t in catalog.tables(job.id)}[ORDERS].rescan
    assert asked > by_name[ORDERS].rescan, "each request is another one, whatever the clock says"


def test_a_rescan_takes_another_table_of_the_name(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS))
    catalog.adopt_table_ids({ORDERS: 7})
    lease = catalog.acquire_lease(job.id, "n", 60)
    assert lease is not None
    [table] = catalog.tables(job.id)
    failed = replace(table, done_upto=Timestamp(5)).failed(ChangefeedError("CF2106", "gone"))
    catalog.save_progress(job.id, {ORDERS: failed}, lease=lease)
    catalog.alter_job(job.id, rescan={ORDERS: 8})
    [table] = catalog.tables(job.id)
    assert (table.table_id, table.done_upto, table.scan_at) == (8, None, None)


def test_rows_that_a_scan_is_about_are_kept_until_all_are_asked_for(catalog: Catalog) -> None:
    job = catalog.create_job(spec("f", ORDERS))
    lease = catalog.acquire_lease(job.id, "n", 60)
    assert lease is not None

    def stored() -> TableProgress:
        [table] = catalog.tables(job.id)
        return table

    def asked(*, wrong: str = "", extra: str = "") -> None:
        rows = RowRepair(tuple((1, c, True) for c in wrong), tuple((1, c, True) for c in extra))
        catalog.alter_job(job.id, repair={ORDERS: rows})

    asked(wrong="a")
    assert stored().repair is None and stored().whole_scan_owed, "the first scan is still owed"
    running = replace(stored(), state=TableState.RUNNING, scan_wanted=False)
    running = replace(running, done_upto=Timestamp(5), rescanned=running.rescan)
    catalog.save_progress(job.id, {ORDERS: running}, lease=lease)
    asked(wrong="ab", extra="x")
    first = stored().rescan
    asked(wrong="cx", extra="b")
    table = stored()
    assert table.repair == RowRepair(
        ((1, "c", True), (1, "a", True)), ((1, "b", True), (1, "x", True))
    )
    assert table.rescan > first and table.rescan_owed and not table.whole_scan_owed
    assert (table.state, table.done_upto) == (TableState.PENDING, Timestamp(5))
    assert any("rows read again by key" in e.text for e in catalog.events(job.id))
    catalog.alter_job(job.id, rescan={ORDERS: 0})
    asked(wrong="a")
    assert stored().repair is None and stored().whole_scan_owed
    done = replace(stored(), scan_wanted=False, rescanned=stored().rescan)
    catalog.save_progress(job.id, {ORDERS: done}, lease=lease)
    asked(wrong="a")
    lost = stored().failed(ChangefeedError("CF2106", "gone"))
    catalog.save_progress(job.id, {ORDERS: lost}, lease=lease)
    catalog.retry_tables(job.id)
    assert stored().repair is None, "rows were lost while the table was gone"


@pytest.mark.parametrize("code", ["CF1101", "CF1302", "CF2003", "CF2004", "CF2106", "CF2107"])
def test_a_table_whose_changes_were_missed_is_scanned_when_it_tries_again(
    catalog: Catalog, code: str
) -> None:
    """Its name was that of no table for a while, for example: its changes came under another."""
    job = catalog.create_job(spec("f", ORDERS))
    lease = catalog.acquire_lease(job.id, "n", 10)
    assert lease
    running = TableProgress(ORDERS, "orders", scan_wanted=False, done_upto=Timestamp(4))
    failed = running.failed(ChangefeedError(code, "away"))
    catalog.save_progress(job.id, {ORDERS: failed}, lease=lease)
    assert catalog.retry_tables(job.id) == [ORDERS]
    [table] = catalog.tables(job.id)
    assert table.scan_wanted and table.state is TableState.PENDING


def test_a_renamed_table_is_captured_since_its_first_name(catalog: Catalog) -> None:
    """A place of a feed below the rename is still one that the log covers."""
    now = TableName("shop", "public", "now")
    catalog.set_captured("shop", {ORDERS: Timestamp(5), ITEMS: Timestamp(6)}, {ORDERS: 7, ITEMS: 8})
    catalog.set_captured("shop", {now: Timestamp(9), ORDERS: Timestamp(9)}, {now: 7, ORDERS: 9})
    assert catalog.captured("shop") == {now: Timestamp(5), ORDERS: Timestamp(9)}


def test_the_names_of_a_table_are_known_until_its_log_is_forgotten(catalog: Catalog) -> None:
    now = TableName("shop", "public", "now")
    for _ in range(2):
        catalog.note_name(now, 7)
    catalog.note_name(ITEMS, 0)
    assert catalog.names("shop", 7) == [now]
    assert catalog.names("shop", 0) == catalog.names("crm", 7) == []
    catalog.forget_log("shop")
    assert catalog.names("shop", 7) == []


@pytest.mark.extended
@pytest.mark.postgres
def test_a_process_that_stands_still_in_a_write_holds_up_no_other(postgres: Database) -> None:
    """A node that is frozen, or cut off from the state, while it writes."""
    with (
        closing(Catalog.open(postgres.uri)) as frozen,
        closing(Catalog.open(postgres.uri)) as other,
    ):
        with (
            pytest.raises(ChangefeedError, match="cannot use state"),
            frozen._database.write() as transaction,
        ):
            # It waits until the server has ended the write of the other.
            lease = other.acquire_source("shop", "n1", 0.0)
            transaction.execute(text("SELECT 1"))
        assert lease is not None
        with (
            pytest.raises(ChangefeedError, match="cannot use state"),
            frozen._fenced(lease) as transaction,
        ):
            taken = other.acquire_source("shop", "n2", 60.0)
            transaction.execute(text("SELECT 1"))
        assert taken is not None and taken.token == lease.token + 1
        frozen.register_node("n1", 1)
        assert [node.id for node in frozen.live_nodes()] == ["n1"]


# ------------------------------------------------------------------------------- its key


def _kept(catalog: Catalog) -> str:
    """The connections and feeds as the database has them."""
    columns = {"connection": "uri", "job": "sink_uri", "meta": "value"}
    with catalog._database.read() as transaction:
        return repr(
            [
                transaction.execute(
                    select(literal_column(column)).select_from(metadata.tables[table])
                ).all()
                for table, column in columns.items()
            ]
        )


def test_secrets_are_encrypted_by_a_key_that_can_be_replaced(state: State) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    plain = state.open()
    plain.create_connection("shop", URI)
    plain.create_job(spec(sink="kafka://u:s3cret@h"))
    assert "s3cret" in _kept(plain)
    catalog = state.open(old)
    catalog.set_log_place("s3://b?AWS_SECRET_ACCESS_KEY=s3cret")
    assert "s3cret" not in _kept(catalog)
    with pytest.raises(ChangefeedError, match="this process has no key"):
        state.open()
    with pytest.raises(ChangefeedError, match="this process has no key"):
        plain.connection("shop")
    both = state.open(f"{new},{old}")
    _, count = both.rotate_key()
    assert count == 4 and "s3cret" not in _kept(both)
    with pytest.raises(ChangefeedError, match="encrypted by another key"):
        state.open(old)
    found = state.open(new)
    assert found.connection("shop").uri == URI
    assert found.job("f").sink_uri == "kafka://u:s3cret@h"
    assert found.log_place == "s3://b?AWS_SECRET_ACCESS_KEY=s3cret"


@pytest.mark.postgres
def test_no_connection_is_left_open_by_a_state_that_is_closed_while_it_is_read(
    postgres: Database,
) -> None:
    state = State(postgres.uri)
    catalog = state.open()
    reading, closed = threading.Event(), threading.Event()

    def read() -> None:
        with catalog._database.read():
            reading.set()
            closed.wait()

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait()
    state.close()
    closed.set()
    reader.join()
    assert catalog.version() >= 0  # a thread that has not seen that the state is closed
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    until(lambda: postgres.execute(others, [postgres.name]) == [(0,)], "sessions end")


def test_the_names_of_the_tables_of_jobs_are_as_of_the_version_that_was_seen(state: State) -> None:
    """Read once for all jobs of a process, and again after a change that any process made."""
    catalog, other = state.open(), state.open()
    f, g = catalog.create_job(spec("f")), catalog.create_job(spec("g", ITEMS))
    seen = catalog.version()
    assert catalog.table_names(f.id, seen) == {ORDERS}
    assert catalog.table_names(g.id, seen) == {ITEMS}
    other.delete_job(g.id)
    assert catalog.table_names(g.id, seen) == {ITEMS}, "that is not asked for yet"
    assert catalog.table_names(g.id, catalog.version()) == frozenset()
    assert catalog.table_names(f.id, catalog.version()) == {ORDERS}


@pytest.mark.postgres
def test_the_counter_is_read_again_after_the_server_has_ended_its_connection(
    postgres: Database,
) -> None:
    catalog = Catalog.open(postgres.uri)
    try:
        before = catalog.version()
        postgres.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and datname = current_database()"
        )
        assert catalog.version() == before
    finally:
        catalog.close()


def test_a_node_that_lost_a_source_adds_nothing_to_its_log(state: State) -> None:
    """Whether a flush comes alone, which is one statement on a server, or with other changes."""
    catalog, other = state.open(), state.open()
    old = catalog.acquire_source("shop", "n1", 15)
    assert old is not None
    part = TailPart(1, 0, 3, 7, None, b"abc")
    catalog.register(old, LogChange(tail=[part]))
    state.clock.advance(16)
    new = other.acquire_source("shop", "n2", 15)
    assert new is not None
    late = replace(part, start=3)
    for change in (LogChange(tail=[late]), LogChange(tail=[late], notes={"n": b""})):
        with pytest.raises(ChangefeedError) as refused:
            catalog.register(old, change)
        assert refused.value.code is Code.STATE_HELD_BY_ANOTHER_NODE
    other.register(new, LogChange(tail=[replace(part, start=3, body=b"def")]))
    assert list(catalog.tail_bodies("shop", 1, 0)) == [(0, b"abc"), (3, b"def")]
    found = catalog.log_manifest("shop").tail
    assert [(p.start, p.size, p.crc, p.object) for p in found] == [(0, 3, 7, None), (3, 3, 7, None)]


@pytest.mark.postgres
def test_a_flush_waits_for_a_node_that_takes_its_source(postgres: Database) -> None:
    """The statement that adds a part sees the lease as it is when it adds it."""
    with closing(Catalog.open(postgres.uri)) as catalog, ThreadPoolExecutor() as pool:
        lease = catalog.acquire_source("shop", "n1", 15)
        assert lease is not None
        with postgres.connect(autocommit=False) as taking:
            taking.execute("update changefeed.capture_lease set node = 'n2', token = token + 1")
            change = LogChange(tail=[TailPart(1, 0, 3, 7, None, b"abc")])
            added = pool.submit(catalog.register, lease, change)
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            until(lambda: postgres.execute(waits), "it waits")
            taking.commit()
        with pytest.raises(ChangefeedError, match="another node captures"):
            added.result()
        assert catalog.log_manifest("shop").tail == ()
