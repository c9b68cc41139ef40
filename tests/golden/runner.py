"""Golden files: an input, ``----``, the output; cases are separated by a blank line.

A line that starts with ``#`` before an input is a comment. The runner compares each case with
what ``evaluate`` makes of its input, or, with ``--rewrite``, writes that into the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
_RULE = "----"


@dataclass(frozen=True)
class Case:
    """One case of a golden file; ``line`` is where it starts."""

    line: int
    comments: tuple[str, ...]
    input: str
    output: str

    def text(self) -> str:
        """The case as it stands in the file."""
        lines = [*self.comments, self.input, _RULE]
        return "\n".join([*lines, self.output] if self.output else lines)


def cases(file: Path) -> list[Case]:
    """The cases of a file, in order."""
    found = []
    line = 1
    for block in file.read_text("utf-8").split("\n\n"):
        if block.strip():
            found.append(_case(file, line, block.strip("\n")))
        line += block.count("\n") + 2
    if not found:
        raise ValueError(f"{file.name} has no cases")
    return found


def _case(file: Path, line: int, block: str) -> Case:
    head, rule, output = f"{block}\n".partition(f"\n{_RULE}\n")
    if not rule:
        raise ValueError(f"{file.name}:{line}: a case needs a line {_RULE}")
    lines = head.split("\n")
    comments = tuple(text for text in lines if text.startswith("# "))
    kept = "\n".join(text for text in lines if not text.startswith("# "))
    return Case(line, comments, kept, output.rstrip("\n"))


def files(area: str) -> list[object]:
    """The files of an area, as parameters of a test."""
    return [
        pytest.param(file, id=f"{area}/{file.stem}")
        for file in sorted((FOLDER / area).glob("*.txt"))
    ]


def run(file: Path, evaluate: Callable[[str], str], *, rewrite: bool) -> None:
    """Compare every case of ``file``, or rewrite the file."""
    wanted = cases(file)
    got = [Case(case.line, case.comments, case.input, evaluate(case.input)) for case in wanted]
    for case in got:
        assert "\n\n" not in case.output, f"{file.name}:{case.line}: the output has a blank line"
    if rewrite:
        file.write_text("\n\n".join(case.text() for case in got) + "\n", "utf-8")
        return
    for expected, actual in zip(wanted, got, strict=True):
        assert actual.output == expected.output, f"{file.name}:{expected.line}: {expected.input}"
