"""A result as text, in the format the user chose. Writes data only; standard output is its place.

``table`` is for people, ``vertical`` for wide rows, ``csv json jsonl markdown`` for programs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TextIO

from changefeed.api import Result
from shell.render.machine import write_csv, write_json, write_jsonl
from shell.render.people import write_markdown, write_table, write_vertical


class Format(StrEnum):
    """Values of ``--format``."""

    TABLE = "table"
    VERTICAL = "vertical"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"


Writer = Callable[[Result, TextIO, int | None], None]

_WRITERS: dict[Format, Writer] = {
    Format.TABLE: write_table,
    Format.VERTICAL: write_vertical,
    Format.CSV: write_csv,
    Format.JSON: write_json,
    Format.JSONL: write_jsonl,
    Format.MARKDOWN: write_markdown,
}


def render(result: Result, form: Format, out: TextIO, width: int | None = None) -> None:
    """Write the rows of ``result``.

    Args:
        width: columns of the terminal; None writes as wide as it takes.
    """
    if form is Format.TABLE and result.vertical:
        form = Format.VERTICAL
    _WRITERS[form](result, out, width)
    out.flush()
