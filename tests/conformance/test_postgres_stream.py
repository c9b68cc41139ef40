"""The replication stream against real servers: every kind of change, and what goes wrong."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest
from psycopg import pq

from changefeed.core.clock import ManualClock, Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, Flush, Frontier, SchemaChange, Truncate
from changefeed.core.schema import BeforeImage
from changefeed.sources.base import StreamFallback
from changefeed.sources.postgres.connect import LateSession, connect, connect_replication
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.idle_changes import IdleChanges, _Look
from changefeed.sources.postgres.lookup import Lookup
from changefeed.sources.postgres.lsn import lsn_of, parse_lsn, position_of
from changefeed.sources.postgres.relations import Relations
from changefeed.sources.postgres.storage_changes import StorageWatch
from changefeed.sources.postgres.stream import ReplicationStream
from changefeed.sources.postgres.types import schema_of
from changefeed.sources.postgres.wire import ReplicationConnection, Row
from tests.conformance.conftest import ALL
from tests.conftest import PostgresFactory
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.postgres_tail import PUBLICATION, SLOT, Catalog, Tail, prepare, tailing
from tests.helpers.waiting import until
from tests.services.postgres import Database, PostgresCluster

pytestmark = pytest.mark.postgres

_BIG = "(select string_agg(md5(i::text), '') from generate_series(1, 300) i)"


def _brief(tail: Tail, table: str | None = None) -> list[tuple[str, Any, Any]]:
    return [(c.op, c.before, c.after) for c in tail.changes(table)]


@ALL
def test_changes_of_a_table_with_a_key(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key, a text)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 'x'), (2, null)")
        postgres.execute("update t set a = 'y' where id = 1")
        postgres.execute("update t set id = 3 where id = 2")
        postgres.execute("delete from t where id = 1")
        tail.catch_up()
    assert _brief(tail) == [
        ("c", None, {"id": 1, "a": "x"}),
        ("c", None, {"id": 2, "a": None}),
        ("u", {"id": 1}, {"id": 1, "a": "y"}),
        ("d", {"id": 2}, None),
        ("c", None, {"id": 3, "a": None}),
        ("d", {"id": 1}, None),
    ]
    changes = tail.changes()
    assert [c.ordinal for c in changes] == [0, 1, 0, 0, 1, 0]
    assert [c.seq for c in changes] == [1, 2, 3, 4, 5, 6]
    assert len({c.xid for c in changes}) == 4
    commits = [position for flush in tail.flushes for position in flush.commits.position]
    assert commits == sorted(commits) and len(commits) == 4


def test_identity_full_carries_whole_rows(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table t (id int primary key, a text); alter table t replica identity full"
    )
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 'x')")
        postgres.execute("update t set a = 'y'")
        postgres.execute("update t set id = 2")
        postgres.execute("delete from t")
        tail.catch_up()
    assert _brief(tail) == [
        ("c", None, {"id": 1, "a": "x"}),
        ("u", {"id": 1, "a": "x"}, {"id": 1, "a": "y"}),
        ("d", {"id": 1, "a": "y"}, None),
        ("c", None, {"id": 2, "a": "y"}),
        ("d", {"id": 2, "a": "y"}, None),
    ]
    assert tail.batches("t")[0].schema.key == (0,)


def test_identity_index_and_nothing(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table i (id int primary key, code text not null, kind int not null);"
        "create unique index u on i (kind, code);"
        "alter table i replica identity using index u;"
        "create table n (id int primary key, a text);"
        "alter table n replica identity nothing;"
    )
    prepare(postgres, "i, n", "publish = 'insert, update, delete'")
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into i values (1, 'a', 7); update i set code = 'b'; delete from i")
        postgres.execute("insert into n values (5, 'x')")
        tail.catch_up()
    assert _brief(tail, "i") == [
        ("c", None, {"id": 1, "code": "a", "kind": 7}),
        ("d", {"code": "a", "kind": 7}, None),
        ("c", None, {"id": 1, "code": "b", "kind": 7}),
        ("d", {"code": "b", "kind": 7}, None),
    ]
    schema = tail.batches("i")[0].schema
    assert [c.name for c in schema.key_columns] == ["kind", "code"]
    assert _brief(tail, "n") == [("c", None, {"id": 5, "a": "x"})]
    assert tail.batches("n")[0].schema.before_image is BeforeImage.KEY


def test_table_without_a_key_counts_equal_rows(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (a int, b text); alter table t replica identity full")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, null), (1, null)")
        postgres.execute("update t set a = a")
        postgres.execute("update t set b = 'x' where ctid = (select min(ctid) from t)")
        tail.catch_up()
    row = {"a": 1, "b": None}
    assert _brief(tail) == [
        ("c", None, row),
        ("c", None, row),
        ("u", row, row),
        ("u", row, row),
        ("d", row, None),
        ("c", None, {"a": 1, "b": "x"}),
    ]
    assert all(change.last for change in tail.changes())
    assert tail.batches("t")[0].schema.keyless


def test_key_written_several_times_in_one_transaction(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table t (id int primary key, a text); alter table t replica identity full;"
        "insert into t values (1, 'old'), (2, 'old')"
    )
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute(
            "begin; update t set a = 'mid' where id = 1; update t set a = 'new' where id = 1;"
            "delete from t where id = 2; insert into t values (2, 'again'), (3, 'x');"
            "delete from t where id = 3; commit"
        )
        tail.catch_up()
    assert [(c.op, c.last, c.before, c.after) for c in tail.changes()] == [
        ("u", False, {"id": 1, "a": "old"}, {"id": 1, "a": "mid"}),
        ("u", True, {"id": 1, "a": "old"}, {"id": 1, "a": "new"}),
        ("d", False, {"id": 2, "a": "old"}, None),
        ("u", True, {"id": 2, "a": "old"}, {"id": 2, "a": "again"}),
        ("c", False, None, {"id": 3, "a": "x"}),
        ("d", False, {"id": 3, "a": "x"}, None),
    ]


# -------------------------------------------------------------------------- large values


@pytest.mark.parametrize("small", [0, 1000])
def test_unchanged_large_values(postgres: Database, tmp_path: Path, small: int) -> None:
    """From the old row with FULL, else looked up, else named as missing."""
    postgres.execute(
        "create table f (id int primary key, n int, big text);"
        "create table d (id int primary key, n int, big text);"
        "alter table f replica identity full;"
        "alter table f alter big set storage external; alter table d alter big set storage external"
    )
    prepare(postgres)
    for table in ("f", "d"):
        postgres.execute(
            f"insert into {table} select i, 0, {_BIG} || i from generate_series(1, 3) i"
        )
    [(big,)] = postgres.execute(f"select {_BIG}")
    postgres.execute("update f set n = 1; update f set id = 10 where id = 1")
    postgres.execute(
        "update d set n = 1; update d set id = 10 where id = 1; delete from d where id = 2"
    )
    with tailing(postgres, tmp_path, small=small, lookup=Lookup(postgres.uri).fetch) as tail:
        tail.catch_up()
    updates = [c for c in tail.changes("f") if c.op == "u"]
    assert [c.after and c.after["big"] for c in updates] == [f"{big}{i}" for i in (1, 2, 3)]
    assert [c.before and c.before["big"] for c in updates] == [f"{big}{i}" for i in (1, 2, 3)]
    moved = tail.changes("f")[-1]
    assert moved.after == {"id": 10, "n": 1, "big": f"{big}1"}
    found = {(c.op, c.after["id"]): c.after["big"] for c in tail.changes("d") if c.after}
    # Row 1 is row 10 by now and row 2 is gone: nobody can say what they held.
    assert found[("u", 1)] is None and found[("u", 2)] is None
    assert found[("u", 3)] == f"{big}3" and found[("c", 10)] == f"{big}1"
    missing = [
        row["missing"] for batch in tail.batches("d") for row in batch.rows.to_pylist()
        if row["op"] == "u"
    ]  # fmt: skip
    assert missing == ['["big"]', '["big"]', None]


@pytest.mark.parametrize("streamed", [False, True])
def test_large_values_of_a_later_transaction_are_not_taken(
    postgres: Database, tmp_path: Path, streamed: bool
) -> None:
    """A value counts where the row is still the version that the change made."""
    postgres.execute(
        "create table p (id int primary key, n int, big text) partition by range (id);"
        "create table p1 partition of p for values from (0) to (10);"
        "alter table p alter big set storage external;"
        "alter table p1 alter big set storage external;"
        "create table filler (id int primary key)"
    )
    if streamed:
        work = "set logical_decoding_work_mem = 64"
        postgres.execute(f'alter database "{postgres.name}" {work}')
    prepare(postgres, "p, filler", "publish_via_partition_root = true")
    postgres.execute(f"insert into p select i, 0, {_BIG} || i from generate_series(1, 4) i")
    [(big,)] = postgres.execute(f"select {_BIG}")
    more = "insert into filler select generate_series(1, 5000);" if streamed else ""
    postgres.execute(
        "begin; update p set n = 1 where id <= 3; savepoint s;"
        f"update p set n = 1 where id = 4; {more} commit"
    )
    postgres.execute(f"update p set big = {_BIG} || 'later' where id = 2")
    postgres.execute("update p set n = 2 where id = 3")
    with tailing(postgres, tmp_path, lookup=Lookup(postgres.uri).fetch) as tail:
        tail.catch_up()
    rows = [row for batch in tail.batches("p") for row in batch.rows.to_pylist()]
    found = {
        (row["a0"], row["a1"]): row["a2"] or row["missing"]
        for row in rows if row["op"] == "u" and row["a2"] != f"{big}later"
    }  # fmt: skip
    assert found == {
        (1, 1): f"{big}1",
        (2, 1): '["big"]',
        (3, 1): '["big"]',
        (3, 2): f"{big}3",
        # The number of a subtransaction is in the stream of large transactions alone.
        (4, 1): f"{big}4" if streamed else '["big"]',
    }


# ------------------------------------------------------------------------ schema changes


def test_schema_changes_in_mid_stream(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key, a int)")
    prepare(postgres)
    steps = [
        ("alter table t add b text", "insert into t values (2, 2, 'b')", False),
        ("alter table t add c int default 9", "insert into t values (3, 3, 'b', 1)", True),
        ("alter table t alter a type bigint", "insert into t values (4, 4, 'b', 1)", False),
        ("alter table t alter c type text", "insert into t values (5, 5, 'b', 'c')", True),
        ("alter table t rename b to bb", "insert into t values (6, 6, 'b', 'c')", False),
        ("alter table t drop a", "insert into t values (7, 'b', 'c')", False),
        ("alter table t replica identity full", "insert into t values (8, 'b', 'c')", False),
    ]
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 1)")
        tail.catch_up()
        for ddl, insert, _ in steps:
            postgres.execute(ddl)
            postgres.execute(insert)
            tail.catch_up()
    changes = [e for e in tail.events if isinstance(e, SchemaChange)]
    assert [change.rewritten for change in changes] == [rewritten for *_, rewritten in steps]
    shapes = [[c.name for c in change.new.columns] for change in changes]
    assert shapes == [
        ["id", "a", "b"], ["id", "a", "b", "c"], ["id", "a", "b", "c"], ["id", "a", "b", "c"],
        ["id", "a", "bb", "c"], ["id", "bb", "c"], ["id", "bb", "c"],
    ]  # fmt: skip
    renamed = changes[4]
    assert renamed.old.columns[2].column_id == renamed.new.columns[2].column_id
    assert changes[6].new.before_image is BeforeImage.FULL
    versions = [b.schema.version for b in tail.batches("t")]
    assert versions == sorted(versions) and len(set(versions)) == 8
    seqs = [e.seq for e in changes] + [c.seq for c in tail.changes()]
    assert sorted(seqs) == list(range(1, 16))


def _shape_changes(tail: Tail) -> list[SchemaChange]:
    return [e for e in tail.events if isinstance(e, SchemaChange)]


def _more_changes(tail: Tail, than: int) -> bool:
    return len(_shape_changes(tail)) > than


@ALL
def test_a_schema_change_that_no_row_follows(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key, a int)")
    prepare(postgres)
    statements = [
        ("alter table t add b int default 5", True),
        ("alter table t rename a to c", False),
        ("alter table t alter b set not null", False),
        ("alter table t drop constraint t_pkey", False),
        ("alter table t drop c", False),
    ]
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 1)")
        tail.catch_up()
        for statement, _ in statements:
            known = len(_shape_changes(tail))
            postgres.execute(statement)
            tail.wait_for(partial(_more_changes, tail, known))
        at = [change.at for change in _shape_changes(tail)]
        assert tail.frontier.at >= at[-1] and at == sorted(set(at))
        postgres.execute("alter table t replica identity full; insert into t values (2, 7)")
        tail.catch_up()
    changes = _shape_changes(tail)
    assert [change.rewritten for change in changes] == [*(r for _, r in statements), False]
    assert [c.name for c in changes[4].new.columns] == ["id", "b"]
    assert changes[3].new.keyless
    assert changes[5].old == changes[4].new, "the row had a change of its own to announce"
    assert [c.after for c in tail.changes()] == [{"id": 1, "a": 1}, {"id": 2, "b": 7}]


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_schema_change_of_a_table_that_was_never_written(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    catalog = Catalog()
    with connect(postgres.uri) as session:
        [(oid,)] = session.execute("select 'public.t'::regclass::oid::int8").fetchall()
        catalog.intern(schema_of(read_details(session, [oid])[oid], "src"))
    postgres.execute("alter table t add a int")
    with tailing(postgres, tmp_path, catalog=catalog) as tail:
        tail.wait_for(lambda: _shape_changes(tail))
        postgres.execute("insert into t values (1, 2)")
        tail.catch_up()
    [change] = _shape_changes(tail)
    assert [c.name for c in change.new.columns] == ["id", "a"]
    assert tail.batches("t")[0].schema == change.new


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_what_a_row_has_announced_is_not_a_change_again(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
        for n in range(2, 6):
            postgres.execute(f"alter table t add c{n} int")
            postgres.execute(f"insert into t values ({n})")
        tail.catch_up()
        postgres.execute("alter table t rename to u; create table t (id int primary key, x int)")
        tail.catch_up()
        postgres.execute("select pg_logical_emit_message(true, 'x', 'x')")
        tail.catch_up()
    changes = _shape_changes(tail)
    assert [len(c.new.columns) for c in changes] == [2, 3, 4, 5]
    assert len({(c.old.version, c.new.version) for c in changes}) == 4


class Watched(IdleChanges):
    """Looks at nothing, as if it took so many seconds; the log ends where the stream is, or at the
    next hundred."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.clock, self.looks, self.seconds = ManualClock(), list[int](), seconds
        storage = StorageWatch(None)
        super().__init__(LateSession(""), "", cast(Relations, None), storage, self.clock)

    def _read(self, after: int) -> Any:
        self.looks.append(after)
        self.clock.advance(self.seconds)
        return _Look(after + -after % 100, after, {})


