"""Random changes of a table, as a source that logs little sends them, with the true rows.

What comes out is what a decoder makes: rows of the log in which a row before has its key alone and
large values that did not change are missing. The model is a dict.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from changefeed.core.clock import Timestamp
from changefeed.core.schema import BeforeImage, Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from changefeed.sources.decoded.rows import CREATED, DELETED, UPDATED, DecodedRows
from changefeed.sources.decoded.superseded import collapse

Row = tuple[object, ...]

SCHEMA = TableSchema(
    TableName("shop", "public", "things"),
    (
        Column("id", "integer", LogicalType.parse("int32"), False, 1),
        Column("n", "integer", LogicalType.parse("int32"), True, 2),
        Column("big", "text", LogicalType.parse("text"), True, 3),
        Column("flag", "boolean", LogicalType.parse("bool"), True, 4),
        Column("wide", "text", LogicalType.parse("text"), True, 5),
    ),
    key=(0,),
    before_image=BeforeImage.FULL,
    table_id=16384,
    version=7,
)
#: Columns that the source leaves out where they did not change.
LARGE = (2, 4)


@dataclass(slots=True)
class Sent:
    """One row of the log as it was sent, and as it truly is."""

    op: int
    key: object
    after: Row | None
    missing: list[int]
    at: Timestamp
    before: Row | None
    #: What the row after was, in full.
    whole: Row | None


@dataclass
class Table:
    """A table that is changed at random."""

    seed: int
    keys: int = 12
    rows: dict[object, Row] = field(default_factory=dict)
    at: Timestamp = field(default_factory=lambda: Timestamp(1_000))
    seq: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def transaction(self, changes: int) -> list[Sent]:
        """Some changes of one transaction."""
        self.at = Timestamp(self.at.wall + 1_000)
        sent: list[Sent] = []
        for _ in range(changes):
            sent += self._change()
        return sent

    def _value(self, i: int) -> object:
        draw = self.random
        if draw.random() < 0.15:
            return None
        if i == 1:
            return draw.randint(-(2**31), 2**31 - 1)
        if i == 3:
            return draw.random() < 0.5
        return "é☃x"[draw.randrange(3)] * draw.choice([0, 1, 3, 400])

    def _new(self, key: object) -> Row:
        return (key, *(self._value(i) for i in range(1, 5)))

    def _change(self) -> list[Sent]:
        draw = self.random
        key: object = draw.randrange(self.keys)
        old = self.rows.get(key)
        if old is None:
            row = self._new(key)
            self.rows[key] = row
            return [Sent(CREATED, key, row, [], self.at, None, row)]
        if draw.random() < 0.2:
            del self.rows[key]
            return [Sent(DELETED, key, None, [], self.at, old, None)]
        new = list(self._new(key))
        missing = [i for i in LARGE if draw.random() < 0.6]
        for i in missing:
            new[i] = old[i]
        shown = [None if i in missing else value for i, value in enumerate(new)]
        other: object = draw.randrange(self.keys)
        if other not in self.rows and draw.random() < 0.5:
            new[0] = shown[0] = other
            del self.rows[key]
            self.rows[other] = tuple(new)
            return [
                Sent(DELETED, key, None, [], self.at, old, None),
                Sent(CREATED, other, tuple(shown), missing, self.at, None, tuple(new)),
            ]
        self.rows[key] = tuple(new)
        return [Sent(UPDATED, key, tuple(shown), missing, self.at, old, tuple(new))]


def batch(
    schema: TableSchema, sent: list[Sent], first_seq: int, whole: list[Sent] | None = None
) -> tuple[pa.RecordBatch, list[dict[str, object]]]:
    """The rows as the decoder and the assembler make them, and what they truly are.

    ``whole``: all rows of the transactions, where ``sent`` is a part of them; the rows of ``sent``
    are then found among those.
    """
    every = whole or sent
    begin = next(i for i, row in enumerate(every) if row is sent[0]) if whole else 0
    stop = begin + len(sent)
    transaction = np.array([row.at.wall for row in every], np.intp)
    keys = pa.array([row.key for row in every], pa.int32())
    decoded = DecodedRows(
        message=np.arange(len(every)),
        op=np.array([row.op for row in every], np.uint8),
        after=_columns(schema, [row.after for row in every]),
        before=_columns(
            schema,
            [
                None if row.op == CREATED else (row.key, *[None] * (len(schema.columns) - 1))
                for row in every
            ],
        ),
        key=[keys],
    )
    marked = collapse(schema, decoded, transaction)
    true = collapse(
        schema,
        replace(decoded, before=_columns(schema, [row.before for row in every])),
        transaction,
    )
    last = marked.last_column()
    names = [
        json.dumps([schema.columns[i].name for i in row.missing]) if row.missing else None
        for row in every
    ]
    count = len(every)
    arrays = [
        pa.array([chr(op) for op in marked.op.tolist()]),
        pa.array([row.at.wall for row in every], pa.int64()),
        pa.array([row.at.logical for row in every], pa.int32()),
        pa.array(np.arange(first_seq - begin, first_seq - begin + count), pa.int64()),
        pa.array(range(count), pa.int32()),
        pa.array([1] * count, pa.int64()),
        pa.array([0] * count, pa.int64()),
        last,
        pa.array(names, pa.string()),
        *decoded.after,
        *[marked.before[i] for i in schema.before_ordinals],
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema.log_schema()).slice(begin, stop - begin)
    wholes = _columns(schema, [row.whole for row in every])
    expected = [
        {f"a{i}": column[n].as_py() for i, column in enumerate(wholes)}
        | {f"b{i}": column[n].as_py() for i, column in enumerate(true.before)}
        for n in range(begin, stop)
    ]
    for n, row in enumerate(expected, start=begin):
        if chr(marked.op[n]) == "c":
            row |= {f"b{i}": None for i in range(len(schema.columns))}
    return rows, expected


def _columns(schema: TableSchema, rows: list[Row | None]) -> list[pa.Array]:
    return [
        pa.array([None if row is None else row[i] for row in rows], column.arrow)
        for i, column in enumerate(schema.columns)
    ]
