"""What a format is called is compared nowhere: who asks about one asks its row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from changefeed.core.formats import TRAITS, Format
from changefeed.core.shapes import Envelope
from changefeed.encoding.formats import FORMATS

ROOT = Path(__file__).parents[2]
ENVELOPES = (Envelope.WRAPPED, Envelope.DEBEZIUM)

#: Where formats are defined, and where their rows are.
TABLES = {
    "changefeed/core/formats.py",
    "changefeed/options/table.py",
}
#: Formats of the files of datasets, not of messages.
OTHERS = {"changefeed/dataset/incoming.py", "changefeed/statements/datasets.py"}

NAMES = {str(name) for name in Format}


def _modules() -> Iterator[Path]:
    for folder in ("changefeed", "sinks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if str(path.relative_to(ROOT)) not in TABLES | OTHERS:
                yield path


def _names_a_format(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "Format"
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_names_a_format, node.elts))
    return isinstance(node, ast.Constant) and node.value in NAMES


def _asks_for_a_format(node: ast.expr) -> bool:
    text = ast.unparse(node).lower()
    return "form" in text and "table_format" not in text


def compared(source: str) -> list[int]:
    """Lines that compare a format with a name, or have a table by names of their own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(map(_names_a_format, sides))
            if named and any(_asks_for_a_format(side) for side in sides):
                found.append(node.lineno)
        elif isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Attribute)]
            if any(map(_names_a_format, keys)):
                found.append(node.lineno)
    return found


def test_no_module_compares_the_name_of_a_format() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in _modules()
        for line in compared(path.read_text("utf-8"))
    }
    assert found == set()


def test_the_test_sees_comparisons() -> None:
    for source in (
        "plan.format is Format.CSV",
        "values[FORMAT] in (Format.JSON, Format.AVRO)",
        "form not in ('avro', 'protobuf')",
        "settings.format == 'json'",
        "{Format.CSV: 1}",
    ):
        assert compared(source) == [1], source
    for source in ("column.logical == 'json'", "kind == 'csv'", "Format(text)"):
        assert compared(source) == [], source


def test_every_format_has_its_row() -> None:
    assert set(TRAITS) == set(FORMATS) == set(Format)
    for name, traits in TRAITS.items():
        written = [FORMATS[name].schemas(envelope) for envelope in ENVELOPES]
        assert all(writer is not None for writer in written) == traits.schemas
