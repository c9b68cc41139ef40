"""Names and texts in Spark SQL."""

from __future__ import annotations

from changefeed.core import sql


def quoted(name: str) -> str:
    """The name of a column, table or function as an identifier; it may contain any character."""
    return sql.quoted(name, "`")


def literal(text: str) -> str:
    """A text as a literal."""
    return sql.escaped(text)
