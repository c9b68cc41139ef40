"""``ddl_events=true``: statements of DDL of PostgreSQL are events, in order with the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.parametrize("postgres", [14, 16, 18], indirect=True),
]


class Bench:
    """A database with a table ``t``, whose connection has event triggers."""

    def __init__(self, feeds: Feeds, database: Database, folder: Path) -> None:
        self.feeds = feeds
        self.database = database
        self.folder = folder
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        feeds.connect(shop=self.uri("true"))

    def uri(self, ddl_events: str) -> str:
        joint = "&" if "?" in self.database.uri else "?"
        return f"{self.database.uri}{joint}ddl_events={ddl_events}"

    def create(self, targets: str = "t", name: str = "f") -> None:
        self.feeds.execute(
            f"CREATE CHANGEFEED {name} FOR {targets} INTO 'file://{self.folder / name}'"
        )
        self.feeds.sync(name)

    def ddl(self) -> list[tuple[str, str]]:
        """Table and statement of the DDL among the feed's events, oldest first."""
        rows = self.feeds.execute("SHOW CHANGEFEED f EVENTS").rows
        return [(str(r[2]), str(r[3])) for r in reversed(rows) if r[1] in ("ddl", "schema")]

    def triggers(self) -> int:
        [row] = self.database.execute("SELECT count(*) FROM pg_event_trigger") or [(0,)]
        return int(row[0])


@pytest.fixture
def bench(tmp_path: Path, postgres: Database) -> Iterator[Bench]:
    with running(tmp_path / "state") as feeds:
        yield Bench(feeds, postgres, tmp_path / "out")


def test_statements_are_told_once_before_what_they_cause(bench: Bench) -> None:
    """Also of transactions with rows before and behind them, across a crash and a restart."""
    bench.create()
    run = bench.database.execute
    run("ALTER TABLE t ADD COLUMN a text DEFAULT 'https://u:hunter2@h/'")
    run("INSERT INTO t VALUES (1, 'x')")
    bench.feeds.sync("f")
    back = bench.feeds.kill_capture()
    together = (
        "BEGIN; INSERT INTO t VALUES (2, 'y'); CREATE INDEX i ON t (a); ALTER TABLE t ADD b int;"
        " INSERT INTO t VALUES (3, 'z', 3); COMMIT"
    )
    run(together)
    until(back)
    bench.feeds.sync("f")
    bench.feeds.close()
    run("CREATE TABLE other (id int)")
    run("BEGIN; ALTER TABLE t ADD c int; ROLLBACK")
    run("CREATE TEMP TABLE gone (id int)")
    run("COMMENT ON TABLE t IS 'nothing that defines it'")
    bench.feeds.open()
    run("ALTER TABLE t RENAME TO u")
    run("INSERT INTO u VALUES (4, 'w', 4)")
    until(lambda: len(bench.ddl()) >= 5, "all are told")
    bench.feeds.sync("f")
    run("DROP TABLE u")
    until(lambda: len(bench.ddl()) >= 6, "the drop is told")
    told = bench.ddl()
    assert [text for _, text in told] == [
        "ALTER TABLE t ADD COLUMN a text DEFAULT 'https://u:redacted@h/'",
        'column "a" added (text)',
        together,
        'column "b" added (integer)',
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE u",
    ]
    assert [table for table, _ in told] == ["shop.public.t"] * 5 + ["shop.public.u"]


