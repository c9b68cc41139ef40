"""What the binlog's row images MINIMAL and NOBLOB leave out: nothing is invented in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from changefeed.api import Interpreter, Session
from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import ChangeBatch, SchemaChange
from changefeed.core.schema import BeforeImage
from changefeed.sources.base import Watch
from changefeed_testing.sources.copy import scan
from changefeed_testing.sources.reader import CaptureDouble, State, capturing
from tests.conformance.test_mysql_conformance import MySQLHarness
from tests.services.mysql import BinlogServer

BOTH = pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)
pytestmark = BOTH

#: Op, the row after (the key alone of a delete), and the columns that were not sent.
Seen = tuple[str, dict[str, Any], list[str]]
Begin = Callable[..., tuple[State, CaptureDouble]]


@pytest.fixture
def harness(
    binlog_server: BinlogServer, other_binlog_server: BinlogServer, tmp_path: Path
) -> Iterator[MySQLHarness]:
    with MySQLHarness.over(binlog_server, other_binlog_server, tmp_path) as made:
        yield made


@pytest.fixture
def minimal(harness: MySQLHarness, binlog_server: BinlogServer) -> MySQLHarness:
    binlog_server.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
    return harness


@pytest.fixture
def begin(harness: MySQLHarness) -> Iterator[Begin]:
    """Captures tables until the test ends."""
    with ExitStack() as stack:

        def capture(*tables: str) -> tuple[State, CaptureDouble]:
            return stack.enter_context(capturing(harness, *tables))

        yield capture


def seen(state: State) -> list[Seen]:
    found: list[tuple[int, Seen]] = []
    for event in state.events:
        if isinstance(event, ChangeBatch):
            missing = event.rows.column("missing").to_pylist()
            for change, names in zip(event.changes(), missing, strict=True):
                row = (change.before if change.after is None else change.after) or {}
                if change.last:
                    found.append((change.seq, (change.op, row, json.loads(names or "[]"))))
    return [one for _, one in sorted(found, key=lambda each: each[0])]


def told(state: State) -> list[tuple[str, bool]]:
    """Changes of shape: which rows before there are now, and whether rows are to be read again."""
    return [
        (event.new.before_image.value, event.rewritten)
        for event in state.events
        if isinstance(event, SchemaChange)
    ]


def test_what_an_update_did_not_set_is_unsent(minimal: MySQLHarness, begin: Begin) -> None:
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20), b TEXT)")
    state, reader = begin("t")
    minimal.execute("INSERT INTO t VALUES (1, 1, 'a', 'x'), (2, 2, 'b', 'y')")
    minimal.execute("UPDATE t SET n = n + 10")
    minimal.execute("UPDATE t SET v = NULL, b = 'z' WHERE id = 2")
    minimal.execute("DELETE FROM t WHERE id = 1")
    reader.catch_up()

    assert seen(state) == [
        ("c", {"id": 1, "n": 1, "v": "a", "b": "x"}, []),
        ("c", {"id": 2, "n": 2, "v": "b", "b": "y"}, []),
        ("u", {"id": 1, "n": 11, "v": None, "b": None}, ["v", "b"]),
        ("u", {"id": 2, "n": 12, "v": None, "b": None}, ["v", "b"]),
        ("u", {"id": 2, "n": None, "v": None, "b": "z"}, ["n"]),
        ("d", {"id": 1}, []),
    ]
    assert told(state) == []


def test_an_insert_has_the_defaults_of_what_it_left_out(
    minimal: MySQLHarness, begin: Begin
) -> None:
    """As the server keeps the row: a scan reads the same."""
    minimal.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL DEFAULT 7, n INT,"
        " v VARCHAR(20) DEFAULT 'it''s \\ ü', w VARCHAR(9) NOT NULL DEFAULT '',"
        " c DECIMAL(8,3) DEFAULT 1.5, nc DECIMAL(8,3) NOT NULL DEFAULT -1.5,"
        " d DATETIME(3) DEFAULT '2024-01-02 03:04:05', z TIMESTAMP(2) NULL"
        " DEFAULT '2024-01-02 03:04:05', bi BIT(3) DEFAULT b'101', o BOOLEAN NOT NULL DEFAULT TRUE,"
        " bn BINARY(4) DEFAULT 'a', en ENUM('x','y') NOT NULL DEFAULT 'y', f FLOAT DEFAULT 0.1,"
        " nf DOUBLE NOT NULL DEFAULT 0.25, ti TIME NOT NULL DEFAULT '01:02:03',"
        " y YEAR NOT NULL DEFAULT 2024, dt DATE NOT NULL DEFAULT '2024-01-02',"
        " u BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615,"
        " b1 BIT(1) NOT NULL DEFAULT b'1', b9 BIT(9) NOT NULL DEFAULT b'101',"
        " ch CHAR(5) NOT NULL DEFAULT 'ab ', at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
    )
    state, reader = begin("t")
    minimal.execute("INSERT INTO t (id) VALUES (1), (2)")
    minimal.execute("INSERT INTO t (id, n, v) VALUES (3, 3, 'own')")
    reader.catch_up()

    schema = reader.source.describe(None, "t")
    with reader.source.snapshot([schema]) as snapshot:
        rows = sorted(scan(snapshot, schema), key=lambda row: row["id"])
    assert seen(state) == [("c", row, []) for row in rows]
    assert [rows[0]["a"], rows[0]["bi"], rows[2]["v"]] == [7, "\\x05", "own"]
    assert told(state) == []


def test_a_default_that_is_not_known_lets_the_table_be_read_again(
    minimal: MySQLHarness, begin: Begin
) -> None:
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 1)")
    state, reader = begin("t")
    minimal.execute("INSERT INTO t (id) VALUES (1)")
    reader.catch_up()
    # The reader learns of both together: when it asks, the first default is gone.
    with minimal.session() as session:
        session.execute("ALTER TABLE t ALTER COLUMN a SET DEFAULT 2")
        session.execute("INSERT INTO t (id) VALUES (2)")
        session.commit()
    reader.catch_up()
    minimal.execute("INSERT INTO t (id) VALUES (3)")
    reader.catch_up()

    first, second, third = seen(state)
    assert first == ("c", {"id": 1, "a": 1}, [])
    assert second == ("c", {"id": 2, "a": None}, ["a"])
    assert told(state) == [("key", True)]
    assert third == ("c", {"id": 3, "a": 2}, [])


def test_a_changed_key_lets_the_table_be_read_again(minimal: MySQLHarness, begin: Begin) -> None:
    """The binlog has the new key and not the rest of the row."""
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    minimal.execute("INSERT INTO t VALUES (1, 'a')")
    state, reader = begin("t")
    minimal.execute("UPDATE t SET id = 2")
    reader.catch_up()

    assert seen(state) == [("d", {"id": 1}, []), ("c", {"id": 2, "v": None}, ["v"])]
    assert told(state) == [("key", True)]


def test_earlier_changes_of_a_transaction_tell_what_a_later_one_left_out(
    minimal: MySQLHarness, begin: Begin
) -> None:
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20), w INT)")
    minimal.execute("INSERT INTO t VALUES (9, 9, 'i', 9)")
    state, reader = begin("t")
    minimal.execute(
        "INSERT INTO t VALUES (1, 1, 'a', 1)",
        "UPDATE t SET n = 2 WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 1",
        "UPDATE t SET w = 4 WHERE id = 3",
        "UPDATE t SET n = 10 WHERE id = 9",
        "UPDATE t SET v = 'j' WHERE id = 9",
    )
    reader.catch_up()

    assert seen(state) == [
        ("c", {"id": 3, "n": 2, "v": "a", "w": 4}, []),
        ("u", {"id": 9, "n": 10, "v": "j", "w": None}, ["w"]),
    ]
    assert told(state) == []


def test_a_unique_key_and_no_key(minimal: MySQLHarness, begin: Begin) -> None:
    """Without a primary key the server takes a unique one; without any it sends whole old rows."""
    minimal.execute("CREATE TABLE t (n INT, k INT NOT NULL, v VARCHAR(9), UNIQUE KEY zz (k))")
    minimal.execute("CREATE TABLE w (n INT, v VARCHAR(9))")
    state, reader = begin("t", "w")
    minimal.execute("INSERT INTO t VALUES (1, 1, 'a')")
    minimal.execute("UPDATE t SET n = 2")
    minimal.execute("DELETE FROM t")
    minimal.execute("INSERT INTO w VALUES (1, 'a')")
    minimal.execute("INSERT INTO w (v) VALUES ('b')")
    minimal.execute("UPDATE w SET v = 'c' WHERE v = 'a'")
    reader.catch_up()

    assert seen(state) == [
        ("c", {"n": 1, "k": 1, "v": "a"}, []),
        ("u", {"n": 2, "k": 1, "v": None}, ["v"]),
        ("d", {"k": 1}, []),
        ("c", {"n": 1, "v": "a"}, []),
        ("c", {"n": None, "v": "b"}, []),
        ("d", {"n": 1, "v": "a"}, []),
        ("c", {"n": 1, "v": "c"}, []),
    ]
    assert told(state) == []


def test_large_columns_that_noblob_leaves_out(
    harness: MySQLHarness, binlog_server: BinlogServer, begin: Begin
) -> None:
    binlog_server.run("SET GLOBAL binlog_row_image = 'NOBLOB'")
    harness.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, b TEXT)")
    state, reader = begin("t")
    harness.execute("INSERT INTO t VALUES (1, 1, 'x')")
    harness.execute("INSERT INTO t (id) VALUES (2)")
    harness.execute("UPDATE t SET n = 3 WHERE id = 1")
    harness.execute("UPDATE t SET b = 'y' WHERE id = 1")
    harness.execute("DELETE FROM t WHERE id = 1")
    reader.catch_up()

    assert seen(state) == [
        ("c", {"id": 1, "n": 1, "b": "x"}, []),
        ("c", {"id": 2, "n": None, "b": None}, []),
        ("u", {"id": 1, "n": 3, "b": None}, ["b"]),
        ("u", {"id": 1, "n": 3, "b": "y"}, []),
        ("d", {"id": 1}, []),
    ]


def test_a_session_that_lowers_the_image_is_told(harness: MySQLHarness, begin: Begin) -> None:
    """Readers learn that rows before are not whole any more, before the first such row. The row
    that was made in the same transaction has the shape of the others."""
    harness.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    state, reader = begin("t")
    harness.execute("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')")
    harness.execute("UPDATE t SET n = 3 WHERE id = 1")
    reader.catch_up()
    assert [change.before for change in state.changes() if change.op == "u"] == [
        {"id": 1, "n": 1, "v": "a"}
    ]
    with harness.session() as session:
        session.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        session.execute("INSERT INTO t VALUES (3, 3, 'c')")
        session.execute("UPDATE t SET n = 4 WHERE id = 1")
        session.commit()
    harness.execute("UPDATE t SET n = 5 WHERE id = 2")
    reader.catch_up()

    assert told(state) == [("key", False)]
    lowered = next(event for event in state.events if isinstance(event, SchemaChange))
    assert lowered.old.before_image is BeforeImage.FULL
    of = {
        row["seq"]: event.schema.before_image
        for event in state.events
        if isinstance(event, ChangeBatch)
        for row in event.rows.to_pylist()
    }
    assert all((image is BeforeImage.KEY) == (seq > lowered.seq) for seq, image in of.items())
    assert seen(state)[-3:] == [
        ("c", {"id": 3, "n": 3, "v": "c"}, []),
        ("u", {"id": 1, "n": 4, "v": None}, ["v"]),
        ("u", {"id": 2, "n": 5, "v": "b"}, []),
    ]


def test_whole_rows_count_again_when_the_sessions_have_ended(
    harness: MySQLHarness, begin: Begin
) -> None:
    """Not at once: sessions with both settings would change the table's shape all the time."""
    harness.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    harness.execute("INSERT INTO t VALUES (1, 1, 'a')")
    state, reader = begin("t")
    for setting, later in (("MINIMAL", 0), ("FULL", 5), ("FULL", 60), ("MINIMAL", 70)):
        harness.execute(
            f"SET SESSION binlog_row_image = '{setting}'",
            f"SET SESSION timestamp = UNIX_TIMESTAMP() + {later}",
            f"UPDATE t SET n = {later + 2}",
        )
    reader.catch_up()

    assert told(state) == [("key", False), ("full", False), ("key", False)]
    befores = [change.before for change in state.changes()]
    assert befores == [{"id": 1}, {"id": 1}, {"id": 1, "n": 7, "v": "a"}, {"id": 1}]


