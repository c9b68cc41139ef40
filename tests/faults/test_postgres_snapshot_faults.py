"""An initial scan when something breaks: found out at once, never a torn table."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import psycopg
import pytest

from changefeed.core.errors import Action, ChangefeedError
from changefeed.sources.postgres import PostgresSource, snapshot
from changefeed.sources.postgres.scan import READERS, PostgresPart
from changefeed.sources.postgres.snapshot import PostgresSnapshot
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.postgres


@pytest.fixture
def source(postgres: Database) -> Iterator[PostgresSource]:
    postgres.execute("create table t (id int primary key, v text)")
    postgres.execute("insert into t select i, repeat('x', 800) from generate_series(1, 20000) i")
    opened = PostgresSource("shop", postgres.uri)
    yield opened
    opened.close()


def count(part: PostgresPart) -> int:
    return sum(batch.num_rows for batch in part.read())


def ids(part: PostgresPart) -> list[int]:
    """Runs in a process of its own."""
    return [i for batch in part.read() for i in batch.column(0).to_pylist()]


def end_sessions(postgres: Database) -> int:
    """End every session of ours that sits in a transaction; how many there were."""
    rows = postgres.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = %s and application_name = 'changefeed'"
        "   and backend_xmin is not null",
        [postgres.name],
    )
    return len(rows)


def scan_again(error: ChangefeedError) -> bool:
    return error.code.number == "CF2201" and error.action is Action.RETRY


def test_a_lost_exporter_is_noticed(postgres: Database, source: PostgresSource) -> None:
    schema = source.describe(None, "t")
    with source.snapshot() as snapshot:
        (part,) = snapshot.parts(schema)
        assert end_sessions(postgres) == 1
        for use in (lambda: count(part), lambda: snapshot.parts(schema)):
            with pytest.raises(ChangefeedError) as caught:
                use()
            assert scan_again(caught.value)


def test_an_exporter_that_is_lost_at_once_is_a_retry(
    postgres: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its walsender ends before another connection has imported the snapshot."""
    export = snapshot._export

    def lost(uri: str, replication: psycopg.Connection, seconds: float) -> tuple[str, str]:
        found = export(uri, replication, seconds)
        replication.close()
        gone = "select from pg_replication_slots where temporary and database = %s"
        until(lambda: not postgres.execute(gone, [postgres.name]))
        return found

    monkeypatch.setattr(snapshot, "_export", lost)
    with pytest.raises(ChangefeedError) as caught:
        source.snapshot()
    assert scan_again(caught.value)


def test_a_lost_reader_ends_its_part_only(postgres: Database, source: PostgresSource) -> None:
    schema = source.describe(None, "t")
    with source.snapshot() as snapshot:
        (part,) = snapshot.parts(schema)
        reading = part.read()
        assert next(reading).num_rows > 0
        ended = postgres.execute(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = %s and query like 'COPY%%'",
            [postgres.name],
        )
        assert ended == [(True,)]
        with pytest.raises(ChangefeedError) as caught:
            list(reading)
        assert scan_again(caught.value)
        assert count(part) == 20_000


