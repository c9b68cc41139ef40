"""Avro from the log's rows: columns at a time against fastavro row by row.

All make key and value in Confluent's wire format, of the tables of ``benchmarks/encoding.py``, and
the bytes are compared:

* ``arrow``: what feeds do (:mod:`changefeed.encoding`); ``arrow 1,000`` and ``arrow 100``: so
  many rows a call, as small deliveries are;
* ``fastavro``: one row after the other with ``schemaless_writer``, from Python values that are
  of their types already; ``fastavro typed``: the same from what the log has, that is with the
  texts made into numbers and moments first, which is what a program of its own has to do.

CPU is that of this process. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from benchmarks.encoding import Messages, Row, compare_registered, main, moment_of, stamps_of
from changefeed.core.formats import Format
from changefeed.encoding.avro.schema import key_schema, value_schema
from changefeed.encoding.binary_format import header
from changefeed.encoding.plan import MessagePlan


class Peer:
    """fastavro, row by row."""

    name = "fastavro"

    def __init__(self, plan: MessagePlan) -> None:
        value = value_schema(plan)
        if value is None or plan.registered is None:
            raise ValueError("the plan has no value or no ids")
        self._key = fastavro.parse_schema(key_schema(plan))
        self._value = fastavro.parse_schema(value)
        self._heads = header(plan.registered.key), header(plan.registered.value)
        self._schema = plan.schema
        self._casts = [_CASTS.get(c.kind, _same) for c in plan.schema.columns]

    def typed(self, table: pa.Table) -> list[Row]:
        """The rows with values of their types."""
        names = [column.name for column in self._schema.columns]
        columns = [table[f"a{i}"].to_pylist() for i in range(len(names))]
        made = [
            [None if value is None else cast(value) for value in column]
            for cast, column in zip(self._casts, columns, strict=True)
        ]
        return [
            {"after": dict(zip(names, row, strict=True)), "updated": stamp}
            for row, stamp in zip(zip(*made, strict=True), stamps_of(table), strict=True)
        ]

    def encode(self, rows: list[Row]) -> Messages:
        """Keys and values."""
        names = [column.name for column in self._schema.key_columns]
        out = []
        for row in rows:
            key, value = io.BytesIO(), io.BytesIO()
            key.write(self._heads[0])
            fastavro.schemaless_writer(key, self._key, {n: row["after"][n] for n in names})
            value.write(self._heads[1])
            fastavro.schemaless_writer(value, self._value, row)
            out.append((key.getvalue(), value.getvalue()))
        return out


def _same(value: Any) -> Any:
    return value


_CASTS: dict[str, Callable[[Any], Any]] = {"decimal": Decimal, "timestamptz": moment_of}


if __name__ == "__main__":
    main(__doc__, functools.partial(compare_registered, Format.AVRO, Peer))
