"""The writer to MySQL and MariaDB: the changes of :mod:`.workload`, as these servers have them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pymysql

from tests.helpers.waiting import until
from tests.nemesis.ledger import Cause, Ledger, Span
from tests.nemesis.reading import backticked, of_mysql
from tests.nemesis.tables import (
    BULK_ROWS,
    HELD_KEYS,
    KEYS,
    ODD,
    PASSING_ROWS,
    PLAIN,
    PREPARED_KEYS,
    TABLES,
)
from tests.nemesis.trouble import Trouble
from tests.services.mysql import BinlogServer

if TYPE_CHECKING:
    from tests.nemesis.reading import Client

#: The binlog has whole rows, so nothing has to be looked up.
MYSQL_TABLES = tuple(replace(PLAIN, looked_up=()) if t is PLAIN else t for t in TABLES)
_ODD, _ODD_COLUMN = backticked(ODD.name), '`Sel"ect, é %`'
#: The server's error for an XA transaction that it does not know (yet).
_UNKNOWN_XA = 1397
#: What a transaction wrote while it was prepared.
_XA_TABLES = ("orders", "parts")

SCHEMA = (
    "create table orders (id int primary key, v bigint, a text, n decimal(30,3), doc json)",
    "create table plain (id int primary key, v bigint, big longtext)",
    "create table `lines` (v bigint, a varchar(100))",
    "create table parts (id int primary key, v bigint, a text) partition by range (id)"
    " (partition low values less than (20), partition high values less than maxvalue)",
    "create table shapes (id int primary key, v bigint, s text)",
    "create table bulk (id int primary key, v bigint, pad text)",
    "create table extra (id int primary key, v bigint)",
    "create table forms (id int primary key, v bigint, s text)",
    "create table tally (v bigint, a varchar(100))",
    f"create table {_ODD} (id int primary key, v bigint, {_ODD_COLUMN} text)",
    "create table numbers (i int primary key)",
    f"insert into numbers values {', '.join(f'({i})' for i in range(1, BULK_ROWS + 1))}",
    f"insert into {_ODD} select i, -i, 'first' from numbers where i <= 5",
    "insert into orders select i, -i, concat('first ', i), i + 0.5, '{\"k\": [1, null]}'"
    " from numbers where i <= 20",
    "insert into plain select i, -i, concat(repeat('x', 5000), i) from numbers where i <= 10",
    "insert into `lines` select -i, 'first' from numbers where i <= 10",
    "insert into parts select i, -i, 'first' from numbers where i <= 30",
    "insert into shapes select i, -i, 'first' from numbers where i <= 15",
    "insert into extra select i, -i from numbers where i <= 5",
    "insert into forms select i, -i, 'first' from numbers where i <= 15",
    "insert into tally select i % 3, 'first' from numbers where i <= 10",
)


class MySQLWriter:
    """Makes changes at random and has each commit written down."""

    def __init__(
        self, server: BinlogServer, database: str, ledger: Ledger, chance: random.Random
    ) -> None:
        self._server = server
        self._database = database
        self._ledger = ledger
        self._chance = chance
        self._v = 0
        self._column = 0
        self._bulk_key = 0
        self._columns: dict[str, list[str]] = {"shapes": [], "forms": []}
        self._connections: list[Client] = []
        self._held: Client | None = None
        self._prepared = ""
        self.connect()

    def connect(self) -> None:
        """(Again) after the server went away: what was open is rolled back."""
        self.close()
        self._held = None
        self._reader, self._main = self._opened(), self._opened()
        self._main.autocommit(False)

    def _opened(self) -> Client:
        connection = self._server.connect("root", "", self._database)
        with connection.cursor() as cursor:
            # Without locks on rows that are not there, nobody waits for what is held open.
            cursor.execute("set session transaction isolation level read committed")
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        """Give the connections back."""
        for connection in self._connections:
            if connection.open:
                connection.close()
        self._connections.clear()

    def look_around(self) -> None:
        """Write down what all tables hold, whoever wrote it."""
        now = time.time_ns()
        self._record(list(self._ledger.tables), Cause.WRITE, (now, now))

    def shape(self) -> dict[str, list[str]]:
        """Which columns came by DDL, for :meth:`go_back`."""
        return {name: list(columns) for name, columns in self._columns.items()}

    def go_back(self, shape: dict[str, list[str]]) -> None:
        """The server was restored: it has what it had, and nothing is prepared there."""
        self._columns, self._prepared = {k: list(v) for k, v in shape.items()}, ""
        self.connect()
        self.look_around()

    # -- transactions ---------------------------------------------------------------------

    @contextmanager
    def _commit(
        self, names: Sequence[str], cause: Cause = Cause.WRITE
    ) -> Iterator[pymysql.cursors.Cursor]:
        """One transaction; a TRUNCATE or an ALTER in it commits by itself."""
        began = self._whole_second()
        with self._main.cursor() as cursor:
            yield cursor
            if cause is Cause.WRITE:
                began = self._whole_second()
        self._end(self._main, names, cause, began)

    def _end(self, connection: Client, names: Sequence[str], cause: Cause, began: int) -> None:
        connection.commit()
        self._record(sorted(set(names)), cause, (began, time.time_ns()))

    def _record(self, names: Sequence[str], cause: Cause, span: Span) -> None:
        self._ledger.record(of_mysql(self._reader), names, cause, span)

    @staticmethod
    def _whole_second() -> int:
        """MariaDB's binlog has the second in which a commit began."""
        return time.time_ns() // 1_000_000_000 * 1_000_000_000

    def commit(self) -> str:
        """A few writes in one to three tables."""
        names = ["orders", "plain", "lines", "parts", "shapes", "forms", "tally"]
        names = self._chance.sample(names, k=3)[: self._chance.randint(1, 3)]
        with self._commit(names) as cursor:
            for name in names:
                for _ in range(self._chance.randint(1, 4)):
                    self._write(cursor, name)
        return f"commit in {', '.join(names)}"

    def rollback(self) -> str:
        """Writes that never were."""
        with self._main.cursor() as cursor:
            for name in ("orders", "parts"):
                self._write(cursor, name)
        self._main.rollback()
        return "rollback"

    def savepoint(self) -> str:
        """A transaction of which only a part counts, with rows written several times."""
        with self._commit(["orders", "parts"]) as cursor:
            self._write(cursor, "orders")
            cursor.execute("savepoint one")
            for _ in range(3):
                self._write(cursor, "orders")
            cursor.execute("savepoint two")
            self._write(cursor, "parts")
            cursor.execute(f"rollback to savepoint {self._chance.choice(['one', 'two'])}")
            self._write(cursor, "orders")
            self._write(cursor, "parts")
        return "savepoints"

    def come_and_go(self) -> str:
        """A row that is inserted and deleted in one transaction, and one that is replaced."""
        with self._commit(["orders"]) as cursor:
            key = self._key()
            cursor.execute("delete from orders where id = %s", [key])
            cursor.execute("replace into orders (id, v) values (%s, %s)", [key, self._next()])
            cursor.execute("replace into orders (id, v) values (%s, %s)", [key, self._next()])
            cursor.execute("insert into orders (id, v) values (%s, %s)", [500, self._next()])
            cursor.execute("delete from orders where id = 500")
        return f"delete and insert of {key}"

    def hold(self) -> str:
        """Begin a transaction that commits only after others, or commit it."""
        if self._held is not None:
            return self.release()
        self._held = self._opened()
        self._held.begin()
        with self._held.cursor() as cursor:
            for name in _XA_TABLES:
                for _ in range(3):
                    self._upsert(cursor, name, HELD_KEYS + self._chance.randrange(5))
        return "held transaction begins"

    def release(self) -> str:
        """Commit the held transaction."""
        if self._held is None:
            return "nothing held"
        held, self._held = self._held, None
        self._end(held, _XA_TABLES, Cause.WRITE, self._whole_second())
        held.close()
        return "held transaction commits"

    def prepare(self) -> str:
        """An XA transaction outlives its session; end the one there is, either way."""
        if self._prepared:
            return self.end_prepared()
        name = f"nemesis_{self._next()}"
        connection = self._opened()
        with connection.cursor() as cursor:
            cursor.execute(f"xa start '{name}'")
            for table in _XA_TABLES:
                for _ in range(3):
                    self._upsert(cursor, table, PREPARED_KEYS + self._chance.randrange(5))
            cursor.execute(f"xa end '{name}'")
            cursor.execute(f"xa prepare '{name}'")
        connection.close()
        self._prepared = name
        return f"{name} is prepared"

    def end_prepared(self) -> str:
        """XA COMMIT, or XA ROLLBACK."""
        if not self._prepared:
            return "nothing prepared"
        name, self._prepared = self._prepared, ""
        verb = "rollback" if self._chance.random() < 0.3 else "commit"
        began = self._whole_second()

        def decided() -> bool:
            """The server lets others decide once it has noticed that the session is gone."""
            try:
                with self._reader.cursor() as cursor:
                    cursor.execute(f"xa {verb} '{name}'")
            except pymysql.MySQLError as error:
                if error.args[0] != _UNKNOWN_XA:
                    raise
                return False
            return True

        until(decided, f"{name} can be decided")
        if verb == "commit":
            self._record(_XA_TABLES, Cause.WRITE, (began, time.time_ns()))
        return f"xa {verb} of {name}"

    def truncate(self) -> str:
        """TRUNCATE, and writes that follow."""
        name = self._chance.choice(["orders", "lines", "parts", "tally"])
        self.release()
        self.end_prepared()
        with self._commit([name], Cause.TRUNCATE) as cursor:
            cursor.execute(f"truncate {backticked(name)}")
        if self._chance.random() < 0.5:
            with self._commit([name]) as cursor:
                self._write(cursor, name)
        return f"truncate {name}"

    def empty(self) -> str:
        """Every row of a table is deleted, and some come back, in one transaction."""
        name = self._chance.choice(["orders", "lines", "parts", "tally"])
        self.release()
        self.end_prepared()
        with self._commit([name]) as cursor:
            cursor.execute(f"delete from {backticked(name)}")
            for _ in range(3):
                self._write(cursor, name)
        return f"delete all of {name}"

    def odd(self) -> str:
        """A write to the table with hostile names."""
        with self._commit([ODD.name]) as cursor:
            if self._chance.random() < 0.3:
                cursor.execute(f"delete from {_ODD} where id = %s", [self._key()])
            else:
                cursor.execute(
                    f"replace into {_ODD} values (%s, %s, %s)",
                    [self._key(), self._next(), self._chance.choice(["", "'; --", None])],
                )
        return "write to the table with hostile names"

    def large(self) -> str:
        """A transaction of many rows, with a small one in between, and rows that pass by."""
        key = self._bulk_key
        self._bulk_key += BULK_ROWS
        with self._commit(["bulk"]) as cursor:
            cursor.execute(
                "insert into bulk select %s + i - 1, %s, repeat('pad', 60) from numbers",
                [key, self._next()],
            )
            began = self._whole_second()
            with self._reader.cursor() as other:
                other.execute("replace into extra values (%s, %s)", [self._key(), self._next()])
            self._record(["extra"], Cause.WRITE, (began, time.time_ns()))
            cursor.execute("update bulk set v = %s where id %% 7 = 0", [self._next()])
            cursor.execute("delete from bulk where id < %s and id %% 3 = 0", [key])
            cursor.execute(
                "insert into bulk select -i, %s + i, 'passing' from numbers where i <= %s",
                [self._skip(PASSING_ROWS), PASSING_ROWS],
            )
            cursor.execute("delete from bulk where id < 0")
        return f"large transaction of {BULK_ROWS} rows and more"

    def extra(self) -> str:
        """A write to the table that joins and leaves feeds."""
        with self._commit(["extra"]) as cursor:
            if self._chance.random() < 0.3:
                cursor.execute("delete from extra where id = %s", [self._key()])
            else:
                cursor.execute("replace into extra values (%s, %s)", [self._key(), self._next()])
        return "write to extra"

    def tick(self) -> None:
        """One short transaction."""
        with self._main.cursor() as cursor:
            cursor.execute("replace into extra values (1000, %s)", [self._next()])
        self._main.commit()

    def rename(self) -> str:
        """``extra`` loses its name and gets it back, with other rows."""
        began = self._whole_second()
        with self._main.cursor() as cursor:
            cursor.execute("alter table extra rename to elsewhere")
            cursor.execute("update elsewhere set v = %s + id", [self._skip(KEYS)])
            self._main.commit()
            cursor.execute("rename table elsewhere to extra")
        self._record(["extra"], Cause.DDL, (began, time.time_ns()))
        return "extra is renamed, and gets its name back"

    # -- schema changes -------------------------------------------------------------------

    def ddl(self) -> str:
        """One schema change of ``shapes``, and a write that shows it."""
        return self._alter("shapes", [self._add, self._drop, self._rename, self._retype])

    def grow(self) -> str:
        """A schema change of ``forms`` that every target can follow, and writes that show it."""
        said = self._alter("forms", [self._add, self._drop, self._rename, self._widen])
        if columns := self._columns["forms"]:
            with self._commit(["forms"]) as cursor:
                cursor.execute(
                    f"update forms set {self._chance.choice(columns)} = %s, v = %s"
                    " where id <= 10 and id %% 3 = 0",
                    [self._chance.randint(1, 100), self._next()],
                )
        return said

    def _alter(self, name: str, changes: Sequence[Callable[[list[str], str], str]]) -> str:
        self._column += 1
        columns = self._columns[name]
        change = self._chance.choice(changes) if len(columns) > 1 else self._add
        sql = f"alter table {name} {change(columns, f'c{self._column}')}"
        with self._commit([name], Cause.DDL) as cursor:
            cursor.execute(sql)
        if self._chance.random() < 0.7:
            with self._commit([name]) as cursor:
                self._write(cursor, name)
        return sql

    def _add(self, columns: list[str], name: str) -> str:
        columns.append(name)
        more = self._chance.choice(["", f" default {self._column}", " first", " after v"])
        return f"add column {name} int{more}"

    def _drop(self, columns: list[str], name: str) -> str:
        return f"drop column {columns.pop(self._chance.randrange(len(columns)))}"

    def _rename(self, columns: list[str], name: str) -> str:
        place = self._chance.randrange(len(columns))
        old, columns[place] = columns[place], name
        return f"rename column {old} to {name}"

    def _retype(self, columns: list[str], name: str) -> str:
        return f"modify column {self._chance.choice(columns)} varchar(50)"

    def _widen(self, columns: list[str], name: str) -> str:
        return f"modify column {self._chance.choice(columns)} bigint"

    # -- single writes --------------------------------------------------------------------

    def doings(self) -> list[Trouble]:
        """What may be done next, with its weight."""
        return [
            (30, self.commit),
            (4, self.rollback),
            (6, self.savepoint),
            (6, self.come_and_go),
            (6, self.hold),
            (4, self.prepare),
            (3, self.truncate),
            (2, self.empty),
            (4, self.odd),
            (2, self.large),
            (4, self.extra),
            (3, self.ddl),
            (3, self.grow),
            (0.7, self.rename),
        ]

    def _next(self) -> int:
        self._v += 1
        return self._v

    def _skip(self, count: int) -> int:
        """A number after which ``count`` more are free."""
        first = self._v
        self._v += count + 10
        return first

    def _key(self) -> int:
        return self._chance.randint(1, KEYS)

    def _write(self, cursor: pymysql.cursors.Cursor, name: str) -> None:
        if name in ("lines", "tally"):
            self._write_line(cursor) if name == "lines" else self._count(cursor)
            return
        dice = self._chance.random()
        if dice < 0.6:
            self._upsert(cursor, name, self._key())
        elif dice < 0.8:
            cursor.execute(f"delete from {name} where id = %s", [self._key()])
        elif dice < 0.9:
            cursor.execute(
                f"update {name} set v = %s + id where id between %s and %s",
                [self._skip(KEYS), low := self._key(), low + 3],
            )
        else:
            cursor.execute(
                f"update ignore {name} set id = %s, v = %s where id = %s",
                [self._key(), self._next(), self._key()],
            )

    def _upsert(self, cursor: pymysql.cursors.Cursor, name: str, key: int) -> None:
        more: dict[str, dict[str, str | None]] = {
            "orders": {"a": self._text(), "n": self._number(), "doc": self._document()},
            "plain": {"big": "".join(self._chance.choices("abcdefgh", k=8)) * 600},
            "parts": {"a": self._text()},
            "shapes": {"s": self._text()},
            "forms": {"s": self._text()},
        }
        row: dict[str, object] = {"id": key, "v": self._next(), **more[name]}
        values = ", ".join(["%s"] * len(row))
        # An update of the row that is there, or its deletion and an insert.
        if self._chance.random() < 0.8:
            sets = ", ".join(f"{column} = values({column})" for column in row if column != "id")
            sql = f"insert into {name} ({', '.join(row)}) values ({values}) on duplicate key"
            cursor.execute(f"{sql} update {sets}", list(row.values()))
        else:
            sql = f"replace into {name} ({', '.join(row)}) values ({values})"
            cursor.execute(sql, list(row.values()))

    def _text(self) -> str | None:
        return self._chance.choice(["", "text", 'a "quoted" \\ line\n', "für ☃", None])

    def _number(self) -> str | None:
        return self._chance.choice(["1.50", "0", "-12345678901234567890.001", None])

    def _document(self) -> str | None:
        return self._chance.choice(['{"a": [1, {"b": null}]}', "[]", "null", None])

    def _write_line(self, cursor: pymysql.cursors.Cursor) -> None:
        dice = self._chance.random()
        if dice < 0.5:
            cursor.execute("insert into `lines` values (%s, %s)", [self._next(), "line"])
        elif dice < 0.8:
            cursor.execute("update `lines` set v = %s order by v limit 1", [self._next()])
        else:
            cursor.execute("delete from `lines` order by v desc limit 1")

    def _count(self, cursor: pymysql.cursors.Cursor) -> None:
        """Copies of few rows come, change and go, one by one or all of them."""
        v, a = self._chance.randint(0, 3), self._chance.choice(["first", "", None])
        dice = self._chance.random()
        if dice < 0.5:
            copies = self._chance.randint(1, 3)
            cursor.execute(
                "insert into tally select %s, %s from numbers where i <= %s", [v, a, copies]
            )
        elif dice < 0.7:
            cursor.execute("update tally set a = %s where v = %s limit 1", [a, v])
        elif dice < 0.8:
            cursor.execute("update tally set a = %s where v = %s", [a, v])
        elif dice < 0.95:
            cursor.execute("delete from tally where v = %s limit 1", [v])
        else:
            cursor.execute("delete from tally where v = %s and a is null", [v])
