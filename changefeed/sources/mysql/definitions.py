"""Statements in the binlog, and what they mean for the tables that are watched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from changefeed.core.schema import TableSchema
from changefeed.sources.decoded.flushes import ShapeChange
from changefeed.sources.decoded.statement_text import shown
from changefeed.sources.mysql import ddl
from changefeed.sources.mysql.binlog import QueryEvent
from changefeed.sources.mysql.clauses import effect
from changefeed.sources.mysql.ddl import DefinedTables, Named
from changefeed.sources.mysql.open_transaction import ReadTransaction
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.tokens import conditional

#: Database and name of the tables that are watched.
Tables = frozenset[tuple[str, str]]


class Definitions:
    """Takes note of statements of DDL in the transaction that has them."""

    def __init__(self, shapes: Shapes) -> None:
        """``shapes``: of the source's tables."""
        self._shapes = shapes
        self._watched: Tables = frozenset()
        self._databases: frozenset[str] = frozenset()
        #: Watched tables that were dropped and not made again.
        self._dropped: set[tuple[str, str]] = set()

    def watch(self, tables: Tables) -> None:
        """The tables that are watched from here on, by all their names."""
        self._watched = tables
        self._databases = frozenset(database for database, _ in tables)

    def note(self, query: QueryEvent, opened: ReadTransaction) -> None:
        """Take note of what a statement of DDL defines, and of what it does to rows: of
        watched tables, and of the others of their databases, because a feed of a whole database
        may take them up later."""
        found = ddl.read_definition(query)
        if found is None:
            return
        text = shown(query.text)
        tables = self.tables_of(found)
        for named in tables:
            if named[0] in self._databases:
                opened.ddl.append((self._shapes.name(*named), found.kind, text))
        made = found.kind == "CREATE" and not found.unless_there
        opened.defined.append((found, tables if found.kind == "DROP" or made else []))
        if found.kind == "DROP":
            self._dropped.update(tables)
        elif found.kind == "CREATE":
            made_now = [n for n in tables if made or n in self._dropped]
            opened.changes += self._replaced(made_now, found.kind)
        else:
            opened.changes += self._replaced(dict.fromkeys(new for _, new in found.moves), "RENAME")
            opened.changes += self._altered(found, query)

    def tables_of(self, found: DefinedTables) -> list[Named]:
        """The tables of a statement: those that it names, or the watched ones of its database."""
        if not found.database:
            return list(found.tables)
        return sorted(named for named in self._watched if named[0] == found.database)

    def take(self, query: QueryEvent, first: str, opened: ReadTransaction) -> TableSchema | None:
        """Go by a statement that is a transaction by itself; ``first`` is its first word.

        Returns:
            A watched table of which it removed all rows.
        """
        if first == "TRUNCATE" and opened.defined:
            [named] = opened.defined[-1][0].tables
            return self._shapes.present(self._shapes.name(*named)) if self._has(named) else None
        self.note_write(query, first, opened)
        return None

    def _has(self, named: Named) -> bool:
        return named in self._watched

    def _replaced(self, names: Iterable[Named], kind: str) -> Iterator[ShapeChange]:
        """Another table has the name of a watched one now, or the same one after a time under
        another name, of which nobody read the changes: its rows have to be read again."""
        for named in names:
            self._dropped.discard(named)
            if self._has(named):
                yield from self._shapes.replaced(self._shapes.name(*named), kind)

    def _altered(self, found: DefinedTables, query: QueryEvent) -> Iterator[ShapeChange]:
        for named in found.tables[:1] if found.moves else found.tables:
            if not found.clauses or not self._has(named):
                continue
            name = self._shapes.name(*named)
            done = effect(
                found.clauses,
                self._shapes.seen(name),
                strict=query.strict and not found.ignores,
                certain=not conditional(query.text),
            )
            if found.ignores:
                done = replace(done, why="IGNORE", moved=True)
            if found.moves:
                # Of the rename, which readers learn later, and of no other name.
                self._shapes.defer(self._shapes.name(*found.moves[0][1]), done)
            else:
                yield from self._shapes.altered(name, done)

    def note_write(self, query: QueryEvent, first: str, opened: ReadTransaction) -> None:
        """A session writes statements where the rows should be: let the watched tables that this
        one names be read again."""
        if first not in ddl.WRITES:
            return
        named = ddl.names_in(query)
        for database, table in self._watched:
            if (database.casefold(), table.casefold()) not in named:
                continue
            schema = self._shapes.present(self._shapes.name(database, table))
            if schema is not None:
                opened.again[schema.table] = (schema, _STATEMENT)


_STATEMENT = (
    "the binlog has a statement in place of rows: a session has another binlog_format than ROW "
    "(SET GLOBAL binlog_format = 'ROW'; open sessions keep theirs until they end)"
)
