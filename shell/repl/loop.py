"""Read, run, again: until Ctrl-D or ``\\q``."""

from __future__ import annotations

from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.formatted_text import StyleAndTextTuples

from changefeed import __version__
from changefeed.core.errors import ChangefeedError
from shell.client import Client
from shell.exits import Exit, ShellExit, StatementFailure
from shell.places import history_file, rc_file
from shell.repl.complete import ShellCompleter
from shell.repl.names import NameCache
from shell.repl.progress import follow
from shell.repl.prompt import PromptHistory, complete_again, make_prompt
from shell.repl.toolbar import Watcher, meant, toolbar
from shell.script import items, lines_of
from shell.settings import Keys


def run_prompt(client: Client) -> Exit:
    """The prompt, until the user leaves. The state is opened and a node started behind it."""

    def redraw() -> None:
        # From other threads; where no line is being typed it does nothing.
        prompt.app.invalidate()

    def offer_again() -> None:
        # Names came later than the menu that asked for them.
        complete_again(prompt)

    watcher = Watcher(client.backend, redraw)
    names = NameCache(client.backend, changed=offer_again)
    prompt = make_prompt(
        ShellCompleter(names),
        PromptHistory(history_file()),
        lambda text, room, selected: toolbar(watcher.figures, text, room, selected),
    )
    client.backend.start(watcher.failed)
    watcher.start()
    greet(client)
    try:
        run_rc(client, rc_file())
        Loop(client, prompt, names).run()
    finally:
        watcher.stop()
    say_farewell(client)
    return Exit.OK


def greet(client: Client) -> None:
    """Say what this is, and how to go on: lines that a terminal of 80 columns does not break."""
    client.diagnostics.remark(f"changefeed {__version__}, {client.backend.where}")
    client.diagnostics.remark(
        "Statements end with ;  \\h explains them, \\? lists commands, \\q leaves."
    )


def run_rc(client: Client, file: Path | None) -> None:
    """Run the user's own beginning; a mistake in it is reported and ends it, not the prompt."""
    if file is None or not file.is_file():
        return
    try:
        with lines_of(str(file)) as lines:
            client.run_script(lines, str(file))
    except ChangefeedError as error:
        client.report(error)
    except (StatementFailure, ShellExit):
        # Reported where it happened; and \q ends the file alone.
        pass


class Loop:
    """One prompt at work."""

    def __init__(self, client: Client, prompt: PromptSession[str], names: NameCache) -> None:
        self._client = client
        self._prompt = prompt
        self._names = names
        self._prefill = ""
        client.confirm = self._confirm
        client.created = lambda name: follow(client, name)
        client.prefill = self._put

    def run(self) -> None:
        """Read and run until Ctrl-D or ``\\q``."""
        while True:
            prefill, self._prefill = self._prefill, ""
            vi = self._client.settings.keys is Keys.VI
            self._prompt.editing_mode = EditingMode.VI if vi else EditingMode.EMACS
            try:
                text = self._prompt.prompt(self._message, default=prefill)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                self._run(text)
            except ShellExit:
                return

    def _message(self) -> StyleAndTextTuples:
        """Asked at each drawing: the state may be opened, and a source known, while one types."""
        return [("class:prompt", f"{self._names.source() or 'changefeed'}> ")]

    def _run(self, text: str) -> None:
        try:
            for item in items(meant(text).splitlines(keepends=True)):
                self._client.run(item)
        except ChangefeedError as error:
            self._client.report(error)
        except StatementFailure:
            # A file of \i ended at a mistake of its own, which was reported.
            pass
        except KeyboardInterrupt:
            self._client.diagnostics.after_interrupt()
            self._client.diagnostics.note("cancelled; feeds keep running")
        self._names.forget()

    def _confirm(self, question: str) -> bool:
        answer: PromptSession[str] = PromptSession(
            input=self._prompt.input, output=self._prompt.output
        )
        try:
            return answer.prompt(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (KeyboardInterrupt, EOFError):
            return False

    def _put(self, text: str) -> None:
        self._prefill = text


def say_farewell(client: Client) -> None:
    """Name the feeds that stop with this shell."""
    idle = client.backend.idle_feeds() if client.backend.here else 0
    if idle:
        feeds, them = ("1 feed stops", "it") if idle == 1 else (f"{idle} feeds stop", "them")
        client.diagnostics.note(
            f"{feeds} when this shell exits. Run changefeed start to keep {them} running."
        )
