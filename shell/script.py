"""A text of statements and local commands, taken apart line by line as it comes.

A line that starts with a backslash where a statement could start is a local command; the rest
is split by :mod:`grammar.split`, the only splitter. Reading stops where the caller stops, so a
pipe's statements run as they arrive.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from grammar.split import is_complete, split


@dataclass(frozen=True, slots=True)
class ScriptItem:
    """One thing to run.

    Attributes:
        text: a statement without its ``;``, or a local command with its backslash.
        line: of the script, from 1.
        local: it is a local command.
    """

    text: str
    line: int
    local: bool = False


def items(lines: Iterable[str]) -> Iterator[ScriptItem]:
    """The statements and local commands of a script, each as soon as it is complete."""
    held, first = "", 1
    for number, line in enumerate(lines, 1):
        if not split(held) and line.lstrip().startswith("\\"):
            yield ScriptItem(line.strip(), number, local=True)
            held, first = "", number + 1
            continue
        held += line
        # Only a line with a semicolon can complete anything: a long statement is not read again
        # for each of its lines.
        if (";" in line or not held.strip()) and is_complete(held):
            yield from _statements(held, first)
            held, first = "", number + 1
    yield from _statements(held, first)


def _statements(text: str, first: int) -> Iterator[ScriptItem]:
    for piece in split(text):
        yield ScriptItem(piece.text, first + text.count("\n", 0, piece.start))


@contextmanager
def lines_of(name: str) -> Iterator[Iterable[str]]:
    """The lines of a file; ``-`` is standard input.

    Raises:
        ChangefeedError: CF1101 it cannot be read.
    """
    if name == "-":
        yield sys.stdin
        return
    try:
        file = Path(name).expanduser().open(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ChangefeedError(Code.NAME_UNKNOWN, f"cannot read {name}: {reason}") from error
    with file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise ChangefeedError(
                Code.NAME_UNKNOWN, f"cannot read {name}: it is not UTF-8"
            ) from error
