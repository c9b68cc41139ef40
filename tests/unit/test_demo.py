"""What the demo does before its scene begins."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from changefeed import demo
from changefeed.demo import play
from changefeed.demo.display import Display
from changefeed.demo.stage import TRY


@pytest.mark.parametrize(
    ("given", "used"), [(None, "-XX:TieredStopAtLevel=1"), ("-Xlog:gc", "-Xlog:gc")]
)
def test_the_jvm_of_the_demo_starts_fast_unless_the_user_says_how(
    monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    seen: list[str | None] = []

    def played(**asked: object) -> int:
        seen.append(os.environ.get("JDK_JAVA_OPTIONS"))
        return 0

    monkeypatch.setattr(play, "play", played)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", given or "")
    if given is None:
        monkeypatch.delenv("JDK_JAVA_OPTIONS")
    assert demo.run() == 0
    assert seen == [used]


@pytest.mark.parametrize(
    ("width", "first"),
    [
        (80, ["  -- what can be watched", "  SHOW TABLES;"]),
        (120, [f"  SHOW TABLES;{' ' * 60}-- what"]),
    ],
)
def test_statements_to_try_are_whole_on_a_narrow_terminal(width: int, first: list[str]) -> None:
    out = io.StringIO()
    Display(Console(file=out, width=width)).suggestions(TRY)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert all(any(statement in line for line in lines) for statement, _ in TRY)
    assert [line[: len(start)] for line, start in zip(lines, first, strict=False)] == first
