"""A binlog that began anew, or that a restored server writes, is not the one that was read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Frontier
from changefeed.sources.base import StreamRequest
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.gtid import parse
from changefeed.sources.mysql.session import connect
from changefeed.sources.mysql.stream import BinlogAccess, BinlogStream
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer

pytestmark = pytest.mark.parametrize("binlog_server", ["mariadb", "mysql8"], indirect=True)


class Reader:
    """Reads a new binlog with rows of a table ``t``, session after session."""

    def __init__(self, server: BinlogServer, database: str, folder: Path) -> None:
        self.server = server
        self.database = database
        self.folder = folder
        self.source = MySQLSource("shop", server.uri(database))
        server.run("RESET MASTER")
        self.insert(1)
        self.frontier = Frontier(Timestamp.ZERO, parse(server.flavor, "").position, 0, "")

    @property
    def end(self) -> str:
        """Where the server's log ends."""
        variable = "gtid_binlog_pos" if self.server.flavor == "mariadb" else "gtid_executed"
        return str(self.server.run(f"SELECT @@GLOBAL.{variable}")[0][0]).replace("\n", "")

    @property
    def number(self) -> int:
        """How many transactions its log has had."""
        return int(parse(self.server.flavor, self.end).position)

    def insert(self, key: int) -> None:
        self.server.run(f"INSERT INTO t VALUES ({key})", database=self.database)

    def stream(self) -> BinlogStream:
        """A new session, from where the last one ended."""
        self.folder.mkdir(exist_ok=True)
        access = BinlogAccess(
            lambda: connect(self.source.address),
            source="shop",
            flavor=self.server.flavor,
            mode="gtid",
            server_id=4711,
            describe=lambda name: self.source.describe(name.schema, name.name),
        )
        request = StreamRequest(
            start=self.frontier,
            identity="",
            memo=lambda: {"tables": [[self.database, "t"]]},
            intern=lambda schema: schema,
            latest=lambda name: None,
            names=lambda number: (),
            spool=self.folder / "spool",
            folder=self.folder,
        )
        return BinlogStream(access, request)

    def read(self, rows: int) -> None:
        """One session, until it has read so many rows and is idle."""
        stream = self.stream()
        for flush in stream:
            self.frontier = flush.frontier or self.frontier
            rows -= sum(event.rows.num_rows for event in flush.events)  # type: ignore[union-attr]
            if rows <= 0 and not flush.events:
                break
        stream.close()
        assert rows == 0

    def refusal(self) -> ChangefeedError:
        """What the next session ends with."""
        with pytest.raises(ChangefeedError) as error:
            for flush in self.stream():
                assert not flush.events, "rows of another log were taken"
        return error.value


@pytest.fixture
def reader(binlog_server: BinlogServer, tmp_path: Path) -> Iterator[Reader]:
    with binlog_server.database() as name:
        binlog_server.run("CREATE TABLE t (id int primary key)", database=name)
        made = Reader(binlog_server, name, tmp_path / "kept")
        yield made
        made.source.close()


def test_a_session_after_the_other_reads_each_row_once(reader: Reader) -> None:
    reader.insert(2)
    reader.read(2)
    reader.insert(3)
    reader.read(1)


@pytest.mark.parametrize("passes", [False, True], ids=["behind", "passed"])
def test_a_log_that_began_anew_between_two_sessions(reader: Reader, passes: bool) -> None:
    for key in range(2, 8):
        reader.insert(key)
    reader.read(7)
    read = reader.number
    reader.server.run("RESET MASTER")
    [(then,)] = reader.server.run("SELECT UNIX_TIMESTAMP()")
    until(lambda: reader.server.run("SELECT UNIX_TIMESTAMP()") != [(then,)], "the next second")
    reader.insert(10)
    while passes and reader.number < read + 3:
        reader.insert(10 + reader.number)
    refused = reader.refusal()
    assert refused.code in ("CF2102", "CF2103")
    if passes:
        assert "is not the one that was read" in str(refused.detail)


def test_a_log_that_begins_anew_under_a_reader_that_waits(reader: Reader) -> None:
    for key in range(2, 8):
        reader.insert(key)
    stream = reader.stream()
    with pytest.raises(ChangefeedError) as error:
        for flush in stream:
            if not flush.events and reader.number > 1:
                reader.server.run("RESET MASTER")
    assert error.value.code in ("CF2102", "CF2103")


def test_a_witness_that_was_purged_is_not_needed(reader: Reader) -> None:
    reader.insert(2)
    reader.read(2)
    reader.server.purge()
    reader.insert(3)
    reader.read(1)
