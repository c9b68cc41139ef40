"""A plan changes nothing: EXPLAIN and VALIDATE make the same plan that CREATE stores."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from changefeed.catalog import Catalog

PLAN = Path(__file__).parents[2] / "changefeed" / "plan"


def writers() -> set[str]:
    """Methods of the catalog that open a transaction for writing, themselves or by another."""
    sources = {
        name: inspect.getsource(method)
        for name, method in inspect.getmembers(Catalog, inspect.isfunction)
    }
    found = {name for name, text in sources.items() if "_database.write(" in text}
    while True:
        more = {
            name
            for name, text in sources.items()
            if name not in found and any(f"self.{other}(" in text for other in found)
        }
        if not more:
            return found
        found |= more


def calls(file: Path) -> set[str]:
    """Names of the methods that are called on something named ``catalog``."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if owner.rpartition(".")[2].lstrip("_") == "catalog":
                found.add(node.func.attr)
    return found


def test_planning_calls_no_method_of_the_catalog_that_writes() -> None:
    found = {file.name: calls(file) for file in PLAN.glob("*.py")}
    assert set().union(*found.values()) & {"connection", "resolve_uri"}, "the calls are seen"
    assert {"create_job", "record_event", "add_tables"} <= writers()
    assert {name: bad for name, used in found.items() if (bad := used & writers())} == {}
