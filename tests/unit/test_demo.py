"""What the demo does before its scene begins."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from changefeed import demo
from changefeed.core.errors import ChangefeedError, Code
from changefeed.demo import play
from changefeed.demo.display import Display
from changefeed.demo.stage import TRY, place
from changefeed.feed_rows import RowLines


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


@pytest.mark.parametrize(
    ("committed", "said"),
    [
        ("1795535027250000000.0000000001", "650 ms"),
        ("1795535026750000000.0000000000", "1,150 ms"),
        # MariaDB says when in whole seconds: a number of milliseconds would be invented.
        ("1795535027000000000.0000000000", "< 1 s"),
        ("1795535026000000000.0000000003", "< 2 s"),
    ],
)
def test_a_row_is_as_old_as_its_source_can_tell(
    committed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1795535027.9)
    out = io.StringIO()
    value = json.dumps({"after": {"id": 1}, "updated": committed})
    RowLines(Console(file=out, width=160)).row("orders", "[1]", value, "c", live=True)
    assert f" {said} {{" in out.getvalue()


def test_a_kept_shop_is_not_taken_for_one_of_another_database(tmp_path: Path) -> None:
    (tmp_path / "mariadb").mkdir()
    display = Display(Console(file=io.StringIO()))
    with pytest.raises(ChangefeedError, match="a shop in another database: mysql") as caught:
        with place(display, source="postgresql", port=None, keep=True, folder=tmp_path):
            raise AssertionError("it started")
    assert caught.value.code is Code.NOT_SUPPORTED
    assert not (tmp_path / "postgresql").exists()
