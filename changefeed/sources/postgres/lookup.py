"""Present values by key: what the stream left out because it did not change (TOAST).

PostgreSQL does not send a large value that an UPDATE left alone, unless the table's replica
identity is FULL. It is then read from the table, by key, for many rows at once. The answer counts
only where the row is still the version that the transaction in question wrote (its ``xmin``): what
a later one made of it is not the value as of the change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from changefeed.core.schema import Column, TableSchema
from changefeed.core.types import Form, Kind
from changefeed.sources.postgres.connect import PsycopgConnection, Sessions
from changefeed.sources.postgres.copyout import copy_out, parse_csv
from changefeed.sources.postgres.details import read_details
from changefeed.sources.postgres.types import TableDetails, schema_of
from changefeed.sources.postgres.values import text_column

#: Keys asked for in one statement.
KEYS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Answers in the order of the keys asked for.

    Attributes:
        present: whether there is such a row now.
        values: for each column asked for its values in log form, null where there is no row;
            None for a column that is gone, or is of another type now.
    """

    present: pa.BooleanArray
    values: tuple[pa.Array | None, ...]


class Lookup:
    """Reads values by key. Thread-safe; keeps one session open."""

    def __init__(self, uri: str) -> None:
        self._sessions = Sessions(uri, keep=1)

    def close(self) -> None:
        """Close the session; the object stays usable."""
        self._sessions.close()

    def fetch(
        self,
        table: TableSchema,
        columns: Sequence[int],
        keys: Sequence[pa.Array],
        writers: pa.Array | None = None,
    ) -> LookupResult:
        """Present values of ``columns`` (positions) for rows given by their key.

        Args:
            keys: one array for each of ``table.key``, in log form, equally long.
            writers: for each key the number of the (sub)transaction that wrote the row; one that
                another wrote since counts as not there. None takes the rows as they are.

        Raises:
            ChangefeedError: CF2001 and others of the connection. A table, column or row that
                is not there is no error.
        """
        count = len(keys[0]) if keys else 0
        with self._sessions.session(f"look up values of table {table.table}") as connection:
            details = read_details(connection, [table.table_id]).get(table.table_id)
            names = _present_names(table, details)
            if details is None or table.keyless or any(names[i] is None for i in table.key):
                return _nothing(table, columns, count)
            readable = [i for i in columns if names[i] is not None]
            query = _Query(
                table=table,
                names=names,
                columns=readable,
                relation=(details.schema, details.name),
                operators=_equality(connection, table),
            )
            rows: list[list[pa.Array]] = []
            for start in range(0, count, KEYS_AT_ONCE):
                rows += query.run(connection, [k.slice(start, KEYS_AT_ONCE) for k in keys], start)
        return _align(table, columns, readable, rows, count, writers)


def _present_names(table: TableSchema, details: TableDetails | None) -> list[str | None]:
    """What each column is called now; None where it is gone or of another kind."""
    if details is None:
        return [None] * len(table.columns)
    now = {c.column_id: c for c in schema_of(details, table.table.source).columns}
    return [_name_now(column, now.get(column.column_id)) for column in table.columns]


def _name_now(column: Column, now: Column | None) -> str | None:
    if now is None:
        return None
    return now.name if now.logical == column.logical else None


# The index's own operator: "=" alone would not be found for a type of an extension, and a
# comparison by another operator could not use the index.
_OPERATORS = """
    SELECT a.attnum, n.nspname, o.oprname
    FROM pg_catalog.pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[])
        AS k(number, class)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    JOIN pg_catalog.pg_opclass c ON c.oid = k.class
    JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
        AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
    JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid
"""


def _equality(connection: PsycopgConnection, table: TableSchema) -> dict[int, tuple[str, str]]:
    rows = connection.execute(_OPERATORS, [table.table_id])
    return {number: (schema, name) for number, schema, name in rows}


