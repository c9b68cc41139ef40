"""Which tables a statement of DDL in the binlog is about.

The binlog has the statement as somebody wrote it. It is read only as far as the names of its
tables, in the spellings of MySQL and MariaDB; what it does to a table is not interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from changefeed.sources.mysql.binlog import QueryEvent

#: The first words of statements that may define a table or a database.
FIRST_WORDS = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})

#: Database and table.
Named = tuple[str, str]

#: Comments that only some versions run are read as if all did.
_TOKEN = re.compile(
    r"(?P<space>\s+|/\*M?!\d*|\*/|/\*(?!M?!).*?\*/|--(?=\s|$)[^\n]*|#[^\n]*)"
    r"|(?P<string>'(?:[^'\\]|''|\\.)*')"
    r"|(?P<quoted>\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`)"
    r"|(?P<word>[\w$\u0080-\uffff]+)"
    r"|(?P<sign>.)",
    re.S,
)


@dataclass(frozen=True, slots=True)
class DefinedTables:
    """What a statement is about: tables, or a database that it makes or removes.

    Attributes:
        kind: ``CREATE``, ``ALTER``, ``DROP``, ``RENAME`` or ``TRUNCATE``; an index that comes or
            goes is an ALTER of its table.
        tables: every table that it names as made, changed or removed, also under a new name.
        database: the one that it makes or removes; then there are no ``tables``.
        moves: the renames in their order, each with the name before and the name after it.
    """

    kind: str
    tables: tuple[Named, ...] = ()
    database: str = ""
    moves: tuple[tuple[Named, Named], ...] = ()


def read_definition(query: QueryEvent) -> DefinedTables | None:
    """The tables or the database of a statement of DDL; None for any other statement."""
    return _Reader(query).run()


def names_in(query: QueryEvent) -> set[Named]:
    """Everything in a statement that may name a table, in lower case."""
    tokens = [t for t in _TOKEN.finditer(query.text) if not t["space"]]
    found: set[Named] = set()
    for at, token in enumerate(tokens):
        if (name := _plain(token)) is None:
            continue
        found.add((query.database.casefold(), name.casefold()))
        if at > 1 and tokens[at - 1][0] == "." and (database := _plain(tokens[at - 2])):
            found.add((database.casefold(), name.casefold()))
    return found


def _plain(token: re.Match[str]) -> str | None:
    """A name without its quotes; None: it is none."""
    text = token[0]
    if token["quoted"]:
        return text[1:-1].replace(text[0] * 2, text[0])
    return text if token["word"] else None


class _Reader:
    """One pass over the tokens of a statement."""

    def __init__(self, query: QueryEvent) -> None:
        self._database = query.database
        self._tokens = [t for t in _TOKEN.finditer(query.text) if not t["space"]]
        self._at = 0

    def run(self) -> DefinedTables | None:
        kind = self._word()
        if kind not in FIRST_WORDS:
            return None
        self._at += 1
        if kind == "TRUNCATE":
            self._skip("TABLE")
            return self._of(kind, self._name())
        if kind == "RENAME":
            return self._renames() if self._skip("TABLE", "TABLES") else None
        while self._skip("ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE", *_INDEX_KINDS):
            pass
        if self._skip("DATABASE", "SCHEMA"):
            self._skip_exists()
            name = self._part()
            return DefinedTables(kind, database=name) if name and kind != "ALTER" else None
        if self._skip("INDEX"):
            return self._index()
        if not self._skip("TABLE", "TABLES"):
            return None
        self._skip_exists()
        if kind == "DROP":
            return DefinedTables(kind, tuple(self._list()))
        named = self._name()
        if kind == "ALTER":
            return self._alter(named)
        return self._of(kind, named)

    def _of(self, kind: str, named: Named | None) -> DefinedTables | None:
        return None if named is None else DefinedTables(kind, (named,))

    def _renames(self) -> DefinedTables | None:
        self._skip_exists()
        old: list[Named] = []
        new: list[Named] = []
        while (named := self._name()) is not None:
            self._wait()
            if not self._skip("TO") or (to := self._name()) is None:
                return None
            old.append(named)
            new.append(to)
            if not self._sign(","):
                break
        moves = tuple(zip(old, new, strict=True))
        return DefinedTables("RENAME", tuple(dict.fromkeys(old + new)), moves=moves)

    def _wait(self) -> None:
        """MariaDB: ``NOWAIT`` or ``WAIT n`` behind a table."""
        if not self._skip("NOWAIT") and self._skip("WAIT"):
            self._at += 1

    def _index(self) -> DefinedTables | None:
        self._skip_exists()
        if self._part() is None:
            return None
        while self._at < len(self._tokens) and not self._skip("ON"):
            self._at += 1
        return self._of("ALTER", self._name())

    def _alter(self, named: Named | None) -> DefinedTables | None:
        if named is None:
            return None
        depth = 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if depth or (token["word"] or "").upper() != "RENAME":
                continue
            if self._word() in ("COLUMN", "INDEX", "KEY", "CONSTRAINT"):
                continue
            if not self._skip("TO", "AS"):
                self._sign("=")
            new = self._name()
            if new is not None:
                return DefinedTables("RENAME", (named, new), moves=((named, new),))
        return DefinedTables("ALTER", (named,))

    def _list(self) -> Iterator[Named]:
        while (named := self._name()) is not None:
            yield named
            if not self._sign(","):
                return

    # ------------------------------------------------------------------------- tokens

    def _token(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _word(self) -> str:
        token = self._token()
        return (token["word"] or "").upper() if token else ""

    def _skip(self, *words: str) -> bool:
        found = self._word() in words
        self._at += found
        return found

    def _skip_exists(self) -> None:
        if self._skip("IF"):
            self._skip("NOT")
            self._skip("EXISTS")

    def _sign(self, sign: str) -> bool:
        token = self._token()
        found = token is not None and token[0] == sign
        self._at += found
        return found

    def _part(self) -> str | None:
        token = self._token()
        name = None if token is None else _plain(token)
        self._at += name is not None
        return name

    def _name(self) -> Named | None:
        first = self._part()
        if first is None:
            return None
        if not self._sign("."):
            return self._database, first
        second = self._part()
        return None if second is None else (first, second)


_INDEX_KINDS = ("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
