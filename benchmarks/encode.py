"""JSON from the log's rows: columns at a time against Python's json row by row.

All make key and value of every row, of a narrow and of a wide table:

* ``arrow``: what feeds do (:mod:`changefeed.encoding`), the log having said that no text needs
  escaping; ``arrow looks``: it has not said so; ``arrow escapes``: a tenth of the texts need it;
  ``arrow 1,000`` and ``arrow 100``: so many rows a call, as small deliveries are;
* ``json``: one row after the other with ``json.dumps``, from Python values that are there already
  (numerics and moments as text: json knows no others); ``json read``: the same from what the log
  has.

The messages are compared, as JSON. CPU is that of this process. On a busy machine trust the CPU
figures.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.encoding import (
    Messages,
    Row,
    changes,
    main,
    report,
    report_parts,
    stamps_of,
    table_of,
)
from changefeed.core.schema import TableSchema
from changefeed.core.types import Form, Kind
from changefeed.encoding.encode import encode_messages, text_inputs
from changefeed.encoding.plan import MessagePlan


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
        if column.kind is Kind.JSON:
            columns[i] = [None if text is None else json.loads(text) for text in columns[i]]
    names = [column.name for column in schema.columns]
    return [
        {"after": dict(zip(names, row, strict=True)), "updated": stamp}
        for row, stamp in zip(zip(*columns, strict=True), stamps_of(table), strict=True)
    ]


def python_messages(rows: list[Row], schema: TableSchema) -> Messages:
    """Keys and values, row by row."""
    names = [column.name for column in schema.key_columns]
    return [
        (
            json.dumps([row["after"][name] for name in names], ensure_ascii=False).encode(),
            json.dumps(row, ensure_ascii=False).encode(),
        )
        for row in rows
    ]


def compare(made: pa.Table, peer: Messages, schema: TableSchema) -> None:
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
    report_parts(shape, table.slice(0, some.num_rows), plan, rounds, clean)
    report(shape, "json", len(read), rounds, lambda: python_messages(read, schema))
    report(
        shape,
        "json read",
        len(read),
        rounds,
        lambda: python_messages(python_rows(some, schema), schema),
    )


if __name__ == "__main__":
    main(__doc__, run)
