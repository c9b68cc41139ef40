"""The line below the prompt: how the feeds are, and what Enter will do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prompt_toolkit.formatted_text import StyleAndTextTuples

from changefeed.backend import Backend
from changefeed.core.errors import ChangefeedError
from grammar.help import help_for
from grammar.split import LexemeKind, is_complete, lexemes
from shell.render.widths import clip, width, wrap

if TYPE_CHECKING:
    from changefeed.api import Summary

_KEYWORD = re.compile(r"\b[A-Z]{2,}\b")
_WORD = re.compile(r"[A-Za-z_]+")
_GAPS = re.compile(r"\s+")

#: Where the form ends and the words in it are explained: a line ``target: [TABLE] ...``.
_LEGEND = re.compile(r"\n\s*\w+: ")

#: How much of the form stands before the current part where not all of it has room.
_BEFORE = 12


def signature(text: str, room: int) -> StyleAndTextTuples:
    """``CREATE CHANGEFEED [name] FOR target, ... [INTO 'uri'] ...`` on one line of ``room``.

    Empty before the statement's first words are whole, and where there is no help for it.
    """
    bare = _GAPS.sub(" ", _without_literals(text)).lstrip()
    topic = help_for(bare) if bare.strip() else None
    if topic is None or not bare.upper().startswith(f"{topic.name} "):
        return []
    form = _GAPS.sub(" ", _LEGEND.split(topic.syntax)[0]).strip()
    start, end = _current(form, [word.upper() for word in _WORD.findall(bare)])
    skipped = 0
    if width(form) > room and start > _BEFORE:
        skipped = min(start, form.find(" ", start - _BEFORE) + 1)
    lead = "… " if skipped else ""
    before = lead + form[skipped:start]
    part = clip(form[start:end], max(1, room - width(before)))
    after = clip(form[end:], room - width(before) - width(part)) if end < len(form) else ""
    if width(before) + width(part) >= room:
        after = ""
    return [("class:form", before), ("class:form.current", part), ("class:form", after)]


def _without_literals(text: str) -> str:
    """The text with blanks in place of what is in quotes and comments."""
    kept = list(text)
    for lexeme in lexemes(text):
        kept[lexeme.start : lexeme.end] = " " * (lexeme.end - lexeme.start)
    return "".join(kept)


def _current(form: str, words: list[str]) -> tuple[int, int]:
    """The place from the last keyword of the form that was typed to the next keyword."""
    keywords = list(_KEYWORD.finditer(form))
    place = 0
    for word in words:
        following = (i for i in range(place, len(keywords)) if keywords[i][0] == word)
        place = next(following, place - 1) + 1
    at = max(0, place - 1)
    end = keywords[at + 1].start() if at + 1 < len(keywords) else len(form)
    while end > keywords[at].end() and form[end - 1] in " [|(":
        end -= 1
    return keywords[at].start(), end


#: How often the figures are read, seconds.
EVERY = 1.0

_RUN = "Enter runs it"
_MORE = "Enter: new line, ; ends the statement"
_EMPTY = "\\? help"
#: Inside one of these a semicolon ends nothing.
_OPEN = {
    LexemeKind.STRING: "Enter: new line; the string is open, ' ends it",
    LexemeKind.QUOTED: 'Enter: new line; the name is open, " ends it',
    LexemeKind.BLOCK_COMMENT: "Enter: new line; the comment is open, */ ends it",
}


@dataclass(frozen=True, slots=True)
class ToolbarFigures:
    """What the toolbar shows, read a moment ago."""

    summary: Summary | None = None
    problem: str = ""
    here: bool = False
    took_over: bool = False


class Watcher:
    """Reads the figures in a thread: drawing a line must never wait for the state."""

    def __init__(self, backend: Backend, changed: Callable[[], None]) -> None:
        """``changed`` is called from the thread when there is something new to draw."""
        self.figures = ToolbarFigures()
        self._took_over = False
        self._backend = backend
        self._changed = changed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shell-toolbar", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; nothing reads the state afterwards."""
        self._stopping.set()
        self._thread.join(10)

    def failed(self, error: Exception) -> None:
        """What could not be started, until the next reading succeeds."""
        message = error.message if isinstance(error, ChangefeedError) else str(error)
        self.figures = ToolbarFigures(problem=message)
        self._changed()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            if self._backend.opened:
                before = self.figures
                self.figures = self._read()
                if self.figures != before:
                    self._changed()

    def _read(self) -> ToolbarFigures:
        try:
            self._took_over |= self._backend.take_over()
            summary = self._backend.facts.summary()
            return ToolbarFigures(summary, here=self._backend.here, took_over=self._took_over)
        except ChangefeedError as error:
            return ToolbarFigures(problem=error.message)


#: How many lines of a description are shown.
_DESCRIBED = 3


def toolbar(
    figures: ToolbarFigures, text: str, room: int, selected: str = ""
) -> StyleAndTextTuples:
    """The lines below the prompt: what the selected completion means, or the form of the
    statement; and how the feeds are.

    Args:
        figures: of the feeds.
        room: columns of the terminal.
        selected: what the menu says of the completion that is selected there.
    """
    above: StyleAndTextTuples = []
    if width(selected) > 0:
        for part in wrap(selected, room - 2)[:_DESCRIBED]:
            above += [("class:form", f" {part}\n")]
    elif not runs(text) and (form := signature(text, room - 2)):
        above = [("class:form", " "), *form, ("", "\n")]
    return [*above, *line(figures, text, room)]


def line(figures: ToolbarFigures, text: str, room: int) -> StyleAndTextTuples:
    """The last line of it, ``room`` columns wide; ``text`` is what is being typed."""
    style, left = _feeds(figures)
    right = _enter(text)
    left = clip(left, max(10, room - width(right) - 3))
    gap = " " * max(1, room - width(left) - width(right) - 2)
    return [(style, f" {left}"), ("", gap), ("class:enter", f"{right} ")]


def _feeds(figures: ToolbarFigures) -> tuple[str, str]:
    if figures.problem:
        return "class:trouble", figures.problem
    summary = figures.summary
    if summary is None:
        return "", "opening the state"
    node = "node in this shell" if figures.here else "node elsewhere"
    if figures.took_over:
        node = "node in this shell (the other one has ended)"
    parts = [_count(summary.feeds, "feed"), f"{summary.running} running"]
    if summary.stopped:
        parts.append(f"{summary.stopped} stopped")
    if summary.troubled > summary.stopped:
        parts.append(f"{summary.troubled - summary.stopped} in trouble")
    if summary.worst_lag is not None:
        parts.append(f"worst lag {summary.worst_lag}")
    for name, (rows, total) in summary.scanning.items():
        parts.append(f"{name} scans {100 * rows // total if total else 0} %")
    parts.append(node if summary.node else "no node")
    return ("class:trouble" if summary.troubled else ""), " · ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _enter(text: str) -> str:
    if not text.strip():
        return _EMPTY
    if runs(text):
        return _RUN
    found = list(lexemes(text))
    return _OPEN.get(found[-1].kind, _MORE) if found and not found[-1].closed else _MORE


#: What people type at any prompt, and the local command they mean.
PLAIN_WORDS = {"exit": "\\q", "quit": "\\q", "help": "\\h"}


def meant(text: str) -> str:
    """What was typed, with ``exit``, ``quit`` and ``help`` as local commands."""
    return PLAIN_WORDS.get(text.strip().rstrip(";").lower(), text)


def runs(text: str) -> bool:
    """Whether Enter would run what was typed: a local command, or finished statements."""
    return meant(text).lstrip().startswith("\\") or is_complete(text)
