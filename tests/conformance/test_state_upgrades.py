"""States of earlier releases come to the present format with all that is in them."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Integer, inspect, select, text, update

from changefeed.app import Application
from changefeed.catalog import Catalog, LeaseLost, Status, tables, upgrades
from changefeed.catalog.database import Database, server_time
from changefeed.core.clock import SYSTEM_CLOCK
from changefeed.core.errors import ChangefeedError
from tests.helpers import next_format
from tests.helpers.waiting import until
from tests.services import postgres as services

STATES = Path(__file__).with_name("states")


class Old:
    """A state as release 0.2.0 wrote it."""

    def __init__(self, folder: Path, server: services.Database | None) -> None:
        self.place: str | Path = folder
        if server is not None:
            self.place = server.uri
            server.execute((STATES / "format-18.postgresql.sql").read_text())
            return
        folder.mkdir()
        with closing(sqlite3.connect(folder / "state.db")) as database:
            database.executescript((STATES / "format-18.sqlite.sql").read_text())

    @property
    def on_server(self) -> bool:
        return isinstance(self.place, str)

    def run(self, call: Callable[[sqlalchemy.Connection], Any]) -> Any:
        """Do something in a transaction of the state's database, as it is."""
        if isinstance(self.place, str):
            url = self.place.replace("postgresql://", "postgresql+psycopg://")
        else:
            url = f"sqlite:///{self.place / 'state.db'}"
        engine = sqlalchemy.create_engine(url).execution_options(
            schema_translate_map={None: tables.POSTGRES_SCHEMA} if self.on_server else {}
        )
        try:
            with engine.begin() as connection:
                return call(connection)
        finally:
            engine.dispose()

    def meta(self) -> dict[str, str]:
        rows = self.run(lambda connection: connection.execute(select(tables.meta)).all())
        return {key: value for key, value in rows}

    def shape(self) -> dict[str, object]:
        """Columns, keys and indexes of each table."""

        def look(connection: sqlalchemy.Connection) -> dict[str, object]:
            inspector = inspect(connection)
            schema = tables.POSTGRES_SCHEMA if self.on_server else None
            return {
                table: (
                    {
                        column["name"]: (str(column["type"]), column["nullable"], column["default"])
                        for column in inspector.get_columns(table, schema=schema)
                    },
                    inspector.get_pk_constraint(table, schema=schema)["constrained_columns"],
                    sorted(
                        (index["name"] or "", index["column_names"], index["unique"])
                        for index in inspector.get_indexes(table, schema=schema)
                    ),
                    sorted(
                        (key["referred_table"], key["constrained_columns"], key["options"])
                        for key in inspector.get_foreign_keys(table, schema=schema)
                    ),
                )
                for table in inspector.get_table_names(schema=schema)
            }

        return dict(self.run(look))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Old]:
    on_server = request.param == "postgres"
    yield Old(tmp_path / "old", request.getfixturevalue("postgres") if on_server else None)


def test_a_state_of_0_2_0_has_all_it_had(old: Old) -> None:
    with closing(Catalog.open(old.place)) as catalog:
        assert catalog.state_id == "abc234"
        (job,) = catalog.jobs()
        assert (job.name, job.options) == ("orders", {"updated": "", "resolved": "10s"})
        assert [table.table.name for table in catalog.tables(job.id)] == ["items", "orders"]
        assert [connection.name for connection in catalog.connections()] == ["shop"]
        assert [user.name for user in catalog.users()] == ["ann"]
        assert "a feed of 0.2.0" in [event.text for event in catalog.events(job.id)]
        # What was given out goes on where it was; those who had it then have it no more.
        lease = catalog.acquire_lease(job.id, "n2", 10.0)
        assert lease is not None and lease.token == 3
        catalog.record_event(job.id, "note", "of this version")
        assert "of this version" in [event.text for event in catalog.events(job.id)]
    assert old.meta()["format"] == str(tables.FORMAT)


