"""What the clauses of an ALTER TABLE do to the rows that are there.

A clause is harmless only if it is one of those listed here: each is proved by a test against real
servers. Every other one, also one that cannot be read, counts as giving stored rows other values:
the table is read again then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import Kind
from changefeed.sources.mysql.tokens import Token, TokenReader, split
from changefeed.sources.mysql.types import ColumnInfo, canonical, column_of


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as ADD, MODIFY or CHANGE define it.

    Attributes:
        name: of the column, from then on.
        type: as the server's catalog prints it, without a width of display.
        nullable: may hold NULL; None: the statement does not say.
        fills: a new column of it has a value in stored rows.
        plain: everything about it was understood, and nothing computes its values.
    """

    name: str
    type: str
    nullable: bool | None = None
    fills: bool = False
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause; it is harmless if it has nothing but its text.

    Attributes:
        text: the clause for users, without texts in quotes.
        moves: rows come or go with it, and no row events say so.
        rewrites: it may give stored rows other values.
        drops: the column that it removes.
        column: the column that it defines or renames; empty for ADD.
        renamed: the new name of that column, if it does nothing else.
        defined: how the column looks now.
        lenient: ``IF EXISTS``, ``IF NOT EXISTS``: it may have done nothing.
        key: the columns of the primary key that it makes.
    """

    text: str
    moves: bool = False
    rewrites: bool = False
    drops: str = ""
    column: str = ""
    renamed: str = ""
    defined: ColumnDefinition | None = None
    lenient: bool = False
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement did to a table.

    Attributes:
        why: the clause after which stored rows read otherwise; empty: they read as before.
        moved: rows came or went without row events.
        renamed: columns that have another name, by name before and after.
        dropped: names of columns that are gone.
        touched: names of columns that may look otherwise in the next row, in lower case.
        added: definitions of new columns.
        changed: definitions of the others that it names, with their new names.
        key: the columns of the primary key that it made, by their new names.
    """

    why: str = ""
    moved: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: frozenset[str] = frozenset()
    touched: frozenset[str] = frozenset()
    added: tuple[ColumnDefinition, ...] = ()
    changed: tuple[ColumnDefinition, ...] = ()
    key: tuple[str, ...] = ()


# ------------------------------------------------------------------------------- reading

_MOVING = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "IMPORT"})
#: After DISCARD nobody can read the table; the IMPORT that ends this brings rows.
_STILL = frozenset(
    {"ADD", "COALESCE", "REORGANIZE", "REBUILD", "ANALYZE", "CHECK", "OPTIMIZE", "DISCARD"}
)
_INDEXES = (
    "INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "FOREIGN", "CHECK",
)  # fmt: skip
#: Options of tables that do not concern the values of rows.
_OPTIONS = frozenset(
    {
        "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "COMMENT", "COMPRESSION",
        "DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "KEY_BLOCK_SIZE",
        "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
        "PAGE_COMPRESSION_LEVEL", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES", "ALGORITHM", "LOCK", "CHARSET", "COLLATE",
    }
)  # fmt: skip


def read_clauses(given: Sequence[Token]) -> tuple[Clause, ...]:
    """The clauses of an ALTER TABLE, given what comes behind the table's name."""
    cursor = TokenReader(given)
    verb, noun = cursor.word(), cursor.word(1)
    if verb == "CONVERT" and noun in ("PARTITION", "TABLE"):
        return (Clause(_text(given), moves=True),)
    tablespace = noun == "TABLESPACE" and verb in ("DISCARD", "IMPORT")
    if tablespace or (noun == "PARTITION" and verb in _MOVING | _STILL):
        return (Clause(_text(given), moves=verb in _MOVING),)
    return tuple(clause for part in split(_before_partitions(given)) for clause in _clause(part))


def exchanged(given: Sequence[Token]) -> Iterator[list[Token]]:
    """The name of the other table with which an ALTER TABLE exchanges rows, as tokens."""
    words = [(token["word"] or "").upper() for token in given]
    for before in (("WITH", "TABLE"), ("TO", "TABLE"), ("CONVERT", "TABLE")):
        for at in range(len(words) - 2):
            if (words[at], words[at + 1]) == before and words[0] in ("EXCHANGE", "CONVERT"):
                yield list(given[at + 2 :])


def _before_partitions(given: Sequence[Token]) -> Sequence[Token]:
    """Without ``PARTITION BY ..`` or ``REMOVE PARTITIONING`` at the end, which move no row."""
    depth = 0
    for at, token in enumerate(given):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        word, after = (((t["word"] or "").upper()) for t in (*given[at : at + 2], token)[:2])
        if not depth and (word, after) in (("PARTITION", "BY"), ("REMOVE", "PARTITIONING")):
            return given[:at]
    return given


