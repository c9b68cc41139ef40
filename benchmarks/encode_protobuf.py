"""Protobuf from the log's rows: columns at a time against Google's runtime row by row.

All make key and value in Confluent's wire format, of the tables of ``benchmarks/encoding.py``, and
what they say is compared:

* ``arrow``: what feeds do (:mod:`changefeed.encoding`); ``arrow 1,000`` and ``arrow 100``: so
  many rows a call, as small deliveries are;
* ``protobuf``: one row after the other with ``SerializeToString`` of Google's runtime, which is
  C, from Python values that are of their types already; ``protobuf typed``: the same from what
  the log has, that is with the moments read first, which is what a program of its own has to do.

CPU is that of this process. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import functools

import pyarrow as pa
from google.protobuf.internal import api_implementation

from benchmarks.encoding import Messages, Row, compare_registered, main, moment_of, stamps_of
from changefeed.core.formats import Format
from changefeed.core.types import Kind
from changefeed.encoding.plan import MessagePlan
from changefeed.encoding.protobuf.schema import key_proto, message_header, value_proto
from tests.helpers.proto_reader import message_class


class Peer:
    """Google's runtime, row by row."""

    name = "protobuf"

    def __init__(self, plan: MessagePlan) -> None:
        value = value_proto(plan)
        if value is None or plan.registered is None:
            raise ValueError("the plan has no value or no ids")
        self.key = message_class(key_proto(plan))
        self.value = message_class(value)
        self._heads = message_header(plan.registered.key), message_header(plan.registered.value)
        self._schema = plan.schema

    def typed(self, table: pa.Table) -> list[Row]:
        """The rows with values of their types, without those that are NULL."""
        names = [column.name for column in self._schema.columns]
        columns = [table[f"a{i}"].to_pylist() for i in range(len(names))]
        for i, column in enumerate(self._schema.columns):
            if column.kind is Kind.TIMESTAMPTZ:
                columns[i] = [moment_of(text) for text in columns[i]]
        return [
            {
                "after": {n: v for n, v in zip(names, row, strict=True) if v is not None},
                "updated": stamp,
            }
            for row, stamp in zip(zip(*columns, strict=True), stamps_of(table), strict=True)
        ]

    def encode(self, rows: list[Row]) -> Messages:
        """Keys and values."""
        names = [column.name for column in self._schema.key_columns]
        head, other = self._heads
        return [
            (
                head + self.key(**{n: row["after"][n] for n in names}).SerializeToString(),
                other + self.value(**row).SerializeToString(),
            )
            for row in rows
        ]


if __name__ == "__main__":
    print(f"Google's runtime is {api_implementation.Type()}")
    main(__doc__, functools.partial(compare_registered, Format.PROTOBUF, Peer))
