"""Names say what a thing is, and ``docs/glossary.md`` is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("changefeed", "grammar", "sinks", "shell")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
#: A verb's form alone says what happens to a thing, not what it is.
VERBAL = re.compile(r"(ing|ed|Made|Found|Known|Held|Told|Kept|Sent|Lost|Written)$")
#: Nouns of the field, words of the language, and exceptions, which say what happened.
NOUNS = {
    *("Feed", "RowFeed", "Resolved", "Setting", "Ordering"),
    *("CreateChangefeed", "AlterChangefeed", "RenameChangefeed", "PauseChangefeed"),
    *("ResumeChangefeed", "DropChangefeed", "ShowChangefeed", "ShowCreateChangefeed"),
    *("StopFeed", "ScanStopped", "ServerFailed", "WaitInterrupted", "LeaseLost"),
}
#: What everything is a piece of says nothing.
BARE = {"Part", "Piece", "Place", "Rows", "Shape", "Mark", "Turn", "Life", "Way", "Wish", "Thing"}


def classes() -> dict[str, str]:
    """Every class of the product, with its file and line."""
    return {
        f"{file.relative_to(ROOT)}:{node.lineno}": node.name
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def test_classes_have_names_of_things() -> None:
    found = classes()
    assert len(found) > 700
    wrong = {
        place: name
        for place, name in found.items()
        if name.lstrip("_") in BARE or (VERBAL.search(name) and name not in NOUNS)
    }
    assert not wrong


def rows() -> list[tuple[str, str]]:
    """Term and place of each row of the glossary."""
    return re.findall(r"^\| ([^|]+?) \| [^|]+ \| `([^`]+)` \|$", GLOSSARY, re.M)


def test_a_term_stands_once() -> None:
    terms = [term for row, _ in rows() for term in row.split(", ")]
    assert len(terms) > 40
    assert len(terms) == len(set(terms))


@pytest.mark.parametrize(("term", "where"), rows())
def test_what_carries_a_term_is_there(term: str, where: str) -> None:
    from changefeed.options.row import OPTIONS

    if "." not in where:
        assert where in OPTIONS
        return
    parts = where.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if file.exists():
            left = parts[length:]
            named = ast.walk(ast.parse(file.read_text("utf-8")))
            assert not left or left[-1] in {getattr(node, "name", None) for node in named}, (
                f"{file} has no {left[-1]}"
            )
            return
    raise AssertionError(f"{where} is not there")
