"""A MySQL or MariaDB server to measure with, its table of eight columns, backlogs of changes, and
what benchmarks of their capture share.

* ``bulk``: inserts, 5,000 rows a statement and a transaction.
* ``update``: the same, then one UPDATE of all rows.
* ``mixed``: 60 % inserts, 25 % updates and 15 % deletes in transactions of 500 changes, no row
  twice in one of them.
* ``small``: inserts, a transaction per row.

Rows are made inside the server, so that the client's speed does not matter but for ``small``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cost
from benchmarks.peers import debezium
from changefeed.core.clock import Timestamp
from changefeed.core.events import ChangeBatch, Flush, Frontier
from changefeed.core.schema import TableSchema
from changefeed.sources.base import Memo, StreamRequest
from tests.services.cache import server_folder
from tests.services.mysql import SERVERS, BinlogServer

DATABASE, TABLE = "measured", "rows_"
WORKLOADS = ("bulk", "mixed", "small", "update")

_COLUMNS = (
    "id bigint primary key, a int, b varchar(40), c decimal(12,2), d datetime(6),"
    " e double, f varchar(100), g timestamp null"
)
_VALUES = (
    "n, n, concat('name ', n), n / 7, '2024-01-01 01:02:03.123456', n / 3, repeat('x', n % 60),"
    " '2024-01-01 00:00:00'"
)
_STATEMENT, _TRANSACTION = 5_000, 500
_UPDATED, _DELETED = 125, 75


@dataclass(frozen=True, slots=True)
class Place:
    """Where the binlog ends: a file, an offset in it, and the GTIDs before that."""

    file: str
    offset: int
    gtids: str

    def for_debezium(self) -> str:
        """As an offset of Debezium's connectors, JSON."""
        told: dict[str, object] = {"file": self.file, "pos": self.offset}
        if self.gtids:
            told["gtids"] = self.gtids
        return json.dumps(told)


def place(server: BinlogServer) -> Place:
    """Where the binlog of a server ends now."""
    file, offset = server.run("SHOW MASTER STATUS")[0][:2]
    gtids = (
        f"SELECT BINLOG_GTID_POS('{file}', {offset})"
        if server.flavor == "mariadb"
        else "SELECT @@GLOBAL.gtid_executed"
    )
    return Place(str(file), int(str(offset)), str(server.run(gtids)[0][0]).replace("\n", ""))


@contextmanager
def serving(kind: str) -> Iterator[BinlogServer]:
    """A server of a kind of :data:`tests.services.mysql.SERVERS` with an empty table."""
    with server_folder(kind) as folder:
        # SELECT .. INTO OUTFILE writes below it.
        server = SERVERS[kind](folder, f"--secure-file-priv={folder}/tmp").start()
        try:
            server.run(f"CREATE DATABASE {DATABASE}")
            server.run(f"CREATE TABLE {TABLE} ({_COLUMNS})", database=DATABASE)
            yield server
        finally:
            server.stop()


def engine_cost(
    server: BinlogServer,
    start: Place,
    rows: int,
    settings: Mapping[str, str] = debezium.TUNED,
    *,
    form: str = "connect",
    version: str = "",
) -> Cost:
    """What Debezium's engine uses for ``rows`` rows of the table behind a place, dropped."""
    connector = debezium.of_binlog(
        server, DATABASE, TABLE, offset=start.for_debezium(), version=version
    )
    name = f"{DATABASE}.{TABLE}"
    with server_folder("peer") as folder:
        return debezium.dropped(folder, connector, name, rows, settings, form=form)


def stream_request(position: str, history: str, memo: Memo, folder: Path) -> StreamRequest:
    """What a source is asked for as for a log that begins at a position."""
    versions = itertools.count(1)
    known: dict[str, TableSchema] = {}

    def intern(schema: TableSchema) -> TableSchema:
        return known.setdefault(schema.to_json(), schema.with_version(next(versions)))

    return StreamRequest(
        start=Frontier(Timestamp.ZERO, position, 0, history),
        identity="",
        memo=lambda: memo,
        intern=intern,
        latest=lambda name: None,
        names=lambda number: (),
        spool=folder / "spool",
        folder=folder / "kept",
    )


def rows_of(flush: Flush) -> int:
    """How many rows a flush has."""
    return sum(event.rows.num_rows for event in flush.events if isinstance(event, ChangeBatch))


def fill(server: BinlogServer, rows: int) -> None:
    """Insert exactly ``rows`` rows into the empty table."""
    with server.connect("root", "", DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(_depth(server))
        for first in range(1, rows + 1, _STATEMENT):
            cursor.execute(_insert(first, min(first + _STATEMENT - 1, rows)))


#: Other keys of the filled table: the column and what it has.
KEYS = {
    "text": ("k varchar(40) character set utf8mb4", "md5(id)", "k"),
    "uuid": ("k binary(16)", "unhex(md5(id))", "k"),
    "pair": ("k int", "id % 8", "k, id"),
}


def rekey(server: BinlogServer, kind: str) -> None:
    """Give the filled table a key of :data:`KEYS`; rows come in another order then."""
    if kind in KEYS:
        column, value, key = KEYS[kind]
        server.run(
            f"ALTER TABLE {TABLE} ADD {column} FIRST",
            f"UPDATE {TABLE} SET k = {value}",
            f"ALTER TABLE {TABLE} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})",
            database=DATABASE,
        )


def change(server: BinlogServer, workload: str, rows: int) -> int:
    """Commit changes to the empty table; how many, which is ``rows`` rounded up to what the
    workload writes at once."""
    if workload in ("bulk", "update"):
        made = _up(rows if workload == "bulk" else rows // 2, _STATEMENT)
        fill(server, made)
        if workload == "bulk":
            return made
        server.run(f"UPDATE {TABLE} SET a = a + 1", database=DATABASE)
        return 2 * made
    made = rows if workload == "small" else _up(rows, _TRANSACTION)
    with server.connect("root", "", DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(_depth(server))
        if workload == "small":
            for n in range(1, rows + 1):
                cursor.execute(_insert(n, n))
            return made
        cursor.execute(_insert(1, _TRANSACTION))
        # Each transaction changes rows of the one before it.
        first, last = 1, _TRANSACTION
        for _ in range(made // _TRANSACTION - 1):
            inserted = _TRANSACTION - _UPDATED - _DELETED
            cursor.execute("BEGIN")
            cursor.execute(_insert(last + 1, last + inserted))
            updated = f"{first} AND {first + _UPDATED - 1}"
            cursor.execute(f"UPDATE {TABLE} SET a = a + 1, e = e / 2 WHERE id BETWEEN {updated}")
            deleted = f"{last - _DELETED + 1} AND {last}"
            cursor.execute(f"DELETE FROM {TABLE} WHERE id BETWEEN {deleted}")
            cursor.execute("COMMIT")
            first, last = last + 1, last + inserted
    return made


def _up(rows: int, whole: int) -> int:
    return -(-rows // whole) * whole


def _depth(server: BinlogServer) -> str:
    variable = (
        "max_recursive_iterations" if server.flavor == "mariadb" else "cte_max_recursion_depth"
    )
    return f"SET SESSION {variable} = 100000"


def _insert(first: int, last: int) -> str:
    numbers = (
        f"WITH RECURSIVE q(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM q WHERE n < {last})"
    )
    return f"INSERT INTO {TABLE} {numbers} SELECT {_VALUES} FROM q"
