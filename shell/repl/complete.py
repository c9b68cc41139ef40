"""Completion at the prompt: which of the things that fit begin as what was typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from changefeed.options.docs import listing
from grammar.help import topics
from grammar.printer import name as name_sql
from grammar.suggest import Suggestions, complete
from shell.commands import COMMANDS
from shell.repl.choices import DEFAULT_SCHEMA, Candidate, choices, entries
from shell.settings import TABLE

if TYPE_CHECKING:
    from shell.repl.names import NameCache


def _topics(words: str, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(topic.name, topic.category) for topic in topics())
    yield from (Candidate(row.name, "option") for row in listing())


def _tables(words: str, known: NameCache) -> Iterator[Candidate]:
    for schema, name in known.tables():
        lead = "" if schema == DEFAULT_SCHEMA else f"{name_sql(schema)}."
        yield Candidate(lead + name_sql(name), schema)


def _settings(words: str, known: NameCache) -> Iterator[Candidate]:
    name, space, _ = words.partition(" ")
    if space and name in TABLE:
        yield from (Candidate(f"{name} {value}") for value in TABLE[name].values)
    elif not space:
        yield from (Candidate(row.name, row.summary) for row in TABLE.values())


def _switch(words: str, known: NameCache) -> Iterator[Candidate]:
    yield from (Candidate(word) for word in ("on", "off"))


def _files(words: str, known: NameCache) -> Iterator[Candidate]:
    typed = Path(words or ".").expanduser()
    folder = typed if words.endswith("/") or not words else typed.parent
    lead = words[: words.rfind("/") + 1]
    for path, is_folder in entries(folder):
        if is_folder:
            yield Candidate(f"{lead}{path.name}/", "folder")
        elif path.suffix == ".sql":
            yield Candidate(f"{lead}{path.name}")


#: What a command's ``completes`` names -> the words that may follow.
WORDS: dict[str, Callable[[str, NameCache], Iterable[Candidate]]] = {
    "topic": _topics,
    "table": _tables,
    "setting": _settings,
    "switch": _switch,
    "file": _files,
}


__all__ = ["ShellCompleter", "ended"]

_ENDED = re.compile(r";\s*\Z")


def ended(text: str) -> bool:
    """Whether a statement has just ended: what may begin here is not worth a menu by itself."""
    return _ENDED.search(text) is not None


class ShellCompleter(Completer):
    """Completes statements and local commands."""

    def __init__(self, known: NameCache) -> None:
        self._known = known

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        text = document.text_before_cursor
        if text.lstrip().startswith("\\"):
            yield from self._local(text.lstrip())
        elif complete_event.completion_requested or not ended(text):
            yield from self._statement(text)

    def _statement(self, text: str) -> Iterator[Completion]:
        fits = complete(text)
        for word in fits.words:
            if not fits.quote and not (fits.column and word in ("TRUE", "FALSE")):
                yield Completion(word, -len(fits.prefix), display_meta="")
        every = list(choices(fits, self._known))
        found = list(_distinct(every, fits, _begins))
        # Letters in their order (itm for order_items) only where nothing begins so.
        yield from found or (_distinct(every, fits, _has_letters) if fits.prefix else ())

    def _local(self, text: str) -> Iterator[Completion]:
        name, space, words = text[1:].partition(" ")
        if not space:
            for command in COMMANDS.values():
                if command.name.startswith(name):
                    shown = f"\\{command.name}"
                    yield Completion(shown, -len(text), display_meta=command.summary)
            return
        completes = COMMANDS[name].completes if name in COMMANDS else ""
        if completes == "statement":
            yield from self._statement(re.sub(r"\A[\d.]+s?\s+", "", words))
            return
        offer = WORDS.get(completes)
        for choice in offer(words, self._known) if offer else ():
            if choice.text.lower().startswith(words.lower()):
                yield Completion(choice.text, -len(words), display_meta=choice.meta)


def _begins(text: str, typed: str) -> bool:
    return text.startswith(typed)


def _has_letters(text: str, typed: str) -> bool:
    letters = iter(text)
    return len(typed) > 1 and all(letter in letters for letter in typed)


def _distinct(
    every: Iterable[Candidate], fits: Suggestions, matches: Callable[[str, str], bool]
) -> Iterator[Completion]:
    seen: set[str] = set()
    for choice in every:
        made = _made(choice, fits, matches)
        if made is not None and made.text not in seen:
            seen.add(made.text)
            yield made


def _made(
    choice: Candidate, fits: Suggestions, matches: Callable[[str, str], bool]
) -> Completion | None:
    """The completion of a choice, quoted as the place needs it; None when it does not fit."""
    folded = fits.prefix if fits.quote else fits.prefix.lower()
    text = choice.text if fits.quote else choice.text.lower()
    if not matches(text, folded) or (choice.text == fits.prefix and not fits.quote):
        return None
    if fits.quote and (fits.quote == "'") is not choice.string:
        return None
    inserted = _inserted(choice, fits.quote)
    return Completion(inserted, -len(fits.prefix), display=choice.text, display_meta=choice.meta)


def _inserted(choice: Candidate, quote: str) -> str:
    # Whole values close their quote; a URI is only begun.
    closing = "" if choice.literal else "'"
    if quote:
        closing = "" if choice.literal else quote
        return choice.text.replace(quote, quote * 2) + closing
    if choice.string:
        return f"'{choice.text}{closing}"
    if choice.insert or choice.literal:
        return choice.insert or choice.text
    return name_sql(choice.text)
