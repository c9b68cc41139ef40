"""Results for people: tables that fit the terminal, and one column a line."""

from __future__ import annotations

from typing import TextIO

from changefeed.api import Result
from changefeed.core.printable import visible


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
    """A GitHub table."""
    out.write("| " + " | ".join(result.columns) + " |\n")
    out.write("|" + "---|" * len(result.columns) + "\n")
    for row in result.rows:
        cells = (visible("" if c is None else str(c)).replace("|", "\\|") for c in row)
        out.write("| " + " | ".join(cells) + " |\n")
