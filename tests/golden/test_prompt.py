"""The prompt as it stands on terminals of 80 and of 120 columns while somebody types.

An input is what is typed; ``<Enter>`` and others in :data:`KEYS` are keys. A line that
starts with ``$`` is a statement that ran before, one with a backslash changes the world as in
``screens``. The output is what stands on the screen when everything was typed and the menu is
there; blank lines are left out.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from shell.client import Client
from shell.repl.complete import ShellCompleter
from shell.repl.loop import Loop
from shell.repl.names import NameCache
from shell.repl.prompt import complete_again, make_prompt
from shell.repl.toolbar import ToolbarFigures, toolbar
from tests.golden import runner
from tests.golden.test_plan import Evaluate
from tests.golden.world import SECRETS, World

WIDTHS = (80, 120)
ROWS = 24
#: How long the screen may take to come to rest, seconds.
PATIENCE = 60.0

KEYS = {"Enter": "\r", "Ctrl-R": "\x12"}
HISTORY = ("SHOW JOBS;", "CREATE CHANGEFEED old FOR customers INTO 'null://';")


class Terminal(DummyOutput):
    """A terminal that nobody sees, of a size of its own."""

    def __init__(self, columns: int) -> None:
        self._columns = columns

    def get_size(self) -> Size:
        return Size(rows=ROWS, columns=self._columns)


class Prompts(Evaluate):
    """The screen after what was typed, at both widths."""

    def __call__(self, text: str) -> str:
        typed = []
        for line in text.split("\n"):
            if line.startswith("$ "):
                self.world.run(line.removeprefix("$ "))
            elif line.startswith("\\"):
                self.happen(*line[1:].split(" ", 2))
            else:
                typed.append(line)
        shown = [
            line
            for width in WIDTHS
            for line in (f"== {width} columns", *screen(self.world, "\n".join(typed), width))
        ]
        assert [secret for secret in SECRETS if secret in "\n".join(shown)] == []
        return "\n".join(shown)


def screen(world: World, typed: str, columns: int) -> list[str]:
    """The lines of the terminal when ``typed`` was typed at the prompt."""
    backend: Any = SimpleNamespace(facts=world.interpreter, session=world.session, opened=True)
    names = NameCache(backend, changed=lambda: complete_again(session))
    completer = ShellCompleter(names)
    history = InMemoryHistory(list(HISTORY))
    figures = ToolbarFigures(world.interpreter.summary(), here=True)
    keys = re.sub(r"<([\w-]+)>", lambda key: KEYS[key[1]], typed)
    output = Terminal(columns)
    with (
        pytest.MonkeyPatch.context() as patch,
        create_pipe_input() as source,
        create_app_session(input=source, output=output),
    ):
        patch.setenv("COLUMNS", str(columns))
        session = make_prompt(
            completer,
            history,
            lambda text, room, selected: toolbar(figures, text, room, selected),
            source=source,
            output=output,
        )
        loop = Loop(cast("Client", SimpleNamespace(backend=backend)), session, names)
        source.send_text(keys)
        return asyncio.run(_typed(session, loop, completer))


async def _typed(session: PromptSession[str], loop: Loop, completer: ShellCompleter) -> list[str]:
    """Run the prompt until nothing changes on it any more; the lines that stand there then."""
    asked = asyncio.create_task(session.prompt_async(loop._message))
    deadline = time.monotonic() + PATIENCE
    before: list[str] = []
    calm = 0
    while calm < 5:
        assert time.monotonic() < deadline, f"the screen did not come to rest: {before}"
        await asyncio.sleep(0.02)
        session.app.invalidate()
        now = _lines(session)
        read = session.app.current_buffer.text != ""
        settled = read and now == before and _menu_is_there(session, completer)
        calm, before = (calm + 1 if settled else 0), now
    session.app.exit(exception=EOFError)
    with pytest.raises(EOFError):
        await asked
    return before


def _menu_is_there(session: PromptSession[str], completer: ShellCompleter) -> bool:
    """The menu has what there is to offer, unless something of it was taken."""
    buffer = session.default_buffer
    if session.app.current_buffer is not buffer or not buffer.text:
        return True
    state = buffer.complete_state
    document = buffer.document if state is None else state.original_document
    wanted = list(completer.get_completions(document, CompleteEvent(text_inserted=True)))
    if len(wanted) == 1 and document.text_before_cursor.endswith(wanted[0].text):
        wanted = []  # it stands there already
    # What was taken leaves no menu.
    taken = buffer.text != document.text
    return taken or len(wanted) == (0 if state is None else len(state.completions))


def _lines(session: PromptSession[str]) -> list[str]:
    drawn = session.app.renderer.last_rendered_screen
    columns = session.app.output.get_size().columns
    if drawn is None:
        return []
    rows = (
        "".join(drawn.data_buffer[row][column].char for column in range(columns)).rstrip()
        for row in range(drawn.height)
    )
    return [row for row in rows if row]


@pytest.mark.parametrize("file", runner.files("prompt"))
def test_prompt(file: Path, world: World, rewrite: bool) -> None:
    runner.run(file, Prompts(world), rewrite=rewrite)
