"""What the benchmarks of encoding share: tables of the log, the measuring, their words.

The narrow and the wide table are those of every format. Formats whose messages begin with the
ids of registered schemas are measured by :func:`compare_registered`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import Meter
from changefeed.core.formats import Format
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.encoding.encode import encode_messages
from changefeed.encoding.plan import MessagePlan, SchemaIds

Row = dict[str, Any]
#: Keys and values.
Messages = list[tuple[bytes, bytes]]

_KINDS = {
    "int8": Column("", "int8", LogicalType.parse("int64")),
    "int4": Column("", "int4", LogicalType.parse("int32")),
    "bool": Column("", "bool", LogicalType.parse("bool")),
    "numeric": Column("", "numeric(12,2)", LogicalType.parse("decimal(12,2)")),
    "jsonb": Column("", "jsonb", LogicalType.parse("json")),
    "text": Column("", "text", LogicalType.parse("text")),
    "timestamptz": Column("", "timestamptz", LogicalType.parse("timestamptz")),
}
_SHAPES = {
    "narrow": "int8 int4 text timestamptz numeric",
    "wide": "int8 int4 text text numeric numeric bool bool text jsonb numeric timestamptz "
    "timestamptz text text",
}


def table_of(shape: str) -> TableSchema:
    """The narrow or the wide table."""
    columns = []
    for i, kind in enumerate(_SHAPES[shape].split()):
        like = _KINDS[kind]
        columns.append(Column(f"column_{i}", kind, like.logical, i > 0))
    return TableSchema(TableName("bench", "public", shape), tuple(columns), (0,))


def changes(schema: TableSchema, rows: int, seed: int = 1) -> pa.Table:
    """Updates as the log keeps them: distinct values, nothing to escape, one text in ten NULL."""
    random = np.random.default_rng(seed)
    numbers = np.arange(rows)
    wall = pa.array(1_700_000_000_000_000_000 + numbers)
    columns: dict[str, pa.Array] = {"wall": wall, "seq": pa.array(numbers)}
    fixed: dict[str, object] = {"op": "u", "last": True, "missing": None}
    for i, column in enumerate(schema.columns):
        columns[f"a{i}"] = _values(column, random, rows)
    log = schema.log_schema()
    for field in log:
        if field.name not in columns:
            value = fixed.get(field.name, None if field.name.startswith("b") else 0)
            columns[field.name] = pa.repeat(pa.scalar(value, field.type), rows)
    return pa.table([columns[name].cast(log.field(name).type) for name in log.names], schema=log)


def _values(column: Column, random: np.random.Generator, rows: int) -> pa.Array:
    numbers = pa.array(random.integers(0, 2**31 - 1, rows))
    texts = numbers.cast(pa.string())
    made: dict[str, Callable[[], pa.Array]] = {
        "bool": lambda: pa.array(random.integers(0, 2, rows).astype(bool)),
        "numeric": lambda: _around(texts, "", ".25"),
        "jsonb": lambda: _around(texts, '{"k": "', '", "n": 17, "ok": true}'),
        "timestamptz": lambda: _around(texts, "2026-01-01T01:02:03.", "Z"),
        "text": lambda: _with_nulls(_around(texts, "some words and the number ", ""), random),
    }
    return made.get(column.type_name, lambda: numbers)()


def _around(texts: pa.Array, before: str, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "")


def _with_nulls(texts: pa.Array, random: np.random.Generator) -> pa.Array:
    return pc.if_else(pa.array(random.random(len(texts)) < 0.1), None, texts)


def valid_moments(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Moments with six digits behind the point, as PostgreSQL prints them."""
    for i, column in enumerate(schema.columns):
        if column.kind is Kind.TIMESTAMPTZ:
            place = table.schema.get_field_index(f"a{i}")
            texts = pc.replace_substring_regex(table[f"a{i}"], r"\.(\d{1,6})\d*Z", r".\1Z")
            table = table.set_column(place, table.schema.field(place), texts)
    return table


def moment_of(text: str) -> dt.datetime:
    """A moment of the log."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    micros = int(fraction[:6].ljust(6, "0"))
    return dt.datetime.fromisoformat(whole).replace(microsecond=micros, tzinfo=dt.UTC)


def stamps_of(table: pa.Table) -> list[str]:
    """``updated`` of each row."""
    parts = zip(table["wall"].to_pylist(), table["logical"].to_pylist(), strict=True)
    return [f"{wall}.{logical:010d}" for wall, logical in parts]


def report(shape: str, name: str, rows: int, rounds: int, way: Callable[[], object]) -> None:
    """Measure and print the best round."""
    costs = []
    for _ in range(rounds):
        with Meter(os.getpid()) as meter:
            way()
        costs.append((meter.cost.wall_seconds, meter.cost.cpu_seconds))
    wall, cpu = min(costs)
    print(
        f"{shape:7} {name:15} {rows / wall:10,.0f} rows/s  {cpu * 1e6 / rows:6.2f} us of CPU a row",
        flush=True,
    )


def each(parts: list[pa.Table], plan: MessagePlan, clean: frozenset[str] | None = None) -> None:
    """One call for each part."""
    for part in parts:
        encode_messages(part, plan, clean)


def report_parts(
    shape: str, table: pa.Table, plan: MessagePlan, rounds: int, clean: frozenset[str] | None = None
) -> None:
    """Measure :func:`each` with few rows a call."""
    for step in (1_000, 100):
        few = [table.slice(start, step) for start in range(0, table.num_rows, step)]
        way = functools.partial(each, few, plan, clean)
        report(shape, f"arrow {step:,}", table.num_rows, rounds, way)


class Peer(Protocol):
    """Another way to make the messages of a plan, row by row."""

    name: str

    def typed(self, table: pa.Table) -> list[Row]:
        """The rows with values of their types."""
        ...

    def encode(self, rows: list[Row]) -> Messages:
        """Keys and values."""
        ...


def compare_registered(
    kind: Format, make_peer: Callable[[MessagePlan], Peer], shape: str, rows: int, rounds: int
) -> None:
    """All ways for one shape, in Confluent's wire format.

    Raises:
        AssertionError: the peer makes other bytes.
    """
    schema = table_of(shape)
    plan = MessagePlan(schema, shape, format=kind, updated=True, registered=SchemaIds(1, 2))
    table = valid_moments(changes(schema, rows), schema)
    some = table.slice(0, min(rows, 50_000))
    peer = make_peer(plan)
    typed = peer.typed(some)
    made = encode_messages(some, plan)
    ours = list(zip(made["key"].to_pylist(), made["value"].to_pylist(), strict=True))
    if ours != peer.encode(typed):
        raise AssertionError(f"{peer.name} writes other messages")
    report(shape, "arrow", rows, rounds, lambda: encode_messages(table, plan))
    report_parts(shape, some, plan, rounds)
    report(shape, peer.name, len(typed), rounds, lambda: peer.encode(typed))
    report(shape, f"{peer.name} typed", len(typed), rounds, lambda: peer.encode(peer.typed(some)))


def main(description: str | None, run: Callable[[str, int, int], None]) -> None:
    """Run what the command line asks for: ``run(shape, rows, rounds)``."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--shape", choices=(*_SHAPES, "both"), default="both")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for shape in list(_SHAPES) if asked.shape == "both" else [asked.shape]:
        run(shape, asked.rows, asked.rounds)
