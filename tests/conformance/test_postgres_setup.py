"""Publication and slot: made, changed and removed on a real server, by several at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableName
from changefeed.sources.base import CaptureResult
from changefeed.sources.postgres import PostgresSource, publications, slots
from changefeed.sources.postgres.attachment import PostgresAttachment, object_name
from changefeed.sources.postgres.connect import PsycopgConnection, connect
from tests.conformance.conftest import ALL
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.postgres

A, B = TableName("shop", "public", "a"), TableName("shop", "public", "b")


@pytest.fixture
def source(postgres: Database) -> Iterator[PostgresSource]:
    postgres.execute("create table a (id int primary key, v text)")
    postgres.execute("create table b (id int primary key)")
    opened = PostgresSource("shop", postgres.uri)
    yield opened
    opened.close()


@pytest.fixture
def name(postgres: Database) -> str:
    """Slots are of the whole server: one name for each test."""
    return f"changefeed_{postgres.name}"


@pytest.fixture
def held(source: PostgresSource, name: str) -> PostgresAttachment:
    return attachment(source, name)


def attachment(source: PostgresSource, name: str) -> PostgresAttachment:
    """Slot and publication of this name."""
    return source.attach("tests", {"slot": name, "publication": name})


def published(postgres: Database, name: str) -> list[str]:
    rows = postgres.execute(
        "select tablename from pg_publication_tables where pubname = %s order by 1", [name]
    )
    return [table for (table,) in rows]


@ALL
def test_prepare_makes_grows_shrinks_and_repeats(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    assert held.capture([A], resume=False).problems == {}
    assert published(postgres, name) == ["a"]
    place = held.start()
    held.capture([A], resume=True)
    assert (published(postgres, name), held.start()) == (["a"], place)
    held.capture([B], resume=True)
    assert published(postgres, name) == ["b"]
    held.capture([], resume=True)
    assert published(postgres, name) == []
    ((*actions, via_root),) = postgres.execute(
        "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication"
    )
    assert all(actions) and via_root
    state = held.state()
    assert (state.exists, state.plugin, state.database) == (True, "pgoutput", postgres.name)
    assert not state.lost
    assert held.start() == (state.confirmed, "") and len(state.confirmed) == 16
    held.release()
    held.release()
    assert not held.state().exists
    assert postgres.execute("select * from pg_publication") == []


@ALL
def test_a_bad_table_does_not_keep_the_others_out(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    postgres.execute("create view v as select 1")
    bad, view = TableName("shop", "public", "zzz"), TableName("shop", "public", "v")
    done = held.capture([A, bad, view], resume=False)
    assert published(postgres, name) == ["a"]
    assert {t.name: e.code.number for t, e in done.problems.items()} == {
        "zzz": "CF1101",
        "v": "CF1302",
    }


@ALL
def test_what_would_break_updates_is_not_published(
    postgres: Database, source: PostgresSource, held: PostgresAttachment, name: str
) -> None:
    postgres.execute(
        "create table bare (id int); insert into bare values (1);"
        "create table late (id int primary key deferrable);"
        "create table none (id int primary key); alter table none replica identity nothing;"
        "create table part (id int, v int) partition by range (id);"
        "alter table part replica identity full;"
        "create table part1 partition of part for values from (0) to (10);"
        "alter table part1 replica identity full;"
        "create table part2 partition of part default; insert into part values (20, 1)"
    )
    bad = [TableName("shop", "public", n) for n in ("bare", "late", "none", "part")]
    done = held.capture([A, *bad], resume=False)
    assert published(postgres, name) == ["a"]
    assert {t.name: e.code.number for t, e in done.problems.items()} == dict.fromkeys(
        ("bare", "late", "none", "part"), "CF2003"
    )
    postgres.execute("update bare set id = 2; update part set v = 2; delete from part")
    assert source.locate(bad, []).unsafe == set(source.locate(bad, []).ids.values())
    postgres.execute("alter table bare replica identity full")
    postgres.execute("alter table part2 replica identity full")
    mended = [bad[0], bad[3]]
    assert source.locate(mended, []).unsafe == set()
    assert held.capture([A, *mended], resume=False).problems == {}
    assert published(postgres, name) == ["a", "bare", "part"]


@ALL
def test_a_published_table_that_loses_its_identity_is_taken_out(
    postgres: Database, source: PostgresSource, held: PostgresAttachment, name: str
) -> None:
    held.capture([A, B], resume=False)
    postgres.execute("insert into a values (1, 'x'); alter table a drop constraint a_pkey")
    with pytest.raises(psycopg.Error, match="does not have a replica identity"):
        postgres.execute("update a set v = 'y'")
    assert source.locate([A, B], []).unsafe == {source.describe(None, "a").table_id}
    done = held.capture([A, B], resume=False)
    assert (published(postgres, name), list(done.problems)) == (["b"], [A])
    postgres.execute("update a set v = 'y'")


def test_an_identity_that_goes_while_the_table_is_added_is_seen(
    postgres: Database, source: PostgresSource, name: str
) -> None:
    member = publications.Member(source.describe(None, "a").table_id, "public", "a")
    with connect(postgres.uri) as ours:
        # Somebody drops the key after our checks, before our lock: only the last look sees it.
        change = publications.set_tables(ours, name, [member], lambda oids: list(oids))
    assert (change.added, change.refused) == ((), (member,))
    assert published(postgres, name) == []


def drop_before(
    ours: PsycopgConnection, postgres: Database, name: str, statement: int, m: pytest.MonkeyPatch
) -> None:
    """Drop the publication just before a statement of the connection, counted from zero."""
    execute, numbers = ours.execute, itertools.count()

    def dropping(*args: Any, **options: Any) -> Any:
        if next(numbers) == statement:
            postgres.execute(f"drop publication {name}")
        return execute(*args, **options)

    m.setattr(ours, "execute", dropping)


@pytest.mark.parametrize("statement", range(4))
def test_a_publication_that_is_dropped_during_a_look_has_lost_no_table(
    postgres: Database,
    source: PostgresSource,
    held: PostgresAttachment,
    name: str,
    statement: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held.capture([A, B], resume=False)
    oids = [source.describe(None, table).table_id for table in "ab"]
    with connect(postgres.uri) as ours:
        drop_before(ours, postgres, name, statement, monkeypatch)
        assert publications.changed_by_others(ours, name, oids) in (None, {})


@pytest.mark.parametrize("statement", range(7))
def test_a_publication_that_is_dropped_is_not_made_again_for_an_old_slot(
    postgres: Database,
    source: PostgresSource,
    held: PostgresAttachment,
    name: str,
    statement: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held.capture([A], resume=False)
    member = publications.Member(source.describe(None, "a").table_id, "public", "a")
    with connect(postgres.uri) as ours:
        drop_before(ours, postgres, name, statement, monkeypatch)
        with pytest.raises(ChangefeedError, match="was dropped"):
            publications.set_tables(ours, name, [member], create=False)
    assert published(postgres, name) == []


@ALL
def test_children_by_inheritance_are_not_taken_along(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    postgres.execute("create table child () inherits (a)")
    postgres.execute("create table p (id int primary key) partition by range (id)")
    postgres.execute("create table p1 partition of p default")
    p = TableName("shop", "public", "p")
    held.capture([A, p], resume=False)
    assert published(postgres, name) == ["a", "p"]
    held.capture([p], resume=True)
    assert published(postgres, name) == ["p"]


def test_many_at_once_agree(postgres: Database, source: PostgresSource, name: str) -> None:
    sources = [PostgresSource("shop", postgres.uri) for _ in range(6)]
    gate = threading.Barrier(len(sources))

    def go(one: PostgresSource) -> CaptureResult:
        gate.wait()
        return attachment(one, name).capture([A, B], resume=False)

    with ThreadPoolExecutor(len(sources)) as pool:
        made = list(pool.map(go, sources))
    for one in sources:
        one.close()
    assert all(captured == CaptureResult() for captured in made)
    assert attachment(source, name).state().exists
    assert published(postgres, name) == ["a", "b"]


@dataclass
class UnfinishedSlot:
    """A slot that ``maker`` is making, which waits for ``writer`` to end."""

    writer: PsycopgConnection
    maker: PsycopgConnection
    making: Future[Any]
    pool: ThreadPoolExecutor


@pytest.fixture
def unfinished(
    postgres: Database, source: PostgresSource, held: PostgresAttachment, name: str
) -> Iterator[UnfinishedSlot]:
    source.patience.slot = 60.0
    with (
        postgres.connect(autocommit=False) as writer,
        connect(postgres.uri) as maker,
        ThreadPoolExecutor(2) as pool,
    ):
        writer.execute("insert into b values (1)")
        make = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
        making = pool.submit(maker.execute, make, [name])
        until(lambda: held.state().unfinished)
        yield UnfinishedSlot(writer, maker, making, pool)
        writer.rollback()


def test_a_slot_that_another_session_is_making_is_waited_for(
    postgres: Database, unfinished: UnfinishedSlot, held: PostgresAttachment, name: str
) -> None:
    with connect(postgres.uri) as ours, pytest.raises(ChangefeedError, match="have not ended"):
        slots.create_slot(ours, name, seconds=0.3)
    captured = unfinished.pool.submit(held.capture, [A], resume=False)
    until(lambda: published(postgres, name) == ["a"])
    assert not unfinished.making.done() and not captured.done()
    unfinished.writer.commit()
    unfinished.making.result(20)
    assert captured.result(20) == CaptureResult()
    assert held.state().confirmed


def test_a_slot_is_made_when_the_session_that_was_making_it_gives_up(
    postgres: Database, unfinished: UnfinishedSlot, held: PostgresAttachment, name: str
) -> None:
    first = held.state().active_pid
    captured = unfinished.pool.submit(held.capture, [A], resume=False)
    until(lambda: published(postgres, name) == ["a"])
    unfinished.maker.cancel()
    with pytest.raises(psycopg.errors.QueryCanceled):
        unfinished.making.result(20)
    until(lambda: held.state().active_pid not in (first, None))
    unfinished.writer.commit()
    assert captured.result(20) == CaptureResult()
    assert held.state().confirmed


def test_prepare_waits_for_those_who_were_writing(
    postgres: Database, source: PostgresSource, held: PostgresAttachment, name: str
) -> None:
    source.patience.settle = 60.0
    with postgres.connect(autocommit=False) as writer, ThreadPoolExecutor(1) as pool:
        held.capture([B], resume=False)
        writer.execute("insert into a values (1, 'before')")
        waiting = pool.submit(held.capture, [A, B], resume=True)
        until(lambda: published(postgres, name) == ["a", "b"])
        # Others may write and commit meanwhile; only the old writer is waited for.
        postgres.execute("insert into a values (2, 'meanwhile')")
        assert not waiting.done()
        writer.commit()
        assert waiting.result(20) == CaptureResult()
    with connect(postgres.uri) as connection:
        assert publications.settling(connection, name) == set()


def test_who_gave_up_waiting_is_not_forgotten(
    postgres: Database, source: PostgresSource, name: str
) -> None:
    oid = source.describe(None, "a").table_id
    with postgres.connect(autocommit=False) as writer, connect(postgres.uri) as ours:
        writer.execute("insert into a values (1, 'before')")
        publications.set_tables(ours, name, [publications.Member(oid, "public", "a")])
        with pytest.raises(ChangefeedError) as caught:
            publications.settle(ours, name, seconds=0.2)
        assert caught.value.code.number == "CF2005"
        assert f"pid {writer.info.backend_pid}" in caught.value.message
        assert publications.settling(ours, name) == {oid}
        # A second attempt has nothing to add, and waits all the same.
        publications.set_tables(ours, name, [publications.Member(oid, "public", "a")])
        assert publications.settling(ours, name) == {oid}
        writer.rollback()
        publications.settle(ours, name, seconds=20)
        assert publications.settling(ours, name) == set()


@ALL
def test_a_slot_that_waits_names_those_it_waits_for(
    postgres: Database, source: PostgresSource, held: PostgresAttachment
) -> None:
    source.patience.longest_slot = 2.0
    with postgres.connect(autocommit=False) as writer:
        writer.execute("insert into a values (1, 'before')")
        with pytest.raises(ChangefeedError) as caught:
            held.capture([B], resume=False)
        assert caught.value.code.number == "CF2005"
        assert f"pid {writer.info.backend_pid}" in caught.value.message
        writer.rollback()
    until(lambda: made(held))
    assert held.capture([A], resume=False).problems == {}


def made(held: PostgresAttachment) -> bool:
    """Another attempt: other tests of the server may be writing, too."""
    try:
        held.capture([B], resume=False)
    except ChangefeedError as error:
        assert error.code.number == "CF2005"
        return False
    return True


def test_a_locked_table_is_named_and_its_writers_go_on(
    postgres: Database, source: PostgresSource, held: PostgresAttachment, name: str
) -> None:
    source.patience.lock = 0.5
    held.capture([B], resume=False)
    with postgres.connect(autocommit=False) as builder, ThreadPoolExecutor(1) as pool:
        builder.execute("lock table a in share update exclusive mode")
        waiting = pool.submit(held.capture, [A, B], resume=True)
        while not waiting.done():
            postgres.execute("set lock_timeout = '100ms'; insert into a values (1, 'x')")
            postgres.execute("delete from a")
        error = waiting.exception()
        assert isinstance(error, ChangefeedError) and error.code.number == "CF2005"
        assert f"pid {builder.info.backend_pid}" in error.message
    assert held.capture([A, B], resume=True) == CaptureResult()
    assert published(postgres, name) == ["a", "b"]


def test_the_rows_of_a_table_that_joins_under_fire_all_come(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    """The case that older minor releases lose: a decoder that learned "not published"."""
    held.capture([B], resume=False)
    with postgres.connect(autocommit=False) as old, ThreadPoolExecutor(1) as pool:
        old.execute("insert into a values (1, 'before')")
        joining = pool.submit(held.capture, [A, B], resume=True)
        until(lambda: published(postgres, name) == ["a", "b"])
        old.execute("insert into a values (2, 'after')")
        old.commit()
        joining.result(20)
    for i in range(3, 6):
        postgres.execute("insert into a values (%s, 'later')", [i])
    ((inserts,),) = postgres.execute(
        "select count(*) from pg_logical_slot_peek_binary_changes("
        " %s, null, null, 'proto_version', '1', 'publication_names', %s)"
        " where get_byte(data, 0) = ascii('I')"
        "   and position(convert_to('later', 'UTF8') in data) > 0",
        [name, name],
    )
    assert inserts == 3


def test_a_slot_that_is_gone_or_not_ours_is_an_error(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    with pytest.raises(ChangefeedError) as caught:
        held.capture([A], resume=True)
    assert caught.value.code.number == "CF2102"
    assert postgres.execute("select * from pg_publication") == []
    with pytest.raises(ChangefeedError) as caught:
        held.start()
    assert caught.value.code.number == "CF2102"
    postgres.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", [name])
    with pytest.raises(ChangefeedError) as caught:
        held.capture([A], resume=False)
    assert caught.value.code.number == "CF2003"
    assert "test_decoding" in caught.value.detail


@pytest.mark.parametrize("own_postgres", [14, 16, 18], indirect=True)
def test_a_slot_whose_log_was_removed_is_lost(own_postgres: PostgresCluster) -> None:
    for setting in ("max_slot_wal_keep_size = '1MB'", "max_wal_size = '32MB'"):
        own_postgres.execute(f"alter system set {setting}")
    own_postgres.reload()
    with own_postgres.database() as db:
        db.execute("create table a (id int primary key, v text)")
        source = PostgresSource("shop", db.uri)
        held = attachment(source, "lost")
        held.capture([A], resume=False)
        for _ in range(5):
            db.execute("insert into a select i, repeat('x', 500) from generate_series(1, 9000) i")
            db.execute("delete from a")
            db.execute("select pg_switch_wal()")
            db.execute("checkpoint")
        state = held.state()
        assert state.lost
        with pytest.raises(ChangefeedError) as caught:
            held.capture([A], resume=True)
        assert caught.value.code.number == "CF2102"
        held.release()
        assert not held.state().exists
        source.close()


def test_a_dead_reader_is_ended_before_the_slot_is_dropped(
    postgres: Database, held: PostgresAttachment, name: str
) -> None:
    held.capture([A], resume=False)
    with closing(psycopg.connect(postgres.uri, replication="database", autocommit=True)) as reader:
        # Starts the stream and never reads it again: a client that hangs.
        reader.pgconn.send_query(
            f"START_REPLICATION SLOT {name} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{name}')".encode()
        )
        until(lambda: held.state().active_pid is not None)
        with connect(postgres.uri) as connection:
            assert slots.drop_slot(connection, name, seconds=0.2)
            assert not slots.drop_slot(connection, name)


@ALL
def test_positions_rise_above_every_commit(postgres: Database, source: PostgresSource) -> None:
    before = source.current_position()
    with postgres.connect() as writer:
        writer.execute("set synchronous_commit = off")
        writer.execute("insert into a values (1)")
        ((inserted,),) = writer.execute("select pg_current_wal_insert_lsn()::text").fetchall()
    after = source.current_position()
    high, low = inserted.split("/")
    assert before < f"{(int(high, 16) << 32) + int(low, 16):016X}" <= after
    assert len(before) == 16


def test_the_identity_is_of_server_and_database(postgres: Database, source: PostgresSource) -> None:
    other = PostgresSource("shop", postgres.server.uri("postgres"))
    assert source.identity() == source.identity() != other.identity()
    assert source.identity().partition("/")[0] == other.identity().partition("/")[0]
    other.close()


def test_names_fit_and_differ(source: PostgresSource) -> None:
    names = ["shop", "Shop", "sh-op", "sh.op", "x" * 80, "x" * 81]
    found = [object_name("abcdef", name) for name in names]
    assert found[0] == "changefeed_abcdef_shop"
    assert len(set(found)) == len(found)
    for name in found:
        assert len(name) <= 63 and name.replace("_", "").isalnum() and name == name.lower()
    assert source.attach("abcdef", None).memo == {"slot": found[0], "publication": found[0]}
