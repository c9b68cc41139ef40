"""The only statement splitter: for ``-c``, ``-f``, standard input and the prompt alike.

It knows strings, quoted identifiers and comments (``/* */`` nests, as in PostgreSQL) and
nothing else of the language, so it also splits statements that do not parse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from enum import StrEnum

_INTERESTING = re.compile(r"['\";]|--|/\*")
_STRING = re.compile(r"'[^']*(?:''[^']*)*'")
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_NOT_NEWLINE = re.compile(r"[^\n]")


class LexemeKind(StrEnum):
    """What a :class:`Lexeme` is."""

    STRING = "string"
    QUOTED = "identifier"
    LINE_COMMENT = "line comment"
    BLOCK_COMMENT = "comment"
    SEMICOLON = "semicolon"


COMMENTS = frozenset({LexemeKind.LINE_COMMENT, LexemeKind.BLOCK_COMMENT})


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A stretch of text in which ``;`` has no or a special meaning.

    ``closed`` is false when the text ended before the closing quote or ``*/``.
    """

    kind: LexemeKind
    start: int
    end: int
    closed: bool = True

    @property
    def comment(self) -> bool:
        """It is a comment of either kind."""
        return self.kind in COMMENTS


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement of a longer text, without its ``;`` and the comments before it.

    Attributes:
        text: the statement as written.
        start: offset of ``text`` in the whole.
        complete: a ``;`` ended it.
    """

    text: str
    start: int
    complete: bool


def lexemes(text: str) -> Iterator[Lexeme]:
    """The strings, quoted identifiers, comments and semicolons of ``text``, in order."""
    position = 0
    while found := _INTERESTING.search(text, position):
        lexeme = _lexeme(text, found.start(), found[0])
        position = lexeme.end
        yield lexeme


def _lexeme(text: str, start: int, opening: str) -> Lexeme:
    if opening == ";":
        return Lexeme(LexemeKind.SEMICOLON, start, start + 1)
    if opening == "--":
        newline = text.find("\n", start)
        return Lexeme(LexemeKind.LINE_COMMENT, start, len(text) if newline < 0 else newline)
    if opening == "/*":
        return _block_comment(text, start)
    kind, pattern = (LexemeKind.STRING, _STRING) if opening == "'" else (LexemeKind.QUOTED, _QUOTED)
    whole = pattern.match(text, start)
    return Lexeme(kind, start, whole.end() if whole else len(text), whole is not None)


def _block_comment(text: str, start: int) -> Lexeme:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return Lexeme(LexemeKind.BLOCK_COMMENT, start, edge.end())
    return Lexeme(LexemeKind.BLOCK_COMMENT, start, len(text), closed=False)


def change_lexemes(text: str, kinds: Container[LexemeKind], change: Callable[[str], str]) -> str:
    """``text`` with ``change`` applied to each lexeme of these kinds, in order."""
    parts, position = [], 0
    for lexeme in lexemes(text):
        if lexeme.kind in kinds:
            parts += [text[position : lexeme.start], change(text[lexeme.start : lexeme.end])]
            position = lexeme.end
    return "".join([*parts, text[position:]])


def blank_comments(text: str) -> str:
    """``text`` with each comment turned into as many spaces, so that offsets stay true."""
    return change_lexemes(text, COMMENTS, lambda comment: _NOT_NEWLINE.sub(" ", comment))


def split(text: str) -> list[StatementText]:
    """The statements of ``text``; empty ones (``;;``, comments alone) are left out."""
    pieces = []
    start = 0
    for lexeme in lexemes(text):
        if lexeme.kind is LexemeKind.SEMICOLON:
            pieces.append(_piece(text, start, lexeme.start, complete=True))
            start = lexeme.end
    pieces.append(_piece(text, start, len(text), complete=False))
    return [piece for piece in pieces if piece is not None]


def _piece(text: str, start: int, end: int, *, complete: bool) -> StatementText | None:
    source = text[start:end]
    blank = blank_comments(source)
    lead = len(blank) - len(blank.lstrip())
    if lead == len(blank) and not _unclosed(source):
        return None
    if lead == len(blank):
        lead = len(source) - len(source.lstrip())
    return StatementText(source[lead:].rstrip(), start + lead, complete)


def _unclosed(text: str) -> bool:
    return any(not lexeme.closed for lexeme in lexemes(text))


def is_complete(text: str) -> bool:
    """Enter may run it: every statement ended with ``;`` and no quote or comment is open."""
    return all(piece.complete for piece in split(text)) and not _unclosed(text)
