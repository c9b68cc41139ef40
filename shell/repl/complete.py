"""Completion: what the grammar says fits, filled with names, options and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from changefeed.options import OPTIONS
from changefeed.options.docs import listing
from grammar.help import topics
from grammar.suggest import Suggestions, complete
from shell.commands import COMMANDS
from shell.settings import TABLE

_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")


class Known(Protocol):
    """Where names come from: :class:`shell.repl.names.Names`."""

    def connections(self) -> list[str]: ...

    def feeds(self) -> list[str]: ...

    def tables(self, source: str | None = None) -> list[tuple[str, str]]: ...

    def columns(
        self, table: tuple[str, ...], source: str | None = None
    ) -> list[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that fits: its text, and a word about it.

    ``literal`` texts stand as they are (numbers, whole URIs); names are quoted where they
    must be, and ``string`` says that the text belongs in single quotes.
    """

    text: str
    meta: str = ""
    string: bool = False
    literal: bool = False


class ShellCompleter(Completer):
    """Completes statements and local commands."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        """What fits at the cursor."""
        text = document.text_before_cursor
        if text.lstrip().startswith("\\"):
            yield from self._local(text.lstrip())
        else:
            yield from self._statement(text)

    # -- statements -----------------------------------------------------------------------

    def _statement(self, text: str) -> Iterator[Completion]:
        fits = complete(text)
        for word in fits.words:
            if not fits.quote:
                yield Completion(word, -len(fits.prefix), display_meta="")
        seen: set[str] = set()
        for kind in sorted(fits.kinds):
            fill = _FILLERS.get(kind)
            for choice in fill(fits, self._known) if fill else ():
                made = _made(choice, fits)
                if made is not None and made.text not in seen:
                    seen.add(made.text)
                    yield made

    # -- local commands -------------------------------------------------------------------

    def _local(self, text: str) -> Iterator[Completion]:
        name, space, words = text[1:].partition(" ")
        if not space:
            for command in COMMANDS.values():
                if command.name.startswith(name):
                    shown = f"\\{command.name}"
                    yield Completion(shown, -len(text), display_meta=command.summary)
            return
        completes = COMMANDS[name].completes if name in COMMANDS else ""
        if completes == "statement":
            yield from self._statement(re.sub(r"\A[\d.]+s?\s+", "", words))
            return
        offer = _WORDS.get(completes)
        for choice in offer(words, self._known) if offer else ():
            if choice.text.lower().startswith(words.lower()):
                yield Completion(choice.text, -len(words), display_meta=choice.meta)


def _made(choice: Choice, fits: Suggestions) -> Completion | None:
    """The completion of a choice, quoted as the place needs it; None when it does not fit."""
    folded = fits.prefix if fits.quote else fits.prefix.lower()
    begins = choice.text if fits.quote else choice.text.lower()
    if not begins.startswith(folded) or (choice.text == fits.prefix and not fits.quote):
        return None
    if fits.quote:
        if (fits.quote == "'") is not choice.string and not choice.literal:
            return None
        inserted = choice.text.replace(fits.quote, fits.quote * 2)
        # Whole values close their quote; a URI is only begun.
        inserted += "" if choice.literal else fits.quote
    elif choice.string:
        inserted = f"'{choice.text}" + ("" if choice.literal else "'")
    else:
        inserted = choice.text if choice.literal else quoted(choice.text)
    return Completion(inserted, -len(fits.prefix), display=choice.text, display_meta=choice.meta)


def quoted(name: str) -> str:
    """A name as it must be written."""
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


# ------------------------------------------------------------------------- kind -> choices


def _connections(fits: Suggestions, known: Known) -> Iterator[Choice]:
    yield from (Choice(name, "connection") for name in known.connections())


def _feeds(fits: Suggestions, known: Known) -> Iterator[Choice]:
    yield from (Choice(name, "changefeed") for name in known.feeds())


def _tables(fits: Suggestions, known: Known) -> Iterator[Choice]:
    """Tables of the source, schemas, and connections: the parts of a dotted name."""
    connections = known.connections()
    path = list(fits.path)
    source = fits.source
    if path and path[0] in connections:
        source = path.pop(0)
    tables = known.tables(source)
    if path:
        yield from (Choice(name, schema) for schema, name in tables if schema == path[0])
        return
    yield from (Choice(name, schema) for schema, name in tables)
    yield from (Choice(schema, "schema") for schema in sorted({schema for schema, _ in tables}))
    if not fits.path:
        yield from (Choice(name, "connection") for name in connections)


def _schemas(fits: Suggestions, known: Known) -> Iterator[Choice]:
    source = fits.path[0] if fits.path else fits.source
    yield from (
        Choice(name, "schema") for name in sorted({schema for schema, _ in known.tables(source)})
    )


def _columns(fits: Suggestions, known: Known) -> Iterator[Choice]:
    if fits.table:
        yield from (Choice(*column) for column in known.columns(fits.table, fits.source))


def _scheme(fits: Suggestions) -> str | None:
    """The scheme of the statement's sink, when it is one with options of its own."""
    if not fits.sink:
        return None
    scheme = fits.sink.partition("://")[0].lower()
    return None if scheme == "external" else scheme


