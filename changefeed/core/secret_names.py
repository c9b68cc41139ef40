"""Decides by their names which parameters of URIs are secrets."""

from __future__ import annotations

import re

#: Parameters whose value is a secret, by a part of their name; Java reads the pattern, too.
SECRET_NAMES = (
    r"(?i)pass(?:word|wd|phrase|code)?$|password|passwd|pwd|secret|token|credential|private|signature"
    r"|^sig$|^code$|^key$|client_?key|access[_.-]?key(?!_?(?:name|id)$)|account[_.]?key|api_?key|ssl_?key|auth$"
    r"|^header\.|sse\.key$|\.sas\."
)
_SECRET = re.compile(SECRET_NAMES)
_PUBLIC = frozenset({"sasl_token_url"})


def is_secret(name: str) -> bool:
    """Whether the value of a parameter with this name must never be shown."""
    return name.lower() not in _PUBLIC and bool(_SECRET.search(name))