def test_a_large_transaction_in_parts_of_rows(minimal: MySQLHarness, begin: Begin) -> None:
    """It is kept on disk until it ends. What a stretch of it left out, and another may have told,
    is read again."""
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(200), w INT)")
    state, reader = begin("t")
    with minimal.session() as session:
        for start in range(0, 60_000, 5_000):
            rows = ", ".join(f"({i}, {i}, REPEAT('x', 150))" for i in range(start, start + 5_000))
            session.execute(f"INSERT INTO t (id, n, v) VALUES {rows}")
        session.execute("UPDATE t SET n = -1 WHERE id IN (7, 59999)")
        session.commit()
    reader.catch_up()

    found = {row["id"]: (op, row["n"], names) for op, row, names in seen(state)}
    assert len(found) == 60_000
    assert {op for op, _, _ in found.values()} == {"c"}
    assert found[8] == ("c", 8, [])
    assert found[59999] == ("c", -1, [])
    assert found[7] == ("c", -1, ["v", "w"])
    assert told(state) == [("key", True)]


def test_diff_is_refused_with_the_statement(minimal: MySQLHarness) -> None:
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    minimal.execute("CREATE TABLE w (v VARCHAR(20))")
    held = minimal.source().attach("abcdef", None)
    assert held.check([Watch("t"), Watch("w", diff=True)]) == []
    [problem] = held.check([Watch("t", diff=True)])

    assert problem.code == "CF2003"
    assert "binlog_row_image is 'MINIMAL'" in problem.message
    assert "binlog_row_image = 'FULL'" in str(problem.hint)
    assert "row_images = 'store'" in str(problem.hint)
    listed = {info.name.name: info.identity for info in minimal.source().tables()}
    assert listed == {"t": "minimal", "w": "full"}
    assert any("binlog_row_image is 'MINIMAL'" in text for text in minimal.source().warnings())