def _options(fits: Suggestions, known: Known) -> Iterator[Choice]:
    for row in listing(_scheme(fits)):
        if row.name not in fits.given:
            default = f" [{row.default}]" if row.default else ""
            yield Choice(row.name, f"{row.summary}{default}")


def _cdc_options(fits: Suggestions, known: Known) -> Iterator[Choice]:
    for name, meta in _CDC.items():
        if name not in fits.given:
            yield Choice(name, meta)


_CDC = {
    "cluster_address": "address of the broker",
    "topic": "topic of the messages",
    "index": "index of the documents",
    "record": "AFTER, CHANGE or ALL",
}


def _values(fits: Suggestions, known: Known) -> Iterator[Choice]:
    row = OPTIONS.get(fits.option or "")
    if row is None:
        return
    for value in row.values:
        yield Choice(value, "default" if value == row.shown_default else "", string=True)
    _, equal, example = row.example.partition("=")
    if not row.values and equal:
        yield Choice(example.strip().strip("'"), "for example", string=True)


def _sink_uris(fits: Suggestions, known: Known) -> Iterator[Choice]:
    from changefeed.api import sink_schemes

    for sink in sink_schemes():
        yield Choice(f"{sink.scheme}://", sink.summary, string=True, literal=True)
    for name in known.connections():
        yield Choice(f"external://{name}", "connection", string=True)


def _connection_uris(fits: Suggestions, known: Known) -> Iterator[Choice]:
    from changefeed.api import sink_schemes, source_schemes

    for scheme in source_schemes():
        example = f"{scheme}://user:password@host:5432/database"
        yield Choice(f"{scheme}://", f"a source: {example}", string=True, literal=True)
    for sink in sink_schemes():
        yield Choice(f"{sink.scheme}://", f"a sink: {sink.summary}", string=True, literal=True)


def _result_columns(fits: Suggestions, known: Known) -> Iterator[Choice]:
    from changefeed.api import LISTING_COLUMNS

    yield from (Choice(name) for name in LISTING_COLUMNS)


_FILLERS: dict[str, Callable[[Suggestions, Known], Iterator[Choice]]] = {
    "connection": _connections,
    "database": _connections,
    "feed": _feeds,
    "table": _tables,
    "schema": _schemas,
    "column": _columns,
    "option": _options,
    "cdc_option": _cdc_options,
    "option_value": _values,
    "sink_uri": _sink_uris,
    "connection_uri": _connection_uris,
    "result_column": _result_columns,
}


# ------------------------------------------------------------------ words of local commands


def _topic_words(words: str, known: Known) -> Iterator[Choice]:
    yield from (Choice(topic.name, topic.category) for topic in topics())
    yield from (Choice(row.name, "option") for row in listing())


def _table_words(words: str, known: Known) -> Iterator[Choice]:
    for schema, name in known.tables():
        yield Choice(quoted(name), schema)


def _setting_words(words: str, known: Known) -> Iterator[Choice]:
    name, space, _ = words.partition(" ")
    if space and name in TABLE:
        yield from (Choice(f"{name} {value}") for value in TABLE[name].values)
    elif not space:
        yield from (Choice(row.name, row.summary) for row in TABLE.values())


def _switch_words(words: str, known: Known) -> Iterator[Choice]:
    yield from (Choice(word) for word in ("on", "off"))


def _file_words(words: str, known: Known) -> Iterator[Choice]:
    """Folders, and files of statements."""
    typed = Path(words or ".").expanduser()
    folder = typed if words.endswith("/") or not words else typed.parent
    lead = words[: words.rfind("/") + 1]
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    for path in found:
        if path.is_dir() and not path.name.startswith("."):
            yield Choice(f"{lead}{path.name}/", "folder")
        elif path.suffix == ".sql":
            yield Choice(f"{lead}{path.name}")


_WORDS: dict[str, Callable[[str, Known], Iterable[Choice]]] = {
    "topic": _topic_words,
    "table": _table_words,
    "setting": _setting_words,
    "switch": _switch_words,
    "file": _file_words,
}
