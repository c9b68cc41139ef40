"""The listings as tables: a SELECT is carried out by SQLite over the rows of the listings that it
names, in memory.

sqlglot reads PostgreSQL's SQL and writes SQLite's. Each listing is a SHOW that the interpreter runs
for the client, so it decides who may see it. A query can read those tables and nothing else: there
is no file, no state and no network in its reach, and it ends after a while.
"""

from __future__ import annotations

import re
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from changefeed.api import Interpreter, Session
from changefeed.core.errors import ChangefeedError, Code
from changefeed.pg import pg_catalog, rewriting
from changefeed.pg.functions import FUNCTIONS, Surroundings
from changefeed.pg.messages import PgError
from changefeed.pg.rewriting import BACKTICKS, Node, Rewriter, type_of
from changefeed.pg.values import BOOL, FLOAT8, INT4, INT8, OID, TEXT, PgColumn, Value, stored
from changefeed.pg.variables import Variables
from changefeed.statements import (
    connections,
    dead_letters,
    functions,
    grants,
    lineage,
    listing,
    schedules,
    show,
    users,
)
from grammar import nodes
from grammar.spelling import did_you_mean

#: Seconds and steps of SQLite's machine that one query may take, and bytes that the process may
#: grow by meanwhile, which is looked at after each of ``_STEP`` steps.
_SECONDS = 30.0
_STEPS = 50_000_000
_STEP = 10_000
_MEMORY = 256 << 20
#: Characters of a query, bytes of one value, and of a pattern of LIKE.
_LONGEST_QUERY = 100_000
_LONGEST = 100_000
_LONGEST_PATTERN = 200

