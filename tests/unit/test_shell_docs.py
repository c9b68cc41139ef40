"""docs/shell.md names every flag, format, exit status, local command and setting; start-up."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from shell.cli import cli
from shell.commands import COMMANDS
from shell.exits import Exit
from shell.render.formats import OutputFormat
from shell.settings import TABLE

PAGE = (Path(__file__).parents[2] / "docs" / "shell.md").read_text("utf-8")


def first_cells() -> set[str]:
    return {row.strip() for row in re.findall(r"^\| (.*?[^\\]) \|", PAGE, re.MULTILINE)}


def test_flags_are_in_the_page() -> None:
    flags = [
        name
        for parameter in cli.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    ]
    cells = " ".join(first_cells())
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", cells)] == []


@pytest.mark.parametrize("command", ["start", "version", "demo"])
def test_subcommands_exist(command: str) -> None:
    assert command in cli.commands


def test_exit_statuses_are_in_the_page_and_in_the_help() -> None:
    numbers = {int(cell) for cell in first_cells() if cell.isdigit()}
    assert numbers == set(Exit)
    assert all(str(int(status)) in (cli.epilog or "") for status in Exit)


def test_formats_commands_and_settings_are_in_the_page() -> None:
    cells = {cell.replace("\\|", "|") for cell in first_cells()}
    assert {f"`{form}`" for form in OutputFormat} <= cells
    assert {f"`\\{row.name} {row.usage}".rstrip() + "`" for row in COMMANDS.values()} <= cells
    assert {f"`{name}`" for name in TABLE} <= cells
