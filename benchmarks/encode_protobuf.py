"""Protobuf from the log's rows: columns at a time against Google's runtime row by row.

All make key and value in Confluent's wire format, of the tables of ``benchmarks/encode.py``, and
what they say is compared:

* ``arrow``: what feeds do (:mod:`changefeed.messages`); ``arrow 1,000`` and ``arrow 100``: so
  many rows a call, as small deliveries are;
* ``protobuf``: one row after the other with ``SerializeToString`` of Google's runtime, which is
  C, from Python values that are of their types already; ``protobuf typed``: the same from what
  the log has, that is with the moments read first, which is what a program of its own has to do.

CPU is that of this process. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
from google.protobuf.internal import api_implementation

from benchmarks.encode import changes, each, options, report, table_of
from benchmarks.encode_avro import moment_of, valid_moments
from changefeed.formats.protobuf import key_proto, message_header, value_proto
from changefeed.messages.encode import encode_messages
from changefeed.messages.plan import MessagePlan, Registered
from changefeed.schema import TableSchema
from changefeed.shapes import Format
from tests.proto_reader import message_class

Row = dict[str, Any]


class Peer:
    """Google's runtime, row by row."""

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
            if column.logical == "timestamptz":
                columns[i] = [moment_of(text) for text in columns[i]]
        stamps = zip(table["wall"].to_pylist(), table["logical"].to_pylist(), strict=True)
        return [
            {
                "after": {n: v for n, v in zip(names, row, strict=True) if v is not None},
                "updated": f"{wall}.{logical:010d}",
            }
            for row, (wall, logical) in zip(zip(*columns, strict=True), stamps, strict=True)
        ]

    def encode(self, rows: list[Row]) -> list[tuple[bytes, bytes]]:
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


def run(shape: str, rows: int, rounds: int) -> None:
    """All ways for one shape."""
    schema: TableSchema = table_of(shape)
    plan = MessagePlan(
        schema, shape, format=Format.PROTOBUF, updated=True, registered=Registered(1, 2)
    )
    table = valid_moments(changes(schema, rows), schema)
    some = table.slice(0, min(rows, 50_000))
    peer = Peer(plan)
    typed = peer.typed(some)
    made = encode_messages(some, plan)
    if list(zip(made["key"].to_pylist(), made["value"].to_pylist(), strict=True)) != peer.encode(
        typed
    ):
        raise AssertionError("Google's runtime writes other messages")
    report(shape, "arrow", rows, rounds, lambda: encode_messages(table, plan))
    for step in (1_000, 100):
        few = [some.slice(start, step) for start in range(0, some.num_rows, step)]
        way = functools.partial(each, few, plan)
        report(shape, f"arrow {step:,}", some.num_rows, rounds, way)
    report(shape, "protobuf", len(typed), rounds, lambda: peer.encode(typed))
    report(shape, "protobuf typed", len(typed), rounds, lambda: peer.encode(peer.typed(some)))


def main() -> None:
    """Run what is asked for."""
    parser = options()
    parser.description = (__doc__ or "").partition("\n")[0]
    asked = parser.parse_args()
    print(f"Google's runtime is {api_implementation.Type()}")
    for shape in ["narrow", "wide"] if asked.shape == "both" else [asked.shape]:
        run(shape, asked.rows, asked.rounds)


if __name__ == "__main__":
    main()
