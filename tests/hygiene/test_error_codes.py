"""The product names an error by its row of the table: a reader need not look a number up."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "changefeed/core/errors.py"


def test_no_module_writes_a_code_as_text() -> None:
    found: list[str] = []
    read = 0
    for top in ("changefeed", "grammar", "sinks", "shell"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path == TABLE:
                continue
            read += 1
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
                if token.type == tokenize.STRING and re.fullmatch(
                    r"""["']CF\d{4}["']""", token.string
                ):
                    found.append(f"{path.relative_to(ROOT)}:{token.start[0]} {token.string}")
    assert read > 400
    assert found == []
