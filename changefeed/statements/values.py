"""Values of listings that compare as numbers and show as a person reads them.

``str()`` is for tables, the value itself for JSON, WHERE and ORDER BY.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from changefeed.core.figures import count_text, duration_text, size_text


class Seconds(float):
    """A span of time; shows as ``2m 5s``."""

    def __str__(self) -> str:
        return duration_text(self)


class Size(float):
    """Bytes; shows as ``1.5 kB``."""

    def __str__(self) -> str:
        return size_text(self)


class Rate(float):
    """Rows a second; shows as ``1,234``."""

    def __str__(self) -> str:
        return count_text(self)


class Estimate(float):
    """A count that the source's statistics give; shows as ``~1,234``."""

    def __str__(self) -> str:
        return f"~{count_text(self)}"


class Names(tuple[str, ...]):
    """A list of names; shows as ``a, b``."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(self)


class ShownText(str):
    """A text for programs, of which a person is shown other words."""

    __slots__ = ("_words",)

    _words: str | Callable[[], str]

    def __new__(cls, text: str, words: str | Callable[[], str]) -> ShownText:
        """``text`` is the value: what WHERE compares and JSON and CSV hold. ``words`` may be made
        when they are asked for: most listings are for programs."""
        made = super().__new__(cls, text)
        made._words = words
        return made

    @property
    def words(self) -> str:
        """What a person is shown."""
        return self._words if isinstance(self._words, str) else self._words()


#: What a cell of a result can be.
Cell = str | int | float | Names | None


class ColumnKind(StrEnum):
    """What the cells of a column are to a program."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    MOMENT = "timestamp"
    LIST = "list"


#: Columns of whole numbers that are no sizes, which a condition takes as '5 MB', too.
PLAIN_INTEGERS = ("job_id", "schedule_id", "pid", "times", "generation", "max_feeds", "spark_job")
#: Columns of listings that hold something else than text, by name: the same in every listing.
COLUMN_KINDS: dict[str, ColumnKind] = {
    **dict.fromkeys(PLAIN_INTEGERS, ColumnKind.INTEGER),
    **dict.fromkeys(("tasks", "tasks_done", "tasks_failed"), ColumnKind.INTEGER),
    **dict.fromkeys(
        ("read_rows", "read_bytes", "written_rows", "written_bytes"), ColumnKind.INTEGER
    ),
    **dict.fromkeys(("emitted_rows", "emitted_bytes", "rows", "size", "bytes"), ColumnKind.INTEGER),
    **dict.fromkeys(
        ("lag", "rows_per_second", "bytes_per_second", "waited", "seconds", "duration"),
        ColumnKind.NUMBER,
    ),
    **dict.fromkeys(("created", "started", "finished", "modified"), ColumnKind.MOMENT),
    **dict.fromkeys(
        ("time", "last", "at", "expires", "seen", "next_run", "last_run"), ColumnKind.MOMENT
    ),
    **dict.fromkeys(
        ("full_table_names", "topics", "captures", "feeds", "paused_tables"), ColumnKind.LIST
    ),
    **dict.fromkeys(("key", "used_by", "watched_by", "targets", "options"), ColumnKind.LIST),
}


def plain_cell(cell: Cell) -> str | int | float | list[str] | None:
    """A cell as JSON has it: whole numbers without ``.0``, names as a list."""
    if isinstance(cell, tuple):
        return list(cell)
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() else float(cell)
    return cell
