"""What the demo prints: headings, statements, commits at the source, rows that arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from changefeed.api import Result
from changefeed.core.events import StreamRow
from changefeed.feed_rows import RowLines
from changefeed.result_tables import print_result


def default_console() -> Console:
    """Standard output; wide when it is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


class Display:
    """Prints to a rich console; colours only on a terminal, lines cut to its width."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._rows = RowLines(console)

    def heading(self, text: str) -> None:
        """A line across."""
        self.console.print()
        self.console.rule(Text(text, style="bold"), align="left", style="dim")

    def say(self, text: str) -> None:
        """A plain line."""
        self.console.print(Text(text))

    def suggestions(self, lines: Sequence[tuple[str, str]]) -> None:
        """Statements to type, each with what it shows: beside it, or above it where that is too
        wide."""
        room = max(len(statement) for statement, _ in lines)
        beside = [f"  {statement:<{room}}  -- {about}" for statement, about in lines]
        if max(map(len, beside)) > self.console.width:
            beside = [f"  -- {about}\n  {statement}" for statement, about in lines]
        for line in beside:
            self.say(line)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Something that turns on a terminal while the block runs; a line elsewhere."""
        if not self.console.is_terminal:
            self.say(f"{text} ...")
            yield
            return
        with self.console.status(text):
            yield

    def statement(self, sql: str) -> None:
        """A statement about to run."""
        self.console.print()
        if self.console.is_terminal:
            self.console.print(Syntax(sql, "sql", theme="ansi_dark", background_color="default"))
        else:
            self.console.print(Text(sql))

    def notice(self, text: str) -> None:
        """A NOTICE of a statement."""
        self.console.print(Text(f"NOTICE: {text}", style="dim"))

    def committed(self, line: str) -> None:
        """Something was committed at the source."""
        self._rows.line(Text(f"  » {line}", style="dim italic"))

    def row(self, *row: *StreamRow, live: bool = False) -> None:
        """A message of the feed; a ``live`` one says how long ago the source committed it."""
        self._rows.row(*row, live=live)

    def result(self, result: Result) -> None:
        """The answer to a SHOW, as the prompt shows it."""
        print_result(result, self.console, self.console.width)
