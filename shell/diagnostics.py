"""Standard error: errors, notices, notes. Standard output is data; this is all the rest.

An error says what, where (line and caret), why and what next; with ``--format json`` or
``jsonl`` the same fields come as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError, Problems
from grammar.problems import point
from shell.render.widths import wrap

_BOLD, _RED, _DIM, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


class Diagnostics:
    """Writes what is not data to standard error."""

    def __init__(
        self, stream: TextIO | None = None, *, as_json: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``stream`` is where to write; ``as_json`` writes one JSON object a line; ``clock`` gives
        the age of an instant that a sentence names."""
        self._stream = stream
        self._clock = clock
        self.as_json = as_json

    @property
    def stream(self) -> TextIO:
        """Where the lines go: asked each time, so that a redirection counts."""
        return self._stream if self._stream is not None else sys.stderr

    def error(self, error: ChangefeedError, where: str = "") -> None:
        """Report an error (each problem of a :class:`Problems`).

        ``where`` is the file and line of the statement.
        """
        for one in error.problems if isinstance(error, Problems) else [error]:
            if self.as_json:
                self._say(error_json(one, where))
            else:
                headline = where + ": " * bool(where) + f"ERROR {one.code.number}: {one.message}"
                headline, said = self._readable(headline), map(self._readable, error_lines(one))
                first = self._styled(self._wrapped(headline), _BOLD + _RED)
                self._say("\n".join([first, *map(self._wrapped, said)]))

    def notice(self, text: str) -> None:
        """Write what a statement reports in addition to its result."""
        self._say(
            json.dumps({"notice": text})
            if self.as_json
            else self._wrapped(self._readable(f"NOTICE: {text}"))
        )

    def note(self, text: str) -> None:
        """Write a remark of the shell itself."""
        self._say(json.dumps({"note": text}) if self.as_json else self._wrapped(f"note: {text}"))

    def after_interrupt(self, interrupted: bool = True) -> None:
        """A terminal has written ``^C`` where the next text would stand: begin a line."""
        if interrupted and self.stream.isatty():
            self.stream.write("\n")

    def remark(self, text: str) -> None:
        """A line of no weight (times); left out where a program reads."""
        if not self.as_json:
            self._say(self._styled(text, _DIM))

    def _say(self, text: str) -> None:
        # Standard output first: the two streams keep their order where both are one terminal.
        sys.stdout.flush()
        print(text, file=self.stream, flush=True)

    def _readable(self, text: str) -> str:
        """The text with times of day in place of timestamps of the log."""
        from changefeed.api import readable

        return readable(text, self._clock.now().wall).words

    def _wrapped(self, text: str) -> str:
        """A sentence at the width of the terminal, cut between words.

        Elsewhere it keeps its line, so that a search finds it. A text of several lines is a
        statement with a mark below it, which has to stay in its column.
        """
        if "\n" in text or not self.stream.isatty():
            return text
        return "\n  ".join(wrap(text, max(40, _columns(self.stream) - 2)))

    def _styled(self, text: str, style: str) -> str:
        plain = "NO_COLOR" in os.environ or not self.stream.isatty()
        return text if plain else f"{style}{text}{_PLAIN}"


def _columns(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns
    except (OSError, ValueError):
        return 80


def error_lines(error: ChangefeedError) -> Iterator[str]:
    """The lines of one error for a person, after the first."""
    if error.text is not None and error.span is not None:
        yield point(error.text, error.span)
    if error.detail:
        yield f"DETAIL: {error.detail}"
    if error.hint:
        yield f"HINT: {error.hint}"


def error_json(error: ChangefeedError, where: str = "") -> str:
    """The same facts as one line of JSON; ``start`` and ``end`` are offsets in the statement."""
    fields = error.fields()
    if where:
        fields["where"] = where
    return json.dumps(fields, ensure_ascii=False)
