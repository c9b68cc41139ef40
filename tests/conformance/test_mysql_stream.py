"""What the binlog reader says when a server cannot give it what it needs, and large events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Frontier, SchemaChange
from changefeed.sources.base import StreamRequest
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.coordinates import file_end, of_file
from changefeed.sources.mysql.gtid import parse
from changefeed.sources.mysql.position import FilePosition
from changefeed.sources.mysql.session import MySQLSession, connect
from changefeed.sources.mysql.stream import BinlogAccess, BinlogStream
from tests.helpers.waiting import until
from tests.services.mysql import READER_PASSWORD, BinlogServer

BOTH = pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)


@dataclass
class Watched:
    """A table ``t`` in a database of its own, and streams of it from where it was made."""

    server: BinlogServer
    database: str
    folder: Path
    source: MySQLSource
    start: str

    def run(self, *statements: str) -> None:
        """In one session."""
        self.server.run(*statements, database=self.database)

    def stream(
        self,
        server_id: int = 4711,
        start: str | None = None,
        *,
        sessions: Callable[[], MySQLSession] | None = None,
        mode: str = "gtid",
    ) -> BinlogStream:
        flavor, start = self.server.flavor, self.start if start is None else start
        known = parse(flavor, start) if mode == "gtid" else FilePosition.parse(start)
        request = StreamRequest(
            start=Frontier(Timestamp.ZERO, known.position, 0, start),
            identity="",
            memo=lambda: {"tables": [[self.database, "t"]]},
            intern=lambda schema: schema,
            latest=lambda name: None,
            names=lambda number: (),
            spool=self.folder / "spool",
            folder=self.folder / "kept",
        )
        access = BinlogAccess(
            sessions or (lambda: connect(self.source.address)),
            source="shop",
            flavor=flavor,
            mode=mode,
            server_id=server_id,
            describe=lambda name: self.source.describe(name.schema, name.name),
        )
        return BinlogStream(access, request)

    def changes(self, count: int, stream: BinlogStream | None = None) -> list[Change]:
        """The first ``count`` changes; a heartbeat every second lets this end."""
        stream = stream or self.stream()
        found: list[Change] = []
        for flush in stream:
            for event in flush.events:
                if isinstance(event, ChangeBatch):
                    found += event.changes()
            if len(found) >= count:
                break
        stream.close()
        return found

    def told_of_the_table(self) -> SchemaChange:
        """What the stream says of the table, and goes on: a row that comes behind it arrives."""
        told: list[SchemaChange] = []
        stream = self.stream()
        flushes = iter(stream)
        for flush in flushes:
            for event in flush.events:
                if isinstance(event, SchemaChange):
                    told.append(event)
            if told and (told[-1].moved or told[-1].unreadable):
                break
        self.run("INSERT INTO t (id) VALUES (1000)")
        keys: list[int] = []
        for flush in flushes:
            for event in flush.events:
                if isinstance(event, ChangeBatch):
                    keys += [(change.after or {})["id"] for change in event.changes()]
            if 1000 in keys:
                break
        stream.close()
        return told[-1]

    def refusal(self) -> ChangefeedError:
        """The error that the stream ends with."""
        with pytest.raises(ChangefeedError) as error:
            self.changes(1)
        return error.value


@pytest.fixture
def watched(binlog_server: BinlogServer, tmp_path: Path) -> Iterator[Watched]:
    with binlog_server.database() as name:
        binlog_server.run("CREATE TABLE t (id int primary key, v text, b longblob)", database=name)
        variable = "gtid_binlog_pos" if binlog_server.flavor == "mariadb" else "gtid_executed"
        start = str(binlog_server.run(f"SELECT @@GLOBAL.{variable}")[0][0]).replace("\n", "")
        source = MySQLSource("shop", binlog_server.uri(name))
        yield Watched(binlog_server, name, tmp_path, source, start)
        source.close()


class SlowAnswer:
    """A session whose answers are under way while somebody commits a row."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._session = connect(watched.source.address)
        #: When the first commit was known to be done, in nanoseconds.
        self.done = 0
        self.version, self.raw = self._session.version, self._session.raw
        self.run, self.close = self._session.run, self._session.close

    def rows(self, sql: str, doing: str = "ask the server") -> list[tuple[Any, ...]]:
        answer = self._session.rows(sql, doing)
        if not self.done:
            self._watched.run("INSERT INTO t (id) VALUES (1)")
            self.done = time.time_ns()
            time.sleep(0.05)  # nothing to wait for: an answer takes its time
        return answer


