"""From the flags to the shell they ask for: a script's run, or the prompt.

Two questions set the defaults: is input interactive, is output a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from changefeed.backend import Backend, LocalBackend, RemoteBackend
from changefeed.core.errors import ChangefeedError
from changefeed.spark.settings import SparkSettings
from shell.client import Client
from shell.diagnostics import Diagnostics
from shell.exits import Exit, ShellExit, StatementFailure, exit_status
from shell.render.formats import OutputFormat
from shell.script import lines_of
from shell.settings import ScriptOnError, ShellSettings
from shell.signals import end_cleanly, no_interrupt
from shell.waiting import WaitIndicator


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for.

    Attributes:
        state: directory or URL.
        inputs: (``commands`` or ``files``, text) in the order given.
        format: None is table on a terminal, else csv.
        go_on: after a failed statement.
        sure: do not ask before DROP.
        max_memory, max_disk: budgets in bytes of a node that runs here.
        url, token: of a node elsewhere that runs the statements, in place of ``state``.
    """

    state: str
    inputs: tuple[tuple[str, str], ...] = ()
    format: OutputFormat | None = None
    source: str | None = None
    go_on: bool = False
    timing: bool = False
    sure: bool = False
    spark: SparkSettings | None = None
    max_memory: int | None = None
    max_disk: int | None = None
    url: str | None = None
    token: str = field(default="", repr=False)


def open_shell(request: Request) -> Exit:
    """Run the scripts, or the prompt when there are none and input is a terminal."""
    end_cleanly()
    interactive = not request.inputs and sys.stdin.isatty()
    backend = _backend(request)
    form = request.format or (OutputFormat.TABLE if sys.stdout.isatty() else OutputFormat.CSV)
    settings = ShellSettings(
        format=form,
        timing=request.timing,
        on_error=ScriptOnError.CONTINUE if request.go_on else ScriptOnError.STOP,
        confirm=interactive and not request.sure,
    )
    diagnostics = Diagnostics(as_json=form.structured and not interactive)
    client = Client(backend, settings, diagnostics, local=_local, interactive=interactive)
    try:
        if interactive and request.url is not None and not _there(client):
            return client.status
        if interactive:
            # Loaded on use: prompt-toolkit takes a tenth of a second.
            from shell.repl.loop import run_prompt

            return run_prompt(client)
        return _run_scripts(client, request.inputs or (("files", "-"),))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    finally:
        with no_interrupt(), _stopping(client):
            backend.close()


def _there(client: Client) -> bool:
    """Whether the node elsewhere answers this user; if not, the reason is reported."""
    try:
        client.backend.check()
    except ChangefeedError as error:
        client.report(error)
        return False
    return True


def _backend(request: Request) -> Backend:
    if request.url is not None:
        return RemoteBackend(request.url, request.token, source=request.source)
    return LocalBackend(
        request.state,
        source=request.source,
        spark=request.spark,
        max_memory=request.max_memory,
        max_disk=request.max_disk,
    )


def _local(client: Client, line: str) -> None:
    # Loaded on use: most scripts have no local command.
    from shell.commands import run_local

    run_local(client, line)


def _stopping(client: Client) -> AbstractContextManager[object]:
    """Shows a person why the prompt is not back yet."""
    if not client.interactive or not client.backend.here:
        return nullcontext()
    return WaitIndicator(client.diagnostics.stream, "stopping feeds ...")


def _run_scripts(client: Client, inputs: Iterable[tuple[str, str]]) -> Exit:
    try:
        for kind, text in inputs:
            if kind == "commands":
                client.run_script(text.splitlines(keepends=True))
            else:
                with lines_of(text) as lines:
                    client.run_script(lines, "" if text == "-" else text)
        if not client.last:
            client.backend.check()
        _say_who_runs(client)
    except (StatementFailure, ShellExit):
        return client.status
    except ChangefeedError as error:
        client.report(error)
        return exit_status(error)
    return client.status


def _say_who_runs(client: Client) -> None:
    """Report feeds that stand still because no node runs."""
    idle = client.backend.idle_feeds()
    if idle:
        feeds = "1 feed is" if idle == 1 else f"{idle} feeds are"
        client.diagnostics.note(f"{feeds} not running: no node is started. Run changefeed start.")
