"""What may follow a local command: topics, tables, settings, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from changefeed.options.docs import listing
from grammar.help import topics
from shell.repl.choices import DEFAULT_SCHEMA, Candidate, NameSource, quoted
from shell.settings import TABLE


def _topics(words: str, known: NameSource) -> Iterator[Candidate]:
    yield from (Candidate(topic.name, topic.category) for topic in topics())
    yield from (Candidate(row.name, "option") for row in listing())


def _tables(words: str, known: NameSource) -> Iterator[Candidate]:
    for schema, name in known.tables():
        lead = "" if schema == DEFAULT_SCHEMA else f"{quoted(schema)}."
        yield Candidate(lead + quoted(name), schema)


def _settings(words: str, known: NameSource) -> Iterator[Candidate]:
    name, space, _ = words.partition(" ")
    if space and name in TABLE:
        yield from (Candidate(f"{name} {value}") for value in TABLE[name].values)
    elif not space:
        yield from (Candidate(row.name, row.summary) for row in TABLE.values())


def _switch(words: str, known: NameSource) -> Iterator[Candidate]:
    yield from (Candidate(word) for word in ("on", "off"))


def _files(words: str, known: NameSource) -> Iterator[Candidate]:
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
            yield Candidate(f"{lead}{path.name}/", "folder")
        elif path.suffix == ".sql":
            yield Candidate(f"{lead}{path.name}")


#: What a command's ``completes`` names -> the words that may follow.
WORDS: dict[str, Callable[[str, NameSource], Iterable[Candidate]]] = {
    "topic": _topics,
    "table": _tables,
    "setting": _settings,
    "switch": _switch,
    "file": _files,
}
