"""Avro from the log's rows: columns at a time against fastavro row by row.

All make key and value in Confluent's wire format, of the tables of ``benchmarks/encode.py``, and
the bytes are compared:

* ``arrow``: what feeds do (:mod:`changefeed.messages`); ``arrow 1,000`` and ``arrow 100``: so
  many rows a call, as small deliveries are;
* ``fastavro``: one row after the other with ``schemaless_writer``, from Python values that are
  of their types already; ``fastavro typed``: the same from what the log has, that is with the
  texts made into numbers and moments first, which is what a program of its own has to do.

CPU is that of this process. On a busy machine trust the CPU figures.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.encode import changes, each, options, report, table_of
from changefeed.formats.avro import key_schema, value_schema
from changefeed.formats.wire import header
from changefeed.messages.encode import encode_messages
from changefeed.messages.plan import MessagePlan, Registered
from changefeed.schema import TableSchema
from changefeed.shapes import Format

Row = dict[str, Any]


class Peer:
    """fastavro, row by row."""

    def __init__(self, plan: MessagePlan) -> None:
        value = value_schema(plan)
        if value is None or plan.registered is None:
            raise ValueError("the plan has no value or no ids")
        self._key = fastavro.parse_schema(key_schema(plan))
        self._value = fastavro.parse_schema(value)
        self._heads = header(plan.registered.key), header(plan.registered.value)
        self._schema = plan.schema
        self._casts = [_CASTS.get(c.logical.partition("(")[0], _same) for c in plan.schema.columns]

    def typed(self, table: pa.Table) -> list[Row]:
        """The rows with values of their types."""
        names = [column.name for column in self._schema.columns]
        columns = [table[f"a{i}"].to_pylist() for i in range(len(names))]
        made = [
            [None if value is None else cast(value) for value in column]
            for cast, column in zip(self._casts, columns, strict=True)
        ]
        stamps = zip(table["wall"].to_pylist(), table["logical"].to_pylist(), strict=True)
        return [
            {"after": dict(zip(names, row, strict=True)), "updated": f"{wall}.{logical:010d}"}
            for row, (wall, logical) in zip(zip(*made, strict=True), stamps, strict=True)
        ]

    def encode(self, rows: list[Row]) -> list[tuple[bytes, bytes]]:
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


def moment_of(text: str) -> dt.datetime:
    """A moment of the log."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    micros = int(fraction[:6].ljust(6, "0"))
    return dt.datetime.fromisoformat(whole).replace(microsecond=micros, tzinfo=dt.UTC)


_CASTS: dict[str, Callable[[Any], Any]] = {"decimal": Decimal, "timestamptz": moment_of}


def run(shape: str, rows: int, rounds: int) -> None:
    """All ways for one shape."""
    schema: TableSchema = table_of(shape)
    plan = MessagePlan(schema, shape, format=Format.AVRO, updated=True, registered=Registered(1, 2))
    table = valid_moments(changes(schema, rows), schema)
    some = table.slice(0, min(rows, 50_000))
    peer = Peer(plan)
    typed = peer.typed(some)
    made = encode_messages(some, plan)
    if list(zip(made["key"].to_pylist(), made["value"].to_pylist(), strict=True)) != peer.encode(
        typed
    ):
        raise AssertionError("fastavro writes other messages")
    report(shape, "arrow", rows, rounds, lambda: encode_messages(table, plan))
    for step in (1_000, 100):
        few = [some.slice(start, step) for start in range(0, some.num_rows, step)]
        way = functools.partial(each, few, plan)
        report(shape, f"arrow {step:,}", some.num_rows, rounds, way)
    report(shape, "fastavro", len(typed), rounds, lambda: peer.encode(typed))
    report(shape, "fastavro typed", len(typed), rounds, lambda: peer.encode(peer.typed(some)))


def valid_moments(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Moments with six digits behind the point, as PostgreSQL prints them."""
    for i, column in enumerate(schema.columns):
        if column.logical == "timestamptz":
            place = table.schema.get_field_index(f"a{i}")
            texts = pc.replace_substring_regex(table[f"a{i}"], r"\.(\d{1,6})\d*Z", r".\1Z")
            table = table.set_column(place, table.schema.field(place), texts)
    return table


def main() -> None:
    """Run what is asked for."""
    parser = options()
    parser.description = (__doc__ or "").partition("\n")[0]
    asked = parser.parse_args()
    for shape in ["narrow", "wide"] if asked.shape == "both" else [asked.shape]:
        run(shape, asked.rows, asked.rounds)


if __name__ == "__main__":
    main()
