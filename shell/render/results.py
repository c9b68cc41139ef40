"""Format -> writer."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import TextIO

from changefeed.api import Cell, Result, plain_cell
from changefeed.core.printable import visible
from shell.render.formats import OutputFormat


def write_csv(result: Result, out: TextIO, width: int | None) -> None:
    """RFC 4180 with a header line; an absent value is empty."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.columns)
    for row in result.rows:
        writer.writerow(["" if cell is None else _csv_cell(cell) for cell in row])


def _csv_cell(cell: Cell) -> object:
    return str(cell) if isinstance(cell, tuple) else plain_cell(cell)


def write_json(result: Result, out: TextIO, width: int | None) -> None:
    """One array with an object a row."""
    out.write(json.dumps(result.objects(), ensure_ascii=False, indent=2) + "\n")


def write_jsonl(result: Result, out: TextIO, width: int | None) -> None:
    """One object a line for each row."""
    for row in result.objects():
        out.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_table(result: Result, out: TextIO, width: int | None, *, colour: bool = False) -> None:
    """psql's aligned form, in the columns of the terminal; a listing for people where there is
    one. With ``colour`` as the terminal and NO_COLOR allow."""
    # Loaded on use: rich takes a tenth of a second.
    from rich.console import Console

    from changefeed.result_tables import print_result

    console = Console(file=out, width=width, force_terminal=colour)
    print_result(result, console, width)


def write_vertical(result: Result, out: TextIO, width: int | None) -> None:
    """One column a line, as psql's ``\\x``."""
    from changefeed.result_tables import shown

    label = max(map(len, result.columns))
    for number, row in enumerate(result.rows, 1):
        if len(result.rows) > 1:
            out.write(f"-[ RECORD {number} ]".ljust(label + 12, "-") + "\n")
        for name, cell in zip(result.columns, row, strict=True):
            first, *more = shown(cell).split("\n")
            out.write(f"{name.ljust(label)} | {visible(first)}".rstrip() + "\n")
            for line in more:
                out.write(f"{' ' * label} | {visible(line)}\n")
    if not result.rows:
        out.write("(0 rows)\n")


def write_markdown(result: Result, out: TextIO, width: int | None) -> None:
    """A table in GitHub's Markdown."""
    out.write("| " + " | ".join(result.columns) + " |\n")
    out.write("|" + "---|" * len(result.columns) + "\n")
    for row in result.rows:
        cells = (visible("" if c is None else str(c)).replace("|", "\\|") for c in row)
        out.write("| " + " | ".join(cells) + " |\n")


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
        out: where; flushed afterwards.
        width: columns of the terminal; None writes as wide as it takes.
        colour: ``out`` is read on a terminal that can show it.
    """
    if result.columns and form is OutputFormat.TABLE:
        write_table(result, out, width, colour=colour)
    elif result.columns:
        _WRITERS[form](result, out, width)
    out.flush()