def test_an_idle_reader_does_not_hold_back_vacuum(
    postgres: Database, source: PostgresSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(READERS, "idle_timeout", "100ms")
    schema = source.describe(None, "t")
    with source.snapshot() as snapshot:
        (part,) = snapshot.parts(schema)
        assert count(part) == 20_000
        ((reader,),) = READERS._idle.values()
        query = "select 1 from pg_stat_activity where pid = %s"
        until(lambda: postgres.execute(query, [reader.info.backend_pid]) == [])
        assert count(part) == 20_000


def test_a_crash_of_the_server_is_a_retry(own_postgres: PostgresCluster) -> None:
    with own_postgres.database() as db:
        db.execute("create table t (id int primary key, v text)")
        db.execute("insert into t select i, repeat('x', 800) from generate_series(1, 20000) i")
        source = PostgresSource("shop", db.uri)
        schema = source.describe(None, "t")
        with source.snapshot() as snapshot:
            (part,) = snapshot.parts(schema)
            reading = part.read()
            next(reading)
            own_postgres.kill()
            with pytest.raises(ChangefeedError) as caught:
                list(reading)
            assert scan_again(caught.value)
            with pytest.raises(ChangefeedError) as caught:
                source.tables()
            assert caught.value.code.number == "CF2001"
            own_postgres.start()
            with pytest.raises(ChangefeedError) as caught:
                count(part)
            assert scan_again(caught.value)
        with source.snapshot() as snapshot:
            assert sum(map(count, snapshot.parts(schema))) == 20_000
        source.close()


def test_a_forgotten_transaction_is_named(postgres: Database, source: PostgresSource) -> None:
    with postgres.connect(autocommit=False) as forgotten:
        forgotten.execute("insert into t values (0)")
        with pytest.raises(ChangefeedError) as caught:
            PostgresSnapshot(postgres.uri, "shop", consistent_seconds=0.5)
        assert caught.value.code.number == "CF2005"
        assert f"pid {forgotten.info.backend_pid} of postgres" in caught.value.detail
    until(lambda: postgres.slots() == [])


def test_the_log_names_the_transactions_that_a_scan_waits_for(
    own_postgres_factory: Callable[..., PostgresCluster], caplog: pytest.LogCaptureFixture
) -> None:
    """While it waits; also prepared ones, which belong to no process. So does SHOW."""
    server = own_postgres_factory(16, max_prepared_transactions="2")
    with server.database() as db, db.connect(autocommit=False) as open_one:
        db.execute("create table t (id int)")
        db.execute("begin; insert into t values (1); prepare transaction 'nightly'")
        open_one.execute("insert into t values (2)")
        opened: list[PostgresSnapshot] = []
        waits: list[str] = []

        def scan() -> None:
            opened.append(
                PostgresSnapshot(db.uri, "shop", told_after_seconds=0.1, on_wait=waits.append)
            )

        scanning = threading.Thread(target=scan)
        scanning.start()

        def said() -> list[str]:
            # Messages, not the text: pyspark gives handlers that it meets a format of its own.
            return [said for said in caplog.messages if "waits for the transactions" in said]

        until(said, "the log names them")
        assert f"pid {open_one.info.backend_pid} of postgres, open for" in said()[0]
        assert 'prepared "nightly" of postgres, for' in said()[0] and not opened
        open_one.rollback()
        until(lambda: waits[-1].startswith('prepared "nightly"'), "what is left is named")
        assert f"pid {open_one.info.backend_pid} of postgres" in waits[0]
        db.execute("commit prepared 'nightly'")
        scanning.join()
        assert waits[-1] == "" and len(said()) == 1
        opened[0].close()


def test_no_free_slot_is_a_retry(
    own_postgres_factory: Callable[..., PostgresCluster],
) -> None:
    server = own_postgres_factory(16, max_replication_slots="1")
    with server.database() as db:
        db.execute("select pg_create_logical_replication_slot('other', 'pgoutput')")
        source = PostgresSource("shop", db.uri)
        with pytest.raises(ChangefeedError) as caught:
            source.snapshot()
        assert (caught.value.code.number, caught.value.action) == ("CF2005", Action.RETRY)
        source.close()


@pytest.mark.parametrize("postgres", [14, 18], indirect=True)
def test_parts_are_read_by_other_processes(postgres: Database, source: PostgresSource) -> None:
    """While the table is written to; each part in whichever process is free."""
    schema = source.describe(None, "t")
    context = multiprocessing.get_context("spawn")
    with source.snapshot() as snapshot, ProcessPoolExecutor(2, mp_context=context) as pool:
        parts = list(snapshot.parts(schema, 1_500_000))
        assert len(parts) > 8
        postgres.execute("update t set v = v || '!' where id % 2 = 0; delete from t where id < 99")
        found = [i for part in pool.map(ids, parts) for i in part]
    assert sorted(found) == list(range(1, 20_001))
