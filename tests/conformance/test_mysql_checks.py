"""What a MySQL or MariaDB server must be for a changefeed, and how a scan finds its instant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.sources.base import Watch
from changefeed.sources.mysql import MySQLSource, describe, providers
from changefeed.sources.mysql.session import MySQLSession, connect
from changefeed.sources.mysql.snapshot import READERS, SnapshotPatience
from tests.services.mysql import READER, READER_PASSWORD, BinlogServer

pytestmark = pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)


@pytest.fixture
def database(binlog_server: BinlogServer) -> Iterator[str]:
    with binlog_server.database() as name:
        binlog_server.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", database=name)
        yield name


@contextmanager
def setting(server: BinlogServer, name: str, value: str) -> Iterator[None]:
    [(before,)] = server.run(f"SELECT @@global.{name}")
    server.run(f"SET GLOBAL {name} = '{value}'")
    try:
        yield
    finally:
        server.run(f"SET GLOBAL {name} = '{before}'")


def problems(server: BinlogServer, database: str, *watches: Watch, user: str = "") -> list[str]:
    uri = server.uri(database, user, READER_PASSWORD) if user else server.uri(database)
    found = MySQLSource("shop", uri).attach("abcdef", None).check(watches or (Watch("t"),))
    return [f"{error.code} {error.message} | {error.hint}" for error in found]


def test_few_rights_are_enough(binlog_server: BinlogServer, database: str) -> None:
    assert problems(binlog_server, database) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_row_metadata", "MINIMAL"),
        ("binlog_format", "STATEMENT"),
    ],
)
def test_a_setting_that_hinders_comes_with_the_statement(
    binlog_server: BinlogServer, database: str, name: str, value: str
) -> None:
    with setting(binlog_server, name, value):
        [found] = problems(binlog_server, database)

    word = "GLOBAL" if binlog_server.flavor == "mariadb" else "PERSIST"
    assert found.startswith(f"CF2003 {name} is '{value}'")
    assert f"SET {word} {name} = '" in found


def test_rights_that_are_missing_come_with_the_grant(
    binlog_server: BinlogServer, database: str
) -> None:
    """For exactly these tables, and for names of which the user may not know if they are there."""
    binlog_server.run("CREATE TABLE `od``d` (id INT PRIMARY KEY)", database=database)
    binlog_server.run(f"CREATE USER poor IDENTIFIED BY '{READER_PASSWORD}'")
    watches = Watch("t"), Watch("od`d"), Watch("none")
    try:
        found = problems(binlog_server, database, *watches, user="poor")
        for line in found:
            if "`none`" not in line:
                binlog_server.run(line.rpartition("| ")[2])
        rest = problems(binlog_server, database, *watches, user="poor")
    finally:
        binlog_server.run("DROP USER poor")

    end = "BINLOG MONITOR" if binlog_server.flavor == "mariadb" else "REPLICATION CLIENT"
    assert [line.rpartition("| ")[2] for line in found] == [
        f"GRANT REPLICATION SLAVE, {end} ON *.* TO 'poor'@'%';",
        f"GRANT SELECT ON `{database}`.`t` TO 'poor'@'%';",
        f"GRANT SELECT ON `{database}`.`od``d` TO 'poor'@'%';",
        f"GRANT SELECT ON `{database}`.`none` TO 'poor'@'%';",
    ]
    assert [line[:6] for line in rest] == ["CF2004"] and "or there is none" in rest[0]


@pytest.mark.parametrize(
    ("marker", "name", "statement", "retention"),
    [
        ({}, "", "SET ", "SET "),
        (
            {"aurora_version": "3.10.0", "basedir": "/rdsdbbin/oscar/"},
            "Amazon Aurora",
            "Set binlog_row_metadata = 'FULL' in the DB cluster parameter group",
            "CALL mysql.rds_set_configuration('binlog retention hours', 168);",
        ),
        (
            {"basedir": "/rdsdbbin/mysql-8.0.40/"},
            "Amazon RDS",
            "Set binlog_row_metadata = 'FULL' in the DB parameter group",
            "CALL mysql.rds_set_configuration('binlog retention hours', 168);",
        ),
        (
            {"version_comment": "(Google)"},
            "Google Cloud SQL",
            "Set the flag binlog_row_metadata = 'FULL';",
            "Set the flag binlog_expire_logs_seconds = 604800;",
        ),
        (
            {"aad_auth_only": "OFF"},
            "Azure Database",
            "Set the server parameter binlog_row_metadata = 'FULL';",
            "Set the server parameter binlog_expire_logs_seconds = 604800;",
        ),
    ],
)
def test_managed_servers_have_words_of_their_own(
    binlog_server: BinlogServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    marker: dict[str, str],
    name: str,
    statement: str,
    retention: str,
) -> None:
    """Services do not let their customers change a setting by SQL."""
    usual = MySQLSession.variables
    short = {"binlog_row_metadata": "MINIMAL", "binlog_expire_logs_seconds": "3600"}

    def variables(session: MySQLSession, *names: str) -> dict[str, str]:
        answer = usual(session, *names) | short | marker
        return {each: answer[each] for each in names if each in answer}

    monkeypatch.setattr(MySQLSession, "variables", variables)
    [found] = problems(binlog_server, database)
    [kept] = [
        text
        for text in MySQLSource("shop", binlog_server.uri(database)).warnings([Watch("t")])
        if "removes binlogs" in text
    ]
    assert found.startswith("CF2003 binlog_row_metadata") and f"| {statement}" in found
    assert kept.endswith(retention) if name else "= 604800;" in kept
    with closing(connect(MySQLSource("shop", binlog_server.uri(database)).address)) as session:
        assert providers.of(session).name.startswith(name)


def test_the_hours_that_amazon_keeps_binlogs_are_asked_for(
    binlog_server: BinlogServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own procedure; ``binlog_expire_logs_seconds`` has no effect there."""
    usual = MySQLSession.variables
    monkeypatch.setattr(
        MySQLSession,
        "variables",
        lambda session, *names: usual(session, *names) | {"basedir": "/rdsdbbin/mysql/"},
    )

    def removed(hours: str) -> list[str]:
        show = "CREATE OR REPLACE" if binlog_server.flavor == "mariadb" else "CREATE"
        binlog_server.run(
            f"{show} PROCEDURE mysql.rds_show_configuration() SELECT 'binlog retention hours' AS n,"
            f" {hours} AS value"
        )
        try:
            uri = binlog_server.uri(database, "root", "")
            found = MySQLSource("shop", uri).warnings([Watch("t")])
        finally:
            binlog_server.run("DROP PROCEDURE mysql.rds_show_configuration")
        return [text for text in found if "removes binlogs" in text]

    assert removed("'168'") == []
    assert ["after 2 hours" in text for text in removed("'2'")] == [True]
    assert ["is set" in text for text in removed("NULL")] == [True]


