"""``\\d table``: its columns, as a changefeed sees them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from changefeed.api import Result, Session
from changefeed.core.errors import ChangefeedError, Code

if TYPE_CHECKING:
    from shell.client import Client

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')


def parts(name: str) -> tuple[str, ...]:
    """The parts of a dotted name: folded to lower case unless quoted, as PostgreSQL does."""
    return tuple(
        found[1].replace('""', '"') if found[1] is not None else found[2].lower()
        for found in _PART.finditer(name)
    )


def describe(client: Client, name: str) -> Result:
    """The columns of a table of the session's source, or of ``source.schema.table``.

    Raises:
        ChangefeedError: CF1101 no such table, no source; CF2001 the source is not there.
    """
    *before, table = parts(name) or ("",)
    session = client.backend.session
    if len(before) == 2:
        session = Session(source=before[0])
    found = client.backend.interpreter.describe(session, before[-1] if before else None, table)
    if found is None:
        raise ChangefeedError(Code.NAME_UNKNOWN, "there is no source to ask", hint="USE names one.")
    keys = {position: number for number, position in enumerate(found.key, 1)}
    rows: list[tuple[str | int | float | None, ...]] = [
        (
            column.name,
            column.type_name,
            "yes" if column.nullable else "no",
            None if found.keyless else keys.get(position),
        )
        for position, column in enumerate(found.columns)
    ]
    notices = [f"{found.table}, {found.before_image.words}"]
    if found.keyless:
        notices.append("the table has no key: all columns serve as the key for it")
    return Result(columns=("column", "type", "null", "key"), rows=[*rows], notices=notices)