def _text(given: Sequence[Token]) -> str:
    shown = ["'..'" if token["string"] else token[0] for token in given[:8]]
    text = re.sub(r" ?([(.]) | (?=[),])", r"\1", " ".join(shown))
    return text + (" .." if len(given) > 8 else "")


def _clause(part: Sequence[Token]) -> Iterator[Clause]:
    cursor, text = TokenReader(part), _text(part)
    if cursor.ended:
        return
    reader = _VERBS.get(cursor.word())
    found = None if reader is None else reader(cursor, text)
    if found is None:
        cursor = TokenReader(part)
        harmless = _harmless(cursor) and cursor.ended
        yield Clause(text, rewrites=not harmless, key=_primary_key(part))
    else:
        yield from found


def _primary_key(part: Sequence[Token]) -> tuple[str, ...]:
    """The columns of the key that ``ADD [CONSTRAINT [name]] PRIMARY KEY (..)`` makes."""
    cursor = TokenReader(part)
    if not cursor.skip("ADD"):
        return ()
    if cursor.skip("CONSTRAINT") and cursor.word() != "PRIMARY":
        cursor.name()
    if not cursor.sequence("PRIMARY", "KEY"):
        return ()
    listed = None
    while not cursor.ended and listed is None:
        listed = cursor.group()
        if listed is None:
            cursor.advance()
    return tuple(filter(None, (TokenReader(one).name() for one in split(listed or []))))


def _harmless(cursor: TokenReader) -> bool:
    """Take a clause, or the options of a table, that concern no value."""
    for words in _PHRASES:
        if cursor.sequence(*words):
            while not cursor.ended:
                cursor.advance()
            return True
    while not cursor.ended:
        cursor.skip("DEFAULT")
        if cursor.sequence("CHARACTER", "SET") or cursor.skip(*_OPTIONS):
            cursor.sign("=")
        elif cursor.skip("ENGINE"):
            cursor.sign("=")
            if cursor.word() != "INNODB":
                return False
        elif not cursor.skip("FORCE"):
            return False
        else:
            continue
        if cursor.ended:
            return False
        cursor.advance()
    return True


#: Beginnings of clauses that are harmless however they go on.
_PHRASES = (
    *(("ADD", word) for word in _INDEXES),
    *(("DROP", word) for word in ("INDEX", "KEY", "FOREIGN", "CHECK", "CONSTRAINT", "PRIMARY")),
    *(("RENAME", word) for word in ("INDEX", "KEY")),
    *(("ALTER", word) for word in ("INDEX", "KEY", "CHECK", "CONSTRAINT")),
    ("ENABLE", "KEYS"),
    ("DISABLE", "KEYS"),
    ("WITH", "VALIDATION"),
    ("WITHOUT", "VALIDATION"),
    ("ORDER", "BY"),
)


def _add(cursor: TokenReader, text: str) -> list[Clause] | None:
    cursor.skip("ADD")
    if cursor.word() == "CONSTRAINT":
        words = {cursor.word(1), cursor.word(2)}
        return [Clause(text)] if words & {"UNIQUE", "FOREIGN", "CHECK"} else None
    if cursor.word() in (*_INDEXES, "PRIMARY", "SYSTEM", "PERIOD", "PARTITION"):
        return None
    cursor.skip("COLUMN")
    lenient = cursor.word() == "IF"
    cursor.exists()
    listed = cursor.group()
    parts = [cursor.rest()] if listed is None else split(listed)
    found = []
    for part in parts:
        first = TokenReader(part)
        if listed is not None and first.word() in (*_INDEXES, "CONSTRAINT", "PRIMARY", "PERIOD"):
            return None
        defined = _definition(first)
        if defined is None:
            return None
        found.append(Clause(text, defined=defined, lenient=lenient))
    return found


def _drop(cursor: TokenReader, text: str) -> list[Clause] | None:
    cursor.skip("DROP")
    plain = not cursor.skip("COLUMN")
    if plain and cursor.word() in (*_INDEXES, "PRIMARY", "CONSTRAINT", "SYSTEM", "PERIOD"):
        return None
    lenient = cursor.word() == "IF"
    cursor.exists()
    name = cursor.name()
    cursor.skip("RESTRICT", "CASCADE")
    return [Clause(text, drops=name, lenient=lenient)] if name and cursor.ended else None


def _rename(cursor: TokenReader, text: str) -> list[Clause] | None:
    cursor.skip("RENAME")
    if not cursor.skip("COLUMN"):
        # An index, or the table itself, which is no matter of its rows.
        return [Clause(text)]
    lenient = cursor.word() == "IF"
    cursor.exists()
    old = cursor.name()
    new = cursor.name() if cursor.skip("TO") else None
    if not old or not new or not cursor.ended:
        return None
    return [Clause(text, column=old, renamed=new, lenient=lenient)]


