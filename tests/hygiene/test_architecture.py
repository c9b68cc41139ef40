"""ARCHITECTURE.md draws the layers that the import contract checks, and names every contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def contracts() -> list[dict[str, Any]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return found


def test_the_picture_of_the_layers_is_the_contract() -> None:
    (layers,) = [c["layers"] for c in contracts() if c["id"] == "layers"]
    drawn = PAGE.partition("arrows point down:\n\n```text\n")[2].partition("```")[0]
    rooms = [re.split(r"\s{2,}", line.strip()) for line in drawn.splitlines()]
    wanted = [[room.strip() for room in layer.split("|")] for layer in layers]
    assert [row[: len(names)] for row, names in zip(rooms, wanted, strict=True)] == wanted


def test_every_contract_is_in_the_table() -> None:
    named = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    assert {contract["id"] for contract in contracts()} <= named