Rows = Iterator[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class View:
    """A listing as a table.

    Attributes:
        columns: their names; ``by`` comes first where the listing is one of each of several.
        statements: what gives the rows: the value of ``by``, and a SHOW.
        by: the name of the column that tells them apart.
    """

    columns: tuple[str, ...]
    statements: Callable[[Interpreter], list[tuple[str, nodes.Inquiry]]]
    by: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (self.by, *self.columns) if self.by else self.columns


def _one(statement: nodes.Inquiry) -> Callable[[Interpreter], list[tuple[str, nodes.Inquiry]]]:
    return lambda _: [("", statement)]


def _of_feeds(aspect: str) -> Callable[[Interpreter], list[tuple[str, nodes.Inquiry]]]:
    return lambda interpreter: [
        (name, nodes.ShowWhere(nodes.ShowChangefeed(nodes.FeedRef(name), aspect)))
        for name in interpreter.feeds()
    ]


def _of_sources(interpreter: Interpreter) -> list[tuple[str, nodes.Inquiry]]:
    found = interpreter.source_names()
    return [(name, nodes.ShowTables(name)) for name in found]


#: Every view by its name.
VIEWS: dict[str, View] = {
    "audit": View(users.AUDIT_COLUMNS, _one(nodes.ShowWhere(nodes.ShowAudit()))),
    "changefeeds": View(listing.COLUMNS, _one(nodes.ShowChangefeeds())),
    "connections": View(connections.CONNECTION_COLUMNS, _one(nodes.ShowConnections())),
    "dead_letters": View(dead_letters.COLUMNS, _of_feeds("dead_letters"), "changefeed"),
    "errors": View(show.ERROR_COLUMNS, _of_feeds("errors"), "changefeed"),
    "events": View(show.EVENT_COLUMNS, _of_feeds("events"), "changefeed"),
    "feed_tables": View(show.TABLE_COLUMNS, _of_feeds("tables"), "changefeed"),
    "grants": View(grants.COLUMNS, _one(nodes.ShowGrants())),
    "functions": View(functions.COLUMNS, _one(nodes.ShowFunctions())),
    "jobs": View(show.JOB_COLUMNS, _one(nodes.ShowJobs())),
    "lineage": View(lineage.COLUMNS, _of_feeds("lineage"), "changefeed"),
    "nodes": View(listing.NODE_COLUMNS, _one(nodes.ShowNodes())),
    "schedules": View(schedules.COLUMNS, _one(nodes.ShowSchedules())),
    "source_tables": View(connections.TABLE_COLUMNS, _of_sources, "source"),
    "users": View(users.COLUMNS, _one(nodes.ShowUsers())),
}


class Views:
    """Carries out the SELECTs of one client."""

    def __init__(self, interpreter: Interpreter, session: Session, variables: Variables) -> None:
        self._interpreter, self._session, self._variables = interpreter, session, variables
        self._grown = False

    def select(self, text: str, values: Sequence[Value]) -> tuple[list[PgColumn], Rows]:
        """Columns and rows of a query with parameters ``:p1``; the rows come as they are taken.

        Raises:
            ChangefeedError: as the SHOW of a view that it names; CF1101, there is no such view.
            PgError: the query is wrong.
        """
        query = _parsed(text)
        rewriter = Rewriter()
        named = _named(query)
        query = rewriter.rewrite(query)
        columns = rewriter.columns(query)
        database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            self._fill(database, named)
            self._restrict(database)
            written = query.sql(BACKTICKS, identify=True)
            given = {f"p{number}": value for number, value in enumerate(values, 1)}
            cursor = database.execute(written, given)
        except sqlite3.Error as error:
            database.close()
            raise self._problem(error, named) from error
        except (ChangefeedError, PgError):
            database.close()
            raise
        except sqlglot.errors.SqlglotError as error:
            database.close()
            raise PgError("0A000", "the query has a form that is not known here") from error
        names = [found[0] for found in cursor.description]
        return self._typed(names, columns, cursor, database, named)

    def _typed(
        self,
        names: Sequence[str],
        columns: Sequence[tuple[str, int | None]] | None,
        cursor: sqlite3.Cursor,
        database: sqlite3.Connection,
        named: Sequence[tuple[str, str]],
    ) -> tuple[list[PgColumn], Rows]:
        """Where a type cannot be read from the query, the first row has it."""
        try:
            first = cursor.fetchone()
        except sqlite3.Error as error:
            database.close()
            raise self._problem(error, named) from error
        made = []
        for place, name in enumerate(names):
            if columns is not None and len(columns) == len(names):
                shown, oid = columns[place]
            else:
                shown, oid = name, type_of(name)
            if oid is None:
                oid = _TYPES.get(type(first[place]) if first else str, TEXT)
            made.append(PgColumn(shown, oid))
        return made, self._rows(first, cursor, database, named)

    def _rows(
        self,
        first: Sequence[Value] | None,
        cursor: sqlite3.Cursor,
        database: sqlite3.Connection,
        named: Sequence[tuple[str, str]],
    ) -> Rows:
        with closing(database):
            try:
                if first is not None:
                    yield first
                    yield from cursor
            except sqlite3.Error as error:
                raise self._problem(error, named) from error

    # -- what the query reads -------------------------------------------------------------

    def _fill(self, database: sqlite3.Connection, named: Sequence[tuple[str, str]]) -> None:
        """Make the tables that it names; a name with a schema is that alone."""
        for schema in ("public", "pg_catalog", "information_schema"):
            database.execute(f"ATTACH ':memory:' AS {schema}")
        catalog = None
        for schema, name in named:
            if schema in ("", "public") and name in VIEWS:
                _create(database, f"public.`{name}`", VIEWS[name].names, self._view(VIEWS[name]))
            elif schema != "public":
                if catalog is None:
                    columns = {view: VIEWS[view].names for view in VIEWS}
                    catalog = pg_catalog.tables(columns, self._variables, self._session.user)
                found = catalog.get((schema or "pg_catalog", name))
                if found is not None:
                    _create(database, f"{schema or 'pg_catalog'}.`{name}`", *found)
        around = Surroundings(
            self._session.user, self._variables, pg_catalog.relations(VIEWS), self._now()
        )
        for name, (count, make) in FUNCTIONS.items():
            database.create_function(name, count, make(around), deterministic=True)

    def _now(self) -> float:
        return self._interpreter.clock.now().wall / 1e9

    def _view(self, view: View) -> list[Sequence[Value]]:
        rows: list[Sequence[Value]] = []
        for by, statement in view.statements(self._interpreter):
            try:
                result = self._interpreter.execute(statement, self._session)
            except ChangefeedError as error:
                # A feed that was dropped meanwhile.
                if view.by == "changefeed" and error.code is Code.NAME_UNKNOWN:
                    continue
                raise
            head = [by] if view.by else []
            rows += [[*head, *map(stored, row)] for row in result.rows]
        return rows

    def _restrict(self, database: sqlite3.Connection) -> None:
        """From here on it reads, and not for ever."""
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        database.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _LONGEST_PATTERN)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute("PRAGMA temp_store = MEMORY")
        database.execute("SELECT 1 FROM json_each('[]')")  # Made once: the authorizer refuses it.
        database.set_authorizer(_authorize)
        clock, gone = self._interpreter.clock, self._session.gone
        ends, left, largest = clock.monotonic() + _SECONDS, _STEPS // _STEP, _peak() + _MEMORY

        def over() -> int:
            nonlocal left
            left -= 1
            self._grown = _peak() > largest
            return int(left < 0 or clock.monotonic() > ends or self._grown or gone())

        database.set_progress_handler(over, _STEP)

    def _problem(self, error: sqlite3.Error, named: Sequence[tuple[str, str]]) -> PgError:
        text = str(error)
        kind, _, name = text.partition(": ")
        if text == "interrupted":
            if self._session.gone():
                return PgError("57014", "canceling statement due to user request")
            if self._grown:
                return PgError("53200", "the query takes too much memory")
            return PgError("57014", "the query takes too long", hint="name fewer views in it.")
        if kind == "no such table":
            name = name.removeprefix("main.").removeprefix("public.")
            near = did_you_mean(name, list(VIEWS))
            hint = f'did you mean "{near}"?' if near else f"views are: {', '.join(VIEWS)}."
            return PgError("42P01", f'relation "{name}" does not exist', hint=hint)
        if kind == "no such column":
            known = [each for _, view in named if view in VIEWS for each in VIEWS[view].names]
            near = did_you_mean(name.rpartition(".")[2], known)
            hint = f'did you mean "{near}"?' if near else f"columns are: {', '.join(known)}."
            return PgError("42703", f'column "{name}" does not exist', hint=hint if known else "")
        if kind in ("no such function", "not authorized to use function"):
            return PgError("42883", f"function {name.lower()} does not exist here")
        if text.startswith("user-defined function"):
            return PgError("22023", "a function cannot take the arguments that it is given")
        if kind == "ambiguous column name":
            return PgError("42702", f'column reference "{name}" is ambiguous')
        return PgError("42601", f"the query is wrong: {text}")


