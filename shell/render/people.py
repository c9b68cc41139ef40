"""Results for people: aligned tables that fit the terminal, and one column a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from changefeed.api import Result, Worded
from shell.render.widths import clip, pad, visible, wrap
from shell.render.widths import width as width_of

#: Columns to which a long value is wrapped before whole columns are left out.
LEAST = 16

#: The same in a listing made for people, whose columns are all wanted.
LEAST_BRIEF = 10

#: A reason that has less room than this beside the other columns stands below them.
LEAST_REASON = 34

#: Other columns of such a listing take no more than this where there is a reason to show.
MOST_BRIEF = 24

#: A cell is no deeper than this many lines; the rest of it is in ``\\x``.
DEEPEST = 12

#: Between two columns.
_GAP = " | "

#: Before a reason that stands below its row.
_INDENT = "    "


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    return cell.words if isinstance(cell, Worded) else str(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def write_table(result: Result, out: TextIO, width: int | None) -> None:
    """psql's aligned form, in the columns of the terminal.

    A result that has a listing for people shows that. The important columns come first. What
    does not fit: columns without any value go, long values are wrapped, then columns from the
    right go; the last line counts them.
    """
    brief = result.brief
    if brief is None:
        _Table(result.columns, result.rows, width, LEAST).write(out)
    else:
        _write_brief(brief.columns, brief.rows, out, width)


def _write_brief(
    columns: Sequence[str], rows: Sequence[Sequence[object]], out: TextIO, width: int | None
) -> None:
    """The last column is the reason: beside the others where it has room, else below them."""
    reason = len(columns) - 1
    reasons = [visible(_shown(row[reason])) for row in rows]
    facts = _Table(columns[:reason], [row[:reason] for row in rows], width, LEAST_BRIEF)
    if not any(reasons):
        facts.write(out, more=True)
        return
    taken = _total(min(room, MOST_BRIEF) for room in facts.natural)
    whole = facts.all_of(width, max(map(width_of, reasons)))
    if width is None or whole or width - taken - len(_GAP) >= LEAST_REASON:
        most = None if width is None or whole else MOST_BRIEF
        _Table(columns, rows, width, LEAST_BRIEF, most).write(out, more=True)
        return
    facts.write(out, [_below(text, width) for text in reasons], more=True)


def _below(text: str, room: int) -> list[str]:
    if not text:
        return []
    return [_INDENT + line for line in wrap(text, max(10, room - len(_INDENT)))[:DEEPEST]]


class _Table:
    """Cells as text, and how wide each column is."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        width: int | None,
        least: int,
        most: int | None = None,
    ) -> None:
        """``most`` limits all columns but the last."""
        self._columns = columns
        self._lines = [[visible(_shown(cell)) for cell in row] for row in rows]
        self.natural = [
            max([width_of(name), *(width_of(line[i]) for line in self._lines)])
            for i, name in enumerate(columns)
        ]
        empty = {
            i
            for i in range(len(columns))
            if self._lines and not any(line[i] for line in self._lines)
        }
        wanted = [
            room if most is None or i == len(columns) - 1 else min(room, most)
            for i, room in enumerate(self.natural)
        ]
        self._widths = fitting(wanted, empty, width, least)
        self._right = {i for i in self._widths if any(_is_number(row[i]) for row in rows)}

    def all_of(self, width: int | None, more: int) -> bool:
        """Every column, and one more of that width, fits without wrapping."""
        return width is None or _total([*self.natural, more]) <= width

    def write(
        self, out: TextIO, below: Sequence[Sequence[str]] = (), *, more: bool = False
    ) -> None:
        """``below`` are lines to write after each row; ``more``: ``\\x`` has other columns."""
        widths = self._widths
        head = _GAP.join(_centred(self._columns[i], room) for i, room in widths.items())
        out.write(head.rstrip() + "\n" + "-+-".join("-" * room for room in widths.values()) + "\n")
        clipped = False
        for number, line in enumerate(self._lines):
            cells = {i: wrap(line[i], room) for i, room in widths.items()}
            deepest = max(len(parts) for parts in cells.values())
            clipped = clipped or deepest > DEEPEST
            for depth in range(min(deepest, DEEPEST)):
                out.write(self._line(cells, depth))
            for text in below[number] if below else ():
                out.write(text + "\n")
        hidden = len(self.natural) - len(widths)
        out.write(_footer(len(self._lines), hidden, clipped=clipped, more=more))

    def _line(self, cells: dict[int, list[str]], depth: int) -> str:
        texts = []
        for i, room in self._widths.items():
            parts = cells[i]
            text = parts[depth] if depth < len(parts) else ""
            if depth == DEEPEST - 1 and len(parts) > DEEPEST:
                text = clip(text + " …", room)
            texts.append(pad(clip(text, room), room, right=i in self._right))
        return _GAP.join(texts).rstrip() + "\n"


def _centred(name: str, room: int) -> str:
    name = clip(name, room)
    left = (room - width_of(name)) // 2
    return pad(" " * left + name, room)


def _footer(rows: int, hidden: int, *, clipped: bool, more: bool) -> str:
    said = f"({rows} row{'s' * (rows != 1)}"
    if hidden:
        said += f"; {hidden} column{'s' * (hidden != 1)} more"
    if more and not hidden:
        return said + ("; \\x shows every column)\n" if rows else ")\n")
    return said + ("; \\x shows all)\n" if hidden or clipped else ")\n")


def fitting(
    natural: Sequence[int], empty: set[int], width: int | None, least: int = LEAST
) -> dict[int, int]:
    """Which columns are shown, and how wide: position -> columns of the terminal."""
    every = dict(enumerate(natural))
    if width is None or _total(every.values()) <= width:
        return every
    kept = {i: room for i, room in every.items() if i not in empty} or every
    if _total(kept.values()) <= width:
        return kept
    chosen: dict[int, int] = {}
    for i, room in kept.items():
        if chosen and _total([*chosen.values(), min(room, least)]) > width:
            break
        chosen[i] = min(room, least, width)
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
        cells = (visible("" if c is None else str(c)).replace("|", "\\|") for c in row)
        out.write("| " + " | ".join(cells) + " |\n")