def test_tables_that_cannot_be_watched(binlog_server: BinlogServer, database: str) -> None:
    binlog_server.run(
        "CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM",
        "CREATE VIEW seen AS SELECT * FROM t",
        database=database,
    )
    found = problems(
        binlog_server,
        database,
        Watch("plain"),
        Watch("seen"),
        Watch("tt"),
        Watch("user", schema="mysql"),
    )

    assert [line[:6] for line in found] == ["CF2003", "CF1302", "CF1101", "CF1302"]
    assert f"ALTER TABLE `{database}`.`plain` ENGINE = InnoDB;" in found[0]
    assert f'did you mean "{database}.t"?' in found[2]


def test_a_wrong_password_is_a_refused_login(binlog_server: BinlogServer, database: str) -> None:
    source = MySQLSource("shop", binlog_server.uri(database, password="wr0ng"))
    with pytest.raises(ChangefeedError) as raised:
        source.tables()

    assert raised.value.code == "CF2002"
    assert "wr0ng" not in f"{raised.value} {raised.value.detail}"


def test_cascades_are_a_warning(binlog_server: BinlogServer, database: str) -> None:
    binlog_server.run(
        "CREATE TABLE child (id INT PRIMARY KEY, t INT, CONSTRAINT of_t FOREIGN KEY (t)"
        " REFERENCES t (id) ON DELETE CASCADE)",
        database=database,
    )
    source = MySQLSource("shop", binlog_server.uri(database))

    def cascades(table: str) -> list[str]:
        return [text for text in source.warnings([Watch(table)]) if "foreign key" in text]

    assert cascades("t") == []
    assert ["of_t" in text for text in cascades("child")] == [True]


def test_numbers_that_may_go_back_are_a_warning(binlog_server: BinlogServer, database: str) -> None:
    """MariaDB lets them, unless it is told not to; MySQL has no such setting."""
    source = MySQLSource("shop", binlog_server.uri(database))
    told = [text for text in source.warnings() if "gtid_strict_mode" in text]
    assert len(told) == (1 if binlog_server.flavor == "mariadb" else 0)


def test_parts_of_json_are_refused_before_they_are_written(
    binlog_server: BinlogServer, database: str
) -> None:
    """MySQL alone has such a setting."""
    if binlog_server.flavor == "mariadb":
        assert binlog_server.run("SHOW GLOBAL VARIABLES LIKE 'binlog_row_value_options'") == []
        return
    with setting(binlog_server, "binlog_row_value_options", "PARTIAL_JSON"):
        [found] = problems(binlog_server, database)
    assert found.startswith("CF2003 binlog_row_value_options is 'PARTIAL_JSON'")
    assert "SET PERSIST binlog_row_value_options = '';" in found


