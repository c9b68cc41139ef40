"""Odd statements of DDL at MariaDB and MySQL: the copy stays equal to its source, live and where
the statements came while no node ran. What needs no scan costs none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.feeds import Feeds, consumed, running
from tests.helpers.duckdb_file import opened
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True),
]

MARIADB, MYSQL = "mariadb", "mysql"
LENIENT = "SET SESSION sql_mode = ''"
PARTITIONS = (
    "CREATE TABLE {t} (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20),"
    " PARTITION p2 VALUES LESS THAN MAXVALUE)",
    "INSERT INTO {t} VALUES (1, 1), (11, 11), (12, 12), (21, 21)",
)


@dataclass(frozen=True)
class History:
    """What happened to a table ``{t}``.

    Attributes:
        made: statements before the feed is created.
        done: statements while it runs.
        scans: whether the table is read again; None: either way.
        only: the one server that has the statements.
        beside: a second table ``{t}_o``, which is in the feed, too.
        exact: the target has the columns of the source and no others.
    """

    made: tuple[str, ...]
    done: tuple[str, ...]
    scans: bool | None
    only: str = ""
    beside: bool = False
    exact: bool = False


def rows(columns: str, *values: str) -> tuple[str, ...]:
    """A table with rows of which the first column is the key."""
    return (
        f"CREATE TABLE {{t}} (id INT PRIMARY KEY, {columns})",
        f"INSERT INTO {{t}} VALUES {', '.join(values)}",
    )


NUMBERS = rows("a INT, b INT", "(1, 10, 20)", "(2, 11, NULL)")
LABELS = rows("label INT, other INT", "(1, 5, 1)", "(2, 6, 2)")
TEXTS = rows("s VARCHAR(9) CHARACTER SET utf8mb4", "(1, 'é€')", "(2, NULL)")
LATER = "INSERT INTO {t} (id) VALUES (99)"

HISTORIES = {
    # columns that get other names
    "rename": History(NUMBERS, ("ALTER TABLE {t} RENAME COLUMN a TO c", LATER), False, exact=True),
    "rename_only": History(NUMBERS, ("ALTER TABLE {t} RENAME COLUMN a TO c",), False, exact=True),
    "change": History(NUMBERS, ("ALTER TABLE {t} CHANGE b d INT", LATER), False, exact=True),
    "change_wider": History(NUMBERS, ("ALTER TABLE {t} CHANGE b d BIGINT", LATER), False),
    "swap": History(NUMBERS, ("ALTER TABLE {t} RENAME COLUMN a TO b, RENAME COLUMN b TO a",), None),
    "rename_drop_add": History(
        NUMBERS,
        ("ALTER TABLE {t} RENAME COLUMN a TO c, DROP COLUMN b, ADD COLUMN a INT DEFAULT 3", LATER),
        True,
    ),
    "rename_twice": History(
        NUMBERS,
        ("ALTER TABLE {t} RENAME COLUMN a TO c", "ALTER TABLE {t} RENAME COLUMN c TO e", LATER),
        False,
        exact=True,
    ),
    "with_table": History(
        NUMBERS,
        (
            "ALTER TABLE {t} ADD COLUMN x INT DEFAULT 5, RENAME TO {t}_n",
            "INSERT INTO {t}_n (id) VALUES (99)",
            "ALTER TABLE {t}_n RENAME TO {t}",
        ),
        None,
    ),
    # a name that another column gets
    "again": History(
        LABELS, ("ALTER TABLE {t} DROP COLUMN label, ADD COLUMN label INT DEFAULT 7",), True
    ),
    "again_other": History(
        LABELS,
        ("ALTER TABLE {t} DROP COLUMN label, ADD COLUMN label VARCHAR(9) DEFAULT 'x'",),
        True,
    ),
    "again_later": History(
        LABELS,
        ("ALTER TABLE {t} DROP COLUMN label", "ALTER TABLE {t} ADD COLUMN label INT DEFAULT 7"),
        True,
    ),
    "again_null": History(
        LABELS,
        ("ALTER TABLE {t} DROP COLUMN label", "ALTER TABLE {t} ADD COLUMN label INT", LATER),
        True,
    ),
    # values
    "precision": History(
        rows("t DATETIME(6)", "(1, '2024-01-01 10:00:00.700000')"),
        ("ALTER TABLE {t} MODIFY t DATETIME",),
        True,
    ),
    "stored": History(
        rows("v INT, g INT AS (v*2) STORED", "(1, 10, DEFAULT)"),
        ("ALTER TABLE {t} MODIFY g INT AS (v*3) STORED",),
        True,
    ),
    "virtual": History(
        rows("v INT, g INT AS (v*2) VIRTUAL", "(1, 10, DEFAULT)"),
        ("ALTER TABLE {t} MODIFY g INT AS (v*3) VIRTUAL",),
        True,
    ),
    "not_null": History(
        rows("v INT, s VARCHAR(9)", "(1, NULL, NULL)", "(2, 3, 'x')"),
        (LENIENT, "ALTER TABLE {t} MODIFY v INT NOT NULL, MODIFY s VARCHAR(9) NOT NULL"),
        True,
        only=MARIADB,
    ),
    "shorter": History(
        rows("s VARCHAR(9)", "(1, 'abcdefg')"),
        (LENIENT, "ALTER TABLE {t} MODIFY s VARCHAR(3)"),
        True,
    ),
    "padding": History(
        rows("s VARCHAR(9), b BINARY(2)", "(1, 'ab  ', 'x')"),
        ("ALTER TABLE {t} MODIFY s CHAR(9), MODIFY b BINARY(4)",),
        True,
    ),
    "charset": History(
        TEXTS, (LENIENT, "ALTER TABLE {t} MODIFY s VARCHAR(9) CHARACTER SET latin1"), True
    ),
    "convert": History(
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, s VARCHAR(9), h CHAR(32) AS (md5(s)) STORED)"
            " CHARACTER SET latin1",
            "INSERT INTO {t} (id, s) VALUES (1, 'é')",
        ),
        ("ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4",),
        True,
    ),
    "members": History(
        rows("e ENUM('a', 'b', 'c')", "(1, 'c')", "(2, 'a')"),
        (LENIENT, "ALTER TABLE {t} MODIFY e ENUM('a', 'b')"),
        True,
    ),
    "sign": History(
        rows("v INT", "(1, -5)", "(2, 5)"), (LENIENT, "ALTER TABLE {t} MODIFY v INT UNSIGNED"), None
    ),
    "uuid": History(
        NUMBERS, ("ALTER TABLE {t} ADD COLUMN u UUID DEFAULT uuid()",), True, only=MARIADB
    ),
    "counted": History(NUMBERS, ("ALTER TABLE {t} ADD COLUMN x INT AUTO_INCREMENT UNIQUE",), True),
    "portion": History(
        (
            "CREATE TABLE {t} (id INT, v INT, since DATE DEFAULT '2024-01-01',"
            " till DATE DEFAULT '2025-01-01', PERIOD FOR used (since, till),"
            " PRIMARY KEY (id, since))",
            "INSERT INTO {t} (id, v) VALUES (1, 1), (2, 2)",
        ),
        (
            "UPDATE {t} FOR PORTION OF used FROM '2024-03-01' TO '2024-05-01' SET v = 7",
            "DELETE FROM {t} FOR PORTION OF used FROM '2024-07-01' TO '2024-08-01' WHERE id = 2",
        ),
        False,
        only=MARIADB,
    ),
    "default": History(NUMBERS, ("ALTER TABLE {t} ADD COLUMN x INT NOT NULL DEFAULT 4",), True),
    "procedure": History(
        NUMBERS,
        (
            "CREATE PROCEDURE {t}_p() BEGIN ALTER TABLE {t} ADD COLUMN x INT DEFAULT 9; END",
            "CALL {t}_p()",
        ),
        True,
    ),
    "comment": History(
        NUMBERS,
        ("ALTER /*!50000 TABLE */ `{t}` ADD /* x */ COLUMN `odd ``name` INT DEFAULT 9",),
        True,
    ),
    # rows that come and go
    "drop_partition": History(PARTITIONS, ("ALTER TABLE {t} DROP PARTITION p1",), True),
    "truncate_partition": History(PARTITIONS, ("ALTER TABLE {t} TRUNCATE PARTITION p1",), True),
    "exchange": History(
        (
            *PARTITIONS,
            "CREATE TABLE {t}_o (id INT PRIMARY KEY, v INT)",
            "INSERT INTO {t}_o VALUES (15, 15)",
        ),
        ("ALTER TABLE {t} EXCHANGE PARTITION p1 WITH TABLE {t}_o",),
        True,
        beside=True,
    ),
    "replaced": History(
        (*NUMBERS, "CREATE TABLE {t}_o (id INT, v INT)", "INSERT INTO {t}_o VALUES (7, 7)"),
        ("CREATE OR REPLACE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, v AS a FROM {t}_o",),
        True,
        only=MARIADB,
    ),
    "dropped_and_made": History(
        (*NUMBERS, "CREATE TABLE {t}_o (id INT, v INT)", "INSERT INTO {t}_o VALUES (7, 7)"),
        ("DROP TABLE {t}", "CREATE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, v AS a FROM {t}_o"),
        True,
    ),
    "like": History(
        (*NUMBERS, "CREATE TABLE {t}_o LIKE {t}"),
        ("CREATE OR REPLACE TABLE {t} LIKE {t}_o", LATER),
        True,
        only=MARIADB,
    ),
    "duplicates": History(
        rows("a INT", "(1, 5)", "(2, 5)", "(3, 6)"),
        ("ALTER IGNORE TABLE {t} ADD UNIQUE (a)",),
        True,
        only=MARIADB,
    ),
    # what costs nothing
    "plain_column": History(NUMBERS, ("ALTER TABLE {t} ADD COLUMN x INT FIRST", LATER), False),
    "columns": History(
        NUMBERS, ("ALTER TABLE {t} ADD COLUMN (x INT, y VARCHAR(5) NULL COMMENT 'y')", LATER), False
    ),
    "dropped_column": History(NUMBERS, ("ALTER TABLE {t} DROP COLUMN b", LATER), False),
    "indexes": History(
        NUMBERS,
        (
            "ALTER TABLE {t} ADD INDEX i (a), ADD UNIQUE KEY u (a, b)",
            "CREATE INDEX j ON {t} (b)",
            "ALTER TABLE {t} RENAME INDEX i TO k",
            "DROP INDEX j ON {t}",
            "ALTER TABLE {t} DROP INDEX k, ADD CONSTRAINT {t}_c CHECK (id > 0)",
        ),
        False,
    ),
    "options": History(
        NUMBERS,
        (
            "ALTER TABLE {t} COMMENT = 'x', ROW_FORMAT = DYNAMIC",
            "ALTER TABLE {t} ENGINE = InnoDB",
            "ALTER TABLE {t} FORCE, ALGORITHM = COPY",
            "ALTER TABLE {t} ALTER COLUMN a SET DEFAULT 3",
            "OPTIMIZE TABLE {t}",
            "ANALYZE TABLE {t}",
            "CHECK TABLE {t}",
            LATER,
        ),
        False,
    ),
    "order": History(NUMBERS, ("ALTER TABLE {t} MODIFY a INT AFTER b", LATER), False),
    "first": History(NUMBERS, ("ALTER TABLE {t} MODIFY b INT FIRST", LATER), False),
    "wider": History(
        rows("v INT, s VARCHAR(9), d DECIMAL(5, 2)", "(1, 5, 'x', 1.5)"),
        (
            "ALTER TABLE {t} MODIFY v BIGINT, MODIFY s VARCHAR(90) DEFAULT 'y'",
            "ALTER TABLE {t} MODIFY d DECIMAL(9, 2)",
            LATER,
        ),
        False,
    ),
    "reordered": History(
        rows("e ENUM('a', 'b'), s SET('x', 'y')", "(1, 'a', 'x,y')", "(2, 'b', 'y')"),
        ("ALTER TABLE {t} MODIFY e ENUM('c', 'b', 'a'), MODIFY s SET('x', 'y', 'z')", LATER),
        False,
    ),
    "strict_not_null": History(
        rows("v INT, s VARCHAR(9)", "(1, 1, 'é')"),
        (
            "ALTER TABLE {t} MODIFY v INT NOT NULL DEFAULT 0,"
            " MODIFY s VARCHAR(9) NOT NULL DEFAULT ''",
        ),
        False,
    ),
    "partitions": History(
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
            " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO {t} VALUES (1, 1), (11, 11)",
        ),
        (
            "ALTER TABLE {t} ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
            "ALTER TABLE {t} REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (20))",
            "ALTER TABLE {t} REBUILD PARTITION p, p2",
            "ALTER TABLE {t} ANALYZE PARTITION p",
            "ALTER TABLE {t} OPTIMIZE PARTITION p",
            "ALTER TABLE {t} CHECK PARTITION p",
            "ALTER TABLE {t} REMOVE PARTITIONING",
            "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 4",
            "ALTER TABLE {t} COALESCE PARTITION 2",
            LATER,
        ),
        False,
    ),
    "sequence": History(
        NUMBERS,
        ("CREATE SEQUENCE {t}_s", "SELECT nextval({t}_s)", "DROP SEQUENCE {t}_s", LATER),
        False,
        only=MARIADB,
    ),
}


class Copies:
    """All histories of a server: each with a table for live statements and one for the others."""

    def __init__(self, server: BinlogServer, database: str, folder: Path) -> None:
        self.server = server
        self.database = database
        self.file = folder / "copy.duckdb"
        self.histories = {
            f"{kind}_{name}": history
            for kind in ("live", "down")
            for name, history in HISTORIES.items()
            if history.only in ("", server.flavor)
        }
        self.exact = {table for table, history in self.histories.items() if history.exact}

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        return self.server.run(*statements, database=self.database)

    def make(self) -> str:
        """Make all tables; the targets of the feed."""
        named = []
        for table, history in self.histories.items():
            self.run(*(s.replace("{t}", table) for s in history.made))
            named += [table, f"{table}_o"] if history.beside else [table]
        return ", ".join(named)

    def do(self, kind: str) -> None:
        for table, history in self.histories.items():
            if table.startswith(kind):
                self.run(*(s.replace("{t}", table) for s in history.done))

    def go_on(self) -> None:
        """One more row in every table, in the shape that it has now."""
        for table in self.histories:
            self.run(LENIENT, f"INSERT INTO {table} (id) VALUES (1000)")

    def tables(self, kind: str) -> Iterator[str]:
        for table, history in self.histories.items():
            if table.startswith(kind):
                yield from (table, f"{table}_o") if history.beside else (table,)

    def source(self, table: str) -> tuple[list[str], list[tuple[str, ...]]]:
        """Columns and rows of a table, as texts."""
        columns = [str(c) for c, *_ in self.run(f"SHOW COLUMNS FROM {table}")]
        listed = ", ".join("`" + c.replace("`", "``") + "`" for c in columns)
        return columns, _texts(self.run(f"SELECT {listed} FROM {table}"))

    def differences(self, kind: str) -> Iterator[tuple[str, object]]:
        """The tables whose copies are not equal now, and in what."""
        with opened(self.file) as connection:
            for table in self.tables(kind):
                columns, expected = self.source(table)
                known = {
                    name
                    for (name,) in connection.execute(
                        "SELECT column_name FROM duckdb_columns() WHERE table_name = ?"
                        " AND column_name NOT LIKE '\\_%' ESCAPE '\\'",
                        [table],
                    ).fetchall()
                }
                if not known.issuperset(columns):
                    yield table, f"lacks {set(columns) - known}"
                    continue
                listed = ", ".join(f'"{c}"' for c in columns)
                rows = _texts(connection.execute(f"SELECT {listed} FROM {table}").fetchall())
                if rows != expected:
                    yield table, (rows, expected)
                elif table in self.exact and known != set(columns):
                    yield table, f"has {known - set(columns)}"


def _texts(found: list[tuple[object, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(str(value) for value in row) for row in found)


def _scans(feeds: Feeds) -> dict[str, int]:
    """How often each table was read, the first time included."""
    found: dict[str, int] = {}
    for event in feeds.catalog.events(feeds.catalog.job("f").id, kinds=("scan",), limit=10_000):
        if event.table:
            name = event.table.rsplit(".", 1)[-1]
            found[name] = found.get(name, 0) + 1
    return found


def _problems(feeds: Feeds, feed: str = "f") -> list[tuple[str, str]]:
    """Tables that failed, with the reason."""
    tables = feeds.catalog.tables(feeds.catalog.job(feed).id)
    return [(t.table.name, f"{t.error_code} {t.error}") for t in tables if t.error_code]


def test_copies_stay_equal_whatever_statements_do(
    binlog_server: BinlogServer, tmp_path: Path
) -> None:
    with binlog_server.database() as database:
        copies = Copies(binlog_server, database, tmp_path)
        targets = copies.make()
        with running(tmp_path / "state") as feeds:
            feeds.connect(shop=binlog_server.uri(database))
            feeds.execute(f"CREATE CHANGEFEED f FOR {targets} INTO 'duckdb://{copies.file}'")
            feeds.sync("f")
            copies.do("live")
            _equal(feeds, copies, "live")
            feeds.close()
            copies.do("down")
            feeds.open()
            _equal(feeds, copies, "down")
            copies.go_on()
            _equal(feeds, copies, "")
            read = _scans(feeds)
            wrong = {
                table: read[table]
                for table, history in copies.histories.items()
                if history.scans is not None and (read[table] > 1) is not history.scans
            }
            assert not wrong, "read again, or not"


def _equal(feeds: Feeds, copies: Copies, kind: str) -> None:
    def equal() -> bool:
        assert not _problems(feeds)
        return next(copies.differences(kind), None) is None

    feeds.sync("f")  # it costs less than to compare again and again
    try:
        until(equal, "the copies are equal")
    except AssertionError as error:
        raise AssertionError(f"{dict(copies.differences(kind))}\n{_problems(feeds)}") from error


def test_a_new_reader_knows_the_columns_that_were_dropped(
    binlog_server: BinlogServer, tmp_path: Path
) -> None:
    """Targets keep them with their values, which are not those of a new column of that name."""
    with binlog_server.database() as database:
        file = tmp_path / "copy.duckdb"

        def run(*statements: str) -> None:
            binlog_server.run(*statements, database=database)

        def copied() -> list[tuple[object, ...]]:
            with opened(file) as connection:
                return connection.execute("SELECT id, b FROM t ORDER BY id").fetchall()

        run("CREATE TABLE t (id INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        with running(tmp_path / "state") as feeds:
            feeds.connect(shop=binlog_server.uri(database))
            feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{file}'")
            feeds.sync("f")
            run("ALTER TABLE t DROP COLUMN b", "INSERT INTO t VALUES (3)")
            feeds.sync("f")
            until(feeds.kill_capture())
            run("ALTER TABLE t ADD COLUMN b INT")
            feeds.sync("f")
            until(lambda: copied() == [(1, None), (2, None), (3, None)], "the copy is equal")
            run("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, b INT)")
            feeds.sync("f")
            until(lambda: copied() == [], "the other table is read")
            events = feeds.catalog.events(feeds.catalog.job("f").id, kinds=("schema",))
            texts = " ".join(event.text for event in events)
            assert "ADD b, the name of a column that was dropped" in texts
            assert "CREATE TABLE: another table has the name" in texts


def test_another_key_is_said_before_the_table_is_read_with_it(
    binlog_server: BinlogServer, tmp_path: Path
) -> None:
    """Also if no row follows: a scan would send every row under a key that readers do not know."""
    with binlog_server.database() as database, running(tmp_path / "state") as feeds:

        def run(*statements: str) -> None:
            binlog_server.run(*statements, database=database)

        run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        feeds.connect(shop=binlog_server.uri(database))
        feeds.execute(f"CREATE CHANGEFEED f FOR t INTO 'duckdb://{tmp_path}/copy.duckdb'")
        feeds.execute(f"CREATE CHANGEFEED m FOR t INTO 'file://{tmp_path}/messages'")
        for feed in "fm":
            feeds.sync(feed)
        run("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)")
        for feed in "fm":
            feeds.sync(feed)
            assert not _problems(feeds, feed)
        run(
            "ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 0, DROP PRIMARY KEY,"
            " ADD CONSTRAINT wide PRIMARY KEY (id, n)"
        )
        for feed in "fm":
            until(partial(_problems, feeds, feed), "the table stops")
        [(_, copied)], [(_, sent)] = _problems(feeds), _problems(feeds, "m")
        assert copied.startswith("CF5006") and "the key of the table changed" in copied
        assert sent.startswith("CF4101") and "key changed from (id) to (id, n)" in sent
        assert {m.key for m in consumed(tmp_path / "messages") if m.is_row} == {"[1]", "[2]"}


OTHER_KEYS = {
    "dropped": (("ALTER TABLE {t} DROP COLUMN id, ADD PRIMARY KEY (v)",), "v"),
    "first": (
        (
            "ALTER TABLE {t} ADD COLUMN n INT NOT NULL DEFAULT 1",  # it is to be read again
            "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)",
            "INSERT INTO {t} (id, v) VALUES (3, 3)",
        ),
        "v, id",
    ),
    "renamed": (
        (
            "CREATE TABLE {t}_n (id INT NOT NULL, v INT NOT NULL, PRIMARY KEY (id, v))",
            "INSERT INTO {t}_n VALUES (1, 10), (1, 11)",
            "RENAME TABLE {t} TO {t}_o, {t}_n TO {t}",
        ),
        "id, v",
    ),
    "other_columns": (
        ("DROP TABLE {t}", "CREATE TABLE {t} (k INT PRIMARY KEY) AS SELECT 7 k"),
        "k",
    ),
    "indexed": (("ALTER TABLE {t} DROP INDEX i, ADD UNIQUE KEY j (v)",), "v"),
    "by_statement": (("CREATE UNIQUE INDEX j ON {t} (v)", "DROP INDEX i ON {t}"), "v"),
}


def test_message_keys_never_change_in_silence(binlog_server: BinlogServer, tmp_path: Path) -> None:
    """By an index, another table of the name, and while the table is owed a scan."""
    with binlog_server.database() as database, running(tmp_path / "state") as feeds:

        def run(*statements: str) -> None:
            binlog_server.run(*statements, database=database)

        for table in OTHER_KEYS:
            key = "UNIQUE KEY i" if table in ("indexed", "by_statement") else "PRIMARY KEY"
            run(f"CREATE TABLE {table} (id INT NOT NULL, v INT NOT NULL, {key} (id))")
            run(f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
        feeds.connect(shop=binlog_server.uri(database))
        tables = ", ".join(OTHER_KEYS)
        feeds.execute(f"CREATE CHANGEFEED m FOR {tables} INTO 'file://{tmp_path}/messages'")
        feeds.sync("m")
        for table, (statements, _) in OTHER_KEYS.items():
            run(*(statement.replace("{t}", table) for statement in statements))

        def stopped() -> dict[str, str]:
            return dict(_problems(feeds, "m"))

        until(lambda: stopped().keys() == OTHER_KEYS.keys(), "every table stops")
        for table, (_, key) in OTHER_KEYS.items():
            assert stopped()[table].startswith("CF4101")
            assert f"key changed from (id) to ({key})" in stopped()[table]
        keys = {m.key for m in consumed(tmp_path / "messages") if m.is_row}
        assert keys == {"[1]", "[2]"}


def test_an_imported_tablespace_brings_its_rows(
    binlog_server: BinlogServer, tmp_path: Path
) -> None:
    """While there is none, the table cannot be read: that is no trouble of other tables."""
    with binlog_server.database() as database:
        file = tmp_path / "copy.duckdb"

        def run(*statements: str) -> list[tuple[object, ...]]:
            return binlog_server.run(*statements, database=database)

        def copied(table: str) -> list[tuple[object, ...]]:
            with opened(file) as connection:
                return connection.execute(f"SELECT id, v FROM {table} ORDER BY id").fetchall()

        [(directory,)] = run("SELECT @@datadir")
        stored = Path(str(directory)) / database
        for table in ("t", "made", "other"):
            run(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
        run(
            "INSERT INTO t VALUES (1, 1), (2, 2)",
            "INSERT INTO made VALUES (2, 20), (3, 30)",
            "FLUSH TABLES made FOR EXPORT",
            "UNLOCK TABLES",
        )
        with running(tmp_path / "state") as feeds:
            feeds.connect(shop=binlog_server.uri(database))
            feeds.execute(f"CREATE CHANGEFEED f FOR t, other INTO 'duckdb://{file}'")
            feeds.execute(f"CREATE CHANGEFEED m FOR t INTO 'file://{tmp_path}/messages'")
            feeds.sync("f")
            feeds.sync("m")
            run("ALTER TABLE t DISCARD TABLESPACE", "INSERT INTO other VALUES (1, 1)")
            feeds.sync("f")
            assert copied("t") == [(1, 1), (2, 2)] and not _problems(feeds)

            feeds.execute(f"ALTER CHANGEFEED f RESCAN shop.{database}.t")
            until(lambda: _problems(feeds), "the table cannot be scanned")
            [(name, said)] = _problems(feeds)
            assert name == "t" and "t cannot be scanned: the server cannot read it" in said
            run("INSERT INTO other VALUES (2, 2)")
            until(lambda: copied("other") == [(1, 1), (2, 2)], "the other table goes on")

            shutil.copy(stored / "made.ibd", stored / "t.ibd")
            owner = stored.stat()
            os.chown(stored / "t.ibd", owner.st_uid, owner.st_gid)
            run("ALTER TABLE t IMPORT TABLESPACE", "INSERT INTO t VALUES (4, 40)")
            feeds.execute(f"ALTER CHANGEFEED f RESCAN shop.{database}.t")
            wanted = [(2, 20), (3, 30), (4, 40)]
            until(lambda: copied("t") == wanted and not _problems(feeds), "the copy is equal")
            assert feeds.execute("VERIFY CHANGEFEED f").failure is None

            def sent() -> set[object]:
                rows = (m.after for m in consumed(tmp_path / "messages") if m.is_row)
                return {(row["id"], row["v"]) for row in rows if isinstance(row, dict)}

            until(lambda: sent() >= set(wanted), "all rows are sent")
            [notice] = feeds.catalog.events(feeds.catalog.job("m").id, kinds=("notice",))
            assert "no messages of their deletion" in notice.text
            [event, *_] = feeds.catalog.events(feeds.catalog.job("m").id, kinds=("schema",))
            assert "IMPORT TABLESPACE: rows came or went without row events" in event.text
