"""Names say what a thing is, and ``docs/glossary.md`` is true."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("changefeed", "grammar", "sinks", "shell")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
#: Participles that do not end in "ed".
IRREGULAR = (
    "Been|Begun|Bent|Born|Bought|Bound|Broken|Brought|Built|Caught|Chosen|Done|"
    "Drawn|Driven|Fallen|Felt|Forgotten|Fought|Found|Given|Gone|Got|Grown|Had|"
    "Heard|Held|Hidden|Kept|Known|Laid|Left|Lent|Lost|Made|Meant|Met|Paid|"
    "Proven|Rebuilt|Risen|Said|Seen|Sent|Shown|Shut|Sold|Sought|Spent|Split|"
    "Stolen|Stood|Stuck|Taken|Taught|Thought|Thrown|Told|Torn|Understood|Undone|"
    "Won|Withdrawn|Written"
)
#: A verb's form alone says what happens to a thing, not what it is. Private classes count too.
VERBAL = re.compile(rf"(ing|ed|{IRREGULAR})$")
#: Nouns of the field, words of the language, and exceptions, which say what happened.
NOUNS = {
    *("Feed", "RowFeed", "Resolved", "Setting", "Ordering"),
    *("CreateChangefeed", "AlterChangefeed", "RenameChangefeed", "PauseChangefeed"),
    *("ResumeChangefeed", "DropChangefeed", "ShowChangefeed", "ShowCreateChangefeed"),
    *("StopFeed", "ScanStopped", "ServerFailed", "WaitInterrupted", "LeaseLost"),
    "Warning",  # of PEP 249
}
#: What everything is a piece of says nothing; and what is no noun at all.
BARE = {
    *("Part", "Piece", "Place", "Rows", "Shape", "Mark", "Turn", "Life", "Way", "Wish", "Thing"),
    *("Before", "After", "InOrder", "AsIs", "Quiet", "Raw", "Some", "Takes", "Executes", "Leave"),
}

#: Names that stand for one meaning with several bearers, with what that meaning is.
SHARED = {
    "Address": "where a server is and how to log in; one per client",
    "Assembler": "what makes flushes of one source's stream; one per source",
    "Block": "a buffer with numbers at any place; one per byte order",
    "ColumnInfo": "a column as a server's catalog has it; one per source",
    "Inbox": "the receive buffer of a source's stream; one per source",
    "Limits": "how long calls of a client library may take; one per library",
    "MySQL": "the product: a connector of Debezium, and a warehouse",
    "PostgreSQL": "the product: a connector of Debezium, and a warehouse",
    "Server": "what an attachment needs of its source; one per source",
    "Sessions": "open sessions that threads take turns with; one per source",
    "Shapes": "the shapes that tables have in a stream; one per source",
    "Span": "offsets into a statement's text; grammar/ may not import core/",
    "TableShape": "a table as the stream describes it; one per source",
    "Tls": "how a connection is encrypted, and whom it trusts; one per client",
    "Witness": "a transaction that was read, to know the log again by; one per source",
}


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


def test_a_name_has_one_meaning() -> None:
    """A public class has its name for itself, or for one meaning that :data:`SHARED` says."""
    homes: dict[str, set[str]] = {}
    for place, name in classes().items():
        if not name.startswith("_"):
            homes.setdefault(name, set()).add(place.partition(":")[0])
    shared = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if name not in SHARED} == {}
    assert set(SHARED) <= set(shared), "no longer shared"


#: Where programs of others run, which have an engine of their own.
ENGINES = re.compile(r"debezium|sources/mysql|source-mysql|clickhouse|benchmarks")


def prose() -> Iterator[tuple[str, str]]:
    """Lines of pages, docstrings and comments, each with its place."""
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", line
    for file in (f for package in PACKAGES for f in sorted((ROOT / package).rglob("*.py"))):
        for token in tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline):
            if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
                for number, line in enumerate(token.string.splitlines(), token.start[0]):
                    yield f"{file.relative_to(ROOT)}:{number}", line


def test_an_engine_is_where_bulk_work_runs() -> None:
    """What runs feeds is a node, a feed or changefeed; a server's is its storage engine."""
    lines = list(prose())
    assert len(lines) > 20_000
    wrong = [
        f"{place}: {line.strip()}"
        for place, line in lines
        if re.search(r"(?<!storage )\b(the|an)( \w+)? engine\b", line, re.I)
        and not re.search(r"choice of an engine|option|storage engine", line)
        and not ENGINES.search(place)
    ]
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