def warned(server: BinlogServer, database: str, word: str, table: str, user: str = "") -> list[str]:
    """The warnings about a table that have the word in them."""
    uri = server.uri(database, user, READER_PASSWORD) if user else server.uri(database)
    source = MySQLSource("shop", uri)
    try:
        return [text for text in source.warnings([Watch(table)]) if word in text]
    finally:
        source.close()


def test_a_table_without_a_key_is_a_warning(binlog_server: BinlogServer, database: str) -> None:
    binlog_server.run("CREATE TABLE `no key` (id INT, v INT)", database=database)
    assert warned(binlog_server, database, "no primary key", "t") == []
    [text] = warned(binlog_server, database, "no primary key", "no key")
    mend = f"ALTER TABLE `{database}`.`no key` ADD PRIMARY KEY (..);"
    assert mend in text
    binlog_server.run(mend.replace("..", "id"))
    assert warned(binlog_server, database, "no primary key", "no key") == []


def test_dates_that_are_none_are_a_warning(binlog_server: BinlogServer, database: str) -> None:
    binlog_server.run("CREATE TABLE d (id INT PRIMARY KEY, born DATETIME(3))", database=database)
    strict = "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE"
    with setting(binlog_server, "sql_mode", "STRICT_TRANS_TABLES"):
        [text] = warned(binlog_server, database, "0000-00-00", "d")
        assert "(born)" in text and "sent as NULL" in text
        assert warned(binlog_server, database, "0000-00-00", "t") == []
        with pytest.raises(pymysql.MySQLError):
            binlog_server.run(f"SET sql_mode = '{strict}'", _ZERO, database=database)
        binlog_server.run(_ZERO, database=database)
    with setting(binlog_server, "sql_mode", strict):
        assert warned(binlog_server, database, "0000-00-00", "d") == []


_ZERO = "INSERT INTO d VALUES (1, '0000-00-00')"


def test_a_user_who_may_not_lock_is_warned(binlog_server: BinlogServer, database: str) -> None:
    assert warned(binlog_server, database, "lock tables", "t") == []
    binlog_server.run(
        f"CREATE USER modest IDENTIFIED BY '{READER_PASSWORD}'",
        f"GRANT SELECT ON {database}.* TO modest",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO modest",
    )
    try:
        [text] = warned(binlog_server, database, "lock tables", "t", "modest")
        alone = binlog_server.flavor == "mariadb"
        assert ("reads with one session only" if alone else "fails (CF2004)") in text
        grant = f"GRANT LOCK TABLES ON `{database}`.* TO 'modest'@'%';"
        assert grant in text
        binlog_server.run(grant)
        assert warned(binlog_server, database, "lock tables", "t", "modest") == []
    finally:
        binlog_server.run("DROP USER modest")


def test_a_scan_locks_its_tables_where_the_server_never_rests(
    binlog_server: BinlogServer, database: str
) -> None:
    source = MySQLSource("shop", binlog_server.uri(database))
    source.patience = SnapshotPatience(lock_free=0, lock=1)
    table = source.describe(None, "t")
    binlog_server.run("INSERT INTO t VALUES (1, 'seen')", database=database)
    with source.snapshot([table]) as image:
        binlog_server.run("INSERT INTO t VALUES (2, 'late')", database=database)
        rows = [batch.column(0).to_pylist() for p in image.parts(table) for batch in p.read()]
        assert rows == [[1]]
        assert image.position < source.current_position()

    writer = binlog_server.connect("root", "", database)
    writer.begin()
    with writer.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (3, 'open')")
    with pytest.raises(ChangefeedError, match="does not end") as raised:
        source.snapshot([table])
    writer.close()
    assert raised.value.code == "CF2005"


def test_ddl_waits_for_a_part_and_not_for_the_scan(
    binlog_server: BinlogServer, database: str
) -> None:
    # MariaDB: the account has BINLOG ADMIN.
    source = MySQLSource("shop", binlog_server.uri(database, "root", ""))
    table = source.describe(None, "t")
    binlog_server.run("INSERT INTO t VALUES (1, 'x')", database=database)
    with source.snapshot([table]) as image:
        [part] = image.parts(table)
        assert sum(batch.num_rows for batch in part.read()) == 1
        binlog_server.run(
            "SET SESSION lock_wait_timeout = 10",
            "ALTER TABLE t MODIFY v VARCHAR(30), ALGORITHM = COPY",
            database=database,
        )
        with pytest.raises(ChangefeedError) as raised:
            list(part.read())

    assert raised.value.code == "CF2201"


