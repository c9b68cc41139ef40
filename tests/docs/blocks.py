"""Code blocks of the pages that people read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grammar.split import split

ROOT = Path(__file__).parents[2]

#: The first words of statements that a database server or a warehouse executes, not changefeed.
_OF_A_SERVER = re.compile(
    r"(ALTER (?:SYSTEM|TABLE)|COPY|CREATE (?:PUBLICATION|ROLE|TABLE|USER \w+ IDENTIFIED)"
    r"|DROP PUBLICATION|GRANT (?!CHANGEFEED|USAGE ON EXTERNAL)\w+|SELECT|SET)\b"
)
_COMMENTS = re.compile(r"\s*(?:--[^\n]*\n\s*)*")


@dataclass(frozen=True)
class Block:
    """A fenced block: the page's path in the repository, the line of the fence, and the text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def statements(self) -> list[str]:
        """Its SQL statements, of changefeed and of servers, without leading comments."""
        pieces = [_COMMENTS.sub("", piece.text, count=1) for piece in split(self.text)]
        return [piece.strip() for piece in pieces if piece.strip()]

    def commands(self) -> list[str]:
        """Its shell commands; a backslash continues a line."""
        return [line for line in self.text.replace("\\\n", " ").splitlines() if line.strip()]


def is_of_a_server(statement: str) -> bool:
    """Whether PostgreSQL, MySQL or a warehouse executes the statement, not changefeed."""
    return _OF_A_SERVER.match(statement) is not None


@cache
def pages() -> tuple[str, ...]:
    """The pages, as paths in the repository."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return tuple(sorted(str(page.relative_to(ROOT)) for page in found))


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """The fenced blocks of a page.

    Raises:
        ValueError: a fence is not closed, or a block is indented (a test cannot tell its language).
    """
    return tuple(_blocks(page, (ROOT / page).read_text("utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    start, language = 0, ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            if start:
                text = "".join(f"{each}\n" for each in lines[start : number - 1])
                yield Block(page, start, language, text)
                start = 0
            else:
                start, language = number, line.strip()[3:]
        elif not start and line.startswith("    ") and not lines[number - 2].strip():
            raise ValueError(f"{page}:{number}: write ``` and a language; do not indent a block")
    if start:
        raise ValueError(f"{page}:{start}: the block is not closed")


def all_blocks() -> list[Block]:
    """The blocks of all pages."""
    return [block for page in pages() for block in blocks(page)]
