"""``\\d table``: its columns, as a changefeed sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from changefeed.api import Result
from changefeed.core.errors import ChangefeedError, Code
from grammar.printer import parts

if TYPE_CHECKING:
    from shell.client import Client


def describe(client: Client, name: str) -> Result:
    """The columns of a table of the session's source, or of ``source.schema.table``.

    Raises:
        ChangefeedError: CF1101 no such table, no source; CF2001 the source is not there.
    """
    found_parts = parts(name) or ("",)
    source = found_parts[0] if len(found_parts) == 3 else client.backend.source()
    if source is None:
        raise ChangefeedError(Code.NAME_UNKNOWN, "there is no source to ask", hint="USE names one.")
    found = client.backend.facts.table(source, found_parts[-2:])
    rows: list[tuple[str | int | float | None, ...]] = [
        (column.name, column.type, "yes" if column.nullable else "no", column.key)
        for column in found.columns
    ]
    notices = [f"{found.name}, {found.before_image}"]
    if found.keyless:
        notices.append("the table has no key: all columns serve as the key for it")
    return Result(columns=("column", "type", "null", "key"), rows=[*rows], notices=notices)
