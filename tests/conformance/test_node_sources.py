"""Sources that hang, and tables that change their name or their self while a node runs."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changefeed.attachments import capture_tables
from changefeed.capture import captured_tables
from changefeed.catalog import JobSpec, Status, TableProgress, TableState
from changefeed.catalog.model import Job
from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.state import StateLayout
from changefeed.core.timings import Timings
from changefeed.core.types import LogicalType
from changefeed.encoding.plan import MessagePlan
from changefeed.feeds.feed import Feed
from changefeed.sources.postgres.source import PostgresSource
from changefeed.spark.session import NodeSpark
from changefeed.statements.context import Context
from changefeed.statements.sync import _shapes_to_come
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres]

#: The stream may tell the new key before the look at the source finds the table unsafe; a feed with
#: the default policy stops at either.
KEYS_MAY_CHANGE = ", schema_change_policy = 'ignore'"


class Bench:
    """Feeds of two tables into a folder."""

    def __init__(self, feeds: Feeds, database: Database, folder: Path) -> None:
        self.feeds = feeds
        self.database = database
        self.folder = folder
        feeds.connect(shop=database.uri)
        feeds.execute("USE shop")
        database.execute(
            "create table a (id int primary key, note text); insert into a values (1, 'a1');"
            "create table b (id int primary key, note text); insert into b values (1, 'b1');"
        )

    def create(self, targets: str, options: str = "") -> None:
        """A feed ``f`` that has delivered what is there."""
        self.feeds.execute(
            f"CREATE CHANGEFEED f FOR {targets} INTO 'file://{self.folder}'"
            f" WITH topic_in_value{options}"
        )
        self.feeds.sync("f")

    def notes(self, topic: str) -> list[str]:
        """The notes delivered under a topic, in order, repeats once."""
        found: dict[str, None] = {}
        for file in sorted(self.folder.rglob("*.ndjson")):
            for line in file.read_text().splitlines():
                message = json.loads(line)
                if message["topic"] == topic:
                    found[message["after"]["note"]] = None
        return list(found)

    def table(self, name: str) -> TableProgress | None:
        """Where a table of the feed is."""
        tables = self.feeds.catalog.tables(self.feeds.catalog.job("f").id)
        return next((t for t in tables if t.table.name == name), None)

    def fails(self, name: str, reason: str, code: str = "CF2106") -> None:
        """Wait until a table of the feed failed for that reason."""

        def failed() -> bool:
            table = self.table(name)
            return table is not None and table.state is TableState.FAILED

        until(failed, f"{name} fails")
        table = self.table(name)
        assert table is not None and table.error is not None and reason in table.error
        assert table.error_code == code

    def arrives(self, topic: str, notes: list[str]) -> None:
        """Wait until exactly these were delivered under a topic."""
        until(lambda: self.notes(topic) == notes, f"{topic}: {notes}")

    def synced(self, table: str, number: int) -> None:
        """A row written to another table now is delivered: so is all before it."""
        self.database.execute(f"insert into {table} values ({number}, '{table}{number}')")
        until(lambda: f"{table}{number}" in self.notes(table), f"{table}{number}")


@pytest.fixture
def bench(
    tmp_path: Path,
    postgres: Database,
    spark_engine: NodeSpark,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    timings = getattr(request, "param", Timings(source_look=0.3, expand=0.3, retry_first=0.01))
    timings = replace(timings, rest_longest=1.0)  # files are there in a second
    with running(tmp_path / "state", spark_engine, timings=timings) as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


# -- a source that hangs --------------------------------------------------------------------


@contextmanager
def silence() -> Iterator[tuple[str, socket.socket]]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        yield f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=600&sslmode=disable", listener


def test_a_source_that_hangs_holds_up_no_feed_of_another(bench: Bench) -> None:
    feeds = bench.feeds
    with silence() as (uri, listener):
        feeds.execute(f"CREATE EXTERNAL CONNECTION hung AS '{uri}' WITH check = 'no'")
        table = TableName("hung", "public", "t")
        spec = JobSpec("hung", ("TABLE t",), (TableProgress(table, "t"),), sink_uri="null://")
        stuck = feeds.catalog.create_job(spec)
        listener.settimeout(30)
        connection, _ = listener.accept()  # the node is in it now
        with connection:
            began = time.monotonic()
            bench.create("a")
            bench.database.execute("insert into a values (2, 'a2')")
            feeds.sync("f")
            assert bench.notes("a") == ["a1", "a2"]
            assert feeds.execute("PAUSE CHANGEFEED f").rows == [(stuck.id + 1, "f", "paused")]
            assert feeds.execute("RESUME CHANGEFEED f").rows[0][2] in ("running", "scanning")
            feeds.execute("ALTER CHANGEFEED f ADD b")
            feeds.sync("f")
            assert bench.notes("b") == ["b1"]
            assert feeds.execute("DROP CHANGEFEED f").rows[0][2] == "dropped"
            assert bench.database.slots() == []
            # Its own feed can be paused and dropped, too.
            assert feeds.execute(f"PAUSE JOB {stuck.id}").rows[0][2] == "paused"
            assert not feeds.catalog.job(stuck.id).status.active
            feeds.node.stop()
            assert time.monotonic() - began < 300, "connect_timeout is 600 s: it was waited for"
        feeds.catalog.delete_job(stuck.id)


# -- tables that are not what they were -------------------------------------------------------


def test_a_table_that_was_dropped_fails_alone_after_its_last_row(bench: Bench) -> None:
    bench.create("a, b")
    bench.database.execute("insert into a values (2, 'a2'); drop table a")
    bench.fails("a", "was dropped")
    assert bench.notes("a") == ["a1", "a2"]
    bench.synced("b", 2)
    assert bench.feeds.catalog.job("f").status.active
    bench.feeds.execute("ALTER CHANGEFEED f DROP a")
    bench.feeds.sync("f")
    assert bench.notes("b") == ["b1", "b2"]


def test_a_table_made_anew_is_another_table_until_it_is_added(bench: Bench) -> None:
    bench.create("a, b")
    bench.database.execute(
        "begin; drop table a; create table a (id int primary key, note text);"
        "insert into a values (7, 'new'); commit"
    )
    bench.fails("a", "was dropped and created again")
    bench.database.execute("insert into a values (8, 'newer')")
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.fails("a", "was dropped and created again")
    bench.synced("b", 2)
    assert bench.notes("a") == ["a1"], "nothing of the other table"

    bench.feeds.execute("ALTER CHANGEFEED f DROP a")
    bench.feeds.execute("ALTER CHANGEFEED f ADD a")
    bench.database.execute("insert into a values (9, 'newest')")
    bench.feeds.sync("f")
    assert bench.notes("a") == ["a1", "new", "newer", "newest"]


@pytest.mark.parametrize(
    "swap",
    [
        "alter table a rename to x; alter table b rename to a; alter table x rename to b",
        "create schema s; alter table a set schema s; alter table s.a rename to b;"
        "alter table b rename to a; create schema t; alter table a set schema t;"
        "alter table s.b set schema public; alter table t.a set schema public",
    ],
    ids=["rename", "schema"],
)
def test_names_that_were_swapped_mix_no_rows(bench: Bench, swap: str) -> None:
    bench.create("a, b")
    bench.database.execute(
        f"begin; {swap}; commit;insert into a values (3, 'of b'); insert into b values (3, 'of a')"
    )
    bench.fails("a", "another table has")
    bench.fails("b", "another table has")
    until(lambda: not bench.feeds.catalog.job("f").status.active, "the feed ends")
    assert (bench.notes("a"), bench.notes("b")) == (["a1"], ["b1"])


def test_a_renamed_table_is_followed_there_and_back(bench: Bench) -> None:
    """By rows, which come under the new name, and without one."""
    bench.create("a, b")
    bench.database.execute("alter table a rename to x; insert into x values (2, 'x2')")
    bench.arrives("a", ["a1", "x2"])
    bench.database.execute("alter table x rename to y")
    until(lambda: bench.table("y") is not None, "the feed goes by the new name")
    bench.database.execute("insert into y values (3, 'y3')")
    bench.arrives("a", ["a1", "x2", "y3"])
    bench.database.execute("alter table y rename to a; insert into a values (4, 'a4')")
    bench.arrives("a", ["a1", "x2", "y3", "a4"])
    bench.feeds.sync("f")
    job = bench.feeds.catalog.job("f")
    events = bench.feeds.catalog.events(job.id, kinds=("rename",))
    assert [event.text for event in reversed(events)] == [
        f'"public.{old}" was renamed to "public.{new}", its target stays a'
        for old, new in (("a", "x"), ("x", "y"), ("y", "a"))
    ]
    scans = bench.feeds.catalog.events(job.id, kinds=("scan",))
    assert sum("begins" in event.text for event in scans) == 1, "nothing is scanned again"


def test_a_table_that_is_renamed_between_two_looks_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has just seen it, and makes the source send it."""
    bench.create("a, b")
    bench.arrives("a", ["a1"])
    renames = iter(["alter table a rename to x; insert into x values (2, 'x2')"])

    def renamed_first(*given: Any) -> Any:
        for statement in renames:
            bench.database.execute(statement)
        return capture_tables(*given)

    monkeypatch.setattr(captured_tables, "capture_tables", renamed_first)
    bench.database.execute("create table another (id int primary key)")
    bench.feeds.execute("CREATE CHANGEFEED g FOR another INTO 'null://'")
    bench.arrives("a", ["a1", "x2"])
    bench.feeds.sync("f")
    events = bench.feeds.catalog.events(bench.feeds.catalog.job("f").id, kinds=("error",))
    assert events == []


