"""Results for people: aligned tables that fit the terminal, and one column a line."""

from __future__ import annotations

from typing import TextIO

from changefeed.api import Result

#: Narrowest a column is cut to before whole columns are left out.
LEAST = 12


def _shown(cell: object) -> str:
    return "" if cell is None else str(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def write_table(result: Result, out: TextIO, width: int | None) -> None:
    """psql's aligned form. What does not fit the terminal is left out from the right, and said."""
    if not result.columns:
        return
    lines = [[_one_line(_shown(c)) for c in row] for row in result.rows]
    widths = [
        max([len(name), *(len(line[i]) for line in lines)])
        for i, name in enumerate(result.columns)
    ]
    kept = _fitting(widths, width)
    right = {i for i in range(kept) if any(_is_number(row[i]) for row in result.rows)}
    out.write(" | ".join(n.center(widths[i]) for i, n in enumerate(result.columns[:kept])).rstrip())
    out.write("\n" + "-+-".join("-" * w for w in widths[:kept]) + "\n")
    for line in lines:
        cells = [
            _clip(c, widths[i]).rjust(widths[i]) if i in right else _clip(c, widths[i]).ljust(widths[i])
            for i, c in enumerate(line[:kept])
        ]
        out.write(" | ".join(cells).rstrip() + "\n")
    out.write(f"({len(lines)} row{'s' * (len(lines) != 1)}")
    hidden = len(result.columns) - kept
    out.write(f"; {hidden} more columns: \\x or --format vertical)\n" if hidden else ")\n")


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"


def _fitting(widths: list[int], width: int | None) -> int:
    """How many columns fit; the last of them is narrowed (in ``widths``) where that helps."""
    if width is None:
        return len(widths)
    used = 0
    for i, wanted in enumerate(widths):
        room = width - used - (3 if i else 0)
        if wanted > room:
            if room >= LEAST or i == 0:
                widths[i] = max(room, 1)
                return i + 1
            return i
        used += wanted + (3 if i else 0)
    return len(widths)


def write_vertical(result: Result, out: TextIO, width: int | None) -> None:
    """One column a line, as psql's ``\\x``."""
    label = max((len(c) for c in result.columns), default=0)
    for number, row in enumerate(result.rows, 1):
        if len(result.rows) > 1:
            out.write(f"-[ RECORD {number} ]".ljust(label + 12, "-") + "\n")
        for name, cell in zip(result.columns, row, strict=True):
            first, *more = _shown(cell).split("\n")
            out.write(f"{name.ljust(label)} | {first}".rstrip() + "\n")
            for line in more:
                out.write(f"{' ' * label} | {line}\n")
    if not result.rows and result.columns:
        out.write("(0 rows)\n")


def write_markdown(result: Result, out: TextIO, width: int | None) -> None:
    """A GitHub table."""
    if not result.columns:
        return
    out.write("| " + " | ".join(result.columns) + " |\n")
    out.write("|" + "---|" * len(result.columns) + "\n")
    for row in result.rows:
        cells = (_one_line(_shown(c)).replace("|", "\\|") for c in row)
        out.write("| " + " | ".join(cells) + " |\n")
