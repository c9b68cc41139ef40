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
    "changefeed/catalog/database.py": "another process has a new file locked for a moment",
    "changefeed/core/elapsed.py": "the clocks themselves: how far they have come apart",
    "changefeed/core/time_limits.py": "limits of sockets, which wait in the machine's time",
    "changefeed/demo/play.py": "a show: a person looks on",
    "changefeed/demo/shop.py": "a show: customers order at a pace that a person can follow",
    "changefeed/embedded/mariadb.py": "another program starts and ends in the machine's time",
    "changefeed/embedded/server.py": "another program starts and ends in the machine's time",
    "changefeed/encoding/encode.py": "stamps messages; callers may hand in another moment",
    "changefeed/feeds/backlog.py": "how often a thread looks whether its feed is wanted elsewhere",
    "changefeed/http/server.py": "limits of sockets",
    "changefeed/feed_rows.py": "shows a person how late a row is",
    "changefeed/dataset/run.py": "measures a run, to show it",
    "changefeed/sources/postgres/stream.py": "reports within the patience of the server",
    "changefeed/sources/postgres/transport.py": "limits of a socket",
    "changefeed/sources/postgres/wire.py": "tells the server the time, which it only shows",
    "changefeed/spark/ivy.py": "a moment in a file's header, which nothing depends on",
    "changefeed/service.py": "how often it looks whether the node still runs",
    "changefeed/spark/standing.py": "how often a worker shows that it lives",
    "changefeed/spark/jvm_session.py": "another program starts and ends in the machine's time",
    "changefeed/spark/jvm.py": "another program starts and ends in the machine's time",
    "shell/repl/names.py": "a person waits for names to complete",
    "shell/repl/toolbar.py": "shows a person what the node does",
    "shell/signals.py": "how often it looks whether its reader is there",
    "sinks/terminal.py": "a client that waits for rows, for a time that it names",
    "shell/streaming.py": "shows a person which rows are new",
    "shell/waiting.py": "shows a person how long a statement takes",
}
#: A name that says of itself that it does not change.
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]{2,}")


def _trees(room: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / room).rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text("utf-8"))


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What is assigned to what, also where several names are assigned at once."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _waitables(tree: ast.Module) -> set[str]:
    """Names of events and conditions: assigned, or annotated."""
    kinds = ("threading.Event", "threading.Condition")
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _pairs(target, node.value):
                    if isinstance(value, ast.Call) and ast.unparse(value.func) in kinds:
                        found.add(ast.unparse(name).rpartition(".")[2])
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            named = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            if any(kind in ast.unparse(node.annotation) for kind in kinds):
                found.add(named.rpartition(".")[2])
    return found


def _waits(tree: ast.Module) -> Iterator[int]:
    """Lines that wait for an event or a condition for some time, which ``Clock.wait`` is for.

    ``thread.join(seconds)`` and ``process.wait(seconds)`` are not meant. They are limits to the end
    of something that runs in the machine's time and that no clock of ours can bring about; nothing
    is decided by how much of the limit has passed.
    """
    waitables = _waitables(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            least = {"wait": 1, "wait_for": 2}.get(node.func.attr, 99)
            limited = len(node.args) + len(node.keywords) >= least
            if limited and ast.unparse(node.func.value).rpartition(".")[2] in waitables:
                yield node.lineno


def _reads_time(tree: ast.Module) -> Iterator[int]:
    """Lines that import the module ``time``, ask the machine's clock without one handed in, or wait
    in the machine's time."""
    yield from _waits(tree)
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
        "self._stop = threading.Event(); self._stop.wait(5)",
        "over, other = threading.Event(), 1; over.wait(timeout=5)",
        "def pause(stop: threading.Event) -> None: stop.wait(5)",
        "news: threading.Condition; news.wait_for(ready, 5)",
    ],
)
def test_a_look_at_the_machines_time_is_seen(statement: str) -> None:
    assert len(list(_reads_time(ast.parse(statement)))) == 1
    assert not list(_reads_time(ast.parse("clock.sleep(1); clock or SystemClock()")))
    through = "stop = threading.Event(); stop.wait(); clock.wait(stop, 5); thread.join(5)"
    assert not list(_reads_time(ast.parse(through)))


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
