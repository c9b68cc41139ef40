"""The tokens of a statement as it was written, in the spellings of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Comments that only some versions run are read as if all did.
_TOKEN = re.compile(
    r"(?P<space>\s+|/\*M?!\d*|\*/|/\*(?!M?!).*?\*/|--(?=\s|$)[^\n]*|#[^\n]*)"
    r"|(?P<string>'(?:[^'\\]|''|\\.)*')"
    r"|(?P<quoted>\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`)"
    r"|(?P<word>[\w$\u0080-\uffff]+)"
    r"|(?P<sign>.)",
    re.S,
)

Token = re.Match[str]


def tokens(text: str) -> list[Token]:
    """The tokens of a statement, without white space and comments."""
    return [token for token in _TOKEN.finditer(text) if not token["space"]]


def first_word(text: str) -> str:
    """The first word in capitals, behind comments; empty if a statement begins otherwise."""
    for token in _TOKEN.finditer(text):
        if not token["space"]:
            return (token["word"] or "").upper()
    return ""


def conditional(text: str) -> bool:
    """Whether there is a comment that some versions of the server run."""
    return "/*!" in text or "/*M!" in text


class TokenReader:
    """One pass over tokens."""

    def __init__(self, given: Sequence[Token]) -> None:
        self._tokens = given
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._tokens)

    def rest(self) -> Sequence[Token]:
        return self._tokens[self._at :]

    def token(self) -> Token | None:
        """The next token, which stays."""
        return None if self.ended else self._tokens[self._at]

    def word(self, ahead: int = 0) -> str:
        """The next word, or a later one, in capitals; empty if it is no word."""
        at = self._at + ahead
        return (self._tokens[at]["word"] or "").upper() if at < len(self._tokens) else ""

    def advance(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def skip(self, *words: str) -> bool:
        """Take the next word if it is one of these."""
        found = self.word() in words
        self._at += found
        return found

    def sequence(self, *words: str) -> bool:
        """Take the next words if they are these."""
        found = all(self.word(i) == word for i, word in enumerate(words))
        self._at += len(words) * found
        return found

    def sign(self, sign: str) -> bool:
        """Take the next token if it is this sign."""
        token = self.token()
        found = token is not None and token[0] == sign
        self._at += found
        return found

    def exists(self) -> None:
        """Take ``IF EXISTS`` or ``IF NOT EXISTS``."""
        if self.skip("IF"):
            self.skip("NOT")
            self.skip("EXISTS")

    def name(self) -> str | None:
        """A name, quoted or not; None if something else comes."""
        token = self.token()
        if token is None or not (token["word"] or token["quoted"]):
            return None
        return unquoted(self.advance())

    def group(self) -> list[Token] | None:
        """What is in the brackets that come next; None if none come."""
        if not self.sign("("):
            return None
        depth, found = 1, []
        while not self.ended:
            token = self.advance()
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            if not depth:
                break
            found.append(token)
        return found


def unquoted(token: Token) -> str:
    """The name that a token stands for."""
    text = token[0]
    return text[1:-1].replace(text[0] * 2, text[0]) if token["quoted"] else text


def split(given: Sequence[Token]) -> list[list[Token]]:
    """The parts between commas that are in no brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in given:
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
