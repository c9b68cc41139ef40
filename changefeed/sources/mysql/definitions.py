"""Statements in the binlog, and what they mean for the tables that are watched."""

from __future__ import annotations

from changefeed.core.schema import TableName, TableSchema
from changefeed.sources.decoded.statement_text import shown
from changefeed.sources.mysql import ddl, statements
from changefeed.sources.mysql.binlog import QueryEvent
from changefeed.sources.mysql.ddl import DefinedTables
from changefeed.sources.mysql.open_transaction import ReadTransaction
from changefeed.sources.mysql.shapes import ShapeChange, Shapes

#: Database and name of the tables that somebody watches.
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
        """Take note of what a statement of DDL defines. To be told are watched tables, and the
        others of their databases, because a feed of a whole database may take them up later."""
        found = ddl.read_definition(query)
        if found is None:
            return
        text = shown(query.text)
        tables = self.tables_of(found)
        for named in tables:
            if named[0] in self._databases:
                opened.ddl.append((self._shapes.name(*named), found.kind, text))
        gone = list(tables) if found.kind == "DROP" else []
        if (made := statements.made(query)) is not None and made[1]:
            gone.append(made[0])
        opened.defined.append((found, gone))

    def tables_of(self, found: DefinedTables) -> list[tuple[str, str]]:
        """The tables of a statement: those that it names, or the watched ones of its database."""
        if not found.database:
            return list(found.tables)
        return sorted(named for named in self._watched if named[0] == found.database)

    def take(self, query: QueryEvent, first: str, opened: ReadTransaction) -> TableSchema | None:
        """Go by a statement that is a transaction by itself; ``first`` is its first word.

        Returns:
            A watched table of which it removed all rows.
        """
        if first == "TRUNCATE":
            name = self._target(statements.truncated(query))
            return None if name is None else self._shapes.present(name)
        if first in ("ALTER", "CREATE", "DROP") and (
            name := self._target(statements.altered(query))
        ):
            self._shapes.altered(name, query.text)
        elif first == "RENAME":
            # Which table has which name now, its next rows show.
            for database, table in self._watched:
                if table.casefold() in query.text.casefold():
                    self._shapes.altered(self._shapes.name(database, table), query.text)
        else:
            self.note_write(query, first, opened)
        if first in ("ALTER", "CREATE", "DROP", "RENAME"):
            self._replaced(query, first, opened)
        return None

    def _replaced(self, query: QueryEvent, first: str, opened: ReadTransaction) -> None:
        """Another table has the name of a watched one now, or the same one after a time under
        another name, of which nobody read the changes: its rows have to be read again."""
        names = statements.renamed_to(query) if first != "CREATE" else []
        if first == "DROP" and (found := ddl.read_definition(query)) is not None:
            self._dropped.update(self.tables_of(found))
        if first == "CREATE" and (made := statements.made(query)) is not None:
            name, new = made
            if new or name in self._dropped:
                names.append(name)
        for named in names:
            self._dropped.discard(named)
            table = self._target(named)
            schema = None if table is None else self._shapes.seen(table)
            if schema is not None:
                opened.changes.append(ShapeChange(schema, schema, rewritten=True))

    def _target(self, named: tuple[str, str] | None) -> TableName | None:
        """The watched table that a statement is about."""
        if named is None or named not in self._watched:
            return None
        return self._shapes.name(*named)

    def note_write(self, query: QueryEvent, first: str, opened: ReadTransaction) -> None:
        """A session writes statements where the rows should be: let the watched tables that this
        one names be read again."""
        if first not in statements.WRITES:
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
