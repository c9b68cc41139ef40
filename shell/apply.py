"""``changefeed apply`` and ``changefeed export``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import click

from changefeed.api import Session
from changefeed.app import Application
from changefeed.apply import ApplyStep, Declaration
from changefeed.core.errors import ChangefeedError, Code
from shell.diagnostics import Diagnostics
from shell.exits import Exit, exit_status
from shell.script import items, lines_of


def apply_files(state: str, files: Sequence[str], *, plan: bool, prune: bool) -> Exit:
    """Make a state equal to the statements of files, or with ``plan`` only say what differs."""
    diagnostics = Diagnostics()
    where = ""

    def texts() -> Iterator[str]:
        nonlocal where
        for name in files:
            with lines_of(name) as lines:
                for item in items(lines):
                    where = f"{name}:{item.line}"
                    if item.local:
                        raise ChangefeedError(
                            Code.NOT_SUPPORTED, "a file of changefeed apply has statements only"
                        )
                    yield item.text
        where = ""

    try:
        with Application(state) as opened:
            declaration = Declaration(texts(), opened.interpreter, os.environ)
            if plan:
                changes = declaration.plan(prune=prune)
                for change in changes:
                    _print(change)
                click.echo(_summary(changes, _TO_DO) if changes else "nothing differs")
                return Exit.DIFFERS if changes else Exit.OK
            done = []
            for change, result in declaration.apply(prune=prune):
                _print(change)
                if "token" in result.columns:  # of a new user: it is shown only now
                    click.echo(f"    token {result.objects()[0]['token']}")
                for notice in result.notices:
                    diagnostics.notice(notice)
                done.append(change)
            click.echo(_summary(done, _DONE) if done else "nothing differs")
    except ChangefeedError as error:
        diagnostics.error(error, where)
        return exit_status(error)
    return Exit.OK


def export_state(state: str) -> Exit:
    """Print the statements that make what a state has."""
    diagnostics = Diagnostics()
    try:
        with Application(state, must_exist=True) as opened:
            shown = opened.interpreter.execute("SHOW CREATE ALL", Session(client="export"))
    except ChangefeedError as error:
        diagnostics.error(error)
        return exit_status(error)
    for _, _, statement in shown.rows:
        click.echo(f"{statement};")
    for notice in shown.notices:
        diagnostics.notice(notice)
    return Exit.OK


def _print(change: ApplyStep) -> None:
    click.echo(f"{change.sign} {change.what}")
    for detail in change.details:
        click.echo(f"    {detail}")
    if change.missing:
        click.echo(f"    needs {', '.join(change.missing)} in the environment")


_TO_DO = {"+": "to make", "~": "to change", "-": "to drop"}
_DONE = {"+": "made", "~": "changed", "-": "dropped"}


def _summary(changes: Sequence[ApplyStep], words: Mapping[str, str]) -> str:
    counts = {sign: sum(change.sign == sign for change in changes) for sign in words}
    return ", ".join(f"{count} {words[sign]}" for sign, count in counts.items() if count)
