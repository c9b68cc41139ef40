"""Listings on terminals of 80 and of 120 columns, in the prompt and in the demo."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from changefeed.api import Result
from changefeed.demo.display import Display
from shell.render.formats import OutputFormat
from shell.render.results import render
from tests.golden import runner
from tests.golden.test_plan import Evaluate
from tests.golden.world import SECRETS, World

WIDTHS = (80, 120)


class Screens(Evaluate):
    """The answer to a statement at both widths; blank lines are left out."""

    def __call__(self, text: str) -> str:
        statement = "\n".join(line for line in text.split("\n") if not line.startswith("\\"))
        for line in text.split("\n"):
            if line.startswith("\\"):
                self.happen(*line[1:].split(" ", 2))
        result = self.world.run(statement)
        if not statement.startswith(("SHOW", "EXPLAIN", "VALIDATE")):
            return result.tag
        return "\n".join(screen(result, width) for width in WIDTHS)


def screen(result: Result, width: int) -> str:
    """A result in so many columns, in the prompt; the demo shows the same."""
    prompt, demo = io.StringIO(), io.StringIO()
    render(result, OutputFormat.TABLE, prompt, width)
    Display(Console(file=demo, width=width)).result(result)
    assert demo.getvalue() == prompt.getvalue()
    lines = [line for line in prompt.getvalue().splitlines() if line]
    assert [line for line in lines if cell_len(line) > width] == []
    assert [secret for secret in SECRETS if secret in prompt.getvalue()] == []
    return "\n".join([f"== {width} columns", *lines])


@pytest.mark.parametrize("file", runner.files("screens"))
def test_screens(file: Path, world: World, rewrite: bool) -> None:
    runner.run(file, Screens(world), rewrite=rewrite)


def test_states_are_coloured_where_the_terminal_has_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    result = Result(columns=("name", "status"), rows=[("a", "failed 2s ago"), ("b", "running")])

    def drawn(*, colour: bool) -> str:
        out = io.StringIO()
        render(result, OutputFormat.TABLE, out, 80, colour=colour)
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mfailed 2s ago\x1b[0m" in drawn(colour=True)
    assert "\x1b[" not in drawn(colour=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in drawn(colour=True)
