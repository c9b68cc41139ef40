"""Names of indices: a table's name in the characters Elasticsearch takes.

The rules are Elasticsearch's (``MetadataCreateIndexService.validateIndexOrAliasName``): lower
case; none of ``\\ / * ? " < > | , # :`` and white space; not ``.`` or ``..``; no ``_ - +`` at the
start; at most 255 bytes of UTF-8.
"""

from __future__ import annotations

import hashlib
import re

MAX_INDEX_BYTES = 255

_FORBIDDEN = re.compile(r'[\\/*?"<>|\s,#:\x00-\x1f\x7f]')
_LOOKS_ESCAPED = re.compile(r"_u[0-9a-f]{4,8}_")
#: A leading dot makes a hidden index, which is Elasticsearch's own business.
_FORBIDDEN_FIRST = "_-+."


def index_name(name: str) -> str:
    """The index for a table called ``name``.

    Letters become lower case; a forbidden character becomes ``_uXXXX_`` (its code point), and what
    looks like that is escaped itself. A forbidden first character is written without the leading
    underscore, as nothing may begin with one: ``_log`` is ``u005f_log``. A result above 255 bytes
    is cut and ends in a digest of the whole name.
    """
    lower = name.lower()
    escaped = _LOOKS_ESCAPED.sub(lambda match: _escape(match[0][0]) + match[0][1:], lower)
    escaped = _FORBIDDEN.sub(lambda match: _escape(match[0]), escaped)
    if lower and lower[0] in _FORBIDDEN_FIRST:
        escaped = _escape(lower[0]) + escaped.removeprefix(lower[0])
    if escaped.startswith("_"):
        escaped = escaped[1:]
    data = escaped.encode()
    if len(data) > MAX_INDEX_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        escaped = f"{data[: MAX_INDEX_BYTES - 17].decode(errors='ignore')}-{digest}"
    return escaped


def _escape(character: str) -> str:
    return f"_u{ord(character):04x}_"
