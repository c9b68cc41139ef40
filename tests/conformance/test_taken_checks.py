"""Each check that notices stored rows which the stream does not have is taken away, one at a time:
what it is there for is then missed. So none of them is idle, and the histories would turn red.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Frontier, SchemaChange
from changefeed.sources.base import StreamRequest
from changefeed.sources.mysql import MySQLSource
from changefeed.sources.mysql.gtid import parse
from changefeed.sources.mysql.session import connect
from changefeed.sources.mysql.stream import BinlogAccess, BinlogStream
from changefeed.sources.mysql.tokens import TokenReader
from changefeed.sources.postgres.storage_changes import FILE_NAME
from tests.conformance import test_postgres_storage as of_postgres
from tests.e2e import test_mysql_ddl as of_mysql
from tests.helpers.postgres_slots import drop_slot
from tests.helpers.postgres_tail import Catalog, prepare, tailing
from tests.helpers.waiting import until
from tests.services.mysql import BinlogServer
from tests.services.postgres import Database, PostgresCluster


def nothing(*_: Any, **__: Any) -> Any:
    """In place of a check that finds changes."""
    return []


def no(*_: Any, **__: Any) -> Any:
    """In place of a check that doubts."""
    return False


def yes(*_: Any, **__: Any) -> Any:
    """In place of a check that trusts."""
    return True


def consume(cursor: TokenReader) -> bool:
    """In place of a list of harmless clauses: every one is."""
    cursor.rest()
    while not cursor.ended:
        cursor.advance()
    return True


# ---------------------------------------------------------------------------- PostgreSQL

_STORAGE = "changefeed.sources.postgres.storage_changes."
_FILLED = of_postgres.written("filled", "", "alter table {t} add w int default 7")

#: The history that is missed without each check.
POSTGRES = {
    "off": (_STORAGE + "_moved", nothing),
    "attach": (_STORAGE + "HeapEvidence.may_be_unsent", no),
    "edited": (_STORAGE + "_moved", nothing),
    "emptied": (_STORAGE + "_emptied", nothing),
    "deep": (_STORAGE + "HeapEvidence.may_be_lost", no),
    "same": (_STORAGE + "_rewritten", nothing),
    "keyed": (_STORAGE + "StorageWatch._load", nothing),
    "labels": (_STORAGE + "_types", nothing),
    "filled": ("changefeed.sources.postgres.relations.was_rewritten", no),
}


@dataclass
class Altered:
    """Tables that were altered while nobody read, and what was seen of them before."""

    database: Database
    folder: Path
    shapes: Catalog
    start: Frontier

    def said(self, folder: Path) -> set[str]:
        """The tables of which a stream that begins now says that they have to be read again."""
        before = (self.folder / FILE_NAME).read_bytes()
        shutil.copy(self.folder / FILE_NAME, folder)
        with tailing(self.database, folder, catalog=self.shapes.copy(), start=self.start) as tail:
            until(lambda: (folder / FILE_NAME).read_bytes() != before, "it was looked")
            self.start = tail.frontier
            return set(of_postgres.said(tail))


@pytest.fixture(scope="module")
def altered(
    postgres_server: Callable[..., PostgresCluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Altered]:
    known = {history.name: history for history in (*of_postgres.HISTORIES, _FILLED)}
    histories = [known[name] for name in POSTGRES]
    folder = tmp_path_factory.mktemp("altered")
    with postgres_server().database() as database:
        for history in histories:
            of_postgres.make(database, history)
        prepare(database, ", ".join(POSTGRES), "publish_via_partition_root = true")
        for history in histories:
            of_postgres.fill(database, history)
        with tailing(database, folder) as tail:
            until((folder / FILE_NAME).exists, "the tables were looked at")
            tail.catch_up()
        for history in histories:
            of_postgres.run(database, history)
        yield Altered(database, folder, tail.catalog, tail.frontier)
        drop_slot(database, "tail")


@pytest.mark.postgres
def test_all_checks_of_postgresql_find_all(altered: Altered, tmp_path: Path) -> None:
    assert altered.said(tmp_path) == set(POSTGRES)


@pytest.mark.postgres
@pytest.mark.parametrize("name", POSTGRES)
def test_without_a_check_of_postgresql(
    name: str, altered: Altered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*POSTGRES[name])
    assert name not in altered.said(tmp_path)


# ---------------------------------------------------------------------- MySQL and MariaDB

_CLAUSES, _DEFINITIONS = (f"changefeed.sources.mysql.{m}." for m in ("clauses", "definitions"))
HISTORIES = of_mysql.HISTORIES | {
    name: of_mysql.History(of_mysql.NUMBERS, done, True)
    for name, done in {
        "engine": ("ALTER TABLE {t} ENGINE = MyISAM",),
        "statement": ("SET SESSION binlog_format = 'STATEMENT'", "UPDATE {t} SET a = 3"),
    }.items()
}
MYSQL = {
    # A clause that is not known counts as a change: both lists have to be without it.
    "drop_partition": ((_CLAUSES + "_MOVING", set()), (_CLAUSES + "_STILL", {"DROP"})),
    "exchange": (("changefeed.sources.mysql.ddl.exchanged", nothing),),
    "convert": ((_CLAUSES + "_harmless", consume),),
    "engine": ((_CLAUSES + "_harmless", consume),),
    "precision": ((_CLAUSES + "_reads_the_same", yes),),
    "shorter": ((_CLAUSES + "_holds", yes), (_CLAUSES + "_reads_the_same", yes)),
    "swap": ((_CLAUSES + "_names", lambda clause: set()),),
    "dropped_and_made": ((_DEFINITIONS + "Definitions._replaced", nothing),),
    "statement": ((_DEFINITIONS + "Definitions.note_write", no),),
}


@dataclass
class Watched:
    """Tables whose changes can be read as often as one likes."""

    server: BinlogServer
    database: str
    start: str

    @property
    def tables(self) -> list[str]:
        beside = [f"t_{name}_o" for name in MYSQL if HISTORIES[name].beside]
        return [*(f"t_{name}" for name in MYSQL), *beside, "last"]

    def said(self, folder: Path) -> set[str]:
        """The tables of which the stream says that they have to be read again."""
        source, start = (
            MySQLSource("shop", self.server.uri(self.database)),
            parse("mariadb", self.start),
        )
        request = StreamRequest(
            start=Frontier(Timestamp.ZERO, start.position, 0, self.start),
            identity="",
            memo=lambda: {"tables": [[self.database, table] for table in self.tables]},
            intern=lambda schema: schema,
            latest=lambda name: None,
            names=lambda number: (),
            spool=folder / "spool",
            folder=folder / "kept",
        )
        access = BinlogAccess(
            lambda: connect(source.address),
            source="shop",
            flavor="mariadb",
            mode="gtid",
            server_id=4712,
            describe=lambda name: source.describe(name.schema, name.name),
        )
        stream = BinlogStream(access, request)
        found, ended = set(), False
        for flush in stream:
            for event in flush.events:
                if isinstance(event, SchemaChange) and event.rewritten:
                    found.add(event.new.table.name)
                    # Other rows than those of the table that was dropped.
                    assert event.moved or "another table has the name" not in event.why
                ended |= isinstance(event, ChangeBatch) and event.schema.table.name == "last"
            if ended:
                break
        stream.close()
        source.close()
        return found


@pytest.fixture(scope="module")
def watched(binlog_servers: Callable[..., BinlogServer]) -> Iterator[Watched]:
    server = binlog_servers("mariadb")
    with server.database() as database:
        [(start,)] = server.run("SELECT @@GLOBAL.gtid_binlog_pos")
        for name in MYSQL:
            history = HISTORIES[name]
            for statements in (history.made, history.done):
                server.run(*(s.replace("{t}", f"t_{name}") for s in statements), database=database)
        server.run("CREATE TABLE last (id INT PRIMARY KEY)", "INSERT INTO last VALUES (1)",
                   database=database)  # fmt: skip
        yield Watched(server, database, str(start))


def test_all_checks_of_mysql_find_all(watched: Watched, tmp_path: Path) -> None:
    assert watched.said(tmp_path) == set(watched.tables) - {"last"}


@pytest.mark.parametrize("name", MYSQL)
def test_without_a_check_of_mysql(
    name: str, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, instead in MYSQL[name]:
        monkeypatch.setattr(place, instead)
    missed = f"t_{name}_o" if HISTORIES[name].beside else f"t_{name}"
    assert missed not in watched.said(tmp_path)