def test_the_catalog_is_asked_only_while_the_log_grows() -> None:
    watched = Watched()
    assert watched.due(50) == [] and watched.looks == [50]
    watched.due(99)
    watched.due(100, hasty=True)
    watched.due(100, hasty=True)
    watched.due(100, hasty=True)
    assert watched.looks == [50, 100], "nothing was written since"
    watched.due(101, hasty=True)
    assert watched.looks == [50, 100, 101]


def test_a_place_is_examined_when_a_look_came_behind_it() -> None:
    watched = Watched(seconds=1.0)
    watched.due(100)
    assert watched.examined(100) and not watched.examined(101)
    watched.due(200)
    assert not watched.examined(200), "looks take five percent of the time at most"
    watched.due(200, hasty=True)
    assert watched.examined(200)
    watched.clock.advance(20.0)
    watched.look(250)
    assert watched.examined(250) and not watched.examined(251)
    watched.due(300)
    assert watched.looks == [100, 200, 250] and not watched.examined(300)


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_who_waits_for_a_place_gets_the_shapes_of_it(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However seldom the catalog is looked at, because it is slow."""

    def slowly(*given: Any) -> Any:
        time.sleep(0.1)
        return read_details(*given)

    monkeypatch.setattr("changefeed.sources.postgres.idle_changes.read_details", slowly)
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
        for known in range(2):
            postgres.execute(f"alter table t add c{known} int")
            tail.catch_up()
            assert len(_shape_changes(tail)) == known + 1


def test_schema_change_inside_one_batch(postgres: Database, tmp_path: Path) -> None:
    """Rows of before and after arrive together, also inside one transaction."""
    postgres.execute("create table t (id int primary key, a int)")
    prepare(postgres)
    postgres.execute("insert into t values (1, 1)")
    postgres.execute(
        "begin; insert into t values (2, 2); alter table t add b text default 'q';"
        "insert into t values (3, 3, 'b'); commit"
    )
    postgres.execute("alter table t drop a; insert into t values (4, 'b')")
    with tailing(postgres, tmp_path) as tail:
        tail.catch_up()
    assert [c.after for c in tail.changes()] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2},
        {"id": 3, "a": 3, "b": "b"},
        {"id": 4, "b": "b"},
    ]
    kinds = [kind.__name__ for kind, _ in groupby(tail.events, type)]
    assert kinds == ["ChangeBatch", "SchemaChange", "ChangeBatch", "SchemaChange", "ChangeBatch"]


def test_change_while_nobody_looked(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    catalog = Catalog()
    with tailing(postgres, tmp_path, catalog=catalog) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
    postgres.execute("alter table t add a int; insert into t values (2, 2)")
    with tailing(postgres, tmp_path, catalog=catalog, start=tail.frontier) as tail:
        tail.catch_up()
    [change, batch] = tail.events
    assert isinstance(change, SchemaChange) and isinstance(batch, ChangeBatch)
    assert change.at == next(batch.changes()).at


def test_the_last_acknowledgement_of_an_earlier_reader_is_waited_for(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes it after the next reader has come, and sends nothing below it any more: what
    it then leaves out is no other history."""
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with monkeypatch.context() as silent:
        silent.setattr(ReplicationStream, "acknowledge", lambda *_: None)
        with tailing(postgres, tmp_path) as tail:
            postgres.execute("insert into t values (1)")
            tail.catch_up()
    earlier = ReplicationConnection(postgres.uri)
    earlier.start_replication(SLOT, 0, {"proto_version": "1", "publication_names": PUBLICATION})
    query, ended = ReplicationConnection.query, threading.Event()
    active = "select 1 from pg_replication_slots where active"

    def late(connection: ReplicationConnection, sql: str) -> list[Row]:
        rows = query(connection, sql)
        if "confirmed_flush_lsn" in sql and not ended.is_set():
            ended.set()
            earlier.send_status(lsn_of(tail.frontier.position))
            earlier.close()
            until(lambda: not postgres.execute(active))
        return rows

    monkeypatch.setattr(ReplicationConnection, "query", late)
    with tailing(postgres, tmp_path, start=tail.frontier, catalog=tail.catalog) as next_tail:
        postgres.execute("insert into t values (2)")
        next_tail.catch_up()
    assert ended.is_set()
    assert [change.after for change in next_tail.changes()] == [{"id": 2}]


def test_renamed_table_is_announced(postgres: Database, tmp_path: Path) -> None:
    """Nothing silent: rows under the new name follow a change that names both."""
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
        postgres.execute("alter table t rename to other; insert into other values (2)")
        tail.catch_up()
    [change] = [e for e in tail.events if isinstance(e, SchemaChange)]
    assert (change.old.table.name, change.new.table.name) == ("t", "other")
    assert not change.rewritten
    assert [c.table.name for c in tail.changes()] == ["t", "other"]


def test_key_of_a_full_table_changes(postgres: Database, tmp_path: Path) -> None:
    """With FULL the messages look the same; the catalog tells of the new primary key."""
    postgres.execute("create table t (a int not null, b int not null)")
    postgres.execute("alter table t replica identity full")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 2)")
        tail.catch_up()
        postgres.execute("alter table t add primary key (b, a)")
        postgres.execute("insert into t values (3, 4)")
        tail.catch_up()
    first, second = tail.batches("t")
    assert first.schema.keyless and second.schema.key == (1, 0)