_TYPES: Mapping[type, int] = {int: INT8, float: FLOAT8, bool: BOOL, str: TEXT}

_READS = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_RECURSIVE,
    )
)
#: Functions of SQLite that make large values out of small ones, or tell about the process.
_DENIED = frozenset(
    ("format", "load_extension", "printf", "randomblob", "sqlite_compileoption_get", "zeroblob")
)


def _authorize(action: int, one: str | None, two: str | None, *_: str | None) -> int:
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() not in _DENIED:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _create(
    database: sqlite3.Connection,
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Value]],
) -> None:
    shown = ", ".join(
        f"`{column}` {_AFFINITIES.get(type_of(column), 'TEXT')}" for column in columns
    )
    database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({shown})")
    marks = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


#: A parameter that is compared with a column of numbers is one.
_AFFINITIES: Mapping[int, str] = {
    **dict.fromkeys((BOOL, INT4, INT8, OID), "INTEGER"),
    FLOAT8: "REAL",
}


def _peak() -> int:
    """Bytes of memory that the process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def _parsed(text: str) -> Node:
    if len(text) > _LONGEST_QUERY:
        raise PgError("54000", f"a query has at most {_LONGEST_QUERY} characters")
    try:
        query = sqlglot.parse_one(text, dialect="postgres")
    except sqlglot.errors.SqlglotError as error:
        found = getattr(error, "errors", None) or [{}]
        message = found[0].get("description") or "the query cannot be read"
        position = found[0].get("start") or 0
        position -= len(re.findall(r":p\d", text[:position]))
        raise PgError("42601", f"syntax error: {message}", position=position) from error
    except RecursionError:
        raise PgError("54001", "the query is too deep") from None
    if not isinstance(query, exp.Query):
        raise PgError("0A000", "only SELECT and TABLE read tables")
    return query


def parameter_types(text: str) -> dict[int, int]:
    """Types of the parameters of a query, where it says so; nothing of one that is wrong."""
    try:
        return rewriting.parameter_types(_parsed(text))
    except PgError:
        return {}


def _named(query: Node) -> list[tuple[str, str]]:
    """Schema, or nothing, and name of each table, once."""
    found = {(table.db.lower(), table.name.lower()) for table in query.find_all(exp.Table)}
    return sorted(found)
