"""Results for people: aligned tables that fit the terminal, and one column a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from changefeed.api import Result
from shell.render.widths import clip, pad, visible, wrap
from shell.render.widths import width as width_of

#: Columns to which a long value is cut before whole columns are left out.
LEAST = 16

#: Between two columns.
_GAP = " | "


def _shown(cell: object) -> str:
    return "" if cell is None else str(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def write_table(result: Result, out: TextIO, width: int | None) -> None:
    """psql's aligned form, in the columns of the terminal.

    The important columns come first. What does not fit: columns without any value go, long
    values are cut (that of the last column alone is wrapped), then columns from the right go;
    the last line counts them.
    """
    lines = [[visible(_shown(cell)) for cell in row] for row in result.rows]
    natural = [
        max([width_of(name), *(width_of(line[i]) for line in lines)])
        for i, name in enumerate(result.columns)
    ]
    empty = {i for i in range(len(natural)) if lines and not any(line[i] for line in lines)}
    widths = fitting(natural, empty, width)
    right = {i for i in widths if any(_is_number(row[i]) for row in result.rows)}
    head = _GAP.join(_centred(result.columns[i], room) for i, room in widths.items())
    out.write(head.rstrip() + "\n" + "-+-".join("-" * room for room in widths.values()) + "\n")
    cut = [i for i, room in widths.items() if natural[i] > room]
    last = len(natural) - 1
    # A text in the last column that is all that does not fit goes on below itself.
    wraps = cut == [last] and widths[last] >= LEAST
    for line in lines:
        for part in _below_each_other(line, last, widths[last]) if wraps else [line]:
            cells = (pad(clip(part[i], room), room, right=i in right) for i, room in widths.items())
            out.write(_GAP.join(cells).rstrip() + "\n")
    out.write(_footer(len(lines), len(natural) - len(widths), clipped=bool(cut) and not wraps))


def _centred(name: str, room: int) -> str:
    name = clip(name, room)
    left = (room - width_of(name)) // 2
    return pad(" " * left + name, room)


def _below_each_other(line: list[str], last: int, room: int) -> Iterator[list[str]]:
    first, *more = wrap(line[last], room)
    yield [*line[:last], first]
    yield from ([""] * last + [text] for text in more)


def _footer(rows: int, hidden: int, *, clipped: bool) -> str:
    said = f"({rows} row{'s' * (rows != 1)}"
    if hidden:
        said += f"; {hidden} column{'s' * (hidden != 1)} more"
    return said + ("; \\x shows all)\n" if hidden or clipped else ")\n")


def fitting(natural: Sequence[int], empty: set[int], width: int | None) -> dict[int, int]:
    """Which columns are shown, and how wide: position -> columns of the terminal."""
    every = dict(enumerate(natural))
    if width is None or _total(every.values()) <= width:
        return every
    kept = {i: room for i, room in every.items() if i not in empty} or every
    if _total(kept.values()) <= width:
        return kept
    chosen: dict[int, int] = {}
    for i, room in kept.items():
        if chosen and _total([*chosen.values(), min(room, LEAST)]) > width:
            break
        chosen[i] = min(room, LEAST, width)
    # What is left goes to the cut columns, those that need least first: most become whole.
    left = width - _total(chosen.values())
    for i in sorted(chosen, key=lambda i: natural[i]):
        more = min(left, natural[i] - chosen[i])
        chosen[i] += more
        left -= more
    return chosen


def _total(widths: Iterable[int]) -> int:
    rooms = list(widths)
    return sum(rooms) + len(_GAP) * max(0, len(rooms) - 1)


def write_vertical(result: Result, out: TextIO, width: int | None) -> None:
    """One column a line, as psql's ``\\x``."""
    label = max(map(len, result.columns))
    for number, row in enumerate(result.rows, 1):
        if len(result.rows) > 1:
            out.write(f"-[ RECORD {number} ]".ljust(label + 12, "-") + "\n")
        for name, cell in zip(result.columns, row, strict=True):
            first, *more = _shown(cell).split("\n")
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
        cells = (visible(_shown(cell)).replace("|", "\\|") for cell in row)
        out.write("| " + " | ".join(cells) + " |\n")
