"""The form of the statement being typed, with the part at the cursor marked."""

from __future__ import annotations

import re

from prompt_toolkit.formatted_text import StyleAndTextTuples

from grammar.help import help_for
from grammar.split import lexemes
from shell.render.widths import clip, width

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
    """The words of a text; what is in quotes and comments is blank."""
    kept = list(text)
    for lexeme in lexemes(text):
        kept[lexeme.start : lexeme.end] = " " * (lexeme.end - lexeme.start)
    return "".join(kept)


def _current(form: str, words: list[str]) -> tuple[int, int]:
    """From the last keyword of the form that was typed, to the next one."""
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
