"""Names of topics and files: a table's name in the characters the target takes."""

from __future__ import annotations

import hashlib
import re

#: The parameter ``topic_prefix`` of a URI.
TOPIC_PREFIX = "Prefix of the name of every topic."

MAX_TOPIC = 249
"""Kafka's limit: a longer name does not fit the broker's folder names."""

_DISALLOWED = re.compile(r"[^a-zA-Z0-9._\-]")
_LOOKS_ESCAPED = re.compile(r"_u[0-9a-fA-F]{2,8}_")


def kafka_topic_name(name: str, limit: int = MAX_TOPIC) -> str:
    """The topic for a table called ``name``: characters Kafka forbids become ``_uXXXX_``.

    The same rule as CockroachDB's, so a consumer can be moved over; what already looks like
    an escape is escaped itself, so different names stay different. A result above ``limit``
    characters is cut and gets a digest of the whole name (CockroachDB only cuts, and two long
    names can then share a topic).
    """
    if name in (".", ".."):
        return "_u002e_" * len(name)
    escaped = _LOOKS_ESCAPED.sub(_escape, name)
    escaped = _DISALLOWED.sub(_escape, escaped)
    return shortened(escaped, limit, name)


def shortened(escaped: str, limit: int, name: str = "") -> str:
    """At most ``limit`` characters of a name; a cut one ends in a digest of the whole ``name``."""
    if len(escaped) <= limit:
        return escaped
    digest = hashlib.sha256((name or escaped).encode()).hexdigest()[:16]
    return f"{escaped[: limit - 17]}-{digest}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_u{ord(c):04x}_" if ord(c) <= 0xFFFF else f"_u{ord(c):08x}_" for c in match[0])
