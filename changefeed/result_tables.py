"""Results as a person reads them, in the prompt and in the demo: aligned tables that fit the
terminal, and what is known of one feed in sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from changefeed.api import Result, Section, ShownText
from changefeed.core.printable import visible

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

#: Between two columns: `` | ``.
_GAP = 3

#: Columns before a reason that stands below its row.
_INDENT = 4

#: Wider than any result.
_ENDLESS = 1_000_000

#: Columns whose words are coloured, by the word they begin with.
_STATES = ("status", "severity", "state")
_COLOURS = {
    "failed": "red",
    "error": "red",
    "degraded": "yellow",
    "retrying": "yellow",
    "stalled": "yellow",
    "stopped": "yellow",
    "warning": "yellow",
}


def print_result(result: Result, console: Console, width: int | None) -> None:
    """Print the rows of a result: in sections or as a listing where it has those for people.

    The important columns come first. What does not fit: columns without any value go, long
    values are wrapped, then columns from the right go; the last line counts them.

    Args:
        result: what a statement answered.
        console: where; it decides on colours.
        width: columns of the terminal; None prints as wide as it takes.
    """
    if result.sections:
        _print_sections(result.sections, console, width)
    elif result.brief is None:
        _Table(result.columns, result.rows, width, LEAST).print(console)
    else:
        _print_brief(result.brief.columns, result.brief.rows, console, width)


def shown(cell: object) -> str:
    """A cell in a person's words."""
    if cell is None:
        return ""
    return cell.words if isinstance(cell, ShownText) else str(cell)


def _print_sections(sections: Iterable[Section], console: Console, width: int | None) -> None:
    facts = {
        section.title: [(label, visible(shown(cell))) for label, cell in section.facts]
        for section in sections
    }
    label = max(cell_len(name) for rows in facts.values() for name, _ in rows) + 2
    for number, (title, rows) in enumerate(facts.items()):
        if number:
            _out(console, Text(""))
        _out(console, Text(visible(title), style="bold"))
        for name, value in rows:
            room = _ENDLESS if width is None else max(10, width - label - _INDENT // 2)
            first, *more = _wrapped(console, value, room) or [Text("")]
            style = _colour(value) if name in _STATES else ""
            lead = Text("  " + name.ljust(label))
            _out(console, lead + Text(first.plain, style=style))
            for line in more:
                _out(console, Text(" " * (label + 2)) + line)


def _print_brief(
    columns: Sequence[str], rows: Sequence[Sequence[object]], console: Console, width: int | None
) -> None:
    """The last column is the reason: beside the others where it has room, else below them."""
    reason = len(columns) - 1
    reasons = [visible(shown(row[reason])) for row in rows]
    facts = _Table(columns[:reason], [row[:reason] for row in rows], width, LEAST_BRIEF)
    if not any(reasons):
        facts.print(console, more=True)
        return
    taken = _total(min(room, MOST_BRIEF) for room in facts.natural)
    whole = facts.all_of(width, max(map(cell_len, reasons)))
    if width is None or whole or width - taken - _GAP >= LEAST_REASON:
        most = None if width is None or whole else MOST_BRIEF
        _Table(columns, rows, width, LEAST_BRIEF, most).print(console, more=True)
        return
    facts.print(console, reasons, below=width, more=True)


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
        self._lines = [[visible(shown(cell)) for cell in row] for row in rows]
        self.natural = [
            max([cell_len(name), *(cell_len(line[i]) for line in self._lines)])
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

    def print(
        self,
        console: Console,
        reasons: Sequence[str] = (),
        *,
        below: int = 0,
        more: bool = False,
    ) -> None:
        """``reasons`` are written after each row, in ``below`` columns; ``more``: ``\\x`` has
        other columns."""
        rows, clipped = [], False
        for line in self._lines:
            cells = [_wrapped(console, line[i], room) for i, room in self._widths.items()]
            clipped = clipped or any(len(parts) > DEEPEST for parts in cells)
            pairs = zip(self._widths, cells, strict=True)
            rows.append([self._cell(i, parts) for i, parts in pairs])
        if not reasons:
            _out(console, self._drawn(rows))
        else:
            _out(console, self._drawn([]))
            for row, reason in zip(rows, reasons, strict=True):
                _out(console, self._drawn([row], head=False))
                for text in _wrapped(console, reason, max(10, below - _INDENT))[:DEEPEST]:
                    if text:
                        _out(console, Text(" " * _INDENT) + text)
        hidden = len(self.natural) - len(self._widths)
        _out(console, Text(_footer(len(rows), hidden, clipped=clipped, more=more)))

    def _cell(self, column: int, parts: list[Text]) -> Text:
        kept = parts[:DEEPEST]
        if len(parts) > DEEPEST:
            kept[-1] = kept[-1] + Text(" …")
            kept[-1].truncate(self._widths[column], overflow="ellipsis")
        text = Text("\n").join(kept)
        if self._columns[column] in _STATES:
            text.stylize(_colour(text.plain))
        return text

    def _drawn(self, rows: Iterable[Sequence[Text]], *, head: bool = True) -> Table:
        table = Table(box=box.ASCII, show_edge=False, pad_edge=False, show_header=head)
        for i, room in self._widths.items():
            name = Text(self._columns[i], justify="center", no_wrap=True, overflow="ellipsis")
            table.add_column(
                name,
                width=room,
                justify="right" if i in self._right else "left",
                overflow="fold",
            )
        for row in rows:
            table.add_row(*row)
        return table


def _wrapped(console: Console, text: str, room: int) -> list[Text]:
    return list(Text(text).wrap(console, room, overflow="fold"))


def _colour(text: str) -> str:
    return _COLOURS.get(text.partition(" ")[0].rstrip(":"), "")


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _out(console: Console, what: RenderableType) -> None:
    """Print without blanks at the ends of lines."""
    options = console.options.update(width=_ENDLESS, max_width=_ENDLESS)
    for segments in console.render_lines(what, options, pad=False):
        line = Text()
        for segment in segments:
            line.append(segment.text, segment.style or Style())
        line.rstrip()
        console.print(line, soft_wrap=True, highlight=False)


def _footer(rows: int, hidden: int, *, clipped: bool, more: bool) -> str:
    said = f"({rows} row{'s' * (rows != 1)}"
    if hidden:
        said += f"; {hidden} column{'s' * (hidden != 1)} more"
    if more and not hidden:
        return said + ("; \\x shows every column)" if rows else ")")
    return said + ("; \\x shows all)" if hidden or clipped else ")")


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
    return sum(rooms) + _GAP * max(0, len(rooms) - 1)
