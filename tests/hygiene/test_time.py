"""Time and faults come from outside: what waits takes a clock, and every fault point exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from changefeed.core.faults import Point

ROOT = Path(__file__).parents[2]
#: Who may read the machine's time or sleep without a clock that is handed in, and why.
MACHINE_TIME = {
    "changefeed/core/clock.py": "the clock itself",
    "changefeed/core/elapsed.py": "the clocks themselves: how far they have come apart",
    "changefeed/core/time_limits.py": "limits of sockets, which wait in the machine's time",
    "changefeed/demo/play.py": "a show: a person looks on",
    "changefeed/embedded/server.py": "another program starts and ends in the machine's time",
    "changefeed/encoding/encode.py": "stamps messages; callers may hand in another moment",
    "changefeed/feed_rows.py": "shows a person how late a row is",
    "changefeed/dataset/run.py": "measures a run, to show it",
    "changefeed/sources/postgres/transport.py": "limits of a socket",
    "changefeed/sources/postgres/wire.py": "tells the server the time, which it only shows",
    "changefeed/spark/ivy.py": "a moment in a file's header, which nothing depends on",
    "changefeed/spark/jvm.py": "another program starts and ends in the machine's time",
    "shell/streaming.py": "shows a person which rows are new",
    "shell/waiting.py": "shows a person how long a statement takes",
}
#: A name that says of itself that it does not change.
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]{2,}")


def _trees(room: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / room).rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text("utf-8"))


def _reads_time(tree: ast.Module) -> Iterator[int]:
    """Lines that import the module ``time``, or ask the machine's clock without one handed in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = "time" in {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found = node.module == "time"
        else:
            found = isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "SYSTEM_CLOCK",
                "SystemClock()",
            )
        if found and isinstance(node, ast.stmt | ast.expr):
            yield node.lineno


def test_what_waits_or_asks_for_the_time_takes_a_clock() -> None:
    """A decision that depends on time (a limit, a pace, an age, another try) can then be tested
    without waiting for it."""
    rooms = ("changefeed", "grammar", "sinks", "shell")
    found = {
        name: list(_reads_time(tree))
        for room in rooms
        for name, tree in _trees(room)
        if any(_reads_time(tree))
    }
    assert {name: found[name] for name in found.keys() - MACHINE_TIME.keys()} == {}
    assert MACHINE_TIME.keys() - found.keys() == set(), "nobody needs the exception any more"


@pytest.mark.parametrize(
    "statement",
    [
        "import time",
        "import os, time as machine",
        "from time import sleep",
        "SystemClock().now()",
        "deadline = SYSTEM_CLOCK.monotonic() + 5",
    ],
)
def test_a_look_at_the_machines_time_is_seen(statement: str) -> None:
    assert len(list(_reads_time(ast.parse(statement)))) == 1
    assert not list(_reads_time(ast.parse("clock.sleep(1); clock or SystemClock()")))


def _patched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Constants that a test gives another value: line and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            words = [
                word.value.rpartition(".")[2]
                for word in node.args[:2]
                if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            if called in ("setattr", "patch", "object"):
                yield from ((node.lineno, word) for word in words if CONSTANT.fullmatch(word))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and CONSTANT.fullmatch(target.attr):
                    yield node.lineno, target.attr


def test_no_test_patches_a_constant() -> None:
    """What a test wants otherwise is handed in: to a constructor, in Timings or in Sizes. A patched
    name goes on to pass when nothing reads it any more."""
    found = [
        f"{name}:{line}: {constant}"
        for name, tree in _trees("tests")
        for line, constant in _patched(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "monkeypatch.setattr(web, 'TIMEOUT', 1)",
        "monkeypatch.setattr(client, '_IDLE_2', 1)",
        "monkeypatch.setattr('sinks.warehouse.sink.LOAD_ROWS', 8)",
        "with patch.object(web, 'TIMEOUT', 1): ...",
        "mock.patch('sinks.warehouse.sink.LOAD_ROWS', 8)",
        "web.TIMEOUT = 1",
        "web.TIMEOUT += 1",
    ],
)
def test_a_patched_constant_is_seen(statement: str) -> None:
    assert len(list(_patched(ast.parse(statement)))) == 1
    assert not list(_patched(ast.parse(statement.lower())))


def test_every_fault_point_is_a_place_in_the_product() -> None:
    """A rule for a point that nothing reaches would let a crash test pass without a crash."""
    reached = [
        node.attr
        for name, tree in _trees("changefeed")
        if name != "changefeed/core/faults.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("Point", "faults.Point")
    ]
    assert set(reached) == {point.name for point in Point}
