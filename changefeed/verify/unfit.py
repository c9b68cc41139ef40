"""Rows of the source that the target cannot hold: they differ, whatever the target has of them, and
are not compared there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.halves import sifted
from changefeed.core.schema import TableSchema
from changefeed.core.types import TEXT_NUMBERS
from sinks.base import Batch, Difference, Epoch, Sink, Target


class UnfitRows:
    """Takes such rows out of those of one table, and names them among its differences.

    Args:
        sink: of typed rows.
        schema: of the rows.
        most: so many are named at most.
    """

    def __init__(self, sink: Sink, feed: str, target: Target, schema: TableSchema, most: int):
        self._sink, self._feed, self._target = sink, feed, target
        self._schema, self._most = schema, most
        self._rows: list[tuple[object, ...]] = []

    def but_these(self, rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The other rows."""
        for batch in rows:
            fit, refused = sifted(batch, self._examine)
            for place, _ in refused[: self._most - len(self._rows)]:
                columns = [batch[f"a{i}"] for i in range(len(self._schema.columns))]
                self._rows.append(tuple(column[place].as_py() for column in columns))
            yield fit

    def _examine(self, rows: pa.Table) -> None:
        start = Epoch(0, Timestamp.ZERO)
        self._sink.examine(Batch(self._feed, start, 0, self._target, self._schema, rows, scan=True))

    def among(self, found: Sequence[Difference]) -> list[Difference]:
        """All differences. A row that the source does not seem to have may be an older version."""
        if not self._rows:
            return list(found)
        if self._schema.keyless:
            counts = Counter(map(self._row, self._rows))
            unfit = [Difference("missing", "[]", f"{n} x {r}", None) for r, n in counts.items()]
            return [*unfit, *found][: self._most]
        older = {d.key: d for d in found if d.kind == "extra"}
        made = []
        for row in self._rows:
            texts = self._texts(row)
            key = [(row[i], texts[i]) for i in self._schema.key]
            shown = [value if type(value) is int else text for value, text in key]
            name = json.dumps(shown, ensure_ascii=False)
            held = older.pop(name, None)
            kind, target = ("missing", None) if held is None else ("changed", held.target)
            values = tuple(str(text) for _, text in key)
            made.append(Difference(kind, name, self._row(row), target, values))
        rest = [d for d in found if d.kind != "extra" or d.key in older]
        return [*made, *rest][: self._most]

    def _row(self, row: Sequence[object]) -> str:
        names = [column.name for column in self._schema.columns]
        return json.dumps(dict(zip(names, self._texts(row), strict=True)), ensure_ascii=False)

    def _texts(self, row: Sequence[object]) -> list[str | None]:
        """Values in log form as texts, as a target shows them."""
        found: list[str | None] = []
        for column, value in zip(self._schema.columns, row, strict=True):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            text = text.strip('"') if column.kind in TEXT_NUMBERS else text
            found.append(None if value is None else text)
        return found
