"""Help for each statement, read from the ``%Help`` blocks above the grammar's rules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_BLOCK = re.compile(r"(?:^// .*\n)+(?=^[a-z_]+:)", re.MULTILINE)
_FIELD = re.compile(r"%(\w+): ?(.*)")


@dataclass(frozen=True, slots=True)
class HelpTopic:
    """Help for one statement.

    Attributes:
        name: its first words, in capitals.
        category: the heading it stands under.
        syntax: how it is written, over several lines.
        text: what it does.
        example: a statement that runs, with its ``;``.
        see_also: names of related topics.
        rule: the grammar rule the block stands above.
    """

    name: str
    category: str
    syntax: str
    text: str
    example: str
    see_also: tuple[str, ...]
    rule: str


@lru_cache(maxsize=1)
def topics() -> tuple[HelpTopic, ...]:
    """Every topic, in the order of the grammar."""
    grammar = Path(__file__).with_name("changefeed.lark").read_text("utf-8")
    return tuple(
        _topic(block[0], grammar[block.end() :].partition(":")[0])
        for block in _BLOCK.finditer(grammar)
        if "%Help:" in block[0]
    )


def _topic(block: str, rule: str) -> HelpTopic:
    fields: dict[str, list[str]] = {}
    current: list[str] = []
    for line in block.splitlines():
        text = line.removeprefix("//").removeprefix(" ")
        if field := _FIELD.match(text):
            current = fields.setdefault(field[1], [])
            text = field[2]
        current.append(text)
    joined = {name: [line.strip() for line in lines] for name, lines in fields.items()}
    return HelpTopic(
        name=" ".join(joined["Help"]),
        category=" ".join(joined["Category"]),
        syntax="\n".join(_indented(joined["Syntax"])),
        text=" ".join(joined["Text"]),
        example="\n".join(_indented(joined["Example"])),
        see_also=tuple(name.strip() for name in " ".join(joined["SeeAlso"]).split(",")),
        rule=rule,
    )


def _indented(lines: list[str]) -> Iterable[str]:
    return (line if index == 0 else f"  {line}" for index, line in enumerate(lines))


def help_for(words: str | Iterable[str]) -> HelpTopic | None:
    """The topic that ``words`` name or begin: ``show change`` finds SHOW CHANGEFEEDS.

    A whole name wins; else the topic whose name starts with the words; else the longest topic
    name that the words start with, so that a whole statement finds its help.
    """
    given = words if isinstance(words, str) else " ".join(words)
    asked = " ".join(given.upper().replace(";", " ").split())
    if not asked:
        return None
    by_name = {topic.name: topic for topic in topics()}
    if asked in by_name:
        return by_name[asked]
    begun = [topic for topic in topics() if topic.name.startswith(asked)]
    if begun:
        return begun[0]
    inside = [topic for topic in topics() if f"{asked} ".startswith(f"{topic.name} ")]
    return max(inside, key=lambda topic: len(topic.name), default=None)


#: Categories in the order and words of the docs.
HEADINGS = {
    "connections": "Connections",
    "changefeeds": "Changefeeds",
    "listings": "Looking at feeds",
    "schedules": "Schedules",
    "users": "Users of the HTTP API",
    "dialects": "YugabyteDB's dialect",
}


def markdown() -> str:
    """Every topic as a page, by category: the second half of ``docs/language.md``."""
    parts = []
    for category, heading in HEADINGS.items():
        parts.append(f"## {heading}\n")
        parts += [_section(topic) for topic in topics() if topic.category == category]
    return "\n".join(parts)


def _section(topic: HelpTopic) -> str:
    lines = (
        f"### {topic.name}\n",
        f"```\n{topic.syntax}\n```\n",
        textwrap.fill(topic.text, 120, break_long_words=False, break_on_hyphens=False) + "\n",
        f"```sql\n{topic.example}\n```\n",
        f"See also: {', '.join(topic.see_also)}.\n",
    )
    return "\n".join(lines)
