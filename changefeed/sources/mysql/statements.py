"""Statements in the binlog that belong to transactions, or should have been rows."""

from __future__ import annotations

import re

from changefeed.sources.mysql.binlog import misfit, xa_name

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
