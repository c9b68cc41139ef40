"""No module imports itself through others: neither when it is loaded, nor on use, nor for types."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("changefeed", "grammar", "sinks", "shell")


def modules() -> dict[str, Path]:
    """Name and file of every module of the product."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {_name(file): file for file in files}


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, known: set[str]) -> set[str]:
    """The modules a source names in its imports, wherever they stand."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known) or {node.module}
    return found & known


def test_no_module_imports_itself_through_others() -> None:
    found = modules()
    assert len(found) > 300
    # What the package offers to programs is loaded on use: it is the end of every arrow, not one.
    graph = {
        name: imported(file.read_text("utf-8"), found.keys() - {name, "changefeed"})
        for name, file in found.items()
        if name != "changefeed"
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_a_circle_for_types_is_found() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import B\n"
    graph = {"a": imported(source, {"a", "b"}), "b": imported("def f():\n    import a\n", {"a"})}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()
