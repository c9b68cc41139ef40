"""Names and texts as SQL writes them. Dialects differ in the mark around names, and in whether a
backslash means something in a text."""

from __future__ import annotations


def quoted(name: str, mark: str = '"') -> str:
    """A name as an identifier, which may contain any character; marks in it are doubled."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def readable(name: str) -> str:
    """A name for people to read, quoted where it is not plain; keywords get no quotes."""
    plain = name.isidentifier() and name.isascii() and name == name.lower()
    return name if plain else quoted(name)


def literal(text: str) -> str:
    """A text as a literal, where a backslash is a character like others."""
    return quoted(text, "'")


def escaped(text: str, mark: str = "'") -> str:
    """A text as a literal, or with another mark a name, where a backslash escapes what follows."""
    inner = text.replace("\\", "\\\\").replace(mark, f"\\{mark}")
    return f"{mark}{inner}{mark}"
