"""Colours while typing: keywords, strings, quoted names, comments, local commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer

from grammar.help import topics
from grammar.split import LexemeKind, lexemes

STYLES = {
    LexemeKind.STRING: "class:string",
    LexemeKind.QUOTED: "class:name",
    LexemeKind.LINE_COMMENT: "class:comment",
    LexemeKind.BLOCK_COMMENT: "class:comment",
    LexemeKind.SEMICOLON: "",
}
_WORD = re.compile(r"[A-Za-z_]+")


@cache
def keywords() -> frozenset[str]:
    """The words the statements are made of, from their help."""
    return frozenset(
        word for topic in topics() for word in re.findall(r"\b[A-Z]{2,}\b", topic.syntax)
    )


class StatementLexer(Lexer):
    """Colours one document at a time; statements are short."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Returns what gives the fragments of a line by its number."""
        lines = _lines(fragments(document.text))
        return lambda number: lines[number] if number < len(lines) else []


def fragments(text: str) -> StyleAndTextTuples:
    """The text in pieces with their styles."""
    if text.lstrip().startswith("\\"):
        return [("class:command", text)]
    found: StyleAndTextTuples = []
    position = 0
    for lexeme in lexemes(text):
        found += _words(text[position : lexeme.start])
        found.append((STYLES[lexeme.kind], text[lexeme.start : lexeme.end]))
        position = lexeme.end
    return [*found, *_words(text[position:])]


def _words(text: str) -> StyleAndTextTuples:
    found: StyleAndTextTuples = []
    position = 0
    for word in _WORD.finditer(text):
        if word[0].upper() in keywords():
            found += [("", text[position : word.start()]), ("class:keyword", word[0])]
            position = word.end()
    return [*found, ("", text[position:])]


def _lines(pieces: StyleAndTextTuples) -> list[StyleAndTextTuples]:
    lines: list[StyleAndTextTuples] = [[]]
    for style, text, *_ in pieces:
        first, *more = text.split("\n")
        lines[-1].append((style, first))
        lines += [[(style, line)] for line in more]
    return lines
