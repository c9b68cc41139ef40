"""The texts of ``\\h``, ``\\?`` and ``\\set``, from the tables they describe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from changefeed.core import error_docs
from changefeed.core.errors import ChangefeedError, Code
from changefeed.options.docs import OptionHelp, listing
from grammar.help import HEADINGS, HelpTopic, help_for, topics
from grammar.spelling import did_you_mean
from shell.settings import TABLE, ShellSettings

#: Topics whose help ends with the options.
_WITH_OPTIONS = ("CREATE CHANGEFEED", "ALTER CHANGEFEED", "EXPERIMENTAL CHANGEFEED")

_WIDEST = 100
_PROSE = 80


def about(words: str, width: int | None = None) -> str:
    """Help for a statement, an option or an error code; the list of topics without words.

    ``CREATE CHANGEFEED kafka`` lists the options of a Kafka sink only.

    Raises:
        ChangefeedError: CF1101 there is no help for it.
    """
    room = min(width or _WIDEST, _WIDEST)
    if not words.strip():
        return "\n".join(_contents(room))
    option = next((row for row in listing() if row.name == words.strip().lower()), None)
    if option is not None:
        return "\n".join(_option_page(option, room))
    code = Code.stored(words.strip().upper())
    if code is not None:
        return "\n".join(_error_page(code, room))
    topic = help_for(words)
    if topic is None:
        near = did_you_mean(words.upper(), [topic.name for topic in topics()])
        near = near or did_you_mean(words.lower(), [row.name for row in listing()])
        hint = f"did you mean \\h {near}?" if near else "\\h lists what there is help for."
        raise ChangefeedError(Code.NAME_UNKNOWN, f"there is no help for {words}", hint=hint)
    return "\n".join(_page(topic, _scheme(words), room))


def _scheme(words: str) -> str | None:
    from changefeed.api import sink_schemes

    last = words.split()[-1].lower().partition(":")[0]
    return last if any(sink.scheme == last for sink in sink_schemes()) else None


def _contents(room: int) -> Iterator[str]:
    for category, heading in HEADINGS.items():
        yield f"{heading}:"
        yield from (f"  {topic.name}" for topic in topics() if topic.category == category)
    yield "Options:"
    names = ", ".join(row.name for row in listing())
    yield from textwrap.wrap(names, room, initial_indent="  ", subsequent_indent="  ")
    yield "\\h and one of them, or the code of an error (CF2003), says more; \\? lists the local"
    yield "commands."


def _page(topic: HelpTopic, scheme: str | None, room: int) -> Iterator[str]:
    yield topic.name
    yield textwrap.indent(topic.syntax, "  ")
    yield ""
    yield from textwrap.wrap(topic.text, min(room, _PROSE))
    yield ""
    yield "Example:"
    yield textwrap.indent(topic.example, "  ")
    if topic.name in _WITH_OPTIONS:
        yield ""
        yield from _options(scheme, room)
    yield ""
    yield f"See also: {', '.join(topic.see_also)}"


def _options(scheme: str | None, room: int) -> Iterator[str]:
    from changefeed.api import sink_capabilities

    rows = listing(sink_capabilities(scheme) if scheme else None)
    yield f"Options of a {scheme} sink:" if scheme else "Options (not every sink supports all):"
    label = max(len(row.name) for row in rows) + 4
    for group in dict.fromkeys(row.group for row in rows):
        yield f"  {group}"
        for row in rows:
            if row.group == group:
                yield from _entry(row.name, _summary(row), label, room)


def _summary(row: OptionHelp) -> str:
    default = f"; default {row.default}" if row.default else ""
    return f"{row.summary} ({row.values}{default})"


def _entry(name: str, text: str, label: int, room: int) -> Iterator[str]:
    """A name, and its text in a column to the right of it."""
    indent = " " * (label + 2)
    lines = textwrap.wrap(text, max(30, room), initial_indent=indent, subsequent_indent=indent)
    first, *more = lines or [indent]
    yield f"    {name}".ljust(len(indent)) + first[len(indent) :]
    yield from more


def _option_page(row: OptionHelp, room: int) -> Iterator[str]:
    yield f"{row.name} (option of CREATE CHANGEFEED)"
    yield from textwrap.wrap(row.summary, min(room, _PROSE))
    yield f"  values   {row.values}"
    if row.default:
        yield f"  default  {row.default}"
    yield f"  example  WITH {row.example}"


def _error_page(code: Code, room: int) -> Iterator[str]:
    yield f"{code.number}: {code.summary}"
    what = f"{error_docs.ACTIONS[code.action]} {error_docs.SCOPES[code.scope]}"
    yield from textwrap.wrap(what, min(room, _PROSE))
    if code.hint:
        yield from textwrap.wrap(f"Next: {code.hint}", min(room, _PROSE))


def command_list(rows: Sequence[tuple[str, str]]) -> str:
    """``\\?``, of commands with their arguments and a line about each."""
    label = max(len(usage) for usage, _ in rows) + 2
    lines = [f"  {usage.ljust(label)}{summary}" for usage, summary in rows]
    keys = (
        "Enter runs a finished statement (;), else starts a new line; Tab completes; Ctrl-R "
        "searches what was typed before; Ctrl-C clears the line or cancels what runs; Ctrl-D "
        "leaves."
    )
    return "\n".join([*lines, *textwrap.wrap(keys, _PROSE)])


def settings_list(settings: ShellSettings) -> str:
    """The text of ``\\set``."""
    rows = [(row.name, row.shown(settings), row) for row in TABLE.values()]
    label = max(len(name) for name, _, _ in rows) + 2
    value = max(len(shown) for _, shown, _ in rows) + 2
    return "\n".join(
        f"  {name.ljust(label)}{shown.ljust(value)}{row.summary}"
        + (f" ({', '.join(row.values)})" if row.values else "")
        for name, shown, row in rows
    )
