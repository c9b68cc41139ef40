"""Names of tables, topics and columns as identifiers, as CockroachDB escapes them.

Avro (Specification, Names) and protobuf (Language Specification, Identifiers) both allow
``[A-Za-z_][A-Za-z0-9_]*``.
"""

from __future__ import annotations

import re

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def identifier(text: str) -> str:
    """``text`` as a name: what is forbidden becomes ``_uXXXX_``.

    >>> identifier("public.my-table")
    'public_u002e_my_u002d_table'
    """
    escaped = _NOT_IN_NAMES.sub(lambda match: _escape(match[0]), text)
    return _escape(escaped[0]) + escaped[1:] if escaped[:1].isdigit() else escaped or "_"


def namespace(prefix: str) -> str:
    """``avro_schema_prefix`` as a namespace: names with dots between them."""
    return ".".join(identifier(part) for part in prefix.split(".") if part)


def _escape(character: str) -> str:
    return f"_u{ord(character):04x}_"
