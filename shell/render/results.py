"""Format -> writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from changefeed.api import Result
from shell.render.formats import OutputFormat
from shell.render.machine import write_csv, write_json, write_jsonl
from shell.render.people import write_markdown, write_table, write_vertical

ResultWriter = Callable[[Result, TextIO, int | None], None]

#: ``table`` has a look of its own.
_WRITERS: dict[OutputFormat, ResultWriter] = {
    OutputFormat.VERTICAL: write_vertical,
    OutputFormat.CSV: write_csv,
    OutputFormat.JSON: write_json,
    OutputFormat.JSONL: write_jsonl,
    OutputFormat.MARKDOWN: write_markdown,
}


def render(
    result: Result,
    form: OutputFormat,
    out: TextIO,
    width: int | None = None,
    *,
    colour: bool = False,
) -> None:
    """Write the rows of ``result``.

    Args:
        result: what a statement answered.
        form: how.
        out: where; flushed afterwards.
        width: columns of the terminal; None writes as wide as it takes.
        colour: ``out`` is read on a terminal that can show it.
    """
    if result.columns and form is OutputFormat.TABLE:
        write_table(result, out, width, colour=colour)
    elif result.columns:
        _WRITERS[form](result, out, width)
    out.flush()