def _modify(cursor: TokenReader, text: str) -> list[Clause] | None:
    change = cursor.advance()[0].upper() == "CHANGE"
    cursor.skip("COLUMN")
    lenient = cursor.word() == "IF"
    cursor.exists()
    old = cursor.name() if change else None
    defined = _definition(cursor)
    if defined is None or (change and not old):
        return None
    return [Clause(text, column=old or defined.name, defined=defined, lenient=lenient)]


def _alter(cursor: TokenReader, text: str) -> list[Clause] | None:
    """``ALTER COLUMN .. SET DEFAULT``, ``DROP DEFAULT``, ``SET VISIBLE``."""
    cursor.skip("ALTER")
    if not cursor.skip("COLUMN") and cursor.word() in ("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return None
    cursor.exists()
    named = cursor.name() is not None
    settled = cursor.skip("SET") and cursor.skip("DEFAULT", "VISIBLE", "INVISIBLE")
    return [Clause(text)] if named and (settled or cursor.sequence("DROP", "DEFAULT")) else None


_VERBS = {
    "ADD": _add,
    "DROP": _drop,
    "RENAME": _rename,
    "MODIFY": _modify,
    "CHANGE": _modify,
    "ALTER": _alter,
}


# --------------------------------------------------------------------------- definitions

_ALIASES = {
    "integer": "int",
    "bool": "tinyint",
    "boolean": "tinyint",
    "dec": "decimal",
    "numeric": "decimal",
    "fixed": "decimal",
    "character": "char",
    "real": "double",
}


def _definition(cursor: TokenReader) -> ColumnDefinition | None:
    name, kind = cursor.name(), cursor.word().lower()
    if not name or not kind:
        return None
    cursor.advance()
    kind = _ALIASES.get(kind, kind)
    listed = cursor.group()
    if listed is not None:
        values = "".join(
            ("'" + _string(token) + "'") if token["string"] else token[0] for token in listed
        )
        kind += f"({values})"
    found = ColumnDefinition(name, kind, plain=kind != "serial")
    while not cursor.ended:
        after = _attribute(cursor, found)
        if after is None:
            return replace(found, plain=False)
        found = after
    if found.type == "timestamp" or found.type.startswith("timestamp("):
        # Without a word it may be NOT NULL and have a default, by settings of the server.
        return replace(found, nullable=bool(found.nullable), fills=not found.nullable)
    return found


def _string(token: Token) -> str:
    r"""A text in quotes as the catalog has it: ``'it\'s'`` is ``it''s``."""
    return token[0][1:-1].replace("''", "'").replace("\\'", "'").rstrip(" ").replace("'", "''")


def _attribute(cursor: TokenReader, found: ColumnDefinition) -> ColumnDefinition | None:
    """Take one attribute of a column; None for one that is not known to be harmless."""
    if cursor.skip("UNSIGNED"):
        return replace(found, type=f"{found.type} unsigned")
    if cursor.sequence("NOT", "NULL"):
        return replace(found, nullable=False)
    if cursor.skip("NULL"):
        return replace(found, nullable=True)
    if cursor.skip("DEFAULT"):
        if cursor.skip("NULL"):
            return found
        return replace(found, fills=True) if _value(cursor) else None
    if cursor.sequence("ON", "UPDATE"):
        return found if _value(cursor) else None
    if cursor.skip("SIGNED", "FIRST", "INVISIBLE", "VISIBLE"):
        return found
    if cursor.skip("UNIQUE"):
        cursor.skip("KEY")
        return found
    if cursor.skip("CHECK"):
        return found if cursor.group() is not None else None
    if cursor.sequence("CHARACTER", "SET") or cursor.skip("CHARSET", "COLLATE", "COMMENT"):
        cursor.sign("=")
        return found if not cursor.ended and cursor.advance()[0].upper() != "BINARY" else None
    if cursor.skip("AFTER", "COLUMN_FORMAT", "STORAGE"):
        return found if cursor.name() is not None else None
    return None


def _value(cursor: TokenReader) -> bool:
    """Take a default: a literal, an expression in brackets, or a function."""
    if cursor.group() is not None:
        return True
    if not cursor.sign("-"):
        cursor.sign("+")
    if cursor.ended:
        return False
    cursor.advance()
    if cursor.sign("."):
        cursor.name()
    cursor.group()
    return True


# ------------------------------------------------------------------------------- judging


def effect(
    clauses: Sequence[Clause],
    known: TableSchema | None,
    *,
    strict: bool,
    certain: bool = True,
) -> Effect:
    """What clauses did to the rows of a table.

    Args:
        known: the table's shape before; None if it is not known.
        strict: the statement fails rather than lose characters or replace NULL.
        certain: it is known that the server ran all of these clauses.
    """
    columns = {} if known is None else {c.name.casefold(): c for c in known.columns}
    key = () if known is None or known.keyless else known.key_columns
    moved = any(clause.moves for clause in clauses)
    renamed: dict[str, str] = {}
    dropped: set[str] = set()
    touched: set[str] = set()
    added: list[ColumnDefinition] = []
    changed: list[ColumnDefinition] = []
    reasons = [clause for clause in clauses if clause.moves or clause.rewrites]
    for clause in clauses:
        defined, was = clause.defined, columns.get((clause.column or clause.drops).casefold())
        if clause.drops:
            if was is not None:
                dropped.add(was.name)
                touched.add(was.name.casefold())
            elif not clause.lenient:
                reasons.append(clause)
            continue
        if defined is not None and not clause.column:
            there = columns.get(defined.name.casefold())
            if clause.lenient and there is not None and there.name not in dropped:
                continue
            added.append(defined)
            touched.add(defined.name.casefold())
            if defined.fills or not defined.plain or defined.nullable is False:
                reasons.append(clause)
            continue
        if not clause.column:
            continue
        new = clause.renamed if defined is None else defined.name
        touched.update((clause.column.casefold(), new.casefold()))
        if was is None:
            if not clause.lenient:
                reasons.append(clause)
            continue
        if was.name != new:
            renamed[was.name] = new
        if defined is not None:
            changed.append(defined)
            if not _reads_the_same(was, defined, strict=strict):
                reasons.append(clause)
                moved |= was in key
    # A name that was another column's: consumers by name do not know whose values they have.
    taken = {new.casefold() for old, new in renamed.items() if old.casefold() != new.casefold()}
    again = {column.name.casefold() for column in added} | taken
    if not reasons and again & columns.keys():
        name = min(again & columns.keys())
        reasons = [c for c in clauses if name in _names(c)][-1:]
    if not certain and not reasons and (renamed or dropped):
        reasons = [clause for clause in clauses if clause.column or clause.drops][:1]
    if not certain:
        renamed, dropped = {}, set()
    return Effect(
        why=reasons[0].text if reasons else "",
        moved=moved,
        renamed=tuple(renamed.items()),
        dropped=frozenset(dropped),
        touched=frozenset(touched),
        added=tuple(added),
        changed=tuple(changed),
        key=next((clause.key for clause in clauses if clause.key and certain), ()),
    )


def _names(clause: Clause) -> set[str]:
    """The names that a clause gives to columns, in lower case."""
    return {clause.renamed.casefold(), clause.defined.name.casefold() if clause.defined else ""}


def _reads_the_same(was: Column, defined: ColumnDefinition, *, strict: bool) -> bool:
    """Stored values of a column are the same under its new definition."""
    if not defined.plain:
        return False
    if was.nullable and defined.nullable is False and not strict:
        return False
    old, new = canonical(was.type_name), canonical(defined.type)
    now = column_of(ColumnInfo(defined.name, defined.type))
    if was.kind in (Kind.TEXT, Kind.JSON) and not strict:
        # It may have another character set now, which has fewer characters.
        return False
    if defined.type.startswith("timestamp") and not defined.nullable:
        return False
    if old != new:
        return _holds(old, new)
    rounds = old in ("float", "double") and "(" in was.type_name + defined.type
    return now.logical == was.logical and not rounds


_WIDER_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_LONGER_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_LONGER_BYTES = ("tinyblob", "blob", "mediumblob", "longblob")
_SIZED = re.compile(r"(char|varchar|varbinary|decimal)\((\d+)(?:,(\d+))?\)")


def _holds(old: str, new: str) -> bool:
    """A type has all values of another, written the same."""
    sign = " unsigned"
    a, b = old.removesuffix(sign), new.removesuffix(sign)
    if old.endswith(sign) == new.endswith(sign) and new != "bigint unsigned":
        for order in (_WIDER_INTEGERS, _LONGER_TEXTS, _LONGER_BYTES):
            if a in order and b in order:
                return order.index(a) <= order.index(b)
    was, now = _SIZED.fullmatch(old), _SIZED.fullmatch(new)
    if was and now and was[1] == now[1] and was[3] == now[3]:
        return int(was[2]) <= int(now[2])
    if was and was[1] == "varchar" and new in _LONGER_TEXTS[1:]:
        return int(was[2]) <= 16_383 or new != "text"
    for kind in ("enum", "set"):
        if old.startswith(f"{kind}(") and new.startswith(f"{kind}("):
            before, after = (_members(text) for text in (old, new))
            return set(before) <= set(after) if kind == "enum" else after[: len(before)] == before
    return False


def _members(text: str) -> list[str]:
    return re.findall(r"'((?:[^']|'')*)'", text)