@pytest.mark.parametrize("postgres", [15, 18], indirect=True)
def test_publication_with_a_column_list(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key, a text, secret text)")
    prepare(postgres, "t (id, a)")
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1, 'x', 'hidden')")
        tail.catch_up()
    assert _brief(tail) == [("c", None, {"id": 1, "a": "x"})]
    assert [c.column_id for c in tail.batches("t")[0].schema.columns] == [1, 2]


def test_generated_columns_stay_out(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table t (id int primary key, a int, twice int generated always as (a * 2) stored,"
        " b text)"
    )
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t (id, a, b) values (1, 2, 'x')")
        tail.catch_up()
    assert _brief(tail) == [("c", None, {"id": 1, "a": 2, "b": "x"})]


def test_prepared_transactions_come_when_they_commit(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("begin; insert into t values (1); prepare transaction 'one'")
        postgres.execute("begin; insert into t values (2); prepare transaction 'two'")
        postgres.execute("insert into t values (3)")
        postgres.execute("commit prepared 'one'")
        postgres.execute("rollback prepared 'two'")
        tail.catch_up()
    assert [c.after for c in tail.changes()] == [{"id": 3}, {"id": 1}]


def test_text_that_is_not_utf8(postgres: Database, tmp_path: Path) -> None:
    """A database without an encoding holds what it likes: said, never guessed."""
    name = f"{postgres.name}_ascii"
    postgres.execute(f"create database {name} encoding 'SQL_ASCII' template template0 locale 'C'")
    try:
        ascii_only = Database(postgres.server, name)
        ascii_only.execute("create table t (id int primary key, a text)")
        prepare(ascii_only)
        ascii_only.execute("insert into t values (1, 'plain')")
        ascii_only.execute("insert into t select 2, convert_from('\\xff', 'SQL_ASCII')")
        error = Tail(ascii_only, tmp_path).wait_for_end()
        assert error is not None and error.code.number == "CF4001"
    finally:
        postgres.server._drop(name)


def test_truncate(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key); create table u (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute(
            "begin; insert into t values (1); truncate t, u; insert into t values (2); commit"
        )
        tail.catch_up()
    first, *marks, second = tail.events
    assert isinstance(first, ChangeBatch) and isinstance(second, ChangeBatch)
    assert {m.schema.table.name for m in marks if isinstance(m, Truncate)} == {"t", "u"}
    assert (
        len({m.at for m in marks if isinstance(m, Truncate)} | {c.at for c in tail.changes()}) == 1
    )
    assert [c.seq for c in tail.changes()] == [1, 4]


@pytest.mark.parametrize("postgres", [14, 17], indirect=True)
def test_partitions_come_as_their_root(postgres: Database, tmp_path: Path) -> None:
    postgres.execute(
        "create table p (id int primary key, a text) partition by range (id);"
        "create table p1 partition of p for values from (0) to (10);"
        "create table p2 (a text, id int not null);"
        "alter table p attach partition p2 for values from (10) to (20);"
    )
    prepare(postgres, "p", "publish_via_partition_root = true")
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into p values (1, 'x'), (11, 'y')")
        postgres.execute("update p set a = 'z' where id = 11")
        postgres.execute("update p set id = 12 where id = 1")
        postgres.execute("truncate p")
        tail.catch_up()
    assert {b.schema.table.name for b in tail.batches("p")} == {"p"}
    assert _brief(tail) == [
        ("c", None, {"id": 1, "a": "x"}),
        ("c", None, {"id": 11, "a": "y"}),
        ("u", {"id": 11}, {"id": 11, "a": "z"}),
        ("d", {"id": 1}, None),
        ("c", None, {"id": 12, "a": "x"}),
    ]
    assert [e.schema.table.name for e in tail.events if isinstance(e, Truncate)] == ["p"]


# -------------------------------------------------------------------- large transactions


@ALL
def test_large_transactions_are_streamed(postgres: Database, tmp_path: Path) -> None:
    """One that commits, one that is rolled back, one with a part rolled back; small ones
    between them come first."""
    postgres.execute(
        "create table t (id int primary key, a text); create table s (id int primary key)"
    )
    postgres.execute(f'alter database "{postgres.name}" set logical_decoding_work_mem = 64')
    prepare(postgres)
    with (
        tailing(postgres, tmp_path, batch_bytes=256 << 10) as tail,
        postgres.connect(autocommit=False) as one,
        postgres.connect(autocommit=False) as two,
    ):
        one.execute("insert into t select i, 'one' || i from generate_series(1, 20000) i")
        two.execute("insert into t select i, 'two' || i from generate_series(30001, 40000) i")
        postgres.execute("insert into s values (1)")
        one.execute("savepoint x")
        one.execute("insert into t select i, 'undone' from generate_series(50001, 60000) i")
        one.execute("truncate s")
        one.execute("rollback to x")
        one.execute("update t set a = 'mine' where id <= 10")
        tail.catch_up()
        assert [c.table.name for c in tail.changes()] == ["s"]
        two.rollback()
        one.commit()
        postgres.execute("insert into s values (2)")
        tail.catch_up()
    rows = tail.changes("t")
    assert [c.after and c.after["id"] for c in rows[:20000]] == list(range(1, 20001))
    assert [(c.op, c.after and c.after["a"]) for c in rows[20000:]] == [("c", "mine")] * 10
    assert [c.last for c in rows] == [False] * 10 + [True] * 20000
    assert [c.ordinal for c in rows] == list(range(20010))
    assert len({(c.at, c.xid) for c in rows}) == 1
    assert [c.seq for c in tail.changes()] == list(range(1, 20013))
    assert not [e for e in tail.events if isinstance(e, Truncate)]
    assert sum(f.frontier is None for f in tail.flushes) >= 1
    assert list((tmp_path / "spool").iterdir()) == []


def test_large_transaction_not_streamed_is_cut(postgres: Database, tmp_path: Path) -> None:
    """Below the server's limit a transaction comes whole, and may still be above ours."""
    postgres.execute("create table t (id int primary key, a text)")
    prepare(postgres)
    postgres.execute("insert into t values (0, 'before')")
    postgres.execute("insert into t select i, repeat('x', 50) from generate_series(1, 20000) i")
    with tailing(postgres, tmp_path, batch_bytes=128 << 10) as tail:
        tail.catch_up()
    partial = [f.frontier is None for f in tail.flushes if f.events]
    assert any(partial) and not partial[-1]
    assert [c.after and c.after["id"] for c in tail.changes()] == list(range(20001))
    assert len({c.at for c in tail.changes()}) == 2


def test_value_larger_than_the_buffer(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key, a text)")
    prepare(postgres)
    postgres.execute("insert into t values (1, repeat('0123456789', 500000)), (2, 'small')")
    with tailing(postgres, tmp_path, batch_bytes=64 << 10) as tail:
        tail.catch_up()
    values = [c.after["a"] for c in tail.changes() if c.after]
    assert values == ["0123456789" * 500000, "small"]


# --------------------------------------------------------------------- slots and restarts


def test_restart_from_the_durable_frontier(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    seen: list[int] = []
    frontier = Frontier(Timestamp.ZERO, "")
    for part in range(4):
        postgres.execute(f"insert into t values ({part * 2}), ({part * 2 + 1})")
        with tailing(postgres, tmp_path, start=frontier) as tail:
            tail.catch_up()
            if part % 2:
                postgres.execute(f"insert into t values ({100 + part})")
                tail.catch_up()
        assert all(change.at > frontier.at for change in tail.changes())
        assert [c.seq for c in tail.changes()][:1] == [frontier.seq + 1]
        seen += [c.after["id"] for c in tail.changes() if c.after]
        frontier = tail.frontier
    assert seen == [0, 1, 2, 3, 101, 4, 5, 6, 7, 103]


def test_unacknowledged_changes_come_again(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    start = Frontier(Timestamp.ZERO, "")
    postgres.execute("insert into t values (1)")
    flushes: list[list[Any]] = []
    for _ in range(2):
        stream = Tail(postgres, tmp_path, start=start)
        stream.stream.acknowledge = lambda position: None  # type: ignore[method-assign]
        stream.catch_up()
        stream.close()
        flushes.append([(c.seq, c.at, c.after) for c in stream.changes()])
    assert flushes[0] == flushes[1]


def test_slot_is_gone(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    postgres.execute(f"select pg_drop_replication_slot('{SLOT}')")
    error = Tail(postgres, tmp_path).wait_for_end()
    assert error is not None and error.code.number == "CF2102"


def test_slot_was_made_anew(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
    drop_slot(postgres, SLOT)
    postgres.execute("insert into t values (2)")
    postgres.execute(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    error = Tail(postgres, tmp_path, start=tail.frontier).wait_for_end()
    assert error is not None and error.code.number == "CF2103"


def test_another_server(postgres: Database, tmp_path: Path) -> None:
    prepare(postgres)
    error = Tail(postgres, tmp_path, identity="1/shop").wait_for_end()
    assert error is not None and error.code.number == "CF2104"


def test_what_cannot_be_decoded_while_streamed_is_read_at_commit(
    own_postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error of the server's decoder: the next stream asks for no streaming."""
    server = own_postgres_factory(16, logical_decoding_work_mem="64kB")
    with server.database() as database:
        database.execute("create table t (id int primary key, a text)")
        prepare(database)
        fields = b"SERROR\0CXX000\0Mcould not map filenumber to relation OID\0\0"
        failing = [b"E" + (len(fields) + 4).to_bytes(4, "big") + fields]
        receive = ReplicationConnection.receive_into

        def broken(connection: ReplicationConnection, view: memoryview) -> int:
            if not failing:
                return receive(connection, view)
            message = failing.pop()
            view[: len(message)] = message
            return len(message)

        monkeypatch.setattr(ReplicationConnection, "receive_into", broken)
        fell_back: list[bool] = []
        tail = Tail(database, tmp_path, decoding_failed=lambda: fell_back.append(True))
        error = tail.wait_for_end()
        assert isinstance(error, StreamFallback) and fell_back == [True]
        assert "could not map filenumber" in error.message

        failing.append(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
        tail = Tail(database, tmp_path, streaming=False)
        error = tail.wait_for_end()
        assert error is not None and not isinstance(error, StreamFallback)

        with tailing(database, tmp_path, streaming=False) as tail:
            database.execute(f"insert into t select i, {_BIG} from generate_series(1, 50) i")
            tail.catch_up()
            [(streamed,)] = database.execute("select stream_txns from pg_stat_replication_slots")
        assert [c.after["id"] for c in tail.changes() if c.after] == list(range(1, 51))
        assert streamed == 0


def test_slot_in_use_is_tried_again(postgres: Database, tmp_path: Path) -> None:
    """Its reader reports nothing, as one whose host was lost."""
    prepare(postgres)
    with closing(connect_replication(postgres.uri)) as silent:
        publication = "proto_version '1', publication_names 'tail'"
        begin = f"START_REPLICATION SLOT tail LOGICAL 0/0 ({publication})"
        assert silent.pgconn.exec_(begin.encode()).status == pq.ExecStatus.COPY_BOTH
        error = Tail(postgres, tmp_path, slot_patience=0.1, rival_patience=1.0).wait_for_end()
    assert error is not None and error.code.number == "CF2101"


def test_a_reader_of_a_later_term_ends_an_earlier_one(postgres: Database, tmp_path: Path) -> None:
    """A node that is cut off from the state reads on, and holds the slot; it never knows."""
    prepare(postgres)
    postgres.execute("create table t (id int primary key)")
    uri = f"{postgres.uri}?application_name=a-name-with-more-than-twelve-characters"
    earlier = Tail(postgres, tmp_path / "a", uri=uri, term=9)
    earlier.catch_up()
    with tailing(postgres, tmp_path / "b", term=10, slot_patience=60.0) as tail:
        error = earlier.wait_for_end()
        assert error is not None and error.code.number == "CF2101"
        tail.catch_up()  # The slot is free for a moment, and whose question comes first has it.
        # It asks for the slot again, as it cannot see that it has no right to it.
        again = Tail(postgres, tmp_path / "c", term=9, slot_patience=0.1, rival_patience=1.0)
        postgres.execute("insert into t values (1)")
        tail.catch_up()
        assert [change.after for change in tail.changes()] == [{"id": 1}]
        error = again.wait_for_end()
        assert error is not None and error.code.number in ("CF2101", "CF2109")


def test_of_two_nodes_on_copies_of_a_state_the_second_stops(
    postgres: Database, tmp_path: Path
) -> None:
    """Both keep on reading otherwise, in turns, each of them a part."""
    prepare(postgres)
    postgres.execute("create table t (id int primary key)")
    with tailing(postgres, tmp_path / "a", term=3) as tail:
        tail.catch_up()
        # Copies of a state count terms alike.
        other = Tail(postgres, tmp_path / "b", term=3, slot_patience=0.1, rival_patience=4.0)
        ended: list[ChangefeedError | None] = []
        waiter = threading.Thread(target=lambda: ended.append(other.wait_for_end()))
        waiter.start()
        deadline = time.monotonic() + 30
        for number in itertools.count():
            if ended or time.monotonic() > deadline:
                break
            # What is acknowledged is reported at once.
            postgres.execute(f"insert into t values ({number})")
            tail.catch_up()
        waiter.join()
    [error] = ended
    assert error is not None and error.code.number == "CF2109"
    assert "another node reads replication slot" in error.message and "lives" in error.message


def test_server_ends_the_connection(postgres: Database, tmp_path: Path) -> None:
    prepare(postgres)
    tail = Tail(postgres, tmp_path)
    tail.catch_up()
    postgres.execute("select pg_terminate_backend(active_pid) from pg_replication_slots")
    error = tail.wait_for_end()
    assert error is not None and error.code.number == "CF2101"


def test_server_restarts(own_postgres: PostgresCluster, tmp_path: Path) -> None:
    """An orderly stop does not wait for us, ends the stream to be tried again, loses nothing;
    a changed setting in mid-stream is no event."""
    with own_postgres.database() as database:
        database.execute("create table t (id int primary key)")
        prepare(database)
        tail = Tail(database, tmp_path)
        database.execute("insert into t values (1)")
        tail.catch_up()
        # Not set by us, and reported to every session at once when it changes.
        database.execute("alter system set standard_conforming_strings = off")
        own_postgres.reload()
        tail.wait_for(partial(_later_than, tail, tail.frontier.at.wall + 300_000_000))
        database.execute("insert into t values (2)")
        tail.catch_up()
        own_postgres.restart()
        error = tail.wait_for_end()
        # It was not killed: it waits for who listens for a minute, and is killed sooner.
        assert "database system is shut down" in own_postgres.log_file.read_text()
        assert error is not None and error.code.number == "CF2101"
        database.execute("insert into t values (3)")
        with tailing(database, tmp_path, start=tail.frontier) as again:
            again.catch_up()
    assert [c.after for c in (*tail.changes(), *again.changes())] == [{"id": i} for i in (1, 2, 3)]


def _later_than(tail: Tail, wall: int) -> bool:
    return tail.frontier.at.wall > wall


def test_acknowledged_position_reaches_the_slot(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        postgres.execute("insert into t values (1)")
        tail.catch_up()
        position = tail.frontier.position
        deadline = time.monotonic() + 60
        behind = "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
        while int(postgres.execute(behind)[0][0]) < int(position, 16):
            assert time.monotonic() < deadline
            time.sleep(0.02)


# ----------------------------------------------------------------------------- liveness


def test_slow_consumer_is_not_taken_for_dead(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    postgres.execute(f'alter database "{postgres.name}" set wal_sender_timeout = 600')
    slept = threading.Event()

    def slow(flush: Flush) -> None:
        if flush.events and not slept.is_set():
            slept.wait(2.5)  # four times the server's patience
            slept.set()

    with tailing(postgres, tmp_path, on_flush=slow) as tail:
        postgres.execute("insert into t values (1)")
        tail.wait_for(lambda: slept.is_set())
        postgres.execute("insert into t values (2)")
        tail.catch_up()
    assert [c.after for c in tail.changes()] == [{"id": 1}, {"id": 2}]


def test_idle_source_moves_the_frontier(postgres: Database, tmp_path: Path) -> None:
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail:
        tail.catch_up()
        before = tail.frontier.at
        tail.wait_for(lambda: tail.frontier.at.wall > before.wall + 500_000_000)
    assert not tail.events


def test_log_of_others_moves_the_frontier(postgres: Database, tmp_path: Path) -> None:
    """Only tables we do not watch are written: position and time go on all the same."""
    postgres.execute("create table t (id int primary key); create table other (id int)")
    prepare(postgres, "t")
    stop = threading.Event()

    def write() -> None:
        with postgres.connect() as connection:
            while not stop.wait(0.01):
                connection.execute("insert into other values (1)")

    writer = threading.Thread(target=write)
    with tailing(postgres, tmp_path) as tail:
        writer.start()
        try:
            tail.catch_up()
            before = tail.frontier
            tail.wait_for(lambda: tail.frontier.at.wall > before.at.wall + 700_000_000)
        finally:
            stop.set()
            writer.join()
        assert tail.frontier.position > before.position
    assert not tail.changes()


def test_no_commit_is_stamped_later_than_it_was_known_to_be_done(
    postgres: Database, tmp_path: Path
) -> None:
    """A walsender that gets no processor for a while answers what it was asked meanwhile before it
    looks for newer log. Who takes the time of its answer states a time too late: that of a copy
    which lacks a commit that its client had seen."""
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path, heartbeat=0.1) as tail:
        tail.catch_up()
        quiet = tail.frontier.at.wall + 500_000_000
        tail.wait_for(lambda: tail.frontier.at.wall > quiet)
        [(walsender,)] = postgres.execute("select pid from pg_stat_replication")
        os.kill(walsender, signal.SIGSTOP)
        try:
            postgres.execute("insert into t values (1)")
            done = time.time_ns()
            time.sleep(0.5)  # nothing to wait for: several questions, and no answer
        finally:
            os.kill(walsender, signal.SIGCONT)
        tail.wait_for(tail.changes)
    [change] = tail.changes()
    assert change.at.version <= done


def test_time_passes_at_a_server_whose_log_ends_in_no_commit(
    postgres: Database, tmp_path: Path
) -> None:
    """What an open transaction has written need not be on disk, or is with half of a record, and is
    not sent before it is."""
    postgres.execute("create table t (id int primary key, a text)")
    prepare(postgres)
    with tailing(postgres, tmp_path) as tail, postgres.connect(autocommit=False) as writer:
        tail.catch_up()
        for number in range(8):
            rows = 37 * number
            writer.execute(
                "insert into t select %s + i, repeat('x', 500) from generate_series(0, %s) i",
                [1000 * number, rows],
            )
            began = time.monotonic()
            now = time.time_ns()
            tail.wait_for(partial(_is_later_than, tail, now))
            assert time.monotonic() - began < 10
        assert not tail.changes()


def test_time_passes_at_an_idle_server_and_nothing_is_committed(
    own_postgres_factory: PostgresFactory, tmp_path: Path
) -> None:
    """Also where its log ends at the begin of a page that has no record: a commit there would make
    a server with archive_timeout begin segment after segment. (Autovacuum commits, too.)"""
    transactions = "select pg_snapshot_xmax(pg_current_snapshot())"
    with own_postgres_factory(autovacuum="off").database() as postgres:
        postgres.execute("create table t (id int primary key)")
        prepare(postgres)
        with tailing(postgres, tmp_path) as tail:
            tail.catch_up()
            before = postgres.execute(transactions)
            postgres.execute("select pg_switch_wal()")
            tail.wait_for(partial(_is_later_than, tail, time.time_ns() + 1_500_000_000))
            assert postgres.execute(transactions) == before


def _is_later_than(tail: Tail, now: int) -> bool:
    return tail.frontier.at.wall > now


def test_commit_is_out_at_once(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    with tailing(postgres, tmp_path, heartbeat=3600.0) as tail, postgres.connect() as connection:
        for number in range(20):
            connection.execute("insert into t values (%s)", [number])
            tail.wait_for(partial(_has_more_than, tail, number))


def test_hasten_gives_the_frontier_of_an_idle_source(postgres: Database, tmp_path: Path) -> None:
    """Without it nothing comes before the next heartbeat, which is in an hour."""
    postgres.execute("create table mine (id int primary key); create table other (id int)")
    prepare(postgres, "mine")
    with tailing(postgres, tmp_path, heartbeat=3600.0) as tail:
        until(lambda: postgres.execute("select 1 from pg_replication_slots where active"))
        for number in range(3):
            postgres.execute(f"insert into other values ({number})")
            [(end,)] = postgres.execute("select pg_current_wal_insert_lsn()::text")
            tail.stream.hasten()
            tail.wait_for(partial(_has_reached, tail, position_of(parse_lsn(end))))
    assert not tail.changes()


def test_an_open_alter_table_holds_up_nobody(postgres: Database, tmp_path: Path) -> None:
    """Looking for changes of shape waits for no lock: the other tables' changes come on."""
    postgres.execute("create table altered (id int primary key); create table other (id int)")
    prepare(postgres, "altered, other")
    with (
        postgres.connect() as application,
        tailing(postgres, tmp_path, heartbeat=0.05) as tail,
    ):
        postgres.execute("insert into altered values (1)")
        tail.catch_up()
        application.execute("begin")
        application.execute("alter table altered add column more int")
        for number in range(3):
            postgres.execute(f"insert into other values ({number})")
            tail.stream.hasten()
            # A statement of ours that waits for the lock is one that the server shows as waiting.
            tail.catch_up()
            assert not postgres.execute(
                "select query from pg_stat_activity where wait_event_type = 'Lock'"
            )
        application.execute("commit")
        tail.wait_for(lambda: any(isinstance(event, SchemaChange) for event in tail.events))


def _has_reached(tail: Tail, position: str) -> bool:
    return tail.frontier.position >= position


def _has_more_than(tail: Tail, number: int) -> bool:
    return len(tail.changes()) > number


def test_close_from_another_thread(postgres: Database, tmp_path: Path) -> None:
    prepare(postgres)
    tail = Tail(postgres, tmp_path, heartbeat=3600.0)
    deadline = time.monotonic() + 60
    while not postgres.execute("select 1 from pg_replication_slots where active"):
        assert time.monotonic() < deadline
    tail.close()
    assert tail.error is None
    while postgres.execute("select 1 from pg_replication_slots where active"):
        assert time.monotonic() < deadline


# ------------------------------------------------------------------------------- slots


@pytest.mark.parametrize("postgres", [14, 18], indirect=True)
def test_temporary_slot_exports_a_snapshot(postgres: Database) -> None:
    postgres.execute("create table t (id int); insert into t values (1)")
    with ReplicationConnection(postgres.uri) as connection:
        slot = connection.create_slot("scan", temporary=True, snapshot="export")
        postgres.execute("insert into t values (2)")
        with postgres.connect(autocommit=False) as reader:
            reader.execute("set transaction isolation level repeatable read")
            reader.execute(f"set transaction snapshot '{slot.snapshot}'")
            assert reader.execute("select id from t").fetchall() == [(1,)]
        assert connection.identify_system().database == postgres.name
        assert slot.consistent_point <= connection.identify_system().position
    deadline = time.monotonic() + 60
    while postgres.slots():
        assert time.monotonic() < deadline


def test_publication_is_missing(postgres: Database, tmp_path: Path) -> None:
    postgres.execute("create table t (id int primary key)")
    prepare(postgres)
    postgres.execute(f"drop publication {PUBLICATION}; insert into t values (1)")
    error = Tail(postgres, tmp_path).wait_for_end()
    assert isinstance(error, ChangefeedError)
    assert "publication" in error.message
