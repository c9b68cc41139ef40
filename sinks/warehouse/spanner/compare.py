"""How a Spanner table differs from the source: both sides in a file, by key.

The source's rows are written as they travel to Spanner (:mod:`.rows`), and what Spanner answers in
one read is brought into the same writing, so what a mutation would have stored is equal. Both go
through one SQLite file of the comparison: memory stays bounded whatever the size of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sinks.base import Difference
from sinks.comparison_file import ComparisonFile, Unequal, batches
from sinks.differences import DifferenceText
from sinks.merged.policy import DELETED, TablePolicy
from sinks.warehouse.spanner.rows import RowWire, Value, canonical
from sinks.warehouse.staging import TargetShape, check_values

if TYPE_CHECKING:
    from sinks.warehouse.spanner.client import Spanner

#: Whole numbers that JSON has exactly in Spanner; others are floating-point numbers there.
_WHOLE = range(-(1 << 63), 1 << 64)


class SpannerComparison(ComparisonFile):
    """Compares one table with rows of the source. A context manager: at its end the file is gone.

    Equal rows of a table without a key are counted on both sides.
    """

    def __init__(
        self,
        server: Spanner,
        policy: TablePolicy,
        shape: TargetShape,
        folder: str,
        read: Callable[[int], object],
    ) -> None:
        """
        Args:
            server, policy, shape: the target.
            folder, read: see :class:`ComparisonFile`.
        """
        self._server = server
        self._shape = shape
        self._soft = policy.soft
        self._wire = RowWire.of(shape, server.dialect)
        self._text = DifferenceText(shape.schema)
        self._key = [shape.names.index(name) for name in shape.key]
        super().__init__(folder, read)

    def run(self, rows: Iterable[pa.Table], limit: int) -> list[Difference]:
        """The differences, at most ``limit``: missing and changed rows before those too many, by
        key. The target is read after the last of ``rows``.

        Raises:
            ChangefeedError: CF5006, the target cannot hold a value; Spanner failed.
        """
        for batch in rows:
            staged = self._shape.staged(batch, 1)
            check_values(self._shape, staged, self._server.dialect)
            self._put("source", zip(*self._wire.columns(staged), strict=True))
        for many in batches(self._stored()):
            self._put("target", many)
            self._read(sum(len(str(value)) for row in many for value in row))
        return list(map(self._difference, self.unequal(limit)))

    def _stored(self) -> Iterator[tuple[Value, ...]]:
        """The rows of the target as they would be sent."""
        self._server.connect(make=False)
        if not self._server.columns(self._shape.topic):
            return
        count = len(self._shape.names)
        names = (*self._shape.names, DELETED) if self._soft else self._shape.names
        for row in self._server.read_all(self._shape.topic, names):
            if not (self._soft and row[count]):
                yield tuple(map(canonical, self._wire.types, row[:count]))

    def _put(self, side: str, rows: Iterable[tuple[Value, ...]]) -> None:
        add = (
            f"INSERT INTO {side} (id, row) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET count = count + 1"
        )
        self._file.executemany(add, map(self._id_and_row, rows))

    def _id_and_row(self, row: tuple[Value, ...]) -> tuple[str, str]:
        texts = list(map(comparable_text, self._wire.types, row))
        key = texts if self._shape.keyless else [texts[i] for i in self._key]
        return _json(key), _json(texts)

    def _difference(self, found: Unequal) -> Difference:
        wanted, held = json.loads(found.source or "null"), json.loads(found.target or "null")
        if self._shape.keyless:
            return self._text.count(wanted or held, found.source_count, found.target_count)
        return self._text.of(wanted, held)


def comparable_text(sql: str, value: Value) -> str | None:
    """A value as text, equal where Spanner has equal values."""
    if value is None or (isinstance(value, str) and sql != "JSON"):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value + 0.0)  # of its two zeros one
    parsed = json.loads(value, parse_float=_number, parse_int=_number)
    return json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _number(text: str) -> int | float:
    """A number of JSON: 1.50 is 1.5, and 1.0 is 1."""
    found = float(text)
    whole = int(text) if text.lstrip("-").isdigit() else int(found) if found.is_integer() else None
    return whole if whole is not None and whole in _WHOLE else found


def _json(texts: list[str | None]) -> str:
    return json.dumps(texts, ensure_ascii=False)
