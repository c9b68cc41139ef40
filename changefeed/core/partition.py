"""Decides which rows of a partitioned table belong to one of its partitions.

The source publishes changes of a partitioned table under the table's name: a change does not say
to which partition it belongs. The bounds of the partition do, and a feed of ``PARTITION p`` keeps
the bounds from its creation: one condition per level between the table and the partition, all of
which must hold.

A feed of logical messages selects its messages in the same way (:class:`Prefixes`).

Columns are named by their ids (:attr:`~changefeed.core.schema.Column.column_id`), so a rename of
one changes nothing. Values are in the form of the log
(:class:`~changefeed.core.types.Form`), as texts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class KeyInterval:
    """Rows between two bounds, compared column by column as a tuple; none of them NULL.

    Attributes:
        columns: numbers of the columns.
        low: the least, of as many columns as it has values; empty: from the beginning.
        high: the end, likewise; empty: without one.
        low_excluded: rows that begin with ``low`` are outside (PostgreSQL: MAXVALUE follows).
        high_included: rows that begin with ``high`` are inside.
    """

    columns: tuple[int, ...]
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()
    low_excluded: bool = False
    high_included: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """Rows with one of these values in one column. None is NULL."""

    column: int
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Logical messages whose prefix, in one column, fits one of these globs (:mod:`fnmatch`)."""

    column: int
    patterns: tuple[str, ...]


PartitionCondition = KeyInterval | Members | Prefixes


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its name, and the conditions that its rows satisfy."""

    name: str
    conditions: tuple[PartitionCondition, ...]

    @property
    def of_messages(self) -> bool:
        """Whether it selects logical messages, not rows of a table."""
        return any(isinstance(condition, Prefixes) for condition in self.conditions)

    def to_json(self) -> str:
        """A text form, for the job table."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Partition:
        """The inverse of :meth:`to_json`."""
        data = json.loads(text)
        return cls(data["name"], tuple(_condition(found) for found in data["conditions"]))


def _condition(found: dict[str, object]) -> PartitionCondition:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    if "patterns" in fields:
        return Prefixes(**fields)  # type: ignore[arg-type]
    return Members(**fields) if "values" in fields else KeyInterval(**fields)  # type: ignore[arg-type]