@pytest.mark.parametrize(
    ("binlog_server", "mode"),
    [("mariadb", "gtid"), ("mysql8", "gtid"), ("mysql8", "file")],
    indirect=["binlog_server"],
)
def test_no_commit_is_stamped_later_than_it_was_known_to_be_done(
    watched: Watched, mode: str
) -> None:
    """What the log lacked when it was asked for its end may have committed by the answer."""
    started = connect(watched.source.address)
    slow = SlowAnswer(watched)
    sessions = [cast(MySQLSession, slow), started]  # the second one asks for the end of the log
    start = watched.start if mode == "gtid" else of_file(started, *file_end(started)).history
    [change] = watched.changes(1, watched.stream(start=start, sessions=sessions.pop, mode=mode))
    assert 0 < change.at.version <= slow.done


@BOTH
def test_a_table_with_statements_in_place_of_rows_is_read_again(watched: Watched) -> None:
    """And the stream goes on with what comes later."""
    watched.run("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO t (id) VALUES (1)")
    told = watched.told_of_the_table()
    assert (told.moved, told.unreadable) == (True, False)
    assert "binlog_format = 'ROW'" in told.why


@BOTH
def test_rows_without_names_of_columns_are_refused(watched: Watched) -> None:
    watched.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        watched.run("INSERT INTO t (id) VALUES (1)")
    finally:
        watched.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    error = watched.refusal()
    assert error.code == "CF2003"
    assert "binlog_row_metadata = 'FULL'" in str(error.hint)


@pytest.mark.parametrize("binlog_server", ["mysql8"], indirect=True)
def test_changes_inside_json_cannot_be_read(watched: Watched) -> None:
    """The stream goes on: with the next whole row."""
    watched.run(
        "ALTER TABLE t ADD COLUMN js json",
        'INSERT INTO t (id, js) VALUES (1, \'{"a": 1, "b": [1, 2, 3]}\')',
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE t SET js = JSON_SET(js, '$.a', 7)",
    )
    told = watched.told_of_the_table()
    assert told.unreadable
    assert "binlog_row_value_options" in told.why


@BOTH
def test_an_event_larger_than_a_packet_is_read_whole(watched: Watched) -> None:
    # One of exactly the length where a packet is full, and one of several packets.
    watched.run(
        "INSERT INTO t VALUES (1, 'x', repeat('a', 16777215)), (2, 'y', NULL)",
        "INSERT INTO t VALUES (3, 'z', repeat('b', 40000000))",
    )
    found = watched.changes(3)
    sizes = [(c.after or {})["b"] and len((c.after or {})["b"]) for c in found]
    assert sizes == [2 + 2 * 16_777_215, None, 2 + 2 * 40_000_000]


@BOTH
def test_a_second_reader_with_the_same_server_id_is_named(watched: Watched) -> None:
    first, errors = watched.stream(), list[ChangefeedError]()
    begun = threading.Event()

    def follow() -> None:
        try:
            for _ in first:
                begun.set()
        except ChangefeedError as error:
            errors.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    watched.run("INSERT INTO t (id) VALUES (1)")
    assert begun.wait(30)
    other = Watched(**{**watched.__dict__, "folder": watched.folder / "other"})
    assert [c.op for c in other.changes(1)] == ["c"]
    until(lambda: bool(errors))
    thread.join(30)
    assert errors[0].code == "CF2109"
    assert "server_id=" in str(errors[0].hint)


@BOTH
def test_a_user_without_the_right_to_the_log_reads_which_rights_are_granted(
    watched: Watched,
) -> None:
    """Each server's own names for them."""
    server = watched.server
    server.run(f"CREATE USER poor IDENTIFIED BY '{READER_PASSWORD}'")
    server.run(f"GRANT SELECT ON `{watched.database}`.* TO poor")
    poor = MySQLSource("shop", server.uri(watched.database, "poor", READER_PASSWORD))
    try:
        stream = watched.stream(sessions=lambda: connect(poor.address))
        with pytest.raises(ChangefeedError) as error:
            watched.changes(1, stream)
    finally:
        poor.close()
        server.run("DROP USER poor")
    end = "BINLOG MONITOR" if server.flavor == "mariadb" else "REPLICATION CLIENT"
    assert error.value.code == "CF2004"
    assert error.value.hint == f"GRANT REPLICATION SLAVE, {end} ON *.* TO the user of the source."


@BOTH
def test_a_log_with_transactions_that_the_server_does_not_have_is_another_log(
    watched: Watched,
) -> None:
    if watched.server.flavor == "mariadb":
        domain, server, number = watched.start.split(",")[0].split("-")
        start = f"{domain}-{server}-{int(number) + 1000}"
    else:
        start = f"{watched.start},aaaaaaaa-71ca-11e1-9e33-c80aa9429562:1-5"
    with pytest.raises(ChangefeedError) as error:
        watched.changes(1, watched.stream(start=start))
    assert error.value.code == "CF2103"
