"""Standard error and every exit status. Standard output is data; this is all the rest.

An error says what, where (line and caret), why and what next; with ``--format json`` or
``jsonl`` off a terminal the same fields come as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import TextIO

from changefeed.errors import ChangefeedError, Problems, Span


class Exit(IntEnum):
    """The exit statuses of ``changefeed``; documented in docs/shell.md."""

    OK = 0
    STATEMENT = 1
    """A statement failed."""
    USAGE = 2
    """A flag or argument is wrong."""
    CONNECTION = 3
    """The state, a source or a sink cannot be reached."""
    TIMEOUT = 4
    """A wait ran out of time (SYNC)."""
    INTERRUPTED = 130
    """Ctrl-C."""


_BY_CODE = {"CF1304": Exit.TIMEOUT, "CF2001": Exit.CONNECTION, "CF5001": Exit.CONNECTION}


def exit_status(error: ChangefeedError) -> Exit:
    """The exit status that an error ends the process with."""
    number = error.code.number
    if number.startswith("CF60"):
        return Exit.CONNECTION
    return _BY_CODE.get(number, Exit.STATEMENT)


class Diagnostics:
    """Writes errors, notices and notes to standard error."""

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._json = as_json

    def error(self, error: ChangefeedError) -> None:
        """Report an error (each problem of a :class:`Problems`)."""
        sys.stdout.flush()
        for one in error.problems if isinstance(error, Problems) else [error]:
            text = error_json(one) if self._json else "\n".join(error_lines(one))
            print(text, file=self._stream, flush=True)

    def notice(self, text: str) -> None:
        """Say something that is neither data nor an error."""
        sys.stdout.flush()
        line = json.dumps({"notice": text}) if self._json else f"NOTICE: {text}"
        print(line, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Say that an input had no effect, or how to get more."""
        sys.stdout.flush()
        line = json.dumps({"note": text}) if self._json else f"note: {text}"
        print(line, file=self._stream, flush=True)


def error_lines(error: ChangefeedError) -> Iterator[str]:
    """The lines of one error for a person."""
    yield f"ERROR {error.code.number}: {error.message}"
    if error.text is not None and error.span is not None:
        yield from caret_lines(error.text, error.span)
    if error.detail:
        yield f"DETAIL: {error.detail}"
    if error.hint:
        yield f"HINT: {error.hint}"


def caret_lines(text: str, span: Span) -> Iterator[str]:
    """``LINE n: ...`` and a line with carets under the span (its first line only)."""
    start = min(span.start, len(text))
    begin = text.rfind("\n", 0, start) + 1
    end = text.find("\n", start)
    line = text[begin : end if end >= 0 else len(text)]
    label = f"LINE {text.count(chr(10), 0, start) + 1}: "
    width = max(1, min(span.end - start, len(line) - (start - begin)))
    indent = "".join("\t" if c == "\t" else " " for c in line[: start - begin])
    yield label + line
    yield " " * len(label) + indent + "^" * width


def error_json(error: ChangefeedError) -> str:
    """The same facts as one line of JSON."""
    fields: dict[str, object] = {"error": error.message, "code": error.code.number}
    if error.detail:
        fields["detail"] = error.detail
    if error.hint:
        fields["hint"] = error.hint
    if error.text is not None and error.span is not None:
        fields["line"] = error.text.count("\n", 0, error.span.start) + 1
        fields["start"] = error.span.start
        fields["end"] = error.span.end
    return json.dumps(fields)
