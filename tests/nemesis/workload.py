"""The writer to PostgreSQL: one thread, several connections, every kind of change."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from tests.nemesis.ledger import Cause, Ledger, Span
from tests.nemesis.reading import of_postgres
from tests.nemesis.tables import (
    BULK_ROWS,
    HELD_KEYS,
    KEYS,
    ODD,
    ODD_COLUMN,
    PASSING_KEYS,
    PASSING_ROWS,
    PREPARED_KEYS,
)
from tests.nemesis.trouble import Trouble
from tests.services.postgres import Database

SCHEMA = f"""
create table orders (id int primary key, v bigint, a text, n numeric, doc jsonb);
alter table orders replica identity full;
create table plain (id int primary key, v bigint, big text);
alter table plain alter column big set storage external;
create table lines (v bigint, a text);
alter table lines replica identity full;
create table parts (id int primary key, v bigint, a text) partition by range (id);
create table parts_low partition of parts for values from (minvalue) to (20);
create table parts_high partition of parts for values from (20) to (maxvalue);
alter table parts_low replica identity full;
alter table parts_high replica identity full;
alter table parts replica identity full;
create table shapes (id int primary key, v bigint, s text);
alter table shapes replica identity full;
create table bulk (id int primary key, v bigint, pad text);
alter table bulk replica identity full;
create table extra (id int primary key, v bigint);
alter table extra replica identity full;
create table forms (id int primary key, v bigint, s text);
create table tally (v bigint, a text);
alter table tally replica identity full;
create table {ODD.quoted} (id int primary key, v bigint, {ODD_COLUMN} text);
alter table {ODD.quoted} replica identity full;
insert into {ODD.quoted} select i, -i, 'first' from generate_series(1, 5) i;
insert into orders select i, -i, 'first ' || i, i + 0.50, '{{"k": [1, null]}}'
    from generate_series(1, 20) i;
