"""What statements in the binlog are about: DDL, transactions, and changes that are not rows."""

from __future__ import annotations

import re

from changefeed.sources.mysql.binlog import QueryEvent, misfit, xa_name

#: Statements whose changes should have been sent as rows.
WRITES = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SET", "SELECT", "DO", "CALL"}
)

_WORD = re.compile(r"(?:\s|/\*.*?\*/)*(\w+)", re.S)
_COMMENTS = re.compile(r"/\*.*?\*/", re.S)
_PART = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_NAME = rf"(?:{_PART}\s*\.\s*)?{_PART}"
_SAVEPOINT = re.compile(
    rf"\s*(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT(?!\s*$))?)\s*{_PART}", re.I
)
_TRUNCATE = re.compile(rf"\s*TRUNCATE\s+(?:TABLE\s+)?{_NAME}", re.I)
_ALTERED = re.compile(
    rf"\s*(?:ALTER|CREATE|DROP)\s+(?:ONLINE\s+|IGNORE\s+|OR\s+REPLACE\s+)*TABLE\s+"
    rf"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?{_NAME}",
    re.I,
)
_MOVED = re.compile(rf"\bTO\s+{_NAME}", re.I)
_GETS_NAME = re.compile(rf"\bRENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)(?:TO\s+|AS\s+|=\s*)?{_NAME}", re.I)
_MADE = re.compile(rf"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(IF\s+NOT\s+EXISTS\s+)?{_NAME}", re.I)
_XA = re.compile(r"\s*XA\s+(\w+)(?:\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(-?\d+))?", re.I)


def _unquoted(name: str | None) -> str:
    if not name:
        return ""
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name


def first_word(statement: str) -> str:
    """The first word in capitals, behind comments."""
    word = _WORD.match(statement)
    return word[1].upper() if word else ""


def truncated(query: QueryEvent) -> tuple[str, str] | None:
    """Database and table of a TRUNCATE."""
    return _named(_TRUNCATE, query)


def altered(query: QueryEvent) -> tuple[str, str] | None:
    """Database and table of CREATE, ALTER or DROP TABLE."""
    return _named(_ALTERED, query)


def renamed_to(query: QueryEvent) -> list[tuple[str, str]]:
    """Databases and tables that got their names by RENAME TABLE or ALTER TABLE .. RENAME."""
    text = _COMMENTS.sub(" ", query.text)
    found = (_MOVED if first_word(text) == "RENAME" else _GETS_NAME).finditer(text)
    return [(_unquoted(m[1]) or query.database, _unquoted(m[2])) for m in found]


def made(query: QueryEvent) -> tuple[tuple[str, str], bool] | None:
    """Database and table of a CREATE TABLE, and whether it is a new one for certain."""
    match = _MADE.match(_COMMENTS.sub(" ", query.text))
    if match is None:
        return None
    return (_unquoted(match[2]) or query.database, _unquoted(match[3])), match[1] is None


def _named(pattern: re.Pattern[str], query: QueryEvent) -> tuple[str, str] | None:
    match = pattern.match(_COMMENTS.sub(" ", query.text))
    if match is None:
        return None
    return _unquoted(match[1]) or query.database, _unquoted(match[2])


def savepoint(statement: str) -> str:
    """The name, in lower case, of a savepoint that is set or gone back to; empty: ROLLBACK ends the
    transaction."""
    match = _SAVEPOINT.match(statement)
    return _unquoted(match[1]).casefold() if match else ""


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