def test_a_table_that_cannot_be_read_costs_no_session(
    binlog_server: BinlogServer, database: str
) -> None:
    """Four sessions read; each table that failed took one away for the rest of the scan."""
    binlog_server.run(
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO other VALUES (7)",
        "INSERT INTO t VALUES (1, 'x')",
        f"CREATE USER modest IDENTIFIED BY '{READER_PASSWORD}'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO modest",
        f"GRANT SELECT, LOCK TABLES ON `{database}`.* TO modest",
        database=database,
    )
    try:
        source = MySQLSource("shop", binlog_server.uri(database, "modest", READER_PASSWORD))
        tables = [source.describe(None, name) for name in ("t", "other")]
        with source.snapshot(tables) as image:
            [refused], [other] = (image.parts(table) for table in tables)
            binlog_server.run(
                "REVOKE ALL PRIVILEGES, GRANT OPTION FROM modest",
                f"GRANT SELECT ON `{database}`.other TO modest",
            )
            for _ in range(READERS + 1):
                with pytest.raises(ChangefeedError) as raised:
                    list(refused.read())
                assert raised.value.code == "CF2202"
            assert [batch.column(0).to_pylist() for batch in other.read()] == [[7]]
    finally:
        binlog_server.run("DROP USER modest")


def test_a_reader_that_stops_costs_no_session(binlog_server: BinlogServer, database: str) -> None:
    """A sink that refuses a table ends its four readers in the middle of their answers."""
    binlog_server.run(
        "CREATE TABLE large (id INT PRIMARY KEY, v LONGTEXT)",
        *(f"INSERT INTO large VALUES ({i}, REPEAT('a', 1000000))" for i in range(12)),
        "INSERT INTO t VALUES (1, 'x')",
        database=database,
    )
    source = MySQLSource("shop", binlog_server.uri(database))
    tables = [source.describe(None, name) for name in ("large", "t")]
    with source.snapshot(tables) as image:
        [part], [small] = (image.parts(table) for table in tables)
        binlog_server.run("INSERT INTO t VALUES (2, 'late')", database=database)
        for _ in range(READERS + 1):
            batches = part.read()
            assert 0 < next(batches).num_rows < 12
            del batches
        for _ in range(READERS):
            assert [batch.column(0).to_pylist() for batch in small.read()] == [[1]]


def test_a_lost_connection_is_made_again_with_a_new_snapshot(
    binlog_server: BinlogServer, database: str
) -> None:
    """No other session can have the image of one that is lost."""
    source = MySQLSource("shop", binlog_server.uri(database))
    table = source.describe(None, "t")
    binlog_server.run("INSERT INTO t VALUES (1, 'x')", database=database)

    def sessions() -> set[object]:
        users = "SELECT id FROM information_schema.processlist WHERE user = "
        return {number for (number,) in binlog_server.run(f"{users}'{READER}'")}

    before = sessions()
    with source.snapshot([table]) as image:
        own = sessions() - before
        assert len(own) == READERS
        binlog_server.run(*(f"KILL {number}" for number in own))
        with pytest.raises(ChangefeedError) as raised:
            image.parts(table)
        assert raised.value.code == "CF2201"
    with source.snapshot([table]) as image:
        assert len(sessions() - before - own) == READERS
        assert [b.column(0).to_pylist() for p in image.parts(table) for b in p.read()] == [[1]]


@pytest.mark.parametrize(
    ("view", "statement", "expected"),
    [
        ("STATISTICS", "RENAME TABLE t TO u", {"u": (["id", "v"], ("id",))}),
        ("COLUMNS", "RENAME TABLE t TO u", {"u": (["id", "v"], ("id",))}),
        (
            "STATISTICS",
            "ALTER TABLE t DROP PRIMARY KEY, ADD COLUMN w INT PRIMARY KEY",
            {"t": (["id", "v", "w"], ("w",))},
        ),
    ],
)
def test_a_table_that_is_altered_meanwhile_is_described_as_of_one_moment(
    binlog_server: BinlogServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    view: str,
    statement: str,
    expected: object,
) -> None:
    """The server answers each question about a table as of the moment of the question."""
    rows, waiting = MySQLSession.rows, [statement]

    def late(session: MySQLSession, query: str, *rest: Any) -> Any:
        if f"information_schema.{view} " in query and waiting:
            binlog_server.run(waiting.pop(), database=database)
        return rows(session, query, *rest)

    with closing(connect(MySQLSource("shop", binlog_server.uri(database)).address)) as session:
        monkeypatch.setattr(MySQLSession, "rows", late)
        found = describe.read_tables(session, [(database, "t"), (database, "u")])
    assert {
        name: ([column.name for column in table.columns], table.key)
        for (_, name), table in found.items()
    } == expected
