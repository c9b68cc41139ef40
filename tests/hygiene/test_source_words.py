"""What PostgreSQL calls its things stays in its package: the engine speaks of attachments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

WORDS = re.compile(
    r"(?<![a-z])(?:slots?|publications?|oids?|attnums?|lsns?|system_id|binlogs?|gtids?)(?![a-z])",
    re.IGNORECASE,
)

#: Lines that may have the words, by file: what must be in the line.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # The shapes that states hold.
    "changefeed/core/schema.py": ('"oid": self.table_id', 'data["oid"]'),
    # The protocol of sources gives examples.
    "changefeed/sources/base.py": ("PostgreSQL", "``slot X, publication X``"),
    # The settings that a person has to change at a source.
    "changefeed/encoding/unsent.py": ("MySQL: binlog_row_image",),
    "changefeed/feeds/schema_policy.py": ("MySQL: binlog_row_image",),
    "changefeed/query/changes.py": ("MySQL: binlog_row_image",),
    "changefeed/query/model.py": ("MySQL: binlog_row_image",),
}

#: Rooms that are about one kind of database; the words of other products, with what to write here.
OWN = (
    "grammar/foreign.py",
    "changefeed/sources/postgres/",
    "changefeed/sources/mysql/",
    "changefeed/sources/debezium/",
    "changefeed/demo/",
    "changefeed/pg/",
    "changefeed/embedded/",
)


def _lines() -> Iterator[tuple[str, int, str]]:
    for room in ("changefeed", "shell", "grammar"):
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(OWN):
                for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                    yield name, number, line


def test_the_words_of_one_source_stay_in_its_package() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, number, line in _lines()
        if WORDS.search(line.replace("slots=True", "").replace("__slots__", ""))
        and not any(allowed in line for allowed in EXCEPTIONS.get(name, ()))
    ]
    assert found == []


def test_every_exception_is_needed() -> None:
    used = {name for name, _, line in _lines() if WORDS.search(line)}
    assert EXCEPTIONS.keys() <= used
