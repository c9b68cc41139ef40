"""Statements of PostgreSQL that change stored rows without sending them: copies stay equal."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.feeds import Feeds, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

PARTED = """
CREATE TABLE {t} (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE {t}_a PARTITION OF {t} FOR VALUES FROM (0) TO (10);
CREATE TABLE {t}_b PARTITION OF {t} FOR VALUES FROM (10) TO (20);
CREATE TABLE {t}_e PARTITION OF {t} FOR VALUES FROM (90) TO (99);
INSERT INTO {t} VALUES (1, 1), (11, 11), (12, 12);
"""
PLAIN = "CREATE TABLE {t} (id int PRIMARY KEY, v int); INSERT INTO {t} VALUES (1, 1), (2, 2);"
LABELLED = (
    "CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE TABLE {t} (id int PRIMARY KEY, v mood);"
    "INSERT INTO {t} VALUES (1, 'calm'), (2, 'wild');"
)
USING = "ALTER TABLE {t} ALTER v TYPE int USING v * 10"
#: What the tables are, and what happens to each: first while the node runs, then while it is down.
CHANGED = {
    "detached": (
        PARTED,
        "ALTER TABLE {t} DETACH PARTITION {t}_b",
        "ALTER TABLE {t} ATTACH PARTITION {t}_b FOR VALUES FROM (10) TO (20)",
    ),
    "dropped": (PARTED, "DROP TABLE {t}_b; INSERT INTO {t} VALUES (2, 2)", "DROP TABLE {t}_a"),
    "emptied": (PARTED, "TRUNCATE {t}_b", "TRUNCATE {t}_a; INSERT INTO {t} VALUES (12, 0)"),
    "parts": (PARTED, USING, USING),
    "plain": (PLAIN, USING, "INSERT INTO {t} VALUES (3, 3); " + USING),
    "wider": (
        PLAIN,
        "ALTER TABLE {t} ALTER v TYPE bigint USING v + 1; INSERT INTO {t} VALUES (3, 3)",
        "ALTER TABLE {t} ALTER v TYPE numeric USING v + 0.5",
    ),
    "keyed": (PLAIN, "ALTER TABLE {t} ALTER id TYPE int USING id + 100", "SELECT 1"),
    "labelled": (
        LABELLED,
        "ALTER TYPE mood RENAME VALUE 'calm' TO 'serene'",
        "ALTER TYPE mood RENAME VALUE 'wild' TO 'mad'",
    ),
    "again": (
        PLAIN,
        "ALTER TABLE {t} DROP v, ADD v text; INSERT INTO {t} VALUES (3, 'three')",
        "ALTER TABLE {t} DROP v; ALTER TABLE {t} ADD v int DEFAULT 7",
    ),
}
#: The same of statements that change no row, each a transaction of its own.
UNCHANGED = {
    "copied": (PARTED, "VACUUM FULL {t}", "CLUSTER {t}_a USING {t}_a_pkey", "REINDEX TABLE {t}"),
    "grown": (
        PARTED,
        "CREATE TABLE {t}_c PARTITION OF {t} FOR VALUES FROM (20) TO (30)",
        "INSERT INTO {t} VALUES (21, 21)",
    ),
    "packed": (PLAIN, "VACUUM FULL {t}", "ANALYZE {t}"),
}
TABLES = {name: what[0] for name, what in (CHANGED | UNCHANGED).items()}


def rows_of(database: Database, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in database.execute(f"SELECT id, v FROM {table}"))


def copied(path: Path, table: str) -> list[tuple[object, ...]]:
    with opened(path) as connection:
        try:
            rows = connection.execute(f"SELECT id, v FROM {table}").fetchall()
        except Exception:  # a column that was not altered yet
            return []
    return sorted(tuple(row) for row in rows)


def told(feeds: Feeds, table: str, kind: str) -> list[str]:
    events = feeds.execute("SHOW CHANGEFEED w EVENTS LIMIT 1000").rows
    return [str(e[3]) for e in reversed(events) if e[1] == kind and e[2] == f"shop.public.{table}"]


def become_equal(feeds: Feeds, database: Database, path: Path) -> None:
    def equal(table: str) -> bool:
        assert told(feeds, table, "error") == []
        return copied(path, table) == rows_of(database, table)

    for table in TABLES:
        until(partial(equal, table), f"the copy of {table} is equal")


def test_copies_stay_equal(postgres: Database, tmp_path: Path) -> None:
    """By a role that is no superuser, while the node runs and while it is down."""
    role = f"feeds_{postgres.name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    postgres.execute(f"GRANT CREATE ON DATABASE {postgres.name} TO {role}")
    postgres.execute(f"GRANT ALL ON SCHEMA public TO {role}")
    uri = postgres.uri.replace("postgres@", f"{role}:x@")
    assert role in uri
    owned = f"SET ROLE {role}; "
    for table, create in TABLES.items():
        postgres.execute(owned + create.format(t=table))
    path = tmp_path / "copy.duckdb"
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=uri)
        feeds.execute(f"CREATE CHANGEFEED w FOR {', '.join(TABLES)} INTO 'duckdb://{path}'")
        feeds.sync("w")
        become_equal(feeds, postgres, path)

        for table, (_, first, _) in CHANGED.items():
            postgres.execute(owned + first.format(t=table))
        for table, (_, *statements) in UNCHANGED.items():
            for statement in statements:
                postgres.execute(statement.format(t=table))
        postgres.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")
        become_equal(feeds, postgres, path)

        feeds.close()
        for table, (_, _, second) in CHANGED.items():
            postgres.execute(owned + second.format(t=table))
        for table in UNCHANGED:
            postgres.execute(f"VACUUM FULL {table}")
        feeds.open()
        feeds.sync("w")
        become_equal(feeds, postgres, path)

        assert told(feeds, "detached", "schema") == [
            "partition detached_b detached or dropped",
            "partition detached_b attached",
        ]
        for table in UNCHANGED:
            assert told(feeds, table, "schema") == [] and len(told(feeds, table, "scan")) == 1


def test_messages_and_a_feed_that_stops(postgres: Database, tmp_path: Path) -> None:
    """A feed of messages gets the rows and a notice; with ``stop`` the table fails."""
    postgres.execute(PARTED.format(t="t"))
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri)
        for name, more in (("w", ""), ("s", " WITH on_partition_change = 'stop'")):
            feeds.execute(f"CREATE CHANGEFEED {name} FOR t INTO 'file://{tmp_path / name}'{more}")
            feeds.sync(name)
        postgres.execute("DROP TABLE t_b; INSERT INTO t VALUES (2, 2)")
        until(lambda: len(told(feeds, "t", "scan")) == 2, "the table is read again")
        [notice] = told(feeds, "t", "notice")
        assert "no messages of their deletion" in notice
        until(
            lambda: (
                "partition t_b detached or dropped"
                in json.dumps(
                    [list(map(str, r)) for r in feeds.execute("SHOW CHANGEFEED s TABLES").rows]
                )
            ),
            "the feed says why its table stopped",
        )
