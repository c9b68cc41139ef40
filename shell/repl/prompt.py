"""The prompt-toolkit session: keys, colours, continuation lines."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, completion_is_selected
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from changefeed.options import mask_statement
from shell.repl.complete import ended
from shell.repl.highlight import StatementLexer
from shell.repl.toolbar import runs

_CONNECTION = re.compile(r"\b(CREATE|ALTER)\s+EXTERNAL\s+CONNECTION\b", re.IGNORECASE)


def holds_secret(text: str) -> bool:
    """The text names a connection's URI, or has a password in it."""
    return bool(_CONNECTION.search(text)) or mask_statement(text) != text


class PromptHistory(FileHistory):
    """Entries with secrets can be recalled while the prompt lives, and are written nowhere."""

    def __init__(self, path: Path) -> None:
        """The file is made at the first entry, readable by its owner only."""
        super().__init__(path)
        self._path = path

    def store_string(self, string: str) -> None:
        """Append to the file, unless it holds a secret."""
        if holds_secret(string):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        super().store_string(string)


STYLE = Style.from_dict(
    {
        "keyword": "bold ansiblue",
        "string": "ansigreen",
        "name": "ansicyan",
        "comment": "ansibrightblack",
        "command": "ansimagenta",
        "prompt": "bold",
        "bottom-toolbar": "noreverse bg:ansibrightblack ansiwhite",
        "bottom-toolbar.text": "",
        "trouble": "bold bg:ansired ansiwhite",
        "enter": "italic",
        "form": "",
        "form.current": "bold",
    }
)

Toolbar = Callable[[str, int, str], StyleAndTextTuples]


def make_prompt(
    completer: Completer,
    history: History,
    toolbar: Toolbar,
    *,
    source: Input | None = None,
    output: Output | None = None,
) -> PromptSession[str]:
    """A session whose Enter runs finished statements and local commands.

    Args:
        completer: runs in a thread.
        history: what Up and Ctrl-R look through.
        toolbar: (text being typed, columns, what the menu says of the selected completion) ->
            formatted text.
        source, output: the terminal by default.
    """

    def typed() -> str:
        # Not the current buffer: during Ctrl-R that is the line of the search.
        return session.default_buffer.text

    def selected() -> str:
        state = session.default_buffer.complete_state
        chosen = None if state is None else state.current_completion
        return "" if chosen is None else chosen.display_meta_text

    session: PromptSession[str] = PromptSession(
        completer=ThreadedCompleter(completer),
        complete_while_typing=True,
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        lexer=StatementLexer(),
        multiline=Condition(lambda: not runs(typed())),
        prompt_continuation=_continuation,
        bottom_toolbar=lambda: toolbar(typed(), shutil.get_terminal_size().columns, selected()),
        key_bindings=_keys(),
        style=STYLE,
        # Typed in the middle of a run, a Ctrl-Z stops the shell as it does others.
        enable_suspend=True,
        reserve_space_for_menu=6,
        input=source,
        output=output,
    )
    return session


#: How often a menu is asked for when none opens, and how long apart.
_AGAIN, _AGAIN_SECONDS = 4, 0.15


def complete_again(session: PromptSession[str]) -> None:
    """Open the menu again for what stands there, from any thread.

    Leaves a person alone who is choosing in the menu, is searching, or has typed nothing. Where
    no menu stands, it opens only one that typing would have opened.
    """
    app, buffer, loop = session.app, session.default_buffer, session.app.loop
    if loop is None or not app.is_running:
        return

    def start(left: int) -> None:
        state = buffer.complete_state
        choosing = None if state is None else state.complete_index
        if app.is_running and app.current_buffer is buffer and buffer.text and choosing is None:
            # Behind a statement that has ended, a menu stands only where the user asked for one
            # with Tab. One without an entry yet is a completion at work: typing began that.
            tab = ended(buffer.text) and state is not None and bool(state.completions)
            event = CompleteEvent(text_inserted=not tab, completion_requested=tab)
            buffer.complete_state = None  # a menu that stands would keep another from opening
            buffer.start_completion(select_first=False, complete_event=event)
            loop.call_later(_AGAIN_SECONDS, look, buffer.document, left - 1)

    def look(document: Document, left: int) -> None:
        # A completion that was at work swallows the start of another, and ends without a menu.
        if left and buffer.document == document and buffer.complete_state is None:
            start(left)

    loop.call_soon_threadsafe(start, _AGAIN)


def _continuation(width: int, line_number: int, wrap_count: int) -> StyleAndTextTuples:
    return [("class:prompt", "-> ".rjust(width))]


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Enter in the menu takes what is selected; the next one runs."""
        event.current_buffer.complete_state = None

    return keys