def test_rows_that_messages_replace_are_refused_with_the_statement(
    minimal: MySQLHarness, binlog_server: BinlogServer, tmp_path: Path
) -> None:
    """A document of Elasticsearch would have placeholders where a table keeps its values."""
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    [table] = minimal.source().tables()
    uri = binlog_server.uri(table.name.schema)
    with closing(Catalog.open(str(tmp_path))) as catalog:
        interpreter, session = Interpreter(catalog), Session(client="test")
        interpreter.execute(f"CREATE EXTERNAL CONNECTION shop AS '{uri}'", session)
        create = "CREATE CHANGEFEED FOR TABLE shop.t INTO '{}'{}"

        def problems(sink: str, more: str = "") -> str:
            try:
                interpreter.execute(create.format(sink, more), session)
            except ChangefeedError as error:
                return f"{error}\n{error.hint}"
            return ""

        server = "elasticsearch://127.0.0.1:1"  # it does not answer, which is a problem, too
        assert "each message replaces a row at the target" in problems(server)
        assert "replaces a row" not in problems(server, " WITH row_images = 'store'")
        assert problems("null://") == ""
        assert problems(f"duckdb://{tmp_path}/shop.duckdb") == ""


def test_a_virtual_column_that_mariadb_leaves_out(
    minimal: MySQLHarness, binlog_server: BinlogServer, begin: Begin
) -> None:
    """MySQL writes it with each change of it."""
    minimal.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v INT AS (n + 1) VIRTUAL)")
    held = minimal.source().attach("abcdef", None)
    if binlog_server.flavor == "mariadb":
        [problem] = held.check([Watch("t")])
        assert problem.code == "CF2003"
        assert "VIRTUAL column v" in problem.message
        # A single session that does it stops the table, before the column could be wrong.
        binlog_server.run("SET GLOBAL binlog_row_image = 'FULL'")
        state, reader = begin("t")
        minimal.execute(
            "SET SESSION binlog_row_image = 'MINIMAL'", "INSERT INTO t (id, n) VALUES (1, 1)"
        )
        reader.catch_up()
        [event] = [event for event in state.events if isinstance(event, SchemaChange)]
        assert event.unreadable and "VIRTUAL column v" in event.why and not seen(state)
        return
    assert held.check([Watch("t")]) == []
    state, reader = begin("t")
    minimal.execute("INSERT INTO t (id, n) VALUES (1, 1)")
    minimal.execute("UPDATE t SET n = 2")
    reader.catch_up()
    assert seen(state) == [
        ("c", {"id": 1, "n": 1, "v": 2}, []),
        ("u", {"id": 1, "n": 2, "v": 3}, []),
    ]
