"""``--max-memory`` and ``--max-disk`` reach the node, by either of their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import changefeed.app
from shell.cli import cli

NAMES = [
    ("--max-memory", "--max-disk"),
    ("--max-changefeed-memory", "--max-disk-changefeed-storage"),
]


class _Opened(Exception):
    """Enough was seen: the state is not opened."""


@pytest.mark.parametrize(("memory", "disk"), NAMES)
@pytest.mark.parametrize("place", ["before start", "after start", "shell"])
def test_the_budgets_reach_the_node(
    memory: str, disk: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    def opened(_state: str, **given: object) -> None:
        seen.update(given)
        raise _Opened

    monkeypatch.setattr(changefeed.app, "Application", opened)
    flags = ["--state", str(tmp_path), memory, "64MiB", disk, "2GB"]
    lines = {
        "before start": [*flags, "start"],
        "after start": ["start", *flags],
        "shell": [*flags, "-c", "SHOW CHANGEFEEDS"],
    }
    result = CliRunner().invoke(cli, lines[place])
    assert isinstance(result.exception, _Opened), result.output
    assert seen["max_memory"] == 64 << 20
    assert seen["max_disk"] == 2_000_000_000


@pytest.mark.parametrize("text", ["lots", "0", "-1"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    result = CliRunner().invoke(cli, ["start", "--max-disk", text])
    assert result.exit_code == 2
    assert "--max-disk" in result.output