def test_indexes_and_partitions_are_told_of_the_table_that_a_feed_watches(bench: Bench) -> None:
    run = bench.database.execute
    run("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    bench.create("t, p")
    statements = [
        ("t", "CREATE INDEX CONCURRENTLY i ON t (id)"),
        ("p", "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)"),
        ("p", "CREATE INDEX j ON p (id)"),
        ("p", "ALTER TABLE p DETACH PARTITION p1"),
    ]
    for _, statement in statements:
        run(statement)
    told = [(f"shop.public.{table}", statement) for table, statement in statements]
    until(lambda: bench.ddl() == told, "all are told")


def test_nothing_without_the_mark_is_removed(bench: Bench) -> None:
    bench.create()
    [(name,)] = bench.database.execute(
        "SELECT evtname FROM pg_event_trigger WHERE evtevent = 'sql_drop'"
    )
    bench.database.execute(f'COMMENT ON EVENT TRIGGER "{name}" IS NULL')
    bench.feeds.execute("DROP CHANGEFEED f")
    until(lambda: bench.database.slots() == [], "the source is released")
    assert bench.triggers() == 2
    bench.database.execute(f'DROP EVENT TRIGGER "{name}"')


def test_the_triggers_come_and_go_with_the_option(bench: Bench) -> None:
    bench.create()
    bench.create("t", "g")
    assert bench.triggers() == 2
    bench.feeds.execute("DROP CHANGEFEED g")
    bench.feeds.sync("f")
    assert bench.triggers() == 2
    bench.feeds.execute(f"ALTER EXTERNAL CONNECTION shop AS '{bench.uri('false')}'")
    until(lambda: bench.triggers() == 0, "they are removed")
    bench.feeds.execute(f"ALTER EXTERNAL CONNECTION shop AS '{bench.uri('true')}'")
    until(lambda: bench.triggers() == 2, "they are there again")
    bench.feeds.execute("DROP CHANGEFEED f")
    until(lambda: bench.triggers() == 0, "they are removed with the last feed")
    schemas = "SELECT FROM pg_namespace WHERE nspname LIKE 'changefeed%'"
    assert bench.database.execute(schemas) == []


def test_what_a_trigger_cannot_do_stops_no_statement(bench: Bench) -> None:
    bench.create()
    [(name,)] = bench.database.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ch%'")
    [(text,)] = bench.database.execute(
        f"SELECT pg_get_functiondef('\"{name}\".tell()'::regprocedure)"
    )
    broken = str(text).replace("pg_logical_emit_message(", "no_such_function(")
    assert broken != text
    bench.database.execute(broken)
    bench.database.execute("ALTER TABLE t ADD COLUMN a int")
    bench.database.execute("INSERT INTO t VALUES (1, 2)")
    bench.feeds.sync("f")
    assert [text for _, text in bench.ddl()] == ['column "a" added (integer)']


def test_messages_of_others_are_kept_only_if_a_feed_wants_them(bench: Bench) -> None:
    bench.create()
    emit = "SELECT pg_logical_emit_message(true, 'p', 'content')"
    bench.database.execute(emit)
    bench.feeds.sync("f")
    bench.create("MESSAGES PREFIX '*'", "m")
    bench.database.execute(emit)
    bench.database.execute("CREATE INDEX i ON t (id)")
    bench.feeds.sync("m")
    files = [p.read_text() for p in (bench.folder / "m").rglob("*.ndjson")]
    assert "".join(files).count('"prefix": "p"') == 1
    assert not any("CREATE INDEX" in text for text in files)
    until(lambda: [text for _, text in bench.ddl()] == ["CREATE INDEX i ON t (id)"])


def test_a_role_that_may_not_is_told_what_an_administrator_runs(bench: Bench) -> None:
    run = bench.database.execute
    role = f"feeds_{bench.database.name}"
    run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    run(f"GRANT CREATE ON DATABASE {bench.database.name} TO {role}")
    run(f"ALTER TABLE t OWNER TO {role}")
    parts = psycopg.conninfo.conninfo_to_dict(bench.database.uri)
    uri = f"postgresql://{role}:x@{parts['host']}:{parts['port']}/{parts['dbname']}?ddl_events=true"
    bench.feeds.connect(plain=uri)
    statement = "CREATE CHANGEFEED p FOR plain.public.t INTO 'null://'"
    with pytest.raises(ChangefeedError, match="only a superuser may create") as caught:
        bench.feeds.execute(statement)
    script, _, undo = caught.value.hint.partition("-- and to undo it")
    run(script.partition("\n")[2])
    assert bench.triggers() == 2
    bench.feeds.execute(statement)
    bench.feeds.execute("DROP CHANGEFEED p")
    run(undo.partition("\n")[2])
    assert bench.triggers() == 0
