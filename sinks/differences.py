"""How a row that differs is shown: its key and its values as JSON texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from changefeed.core.schema import TableSchema
from changefeed.core.types import INTEGERS
from sinks.base import Difference

#: Values of one row as texts, in the order of the table's columns; None for NULL.
Texts = Sequence[object]


class DifferenceText:
    """Makes the :class:`~sinks.base.Difference` of rows of one table.

    Args:
        schema: of the rows at the source.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._names = [column.name for column in schema.columns]
        self._key = () if schema.keyless else tuple(schema.key)
        self._bare = {i for i in self._key if schema.columns[i].kind in INTEGERS}

    def missing(self, source: Texts) -> Difference:
        """The target lacks the row."""
        return Difference("missing", self.key(source), self.row(source), None, self._values(source))

    def extra(self, target: Texts) -> Difference:
        """The source lacks the row."""
        return Difference("extra", self.key(target), None, self.row(target), self._values(target))

    def changed(self, source: Texts, target: Texts) -> Difference:
        """Both have the row, with other values; only those are shown."""
        differ = [i for i in range(len(self._names)) if source[i] != target[i]]
        places = differ or list(range(len(self._names)))
        return Difference(
            "changed",
            self.key(source),
            self.row(source, places),
            self.row(target, places),
            self._values(source),
        )

    def of(self, source: Texts | None, target: Texts | None) -> Difference:
        """A row that one side lacks (None), or that both have."""
        if source is not None and target is not None:
            return self.changed(source, target)
        return self.missing(source) if source is not None else self.extra(target or ())

    def count(self, row: Texts, source: int, target: int) -> Difference:
        """Both have the row of a table without a key, but not equally often."""
        text = self.row(row)
        if not target:
            return Difference("missing", self.key(row), f"{source} x {text}", None)
        if not source:
            return Difference("extra", self.key(row), None, f"{target} x {text}")
        return Difference("count", self.key(row), f"{source} x {text}", f"{target} x {text}")

    def key(self, texts: Texts) -> str:
        """The values of the key as a JSON array; an empty one where the table has no key."""
        shown = [
            str(texts[i]) if i in self._bare else json.dumps(str(texts[i]), ensure_ascii=False)
            for i in self._key
        ]
        return f"[{', '.join(shown)}]"

    def _values(self, texts: Texts) -> tuple[str, ...]:
        return tuple(str(texts[i]) for i in self._key)

    def row(self, texts: Texts, places: Sequence[int] | None = None) -> str:
        """The row, or its columns at ``places``, as a JSON object of texts."""
        wanted = range(len(self._names)) if places is None else places
        row = {self._names[i]: None if texts[i] is None else str(texts[i]) for i in wanted}
        return json.dumps(row, ensure_ascii=False)


def unequal_counts(
    source: str,
    target: str,
    columns: Sequence[str],
    distinct: tuple[str, str],
    texts: Sequence[str],
    limit: int,
) -> str:
    """SQL: rows that are not equally often in two tables without a key, those of the source first.
    Each is how often it is in the source, how often in the target, and its texts.

    Args:
        source, target: SELECTs in parentheses, of the same columns.
        columns: their names, quoted.
        distinct: SELECT list and GROUP BY list that make one row of equal rows of ``b``.
        texts: of the columns of ``l``, for people.
    """
    listed, (one_row, equal_rows) = ", ".join(columns), distinct
    # Numbers that count() makes are whole in every dialect, those of sum() are not.
    ours, theirs = (f"count(CASE WHEN b._side = {side} THEN 1 END)" for side in (1, 2))
    both = (
        f"SELECT {listed}, 1 AS _side FROM {source} AS s "
        f"UNION ALL SELECT {listed}, 2 AS _side FROM {target} AS t"
    )
    counts = (
        f"SELECT {one_row}, {ours} AS _ours, {theirs} AS _theirs FROM ({both}) AS b "
        f"GROUP BY {equal_rows} HAVING {ours} <> {theirs}"
    )
    order = ", ".join(str(3 + place) for place in range(len(texts)))
    return (
        f"SELECT l._ours, l._theirs, {', '.join(texts)} FROM ({counts}) AS l "
        f"ORDER BY CASE WHEN l._ours = 0 THEN 1 ELSE 0 END, {order} LIMIT {limit}"
    )
