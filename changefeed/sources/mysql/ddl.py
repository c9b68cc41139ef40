"""Which tables a statement of DDL in the binlog is about.

The binlog has the statement as it was written. What its clauses do to the rows of a table is the
matter of :mod:`.clauses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from changefeed.sources.mysql.binlog import QueryEvent, misfit, xa_name
from changefeed.sources.mysql.clauses import Clause, exchanged, read_clauses
from changefeed.sources.mysql.tokens import Token, TokenReader, split, tokens, unquoted

#: The first words of statements that may define a table or a database.
FIRST_WORDS = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})

#: Database and table.
Named = tuple[str, str]


@dataclass(frozen=True, slots=True)
class DefinedTables:
    """What a statement is about: tables, or a database that it makes or removes.

    Attributes:
        kind: ``CREATE``, ``ALTER``, ``DROP``, ``RENAME`` or ``TRUNCATE``; an index that comes or
            goes is an ALTER of its table.
        tables: every table that it names as made, changed or removed, also under a new name.
        database: the one that it makes or removes; then there are no ``tables``.
        moves: the renames in their order, each with the name before and the name after it.
        clauses: of an ALTER TABLE.
        ignores: rows that do not fit are removed or changed, where others are refused.
        unless_there: a CREATE that does nothing if the table is there.
    """

    kind: str
    tables: tuple[Named, ...] = ()
    database: str = ""
    moves: tuple[tuple[Named, Named], ...] = ()
    clauses: tuple[Clause, ...] = ()
    ignores: bool = False
    unless_there: bool = False


def read_definition(query: QueryEvent) -> DefinedTables | None:
    """The tables or the database of a statement of DDL; None for any other statement."""
    return _Reader(tokens(query.text), query.database).run()


def names_in(query: QueryEvent) -> set[Named]:
    """Everything in a statement that may name a table, in lower case."""
    given = tokens(query.text)
    found: set[Named] = set()
    for at, token in enumerate(given):
        if not _names(token):
            continue
        name = unquoted(token).casefold()
        found.add((query.database.casefold(), name))
        if at > 1 and given[at - 1][0] == "." and _names(given[at - 2]):
            found.add((unquoted(given[at - 2]).casefold(), name))
    return found


def _names(token: Token) -> bool:
    return bool(token["word"] or token["quoted"])


class _Reader(TokenReader):
    def __init__(self, given: Sequence[Token], database: str) -> None:
        super().__init__(given)
        self._database = database

    def run(self) -> DefinedTables | None:
        kind = self.word()
        if kind not in FIRST_WORDS:
            return None
        self.advance()
        if kind == "TRUNCATE":
            self.skip("TABLE")
            return self._of(kind, self._name())
        if kind == "RENAME":
            return self._renames() if self.skip("TABLE", "TABLES") else None
        ignores = False
        while (word := self.word()) in _BEFORE_TABLE:
            ignores |= word == "IGNORE"
            self.advance()
        if self.skip("DATABASE", "SCHEMA"):
            self.exists()
            name = self.name()
            return DefinedTables(kind, database=name) if name and kind != "ALTER" else None
        if self.skip("INDEX"):
            return self._index()
        if not self.skip("TABLE", "TABLES"):
            return None
        unless_there = self.word() == "IF" and kind == "CREATE"
        self.exists()
        if kind == "DROP":
            return DefinedTables(kind, tuple(self._list()))
        named = self._name()
        if named is None:
            return None
        if kind == "ALTER":
            return self._alter(named, ignores=ignores)
        return DefinedTables(kind, (named,), unless_there=unless_there)

    def _of(self, kind: str, named: Named | None) -> DefinedTables | None:
        return None if named is None else DefinedTables(kind, (named,))

    def _renames(self) -> DefinedTables | None:
        self.exists()
        old: list[Named] = []
        new: list[Named] = []
        while (named := self._name()) is not None:
            self._wait()
            if not self.skip("TO") or (to := self._name()) is None:
                return None
            old.append(named)
            new.append(to)
            if not self.sign(","):
                break
        moves = tuple(zip(old, new, strict=True))
        return DefinedTables("RENAME", tuple(dict.fromkeys(old + new)), moves=moves)

    def _wait(self) -> None:
        """MariaDB: ``NOWAIT`` or ``WAIT n`` behind a table."""
        if not self.skip("NOWAIT") and self.skip("WAIT") and not self.ended:
            self.advance()

    def _index(self) -> DefinedTables | None:
        self.exists()
        if self.name() is None:
            return None
        while not self.ended and not self.skip("ON"):
            self.advance()
        named = self._name()
        # What identifies a row may be another index from here on.
        return named and DefinedTables("ALTER", (named,), clauses=(Clause("INDEX"),))

    def _alter(self, named: Named, *, ignores: bool) -> DefinedTables:
        self._wait()
        rest = self.rest()
        clauses = read_clauses(rest)
        others = [_Reader(part, self._database)._name() for part in exchanged(rest)]
        tables = (named, *(other for other in others if other is not None))
        new = self._new_name()
        if new is None:
            return DefinedTables("ALTER", tables, clauses=clauses, ignores=ignores)
        moves = ((named, new),)
        return DefinedTables("RENAME", (named, new), "", moves, clauses, ignores)

    def _new_name(self) -> Named | None:
        """What an ALTER TABLE calls its table from then on; None if it keeps its name."""
        for part in split(self.rest()):
            clause = _Reader(part, self._database)
            if not clause.skip("RENAME") or clause.word() in ("COLUMN", "INDEX", "KEY"):
                continue
            if not clause.skip("TO", "AS"):
                clause.sign("=")
            return clause._name()
        return None

    def _list(self) -> Iterator[Named]:
        while (named := self._name()) is not None:
            yield named
            if not self.sign(","):
                return

    def _name(self) -> Named | None:
        first = self.name()
        if first is None:
            return None
        if not self.sign("."):
            return self._database, first
        second = self.name()
        return None if second is None else (first, second)


#: Words between the verb and its object.
_BEFORE_TABLE = frozenset(
    {"ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"}
)


#: Statements whose changes should have been sent as rows.
WRITES = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SET", "SELECT", "DO", "CALL"}
)

_SAVEPOINT = re.compile(
    r"\s*(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT(?!\s*$))?)\s*"
    r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)",
    re.I,
)
_XA = re.compile(r"\s*XA\s+(\w+)(?:\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(-?\d+))?", re.I)


def savepoint(statement: str) -> str:
    """The name, in lower case, of a savepoint that is set or gone back to; empty: ROLLBACK ends the
    transaction."""
    match = _SAVEPOINT.match(statement)
    if match is None:
        return ""
    name, quote = match[1], match[1][0]
    plain = name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
    return plain.casefold()


def xa_verb(statement: str) -> tuple[str, str]:
    """The verb of an XA statement, and the name of the transaction that it decides (or none).

    Raises:
        ChangefeedError: CF2105 a statement that is not known.
    """
    match = _XA.match(statement)
    verb = match[1].upper() if match else ""
    if verb in ("START", "BEGIN", "END"):
        return verb, ""
    if match is None or match[2] is None or verb not in ("COMMIT", "ROLLBACK"):
        raise misfit("an XA statement that is not known")
    return verb, xa_name(bytes.fromhex(match[2]), bytes.fromhex(match[3]), int(match[4]))
