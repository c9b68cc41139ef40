"""The prompt-toolkit session: keys, colours, continuation lines."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer, ThreadedCompleter
from prompt_toolkit.filters import Condition, completion_is_selected
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from shell.repl.highlight import StatementLexer
from shell.repl.toolbar import runs

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
    }
)

Toolbar = Callable[[str, int], StyleAndTextTuples]


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
        toolbar: (text being typed, columns) -> formatted text.
        source, output: the terminal by default.
    """

    def typed() -> str:
        # Not the current buffer: during Ctrl-R that is the line of the search.
        return session.default_buffer.text

    session: PromptSession[str] = PromptSession(
        completer=ThreadedCompleter(completer),
        complete_while_typing=True,
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        lexer=StatementLexer(),
        multiline=Condition(lambda: not runs(typed())),
        prompt_continuation=_continuation,
        bottom_toolbar=lambda: toolbar(typed(), shutil.get_terminal_size().columns),
        key_bindings=_keys(),
        style=STYLE,
        # Typed in the middle of a run, a Ctrl-Z stops the shell as it does others.
        enable_suspend=True,
        reserve_space_for_menu=6,
        input=source,
        output=output,
    )
    return session


def _continuation(width: int, line_number: int, wrap_count: int) -> StyleAndTextTuples:
    """Under the prompt, as wide as it."""
    return [("class:prompt", "-> ".rjust(width))]


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Enter in the menu takes what is selected; the next one runs."""
        event.current_buffer.complete_state = None

    return keys
