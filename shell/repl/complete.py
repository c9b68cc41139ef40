"""Completion at the prompt: which of the things that fit begin as what was typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from grammar.suggest import Suggestions, complete
from shell.commands import COMMANDS
from shell.repl.choices import Candidate, NameSource, choices, quoted
from shell.repl.local_words import WORDS

__all__ = ["NameSource", "ShellCompleter", "ended", "quoted"]

_ENDED = re.compile(r";\s*\Z")


def ended(text: str) -> bool:
    """Whether a statement has just ended: what may begin here is not worth a menu by itself."""
    return _ENDED.search(text) is not None


class ShellCompleter(Completer):
    """Completes statements and local commands."""

    def __init__(self, known: NameSource) -> None:
        self._known = known

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """What fits at the cursor."""
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
    """All of ``typed`` is in ``text``, in order."""
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
    return quoted(choice.text)
