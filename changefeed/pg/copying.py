"""Rows as ``COPY .. TO STDOUT`` has them, as text and as CSV."""

from __future__ import annotations

from collections.abc import Sequence

_ESCAPED = {
    b"\\": b"\\\\",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\r": b"\\r",
}


def copy_row(values: Sequence[bytes | None], *, csv: bool) -> bytes:
    """One line."""
    if csv:
        return b",".join(map(_quoted, values)) + b"\n"
    return b"\t".join(map(_escaped, values)) + b"\n"


def _escaped(value: bytes | None) -> bytes:
    if value is None:
        return b"\\N"
    for character, escape in _ESCAPED.items():
        value = value.replace(character, escape)
    return value


def _quoted(value: bytes | None) -> bytes:
    if value is None:
        return b""
    if not value or any(character in value for character in (b'"', b",", b"\n", b"\r")):
        return b'"' + value.replace(b'"', b'""') + b'"'
    return value