insert into plain select i, -i, repeat('x', 5000) || i from generate_series(1, 10) i;
insert into lines select -i, 'first' from generate_series(1, 10) i;
insert into parts select i, -i, 'first' from generate_series(1, 30) i;
insert into shapes select i, -i, 'first' from generate_series(1, 15) i;
insert into extra select i, -i from generate_series(1, 5) i;
insert into forms select i, -i, 'first' from generate_series(1, 15) i;
insert into tally select i % 3, 'first' from generate_series(1, 10) i;
"""


class Writer:
    """Makes changes at random and has each commit written down."""

    def __init__(self, db: Database, ledger: Ledger, chance: random.Random) -> None:
        self._db = db
        self._ledger = ledger
        self._chance = chance
        self._v = 0
        self._column = 0
        self._bulk_key = 0
        self._loose: list[str] = []
        self._grown: list[str] = []
        self._connections: list[psycopg.Connection] = []
        self._held: psycopg.Connection | None = None
        self._held_tables: list[str] = []
        self._prepared: tuple[str, str, list[str]] | None = None
        self.connect()

    def connect(self) -> None:
        """(Again) after the server went away: what was open is rolled back."""
        self.close()
        self._held, self._held_tables = None, []
        self._reader = self._opened(autocommit=True)
        self._main = self._opened(autocommit=False)

    def _opened(self, *, autocommit: bool) -> psycopg.Connection:
        connection = self._db.connect(autocommit=autocommit)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        """Give the connections back."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def look_around(self) -> None:
        """Write down what all tables hold, whoever wrote it."""
        now = time.time_ns()
        self._ledger.record(of_postgres(self._reader), list(self._ledger.tables), span=(now, now))

    def shape(self) -> tuple[list[str], list[str]]:
        """Which columns came by DDL, for :meth:`go_back`."""
        return [*self._loose], [*self._grown]

    def go_back(self, shape: tuple[list[str], list[str]]) -> None:
        """The server was restored: it has what it had, and nothing is prepared there."""
        self._loose, self._grown = [*shape[0]], [*shape[1]]
        self._prepared = None
        self.connect()
        self.look_around()

    # -- transactions ---------------------------------------------------------------------

    @contextmanager
    def _commit(self, names: list[str], cause: Cause = Cause.WRITE) -> Iterator[psycopg.Cursor]:
        with self._main.cursor() as cursor:
            yield cursor
        self._end(self._main, sorted(set(names)), cause)

    def _end(
        self,
        connection: psycopg.Connection,
        names: list[str],
        cause: Cause = Cause.WRITE,
        named: str = "",
    ) -> None:
        """Commit, and write down what is there now (under the name ``named``) and since when."""
        xid = _xid(connection)
        connection.commit()
        self._ledger.record(of_postgres(self._reader, named), names, cause, self._span(xid))

    def _span(self, xid: str | None) -> Span:
        """When a transaction committed that is done now; of one that wrote nothing, any time."""
        done = time.time_ns()
        if xid is None:
            return 0, 0
        found = self._reader.execute(
            "select (extract(epoch from pg_xact_commit_timestamp(%s::xid)) * 1000000)::bigint",
            [xid],
        )
        [(micros,)] = found.fetchall()
        return int(micros) * 1_000, done

    def commit(self) -> str:
        """A few writes in one to three tables."""
        names = ["orders", "plain", "lines", "parts", "shapes", "forms", "tally"]
        names = self._chance.sample(names, k=3)
        names = names[: self._chance.randint(1, 3)]
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
            cursor.execute(
                "rollback to savepoint one"
                if self._chance.random() < 0.5
                else "rollback to savepoint two"
            )
            self._write(cursor, "orders")
            self._write(cursor, "parts")
        return "savepoints"

    def come_and_go(self) -> str:
        """A row that is inserted and deleted in one transaction, and one that is replaced."""
        with self._commit(["orders"]) as cursor:
            key = self._key()
            cursor.execute("delete from orders where id = %s", [key])
            cursor.execute("insert into orders (id, v) values (%s, %s)", [key, self._next()])
            cursor.execute("insert into orders (id, v) values (%s, %s)", [500, self._next()])
            cursor.execute("delete from orders where id = 500")
        return f"delete and insert of {key}"

    def hold(self) -> str:
        """Begin a transaction that commits only after others, or commit it."""
        if self._held is None:
            self._held = self._opened(autocommit=False)
            self._held_tables = ["orders", "parts"]
            with self._held.cursor() as cursor:
                for name in self._held_tables:
                    for _ in range(3):
                        self._upsert(cursor, name, HELD_KEYS + self._chance.randrange(5))
            return "held transaction begins"
        return self.release()

    def release(self) -> str:
        """Commit the held transaction."""
        if self._held is None:
            return "nothing held"
        self._end(self._held, self._held_tables)
        self._held.close()
        self._held = None
        return "held transaction commits"

    def prepare(self) -> str:
        """A transaction in two phases outlives its session; end the one there is, either way."""
        if self._prepared is not None:
            return self.end_prepared()
        names, name = ["orders", "parts"], f"nemesis_{self._next()}"
        connection = self._opened(autocommit=False)
        for table in names:
            with connection.cursor() as cursor:
                for _ in range(3):
                    key = PREPARED_KEYS + self._chance.randrange(5)
                    self._upsert(cursor, table, key)
        xid = _xid(connection)
        connection.execute(f"prepare transaction '{name}'")
        connection.close()
        self._prepared = (name, xid or "", names)
        return f"{name} is prepared"

    def end_prepared(self) -> str:
        """COMMIT PREPARED, or ROLLBACK PREPARED."""
        if self._prepared is None:
            return "nothing prepared"
        (name, xid, names), self._prepared = self._prepared, None
        if self._chance.random() < 0.3:
            self._reader.execute(f"rollback prepared '{name}'")
            return f"{name} is rolled back"
        self._reader.execute(f"commit prepared '{name}'")
        self._ledger.record(of_postgres(self._reader), names, Cause.WRITE, self._span(xid))
        return f"{name} commits"

    def streamed_truncate(self) -> str:
        """TRUNCATE in a subtransaction, that may be rolled back, of a transaction so large that
        the server sends it before its end; half of them commit in two phases."""
        name = self._chance.choice(["orders", "lines", "parts"])
        kept, two_phases = self._chance.random() < 0.5, self._chance.random() < 0.5
        self.release()
        self.end_prepared()
        with self._main.cursor() as cursor:
            cursor.execute("savepoint one")
            self._pass_by(cursor, name)
            cursor.execute("savepoint two")
            cursor.execute(f"truncate {name}")
            self._write(cursor, name)
            cursor.execute(f"{'release' if kept else 'rollback to'} savepoint two")
            if not kept:
                passing = "a = 'passing'" if name == "lines" else f"id >= {PASSING_KEYS}"
                cursor.execute(f"delete from {name} where {passing}")
            for _ in range(3):
                self._write(cursor, name)
        cause = Cause.TRUNCATE if kept else Cause.WRITE
        if two_phases:
            xid = _xid(self._main)
            self._main.execute("prepare transaction 'truncating'")
            self._reader.execute("commit prepared 'truncating'")
            self._ledger.record(of_postgres(self._reader), [name], cause, self._span(xid))
        else:
            self._end(self._main, [name], cause)
        what = "truncate" if kept else "truncate, rolled back,"
        return f"{what} of {name} in a streamed transaction{' of two phases' * two_phases}"

    def _pass_by(self, cursor: psycopg.Cursor, name: str) -> None:
        """Rows that their own transaction takes away again."""
        if name == "lines":
            cursor.execute(
                "insert into lines select %s + i, 'passing' from generate_series(1, %s) i",
                [self._skip(PASSING_ROWS), PASSING_ROWS],
            )
            return
        cursor.execute(
            f"insert into {name} (id, v, a) select %s + i, %s + i, repeat('passing', 10)"
            " from generate_series(1, %s) i",
            [PASSING_KEYS, self._skip(PASSING_ROWS), PASSING_ROWS],
        )

    def odd(self) -> str:
        """A write to the table with hostile names."""
        with self._commit([ODD.name]) as cursor:
            if self._chance.random() < 0.3:
                cursor.execute(f"delete from {ODD.quoted} where id = %s", [self._key()])
            else:
                cursor.execute(
                    f"insert into {ODD.quoted} values (%s, %s, %s) on conflict (id) do update"
                    f" set v = excluded.v, {ODD_COLUMN.replace('%', '%%')} ="
                    f" excluded.{ODD_COLUMN.replace('%', '%%')}",
                    [self._key(), self._next(), self._chance.choice(["", "'; --", None])],
                )
        return "write to the table with hostile names"

    def truncate(self) -> str:
        """TRUNCATE between writes of one transaction."""
        name = self._chance.choice(["orders", "lines", "parts", "tally"])
        self.release()
        self.end_prepared()
        with self._commit([name], Cause.TRUNCATE) as cursor:
            if self._chance.random() < 0.5:
                self._write(cursor, name)
            cursor.execute(f"truncate {name}")
            for _ in range(self._chance.randint(0, 3)):
                self._write(cursor, name)
        return f"truncate {name}"

    def toast(self) -> str:
        """An update that leaves a long value alone: the log does not carry it."""
        with self._commit(["plain"]) as cursor:
            cursor.execute(
                "update plain set v = %s where id = %s", [self._next(), self._chance.randint(1, 10)]
            )
        return "update beside an unchanged long value"

    def large(self) -> str:
        """A transaction too large for one flush, with small ones in between."""
        key = self._bulk_key
        self._bulk_key += BULK_ROWS
        with self._main.cursor() as cursor:
            cursor.execute(
                "insert into bulk select %s + i, %s, repeat('pad', 60) from"
                " generate_series(0, %s) i",
                [key, self._next(), BULK_ROWS - 1],
            )
            done = self._reader.execute(
                "insert into extra values (%s, %s) on conflict (id) do update set v = excluded.v"
                " returning pg_current_xact_id()::xid::text",
                [self._key(), self._next()],
            )
            [(xid,)] = done.fetchall()
            self._ledger.record(of_postgres(self._reader), ["extra"], span=self._span(xid))
            cursor.execute("update bulk set v = %s where id %% 7 = 0", [self._next()])
            cursor.execute("delete from bulk where id < %s and id %% 3 = 0", [key])
        self._end(self._main, ["bulk"])
        return f"large transaction of {BULK_ROWS} rows and more"

    def extra(self) -> str:
        """A write to the table that joins and leaves feeds."""
        with self._commit(["extra"]) as cursor:
            self._upsert(cursor, "extra", self._key())
        return "write to extra"

    # -- schema changes -------------------------------------------------------------------

    def rename(self) -> str:
        """``extra`` loses its name and gets it back, each time with rows in the transaction."""
        with self._main.cursor() as cursor:
            cursor.execute("alter table extra rename to elsewhere")
            cursor.execute("update elsewhere set v = %s + id", [self._skip(KEYS)])
        self._end(self._main, ["extra"], Cause.DDL, "elsewhere")
        self.commit()
        with self._commit(["extra"], Cause.DDL) as cursor:
            cursor.execute("delete from elsewhere where id = %s", [self._key()])
            cursor.execute("alter table elsewhere rename to extra")
            cursor.execute("update extra set v = %s + id where id < 9", [self._skip(KEYS)])
        return "extra is renamed, and gets its name back"

    def ddl(self) -> str:
        """One schema change of ``shapes``, and a write that shows it."""
        self._column += 1
        changes: list[Callable[[str], str]] = [self._add, self._add_default]
        if self._loose:
            changes += [self._drop, self._rename, self._retype]
        sql = self._chance.choice(changes)(f"c{self._column}")
        with self._commit(["shapes"], Cause.DDL) as cursor:
            cursor.execute(sql)
            if self._chance.random() < 0.5:
                self._write(cursor, "shapes")
        with self._commit(["shapes"]) as cursor:
            self._write(cursor, "shapes")
        return sql

    def grow(self) -> str:
        """A schema change of ``forms`` that every target can follow, and writes that show it."""
        self._column += 1
        name = f"c{self._column}"
        with self._commit(["forms"], Cause.DDL) as cursor:
            cursor.execute(sql := self._growth(name))
            if self._chance.random() < 0.5:
                self._write(cursor, "forms")
        with self._commit(["forms"]) as cursor:
            self._write(cursor, "forms")
            if self._grown:
                column = self._chance.choice(self._grown)
                cursor.execute(
                    f"update forms set {column} = %s, v = %s where id <= 10 and id %% 3 = 0",
                    [self._chance.randint(1, 100), self._next()],
                )
        return sql

    def _growth(self, name: str) -> str:
        dice = self._chance.random() if len(self._grown) > 1 else 0.0
        if dice < 0.5:
            self._grown.append(name)
            more = f" default {self._column}" if self._chance.random() < 0.5 else ""
            return f"alter table forms add column {name} int{more}"
        place = self._chance.randrange(len(self._grown))
        if dice < 0.65:
            return f"alter table forms drop column {self._grown.pop(place)}"
        old = self._grown[place]
        if dice < 0.8:
            return f"alter table forms alter column {old} type bigint"
        self._grown[place] = name
        return f"alter table forms rename column {old} to {name}"

    def _add(self, name: str) -> str:
        self._loose.append(name)
        return f"alter table shapes add column {name} int"

    def _add_default(self, name: str) -> str:
        self._loose.append(name)
        return f"alter table shapes add column {name} int default {self._column}"

    def _drop(self, name: str) -> str:
        gone = self._loose.pop(self._chance.randrange(len(self._loose)))
        return f"alter table shapes drop column {gone}"

    def _rename(self, name: str) -> str:
        place = self._chance.randrange(len(self._loose))
        old, self._loose[place] = self._loose[place], name
        return f"alter table shapes rename column {old} to {name}"

    def _retype(self, name: str) -> str:
        old = self._chance.choice(self._loose)
        return f"alter table shapes alter column {old} type text using {old}::text"

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
            (2, self.streamed_truncate),
            (4, self.odd),
            (5, self.toast),
            (2, self.large),
            (4, self.extra),
            (3, self.ddl),
            (3, self.grow),
            (0.7, self.rename),
        ]

    # -- single writes --------------------------------------------------------------------

    def _next(self) -> int:
        self._v += 1
        return self._v

    def _key(self) -> int:
        return self._chance.randint(1, KEYS)

    def _write(self, cursor: psycopg.Cursor, name: str) -> None:
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
            self._move(cursor, name)

    def _skip(self, count: int) -> int:
        """A number after which ``count`` more are free."""
        first = self._v
        self._v += count + 10
        return first

    def _upsert(self, cursor: psycopg.Cursor, name: str, key: int) -> None:
        v = self._next()
        more = {
            "orders": (", a, n, doc", ", %(t)s, %(n)s, %(d)s"),
            "plain": (", big", ", %(b)s"),
            "parts": (", a", ", %(t)s"),
            "shapes": (", s", ", %(t)s"),
            "forms": (", s", ", %(t)s"),
        }.get(name, ("", ""))
        columns, values = more
        setting = "".join(f", {c} = excluded.{c}" for c in columns.strip(", ").split(", ") if c)
        cursor.execute(
            f"insert into {name} (id, v{columns}) values (%(id)s, %(v)s{values})"
            f" on conflict (id) do update set v = excluded.v{setting}",
            {
                "id": key,
                "v": v,
                "t": self._chance.choice(["", "text", 'a "quoted" \\ line\n', "für ☃", None]),
                "n": self._chance.choice(["1.50", "0", "-12345678901234567890.001", None]),
                "d": self._chance.choice(['{"a": [1, {"b": null}]}', "[]", "null", None]),
                "b": "".join(self._chance.choices("abcdefgh", k=8)) * 600,
            },
        )

    def _move(self, cursor: psycopg.Cursor, name: str) -> None:
        """A key change to a key that is free."""
        old, new = self._key(), self._key()
        cursor.execute(
            f"update {name} set id = %s, v = %s where id = %s"
            f" and not exists (select from {name} where id = %s)",
            [new, self._next(), old, new],
        )

    def _write_line(self, cursor: psycopg.Cursor) -> None:
        dice = self._chance.random()
        if dice < 0.5:
            cursor.execute("insert into lines values (%s, %s)", [self._next(), "line"])
        elif dice < 0.8:
            cursor.execute(
                "update lines set v = %s where v = (select min(v) from lines)", [self._next()]
            )
        else:
            cursor.execute("delete from lines where v = (select max(v) from lines)")

    def _count(self, cursor: psycopg.Cursor) -> None:
        """Copies of few rows come, change and go, one by one or all of them."""
        row = [self._chance.randint(0, 3), self._chance.choice(["first", "", None])]
        dice = self._chance.random()
        one = "ctid = (select min(ctid) from tally where v = %s)"
        if dice < 0.5:
            copies = self._chance.randint(1, 3)
            cursor.execute(
                "insert into tally select %s, %s from generate_series(1, %s)", [*row, copies]
            )
        elif dice < 0.7:
            cursor.execute(
                f"update tally set a = %s where {one}", [row[1], self._chance.randint(0, 3)]
            )
        elif dice < 0.8:
            cursor.execute("update tally set a = %s where v = %s", [row[1], row[0]])
        elif dice < 0.95:
            cursor.execute(f"delete from tally where {one}", [row[0]])
        else:
            cursor.execute("delete from tally where v = %s and a is null", [row[0]])


def _xid(connection: psycopg.Connection) -> str | None:
    """The number of the open transaction; None of one that has written nothing."""
    asked = connection.execute("select pg_current_xact_id_if_assigned()::xid::text")
    [(xid,)] = asked.fetchall()
    return None if xid is None else str(xid)
