"""Names in Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """The name of a column, table or function as an identifier; it may contain any character."""
    return "`" + name.replace("`", "``") + "`"