def test_a_cursor_is_compared_by_the_clock_of_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's machine is an hour behind the server: the log of a table that was added now begins
    now, by the times that its changes have."""
    bench.create("a, b")
    hour = 3600 * 10**9
    monkeypatch.setattr(PostgresSource, "server_time", lambda self: time.time_ns() + hour)
    bench.database.execute("create table another (id int primary key)")
    before = time.time_ns()
    bench.feeds.execute("CREATE CHANGEFEED g FOR another INTO 'null://'")
    since = {table.name: at for table, at in bench.feeds.catalog.captured("shop").items()}
    assert since["another"].wall >= before + hour
    with pytest.raises(ChangefeedError, match=r"before the change log of shop\.public\.another"):
        bench.feeds.execute(
            f"CREATE CHANGEFEED h FOR another INTO 'null://' WITH cursor = '{before}.0'"
        )


@pytest.mark.parametrize("bench", [Timings(source_look=600.0)], indirect=True)
def test_rows_at_once_after_several_renames_come_in_order(bench: Bench, tmp_path: Path) -> None:
    """Nobody has looked at the source between, and the target stays as it was."""
    bench.feeds.execute(f"CREATE CHANGEFEED f FOR a, b INTO 'duckdb://{tmp_path}/copy.duckdb'")
    bench.database.execute("insert into a values (2, 'a2')")
    bench.feeds.sync("f")
    bench.database.execute("alter table a rename to x; insert into x values (3, 'x3')")
    bench.database.execute(
        "alter table x add more int default 7; alter table x rename to y;"
        "insert into y values (4, 'y4'); delete from y where id = 1"
    )
    bench.feeds.sync("f")
    assert bench.feeds.execute("VERIFY CHANGEFEED f").rows == []
    (row,) = (r for r in bench.feeds.execute("SHOW CHANGEFEED f TABLES").rows if "y" in str(r[0]))
    assert "a" in row, "the row says table and target"
    created = str(bench.feeds.execute("SHOW CREATE CHANGEFEED f").rows[0][1])
    assert "public.y AS a" in created
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN y")
    bench.database.execute("insert into y values (5, 'y5')")
    bench.feeds.sync("f")
    assert bench.feeds.execute("VERIFY CHANGEFEED f").rows == []
    bench.database.execute("create table a (id int primary key)")
    with pytest.raises(ChangefeedError, match=r"knows public\.y as public\.a"):
        bench.feeds.execute("ALTER CHANGEFEED f ADD a AS other")
    bench.feeds.execute("ALTER CHANGEFEED f DROP y")
    assert bench.table("y") is None and bench.feeds.catalog.job("f").targets == ("public.b",)


def test_a_table_that_was_renamed_while_no_node_ran_is_followed(bench: Bench) -> None:
    """Another stream begins behind it, which has never seen a row under the old name."""
    bench.create("a, b")
    bench.database.execute("insert into a values (2, 'a2')")
    bench.feeds.sync("f")
    bench.feeds.close()
    bench.database.execute("alter table a rename to x; insert into x values (3, 'x3')")
    bench.feeds.open()
    bench.arrives("a", ["a1", "a2", "x3"])
    bench.feeds.close()
    bench.database.execute("alter table x rename to a; insert into a values (4, 'a4')")
    bench.feeds.open()
    bench.arrives("a", ["a1", "a2", "x3", "a4"])
    bench.feeds.sync("f")
    assert bench.table("a") is not None and bench.table("x") is None


@pytest.mark.parametrize("bench", [Timings(source_look=0.3, expand=600.0)], indirect=True)
def test_a_table_that_took_the_name_of_another_stops_that(bench: Bench) -> None:
    """Whoever named the table may mean the new one: a person has to say."""
    bench.create("a, b")
    bench.database.execute(
        "begin; alter table a rename to a_old; create table a (id int primary key, note text);"
        "commit; insert into a_old values (2, 'old'); insert into a values (3, 'new')"
    )
    bench.fails("a", "another table has that name now")
    bench.synced("b", 2)
    assert bench.notes("a") == ["a1"]


def test_a_fault_of_ours_that_repeats_stops_its_table_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create("a, b")
    right = Feed.messages

    def wrong(feed: Feed, schema: TableSchema) -> MessagePlan:
        if schema.table.name == "a":
            raise KeyError("a value of a row")
        return right(feed, schema)

    monkeypatch.setattr(Feed, "messages", wrong)
    bench.database.execute("insert into a values (2, 'a2')")
    bench.fails("a", "internal error: KeyError at ", "CF9002")
    bench.synced("b", 2)
    events = bench.feeds.catalog.events(bench.feeds.catalog.job("f").id, kinds=("error", "retry"))
    assert "CF9001" in {event.code for event in events}, "it was tried again before"
    assert not any("a value" in event.text for event in events)

    monkeypatch.setattr(Feed, "messages", right)
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.arrives("a", ["a1", "a2"])


def test_a_schema_feed_follows_its_tables(bench: Bench) -> None:
    bench.create("SCHEMA public")
    bench.database.execute(
        "alter table a rename to x; insert into x values (2, 'x2'); drop table b;"
        "create table b (id int primary key, note text); insert into b values (5, 'b5')"
    )
    bench.arrives("x", ["a1", "x2"])
    bench.arrives("b", ["b1", "b5"])
    bench.database.execute("drop table x")
    until(lambda: bench.table("x") is None, "x leaves")
    bench.feeds.sync("f")
    assert bench.table("a") is None and bench.table("b") is not None
    events = bench.feeds.catalog.events(bench.feeds.catalog.job("f").id, kinds=("table",))
    left = [event.text for event in events if event.text.startswith("left")]
    assert any('was renamed to "public.x"' in text for text in left), left
    assert any("was dropped" in text for text in left), left


# -- tables that cannot be published --------------------------------------------------------


def test_a_new_table_without_a_key_does_not_break_the_application(bench: Bench) -> None:
    bench.create("SCHEMA public")
    bench.database.execute("create table c (id int, note text); insert into c values (1, 'c1')")
    bench.fails("c", "no replica identity", "CF2003")
    bench.database.execute("update c set note = 'c2'; delete from c where id = 9")
    bench.synced("a", 2)
    events = bench.feeds.catalog.events(bench.feeds.catalog.job("f").id, kinds=("error",))
    assert [(e.code, e.table) for e in events] == [("CF2003", "shop.public.c")]
    assert bench.notes("c") == []

    bench.database.execute("alter table c add primary key (id)")
    bench.arrives("c", ["c2"])  # by itself: it had never begun
    bench.database.execute("update c set note = 'c3'")
    bench.arrives("c", ["c2", "c3"])


@pytest.mark.parametrize("how", ["drop constraint a_pkey", "replica identity nothing"])
def test_a_captured_table_that_loses_its_key_leaves_the_application_alone(
    bench: Bench, how: str
) -> None:
    bench.create("a, b", KEYS_MAY_CHANGE)
    bench.database.execute(f"alter table a {how}")
    bench.fails("a", "no replica identity", "CF2003")
    bench.database.execute("update a set note = 'a2'")
    bench.synced("b", 2)

    bench.database.execute("alter table a replica identity full")
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.feeds.sync("f")
    assert bench.notes("a") == ["a1", "a2"], "what it missed is scanned"


def test_a_paused_feed_misses_nothing_of_a_table_that_was_left_out(bench: Bench) -> None:
    bench.create("a, b", KEYS_MAY_CHANGE)
    bench.feeds.execute("CREATE CHANGEFEED other FOR a, b INTO 'null://'")
    bench.feeds.execute("PAUSE CHANGEFEED f")
    bench.database.execute("alter table a drop constraint a_pkey")
    bench.fails("a", "no replica identity", "CF2003")
    bench.database.execute("update a set note = 'a2'; alter table a add primary key (id)")
    until(
        lambda: not bench.feeds.node.source_runtime("shop").tables.problems,
        "a is captured again",
        60,
    )
    bench.feeds.execute("RESUME CHANGEFEED f")
    bench.feeds.sync("f")
    assert bench.notes("a") == ["a1", "a2"]


def test_create_answers_beside_an_open_transaction(bench: Bench) -> None:
    with bench.database.connect(autocommit=False) as writer:
        writer.execute("insert into a values (2, 'a2')")
        result = bench.feeds.execute(f"CREATE CHANGEFEED f FOR a, b INTO 'file://{bench.folder}'")
        pid = f"pid {writer.info.backend_pid}"
        assert any(pid in notice for notice in result.notices), result.notices
        job = bench.feeds.catalog.job("f")
        assert job.status is Status.STARTING and pid in job.reason, job
        with pytest.raises(ChangefeedError, match=pid):
            bench.feeds.execute("CREATE CHANGEFEED g FOR a INTO 'null://' WITH initial_scan = 'no'")
        assert bench.feeds.catalog.find_job("g") is None
        writer.commit()
    bench.feeds.sync("f")
    assert bench.feeds.catalog.job("f").emitted_rows == 3


def test_a_log_that_is_removed_while_the_node_runs_is_said(bench: Bench) -> None:
    bench.create("a, b")
    shutil.rmtree(StateLayout(Path(bench.feeds.catalog.directory)).log("shop"))
    bench.database.execute("insert into a values (2, 'a2')")

    def failed(code: str) -> None:
        until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED, "f fails")
        job = bench.feeds.catalog.job("f")
        assert job.error_code == code, job

    failed("CF3001")
    bench.feeds.execute("RESUME CHANGEFEED f")
    until(lambda: bench.feeds.catalog.job("f").error_code in (None, "CF3002"), "taken up")
    failed("CF3002")


# -- a publication that somebody changed ------------------------------------------------------


def change_publication(bench: Bench, sql: str) -> None:
    """As somebody with rights on it would."""
    [(name,)] = bench.database.execute("select quote_ident(pubname) from pg_publication")
    bench.database.execute(sql.format(p=name))


@pytest.mark.parametrize("way_on", ["ALTER CHANGEFEED f RESCAN a", "RESUME CHANGEFEED f"])
def test_a_table_taken_out_of_the_publication_is_a_gap(bench: Bench, way_on: str) -> None:
    bench.create("a, b")
    change_publication(
        bench, "alter publication {p} drop table a; insert into a values (2, 'missed')"
    )
    bench.fails("a", "the table was taken out of publication", "CF2107")
    bench.synced("b", 2)
    bench.database.execute("insert into a values (3, 'a3')")

    bench.feeds.execute(way_on)
    bench.feeds.sync("f")
    assert sorted(bench.notes("a")) == ["a1", "a3", "missed"]
    bench.synced("a", 4)
    assert bench.feeds.catalog.job("f").status is Status.RUNNING


def test_a_publication_that_sends_less_is_a_gap_of_every_feed(bench: Bench) -> None:
    bench.create("a, b")
    bench.feeds.execute("CREATE CHANGEFEED paused FOR a INTO 'null://'")
    bench.feeds.sync("paused")
    bench.feeds.execute("PAUSE CHANGEFEED paused")
    change_publication(
        bench, "alter publication {p} set (publish = 'insert'); update a set note = 'missed'"
    )
    bench.fails("a", "was altered", "CF2107")
    until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED, "f failed")
    [paused] = bench.feeds.catalog.tables(bench.feeds.catalog.job("paused").id)
    assert paused.error_code == "CF2107"
    hint = bench.feeds.catalog.job("f").hint
    assert hint is not None and "RESCAN" in hint
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN")
    bench.feeds.execute("RESUME CHANGEFEED paused")
    bench.feeds.sync("f")
    bench.feeds.sync("paused")
    assert bench.notes("a") == ["a1", "missed"]


def test_a_gap_is_told_after_a_restart(bench: Bench) -> None:
    """What was changed while no node looked."""
    bench.create("a, b")
    bench.feeds.close()
    change_publication(
        bench,
        "alter publication {p} drop table a; insert into a values (2, 'missed');"
        "alter publication {p} add table a",
    )
    bench.feeds.open()
    bench.fails("a", "taken out of publication", "CF2107")
    bench.synced("b", 2)


def test_a_publication_that_was_dropped_stops_every_feed(bench: Bench) -> None:
    bench.create("a, b")
    change_publication(bench, "drop publication {p}; insert into a values (2, 'missed')")
    until(lambda: bench.feeds.catalog.job("f").status is Status.FAILED, "f failed")
    job = bench.feeds.catalog.job("f")
    assert job.error_code == "CF2102", job
    bench.feeds.execute("ALTER CHANGEFEED f RESCAN")
    if bench.feeds.catalog.job("f").status is not Status.RUNNING:
        until(lambda: bench.feeds.catalog.job("f").status is Status.RUNNING, "f runs")
    bench.feeds.sync("f")
    assert bench.notes("a") == ["a1", "missed"]
    bench.synced("b", 3)


def test_columns_change_without_a_row(bench: Bench) -> None:
    bench.create("a, b")
    bench.database.execute("insert into a values (2, 'a2')")
    assert bench.feeds.execute("SYNC CHANGEFEED f").notices == []
    bench.database.execute(
        "alter table a add column extra int; alter table b alter note set not null"
    )

    def announced() -> bool:
        known = bench.feeds.catalog.announced_schema(TableName("shop", "public", "a"))
        return known is not None and "extra" in [column.name for column in known.columns]

    until(announced, "the feed knows the column")
    assert bench.feeds.execute("SYNC CHANGEFEED f").notices == []


def test_sync_tells_of_columns_that_the_feed_does_not_know() -> None:
    name = TableName("shop", "public", "a")
    key = Column("id", "integer", LogicalType.parse("int32"), False, 1)
    extra = Column("extra", "integer", LogicalType.parse("int32"), True, 2)
    known = TableSchema(name, (key,), (0,), version=1)
    catalog = SimpleNamespace(tables=lambda _job: [], announced_schema=lambda _table: known)
    context = cast(Context, SimpleNamespace(catalog=catalog))
    job = cast(Job, SimpleNamespace(id=1))
    assert _shapes_to_come(job, {name: known}, context) == []
    (notice,) = _shapes_to_come(job, {name: replace(known, columns=(key, extra))}, context)
    assert notice.startswith("the columns of public.a changed at the source")
