"""Local commands: one row each, read by the dispatcher, ``\\?``, completion and the docs.

They work at the prompt and in scripts alike; one that needs a prompt says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from changefeed.core.errors import ChangefeedError, Code
from grammar import nodes
from grammar.spelling import did_you_mean
from shell import helps
from shell.exits import ShellExit
from shell.script import lines_of
from shell.settings import TABLE, Vertical, change, seconds

if TYPE_CHECKING:
    from shell.client import Client

#: How deep ``\i`` may nest: a file that includes itself must end.
DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Command:
    """One row: name, what may follow, one line about it, what it does.

    ``completes`` names what may follow, for completion: ``file``, ``table``, ``topic``,
    ``setting``, ``switch`` or ``statement``.
    """

    name: str
    usage: str
    summary: str
    run: Callable[[Client, str], None]
    completes: str = ""


def run_local(client: Client, line: str) -> None:
    """Run a local command; raises what it raises.

    Raises:
        ChangefeedError: CF1101 there is no such command.
    """
    name, _, words = line[1:].strip().partition(" ")
    command = COMMANDS.get(name.rstrip(";"))
    if command is None:
        near = did_you_mean(name, COMMANDS)
        hint = f"did you mean \\{near}?" if near else "\\? lists the commands."
        raise ChangefeedError(Code.NAME_UNKNOWN, f"there is no command \\{name}", hint=hint)
    command.run(client, words.strip().rstrip(";").rstrip())


def _say(client: Client, text: str) -> None:
    client.page(text + "\n")


# ------------------------------------------------------------------------------ one by one


def _commands(client: Client, words: str) -> None:
    rows = [(f"\\{row.name} {row.usage}".rstrip(), row.summary) for row in COMMANDS.values()]
    _say(client, helps.command_list(rows))


def _help(client: Client, words: str) -> None:
    _say(client, helps.about(words, client.width))


def _quit(client: Client, words: str) -> None:
    raise ShellExit


def _toggle(client: Client, words: str) -> None:
    on = client.settings.vertical is Vertical.ON
    change(client.settings, "vertical", words or ("auto" if on else "on"))
    if client.interactive:
        _say(client, f"vertical is {client.settings.vertical}")


def _timing(client: Client, words: str) -> None:
    change(client.settings, "timing", words or ("off" if client.settings.timing else "on"))
    if client.interactive:
        _say(client, f"timing is {TABLE['timing'].shown(client.settings)}")


def _set(client: Client, words: str) -> None:
    name, _, value = words.replace("=", " ", 1).partition(" ")
    if not name:
        _say(client, helps.settings_list(client.settings))
    elif value.strip():
        change(client.settings, name, value.strip().strip("'"))
    elif name in TABLE:
        _say(client, TABLE[name].shown(client.settings))
    else:
        change(client.settings, name, "")


def _include(client: Client, words: str) -> None:
    if not words:
        raise ChangefeedError(Code.NAME_UNKNOWN, "\\i needs the name of a file")
    if client.depth >= DEEPEST:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"files include each other more than {DEEPEST} deep"
        )
    client.depth += 1
    try:
        with lines_of(words.strip("'")) as lines:
            client.run_script(lines, words)
    finally:
        client.depth -= 1


def _edit(client: Client, words: str) -> None:
    if client.prefill is None:
        raise ChangefeedError(Code.NOT_SUPPORTED, "\\e needs a prompt")
    import click

    edited = click.edit(f"{client.last};\n" if client.last else "", extension=".sql")
    if edited is not None:
        client.prefill(edited.rstrip("\n"))


def _describe(client: Client, words: str) -> None:
    from shell.describe import describe

    if words:
        client.show(describe(client, words))
    else:
        client.statement("SHOW TABLES")


def _output(client: Client, words: str) -> None:
    client.redirect(words.strip("'"))


def _again(client: Client, words: str) -> None:
    if not client.last:
        raise ChangefeedError(Code.NOT_SUPPORTED, "\\g needs a statement that ran before")
    if not words:
        client.statement(client.last)
        return
    client.redirect(words.strip("'"))
    try:
        client.statement(client.last)
    finally:
        client.redirect("")


def _connection(client: Client, words: str) -> None:
    _say(client, "\n".join(f"{name:<7} {value}" for name, value in client.backend.about()))


_WATCH = re.compile(r"(\d+(?:\.\d+)?)s?(?:\s+|\Z)")


def _watch(client: Client, words: str) -> None:
    given = _WATCH.match(words)
    every = seconds(given[1]) if given else client.settings.watch
    statement = words[given.end() :] if given else words
    statement = statement or client.last
    _only_looks(statement)
    while True:
        begun = client.clock.monotonic()
        if client.out.isatty():
            # The screen from its top: the figures change in their places.
            client.out.write("\x1b[H\x1b[2J")
        now = datetime.now().astimezone()
        client.diagnostics.remark(f"every {every:g} s  {now:%H:%M:%S}  {statement}")
        client.statement(statement)
        client.clock.sleep(max(0.0, begun + every - client.clock.monotonic()))


def _only_looks(statement: str) -> None:
    from changefeed.api import parsed_statement

    if not statement:
        raise ChangefeedError(Code.NAME_UNKNOWN, "\\watch needs a statement")
    if not isinstance(parsed_statement(statement), nodes.Inquiry):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "\\watch repeats statements that only look",
            hint="SHOW ..., EXPLAIN ...",
        )


#: Every local command, by name.
COMMANDS: dict[str, Command] = {
    row.name: row
    for row in (
        Command("?", "", "list the local commands", _commands),
        Command(
            "h", "[topic]", "help with a statement, an option or an error code", _help, "topic"
        ),
        Command(
            "d", "[table]", "tables that can be watched, or the columns of one", _describe, "table"
        ),
        Command("x", "[on|off|auto]", "show rows with one column per line", _toggle, "switch"),
        Command("timing", "[on|off]", "print the duration of each statement", _timing, "switch"),
        Command(
            "watch",
            "[seconds] [statement]",
            "repeat a SHOW until Ctrl-C",
            _watch,
            "statement",
        ),
        Command("i", "file", "run the statements of a file", _include, "file"),
        Command("e", "", "edit the last statement in $EDITOR", _edit),
        Command(
            "g", "[file]", "run the last statement again, its result to a file", _again, "file"
        ),
        Command(
            "o", "[file]", "write results to a file; without a name to the screen", _output, "file"
        ),
        Command("conninfo", "", "show state, node and source", _connection),
        Command("set", "[name [value]]", "list or change settings", _set, "setting"),
        Command("q", "", "leave", _quit),
    )
}
