"""Few rows of one table, one at a time: what :mod:`.columns` does, in plain Python.

Below some hundred rows the fixed cost of the columnar way (tens of numpy calls a column) is
more than a loop over the rows. This decoder shares no code with the other on purpose: each is
the other's proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import Column, TableSchema
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows
from changefeed.sources.postgres.columns import not_utf8
from changefeed.sources.postgres.garbage import readable
from changefeed.sources.postgres.pgoutput import (
    AS_TEXT,
    DELETE,
    INSERT,
    NEW,
    NULL,
    OLD_KEY,
    OLD_ROW,
    UNCHANGED,
    frame_end,
)
from changefeed.sources.postgres.values import text_value


class _UnchangedValue:
    def __repr__(self) -> str:
        return "unchanged"


_SAME: Any = _UnchangedValue()

Texts = list[Any]


@dataclass(frozen=True, slots=True)
class _Message:
    kind: int
    old: Texts | None
    #: The old tuple is a whole row, not only a key.
    whole: bool
    new: Texts | None


def decode_rows(
    data: bytearray, tags: Sequence[int], schema: TableSchema, *, streamed: bool = False
) -> DecodedRows:
    """As :func:`changefeed.sources.postgres.columns.decode_columns`."""
    with readable(f"a row of table {schema.table}"):
        rows = _RowLists(schema)
        for number, tag in enumerate(tags):
            rows.add(number, _read(data, tag, len(schema.columns), schema, streamed))
        return rows.decoded()


def _read(data: bytearray, tag: int, width: int, schema: TableSchema, streamed: bool) -> _Message:
    place = tag + (9 if streamed else 5)
    old = new = None
    letter = data[place]
    whole = letter == OLD_ROW
    if letter in (OLD_KEY, OLD_ROW):
        old, place = _tuple(data, place + 1, width, schema)
    if data[tag] != DELETE:
        if data[place] != NEW:
            raise _misfit(schema, "a row message without a new row")
        new, place = _tuple(data, place + 1, width, schema)
    if place != frame_end(data, tag):
        raise _misfit(schema, "a tuple does not fill its message")
    return _Message(data[tag], old, whole, new)


def _tuple(data: bytearray, place: int, width: int, schema: TableSchema) -> tuple[Texts, int]:
    if int.from_bytes(data[place : place + 2]) != width:
        raise _misfit(schema, "another number of columns than announced")
    place += 2
    values: Texts = []
    for column in schema.columns:
        kind = data[place]
        place += 1
        if kind == NULL:
            values.append(None)
        elif kind == UNCHANGED:
            values.append(_SAME)
        elif kind == AS_TEXT:
            end = place + 4 + int.from_bytes(data[place : place + 4])
            if end > len(data):
                raise _misfit(schema, "a value ends outside of its message")
            values.append(_decoded(data[place + 4 : end], column, schema))
            place = end
        else:
            raise _misfit(schema, f"a value of unknown kind {chr(kind)!r}")
    return values, place


def _decoded(value: bytearray, column: Column, schema: TableSchema) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise not_utf8(schema, column) from None


def _misfit(schema: TableSchema, what: str) -> ChangefeedError:
    return ChangefeedError(Code.UNEXPECTED_MESSAGE, f"{what} (table {schema.table})")


class _RowLists:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.message: list[int] = []
        self.op: list[int] = []
        self.after: list[Texts] = []
        self.before: list[Texts] = []
        self.key: list[Texts] = []

    def add(self, number: int, message: _Message) -> None:
        schema = self.schema
        nothing: Texts = [None] * len(schema.columns)
        if message.kind == INSERT:
            self._row(number, CREATED, message.new or nothing, nothing)
        elif message.kind == DELETE:
            self._row(number, DELETED, nothing, self._old(message) or nothing)
        else:
            self._update(number, message)

    def _update(self, number: int, message: _Message) -> None:
        old, new = self._old(message), self._filled(message)
        if old is None:
            before: Texts = [None] * len(new)
            for i in self.schema.key:
                before[i] = new[i]
            self._row(number, UPDATED, new, before)
            return
        if any(old[i] != new[i] for i in self.schema.key):
            self._row(number, DELETED, [None] * len(new), old)
            self._row(number, CREATED, new, [None] * len(new))
        else:
            self._row(number, UPDATED, new, old)

    def _old(self, message: _Message) -> Texts | None:
        """The old tuple, without what an old key does not vouch for."""
        if message.old is None or message.whole:
            return message.old
        return [v if i in self.schema.key else None for i, v in enumerate(message.old)]

    def _filled(self, message: _Message) -> Texts:
        """The new row; what did not change comes from the old one where that was sent."""
        new = list(message.new or ())
        for i, value in enumerate(new):
            known = message.whole or i in self.schema.key
            if value is _SAME and message.old is not None and known:
                new[i] = message.old[i]
        return new

    def _row(self, number: int, op: int, after: Texts, before: Texts) -> None:
        self.message.append(number)
        self.op.append(op)
        self.after.append(after)
        self.before.append(before)
        self.key.append(before if op == DELETED else after)

    def decoded(self) -> DecodedRows:
        schema = self.schema
        unchanged = {}
        for i in range(len(schema.columns)):
            same = [row[i] is _SAME for row in self.after]
            if any(same):
                unchanged[i] = np.array(same, np.bool_)
        return DecodedRows(
            message=np.array(self.message, np.intp),
            op=np.array(self.op, np.uint8),
            after=[self._array(self.after, i) for i in range(len(schema.columns))],
            before=[self._array(self.before, i) for i in schema.before_ordinals],
            key=[self._array(self.key, i) for i in schema.key],
            unchanged=unchanged,
        )

    def _array(self, rows: list[Texts], ordinal: int) -> pa.Array:
        column = self.schema.columns[ordinal]
        texts = (row[ordinal] for row in rows)
        values = [None if text is _SAME else text_value(column, text) for text in texts]
        return pa.array(values, column.arrow)
