"""JSON from the log's rows: columns at a time against Python's json row by row.

All make key and value of every row, of a narrow and of a wide table:

* ``arrow``: what feeds do (:mod:`changefeed.messages`), the log having said that no text needs
  escaping; ``arrow looks``: it has not said so; ``arrow escapes``: a tenth of the texts need it;
  ``arrow 1,000`` and ``arrow 100``: so many rows a call, as small deliveries are;
* ``json``: one row after the other with ``json.dumps``, from Python values that are there already
  (numerics and moments as text: json knows no others); ``json read``: the same from what the log
  has.

The messages are compared, as JSON. CPU is that of this process. On a busy machine trust the CPU
figures.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import Meter
from changefeed.messages.encode import encode_messages, text_inputs
from changefeed.messages.plan import MessagePlan
from changefeed.schema import Column, Form, TableName, TableSchema

Row = dict[str, Any]

_KINDS = {
    "int8": Column("", "int8", "int64", Form.NATIVE, "int64"),
    "int4": Column("", "int4", "int32", Form.NATIVE, "int32"),
    "bool": Column("", "bool", "bool", Form.NATIVE, "bool"),
    "numeric": Column("", "numeric(12,2)", "string", Form.RAW, "decimal(12,2)"),
    "jsonb": Column("", "jsonb", "string", Form.RAW, "json"),
    "text": Column("", "text", "string", Form.TEXT, "text"),
    "timestamptz": Column("", "timestamptz", "string", Form.TEXT, "timestamptz"),
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
        columns.append(Column(f"column_{i}", kind, like.physical, like.form, like.logical, i > 0))
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


def with_escapes(table: pa.Table, schema: TableSchema) -> pa.Table:
    """The same rows with a quote and a line break in one text of ten."""
    tenth = pa.array(np.arange(table.num_rows) % 10 == 0)
    for i, column in enumerate(schema.columns):
        if column.type_name == "text":
            place = table.schema.get_field_index(f"a{i}")
            dirty = pc.replace_substring(table[f"a{i}"], "words", 'wo"rds\n')
            table = table.set_column(
                place, table.schema.field(place), pc.if_else(tenth, dirty, table[f"a{i}"])
            )
    return table


def python_rows(table: pa.Table, schema: TableSchema) -> list[Row]:
    """What a program in Python makes messages of."""
    columns = [table[f"a{i}"].to_pylist() for i in range(len(schema.columns))]
    for i, column in enumerate(schema.columns):
        if column.logical == "json":
            columns[i] = [None if text is None else json.loads(text) for text in columns[i]]
    names = [column.name for column in schema.columns]
    stamps = zip(table["wall"].to_pylist(), table["logical"].to_pylist(), strict=True)
    return [
        {"after": dict(zip(names, row, strict=True)), "updated": f"{wall}.{logical:010d}"}
        for row, (wall, logical) in zip(zip(*columns, strict=True), stamps, strict=True)
    ]


def python_messages(rows: list[Row], schema: TableSchema) -> list[tuple[bytes, bytes]]:
    """Keys and values, row by row."""
    names = [column.name for column in schema.key_columns]
    return [
        (
            json.dumps([row["after"][name] for name in names], ensure_ascii=False).encode(),
            json.dumps(row, ensure_ascii=False).encode(),
        )
        for row in rows
    ]


def compare(made: pa.Table, peer: list[tuple[bytes, bytes]], schema: TableSchema) -> None:
    """Raise AssertionError unless both say the same."""
    numerics = [column.name for column in schema.columns if column.form is Form.RAW]
    ours = zip(made["key"].to_pylist(), made["value"].to_pylist(), strict=True)
    for (key, value), (other_key, other_value) in zip(ours, peer, strict=True):
        row, other = json.loads(value, parse_float=str), json.loads(other_value)
        for name in numerics:
            # A number with all its digits here, which json can only write as text.
            if isinstance(other["after"][name], str):
                row["after"][name] = str(row["after"][name])
        if key != other_key or row != other:
            raise AssertionError(f"json writes another message: {value!r}, {other_value!r}")


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


def run(shape: str, rows: int, rounds: int) -> None:
    """All ways for one shape."""
    schema = table_of(shape)
    plan = MessagePlan(schema, shape, updated=True)
    clean = text_inputs(plan)
    table = changes(schema, rows)
    dirty = with_escapes(table, schema)
    some = dirty.slice(0, min(rows, 50_000))
    read = python_rows(some, schema)
    compare(encode_messages(some, plan), python_messages(read, schema), schema)
    report(shape, "arrow", rows, rounds, lambda: encode_messages(table, plan, clean))
    report(shape, "arrow looks", rows, rounds, lambda: encode_messages(table, plan))
    report(shape, "arrow escapes", rows, rounds, lambda: encode_messages(dirty, plan))
    for step in (1_000, 100):
        few = [table.slice(start, step) for start in range(0, some.num_rows, step)]
        way = functools.partial(each, few, plan, clean)
        report(shape, f"arrow {step:,}", some.num_rows, rounds, way)
    report(shape, "json", len(read), rounds, lambda: python_messages(read, schema))
    report(
        shape,
        "json read",
        len(read),
        rounds,
        lambda: python_messages(python_rows(some, schema), schema),
    )


def options() -> argparse.ArgumentParser:
    """What both benchmarks of encoding can be asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=(*_SHAPES, "both"), default="both")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def main() -> None:
    """Run what is asked for."""
    parser = options()
    parser.description = (__doc__ or "").partition("\n")[0]
    asked = parser.parse_args()
    for shape in list(_SHAPES) if asked.shape == "both" else [asked.shape]:
        run(shape, asked.rows, asked.rounds)


if __name__ == "__main__":
    main()