def test_it_then_equals_a_new_state(
    old: Old, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    Catalog.open(old.place).close()
    upgraded, values = old.shape(), old.meta()
    if old.on_server:
        request.getfixturevalue("postgres").execute("drop schema changefeed cascade")
    else:
        old.place = tmp_path / "new"
    Catalog.open(old.place).close()
    assert upgraded == old.shape()
    new = old.meta()
    assert values == new | {"state_id": "abc234"}


def test_a_state_in_a_directory_keeps_a_copy(tmp_path: Path) -> None:
    old = Old(tmp_path / "old", None)
    assert isinstance(old.place, Path)
    Catalog.open(old.place).close()
    kept = old.place / "state.db.format-18"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with closing(sqlite3.connect(kept)) as copy:
        assert copy.execute("select value from meta where key = 'format'").fetchall() == [("18",)]
        assert copy.execute("select name from job").fetchall() == [("orders",)]
    # It is a state: put back, it can be upgraded again.
    (old.place / "state.db").unlink()
    kept.rename(old.place / "state.db")
    with closing(Catalog.open(old.place)) as catalog:
        assert [job.name for job in catalog.jobs()] == ["orders"]


def test_nodes_of_the_version_before_are_not_left_behind(old: Old) -> None:
    def seen_now(connection: sqlalchemy.Connection) -> None:
        now = server_time(connection) if old.on_server else SYSTEM_CLOCK.now().wall
        connection.execute(update(tables.node).values(seen=now))

    old.run(seen_now)
    before = old.shape()
    with pytest.raises(ChangefeedError) as caught:
        Catalog.open(old.place)
    assert caught.value.code.number == "CF6002"
    assert "nodes of its version use it: n1 (version 0.2.0, elsewhere)" in caught.value.message
    assert old.meta() == {"format": "18", "state_id": "abc234"} and old.shape() == before
    old.run(lambda connection: connection.execute(update(tables.node).values(seen=1)))
    Catalog.open(old.place).close()


def test_a_node_of_0_2_0_that_stood_still_finds_no_leases(old: Old) -> None:
    """It looks at the format only when it opens the state, and would take sources and feeds again
    that it cannot run any more."""
    Catalog.open(old.place).close()
    schema = f"{tables.POSTGRES_SCHEMA}." if old.on_server else ""
    for table, key in (("lease", "job_id = 1"), ("source_lease", "source = 'shop'")):
        renewal = text(f"update {schema}{table} set expires = 9 where {key} and node = 'n1'")
        with pytest.raises(sqlalchemy.exc.DBAPIError, match=r"does not exist|no such table"):
            old.run(partial(sqlalchemy.Connection.execute, statement=renewal))
    with closing(Catalog.open(old.place)) as catalog:
        assert catalog.live_nodes(1e9) == []


@pytest.mark.parametrize("compatible", [True, False])
def test_a_node_that_stood_still_while_the_state_was_upgraded(old: Old, compatible: bool) -> None:
    """One that cannot go on is refused whatever it would do for longer than a moment."""
    with closing(Catalog.open(old.place)) as catalog:
        (job,) = catalog.jobs()
        catalog.register_node("n1", 1, "elsewhere")
        lease, source = (
            catalog.acquire_lease(job.id, "n1", 10.0),
            catalog.acquire_source("shop", "n1", 10.0),
        )
        assert lease is not None and source is not None
        next_format.upgrade(old.place, compatible=compatible, silent=60)
        if compatible:
            assert catalog.heartbeat("n1", {lease, source}, 10.0) == set()
            catalog.save_progress(job.id, {}, lease=lease)
            assert [node.id for node in catalog.live_nodes()] == ["n1"]
            return
        for act in (
            lambda: catalog.heartbeat("n1", {lease, source}, 10.0),
            lambda: catalog.acquire_lease(job.id, "n1", 10.0),
            lambda: catalog.acquire_source("shop", "n1", 10.0),
            lambda: catalog.transition(job.id, Status.FAILED, reason="it failed"),
        ):
            with pytest.raises(ChangefeedError) as caught:
                act()
            assert caught.value.code.number == "CF6002", act
            assert "install that version" in caught.value.hint
        with pytest.raises(LeaseLost):
            catalog.save_progress(job.id, {}, lease=lease)
        assert catalog.live_nodes(1e9) == [] and catalog.source_holders() == {}


def test_a_node_ends_when_it_cannot_use_the_state_any_more(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Application(str(state)) as application:
        assert application.start_node()
        application.check_node()
        next_format.upgrade(state, compatible=False, silent=60)

        def refused() -> bool:
            try:
                application.check_node()
            except ChangefeedError as error:
                assert error.code.number == "CF6002"
                return True
            return False

        until(refused, "the node ends")


def test_a_step_that_fails_leaves_the_state_as_it_was(old: Old) -> None:
    def half(operations: Any) -> None:
        operations.add_column("node", Column("room", Integer))
        operations.execute("select no_such_function()")

    before = old.shape()
    with pytest.raises(sqlalchemy.exc.DBAPIError):
        old.run(_upgrade(old, upgrades.Step(19, half)))
    assert old.shape() == before and old.meta()["format"] == "18"


def test_a_step_adds_to_the_tables(old: Old) -> None:
    def wider(operations: Any) -> None:
        operations.add_column("job", Column("room", Integer, server_default=text("7")))
        operations.create_index("node_host", "node", ["host"])

    old.run(_upgrade(old, *upgrades.STEPS, upgrades.Step(tables.FORMAT + 1, wider)))
    room = text('select room from "changefeed".job' if old.on_server else "select room from job")
    assert old.run(lambda connection: connection.execute(room).all()) == [(7,)]


def _upgrade(old: Old, *steps: upgrades.Step) -> Callable[[sqlalchemy.Connection], None]:
    def run(connection: sqlalchemy.Connection) -> None:
        if not old.on_server:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        found = {"format": "18", "state_id": "abc234"}
        upgrades.upgrade(connection, found, shown="it", now=1, file=None, steps=steps)

    return run


def test_many_open_it_at_once(old: Old) -> None:
    seen: list[str] = []

    def open_it() -> None:
        with closing(Catalog.open(old.place)) as catalog:
            seen.append(catalog.state_id)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["abc234"] * 4


@pytest.mark.parametrize(("readers", "fine"), [(tables.FORMAT, True), (tables.FORMAT + 1, False)])
def test_a_newer_state_says_which_versions_may_use_it(
    tmp_path: Path, readers: int, fine: bool
) -> None:
    old = Old(tmp_path / "old", None)
    Catalog.open(old.place).close()

    def newer(connection: sqlalchemy.Connection) -> None:
        for key, value in (("format", tables.FORMAT + 1), ("readers", readers)):
            row = update(tables.meta).where(tables.meta.c.key == key)
            connection.execute(row.values(value=str(value)))

    old.run(newer)
    if fine:
        with closing(Catalog.open(old.place)) as catalog:
            assert catalog.state_id == "abc234"
        assert old.meta()["format"] == str(tables.FORMAT + 1)
        return
    with pytest.raises(ChangefeedError) as caught:
        Database.open(old.place)
    assert caught.value.code.number == "CF6002" and "install that version" in caught.value.hint