@dataclass(frozen=True, slots=True)
class _Query:
    table: TableSchema
    names: Sequence[str | None]
    columns: Sequence[int]
    relation: tuple[str, str]
    operators: dict[int, tuple[str, str]]

    def run(
        self, connection: PsycopgConnection, keys: Sequence[pa.Array], start: int
    ) -> Iterator[list[pa.Array]]:
        """Rows found: their places among all keys, who wrote them, then the columns as text."""
        for block in copy_out(connection, self._statement(keys)):
            places, writers, *texts = parse_csv(block, 2 + len(self.columns))
            yield [
                pc.add(places.cast(pa.int64()), start - 1),
                writers.cast(pa.int64()),
                *texts,
            ]

    def _statement(self, keys: Sequence[pa.Array]) -> sql.Composed:
        arrays = [
            sql.SQL("pg_catalog.unnest({}::pg_catalog.text[])").format(
                sql.Literal(source_text(column, key))
            )
            for column, key in zip(self.table.key_columns, keys, strict=True)
        ]
        return sql.SQL(
            "COPY (SELECT k.n, t.xmin{columns} FROM ROWS FROM ({arrays})"
            " WITH ORDINALITY AS k({names}, n) JOIN {table} AS t ON {match})"
            " TO STDOUT (FORMAT csv)"
        ).format(
            columns=sql.SQL("").join(
                sql.SQL(", t.{}").format(sql.Identifier(self.names[i] or "")) for i in self.columns
            ),
            arrays=sql.SQL(", ").join(arrays),
            names=sql.SQL(", ").join(sql.Identifier(f"k{i}") for i in range(len(keys))),
            table=sql.Identifier(*self.relation),
            match=sql.SQL(" AND ").join(self._match(i) for i in range(len(keys))),
        )

    def _match(self, place: int) -> sql.Composed:
        column = self.table.key_columns[place]
        schema, name = self.operators.get(column.column_id, ("pg_catalog", "="))
        return sql.SQL("t.{} OPERATOR({}.{}) k.{}::{}").format(
            sql.Identifier(self.names[self.table.key[place]] or ""),
            sql.Identifier(schema),
            sql.SQL(name),
            sql.Identifier(f"k{place}"),
            sql.SQL(column.type_name),
        )


def source_text(column: Column, values: pa.Array) -> list[str | None]:
    """Log values as text that the server reads as the column's type."""
    found: list[Any] = values.to_pylist()
    if column.form is not Form.RAW or column.kind is Kind.JSON:
        return [None if value is None else _plain(value) for value in found]
    if column.kind is Kind.ARRAY:
        return [None if value is None else _array_text(_parsed(value)) for value in found]
    # "NaN" and "Infinity" carry quotes in the log.
    return [None if value is None else value.strip('"') for value in found]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parsed(array: str) -> Any:
    return json.loads(array, parse_float=str, parse_int=str)


def _array_text(value: Any) -> str:
    if isinstance(value, list):
        return "{" + ",".join(map(_array_text, value)) + "}"
    if value is None:
        return "NULL"
    text = json.dumps(value) if isinstance(value, dict) else _plain(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _nothing(table: TableSchema, columns: Sequence[int], count: int) -> LookupResult:
    return LookupResult(pa.array([False] * count, pa.bool_()), (None,) * len(columns))


def _align(
    table: TableSchema,
    columns: Sequence[int],
    readable: Sequence[int],
    rows: Sequence[list[pa.Array]],
    count: int,
    writers: pa.Array | None,
) -> LookupResult:
    """Put the rows found, in whatever order they came, where their keys were asked for."""
    place_of: list[int | None] = [None] * count
    places = pa.concat_arrays([row[0] for row in rows]) if rows else pa.array([], pa.int64())
    same = pa.nulls(len(places), pa.bool_()).fill_null(True)
    if writers is not None and rows:
        now = pa.concat_arrays([row[1] for row in rows])
        same = pc.equal(now, writers.cast(pa.int64()).take(places))
    for index, (place, known) in enumerate(zip(places.to_pylist(), same.to_pylist(), strict=True)):
        if known:
            place_of[place] = index
    indices = pa.array(place_of, pa.int64())
    by_column: dict[int, pa.Array] = {}
    for offset, i in enumerate(readable, start=2):
        texts = [row[offset] for row in rows]
        joined = pa.concat_arrays(texts) if texts else pa.array([], pa.string())
        by_column[i] = text_column(table.columns[i], joined).take(indices)
    return LookupResult(indices.is_valid(), tuple(by_column.get(i) for i in columns))
