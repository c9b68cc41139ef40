"""The text of a statement of DDL as it may be kept and shown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from changefeed.core.events import STATEMENT_CHARACTERS
from changefeed.core.secret_names import is_secret
from changefeed.core.uri import REDACTED, redact

#: In the spellings of MySQL and PostgreSQL.
_TOKEN = re.compile(
    r"(?P<space>\s+|/\*M?!\d*|\*/|/\*(?!M?!).*?\*/|--[^\n]*|#[^\n]*)"
    r"|(?P<string>'(?:[^'\\]|''|\\.)*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)"
    r"|(?P<quoted>\"(?:[^\"\\]|\"\"|\\.)*\"|`(?:[^`]|``)*`)"
    r"|(?P<word>[\w$\u0080-\uffff]+)"
    r"|(?P<sign>.)",
    re.S,
)
_HIDDEN = REDACTED


def shown(statement: str) -> str:
    """A statement as it may be kept and shown: without what may be a secret, and not too long.

    Hidden is text in quotes that is the value of a secret (``PASSWORD = '..'``), a password in a
    URL, and a comment or connection string that speaks of a secret. Other values in quotes, as of
    an ENUM or a default, are part of the table's definition.
    """
    text = "".join(_shown_tokens(statement))
    return text if len(text) <= STATEMENT_CHARACTERS else text[: STATEMENT_CHARACTERS - 1] + "…"


def _shown_tokens(statement: str) -> Iterator[str]:
    before = ""
    for token in _TOKEN.finditer(statement):
        text = token[0]
        if token["string"] or (token["quoted"] and text[0] == '"'):
            yield _hidden(text, before)
        else:
            # A comment may hold an old password as well as anything else.
            yield _HIDDEN_COMMENT if token["space"] and _speaks_of_secret(text) else text
        if token["word"] or token["string"] or token["quoted"]:
            before = text
        elif text in "(,":
            before = ""


_HIDDEN_COMMENT = f"/* {_HIDDEN} */"
_WORDS = re.compile(r"\w+")


def _speaks_of_secret(text: str) -> bool:
    return any(is_secret(word) for word in _WORDS.findall(text))


def _hidden(quoted: str, before: str) -> str:
    """A text in quotes, behind the word ``before``."""
    if quoted[0] == "$":  # a body, or a text in dollars
        return _HIDDEN if is_secret(before) or _speaks_of_secret(quoted) else quoted
    inner, word = quoted[1:-1], before.upper()
    if is_secret(before) or word == "BY":
        inner = _HIDDEN
    elif "://" in inner:
        inner = redact(inner)
    elif word == "CONNECTION" or (word == "COMMENT" and _speaks_of_secret(inner)):
        inner = _HIDDEN
    return quoted[0] + inner + quoted[-1]
