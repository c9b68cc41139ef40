"""Golden sessions of EXPLAIN, VALIDATE and SHOW: each file is one state from its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from changefeed.core.errors import ChangefeedError
from tests.golden import runner
from tests.golden.world import World


class Evaluate:
    """Statements, and lines that start with a backslash: what happens around them."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, text: str) -> str:
        statements = []
        for line in text.split("\n"):
            if line.startswith("\\"):
                self.happen(*line[1:].split(" ", 2))
            else:
                statements.append(line)
        return self.world.transcript("\n".join(statements))

    def happen(self, what: str, *words: str) -> None:
        world = self.world
        if what == "advance":
            world.clock.advance(float(words[0]))
        elif what == "deliver":
            world.node.deliver(words[0], world.clock.wall - 1_500_000_000, int(words[1]))
        elif what == "problem":
            code, message = words
            world.open_source("shop", "").problems.append(ChangefeedError(code, message))
        elif what == "table-problem":
            table, message = words
            problem = ChangefeedError("CF2004", message, detail=table, hint="GRANT it.")
            world.open_source("shop", "").problems.append(problem)
        elif what == "down":
            world.open_source("shop", "").down = ChangefeedError(
                "CF2001", "cannot reach the source"
            )
        elif what == "fail-table":
            world.fail_table(words[0], *words[1].split(" ", 1))
        elif what == "fail":
            code, message = words[1].split(" ", 1)
            world.fail(words[0], ChangefeedError(code, message))
        elif what == "known":
            described = world.open_source("shop", "").describe(None, words[0])
            world.catalog.intern_schema(described)
        elif what == "node":
            world.node.up = words[0] == "up"
        else:
            raise AssertionError(what)


@pytest.mark.parametrize("file", runner.files("plan"))
def test_plan(file: Path, world: World, rewrite: bool) -> None:
    runner.run(file, Evaluate(world), rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("validate"))
def test_validate(file: Path, world: World, rewrite: bool) -> None:
    runner.run(file, Evaluate(world), rewrite=rewrite)


@pytest.mark.parametrize("file", runner.files("show"))
def test_show(file: Path, world: World, rewrite: bool) -> None:
    runner.run(file, Evaluate(world), rewrite=rewrite)
