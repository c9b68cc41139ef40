"""What Spanner gets, which is mutations: ``tests/golden/spanner/commits.txt``.

An input is a case of :data:`CASES`; the output is the definitions, reads, writes and statements of
it, one a line, with values as they travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError
from changefeed.core.schema import TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed_testing.sinks.rows import (
    RowFeed,
    SourceDouble,
    column_of,
    delete,
    insert,
    table_of,
    truncate,
    update,
)
from sinks.registry import open_sink
from sinks.warehouse.dialect import SqlStatement
from sinks.warehouse.spanner.keeping import FACTS, key_of
from sinks.warehouse.spanner.rows import Key, Value
from sinks.warehouse.spanner.sink import SpannerSink
from tests.golden import runner

KEYED = table_of("t", key=("id",), id="int32", name="text", total="decimal(12,2)", at="timestamptz")
KEYLESS = table_of("t", id="int32", name="text")


class _Told:
    """A server that tells what it is asked, and has the table ``t`` already.

    It is a transaction too. ``stored`` are the rows that a read of the table answers.
    """

    def __init__(self, real: Any, schema: TableSchema | None, stored: Sequence[Key]) -> None:
        self.dialect, self.place, self.schema = real.dialect, real.place, ""
        self.name = real.name
        self.lines: list[str] = []
        self._stored = stored
        self.tables: dict[str, TableSchema | None] = {FACTS: None}
        if schema is not None:
            self.tables["t"] = schema

    def connect(self, *, make: bool = True) -> None:
        return None

    def rest(self) -> None:
        return None

    def columns(self, table: str) -> dict[str, str]:
        schema = self.tables.get(table)
        if schema is None:
            names = ("id", "table_name", "version")
            return dict.fromkeys(names, "STRING(MAX)") if table in self.tables else {}
        found = {c.name: self.dialect.rule(c).sql for c in schema.columns}
        return {**found, "_row": "", "_copy": "", "_sequence_num": "", "_deleted": ""}

    def folding(self, table: str) -> dict[str, str]:
        return {}

    def key(self, table: str) -> tuple[str, ...]:
        schema = self.tables.get(table)
        return key_of(schema) if schema is not None else ()

    def run(self, statements: Sequence[SqlStatement]) -> None:
        self.lines += (f"define   {statement.sql}" for statement in statements)

    def change_all(self, sql: str, topic: str) -> None:
        self.lines.append(f"run      {sql}")

    def transact(self, work: Callable[[Any], Any], *topics: str) -> Any:
        self.lines.append("begin")
        found = work(self)
        self.lines.append("commit")
        return found

    def read(
        self, table: str, columns: Sequence[str], keys: Sequence[Key]
    ) -> Iterator[tuple[Value, ...]]:
        self.lines.append(f"read     {table} ({', '.join(columns)}) {_shown(keys)}")
        if table == FACTS:
            yield ("100" if "t" in self.tables else "0", "1", "0")
        else:
            yield from (row for row in self._stored if row[: len(columns) - 1] in keys)

    def query(
        self, sql: str, parameters: Mapping[str, Sequence[str]] | None = None
    ) -> list[tuple[Value, ...]]:
        given = f" {len(parameters['rows'])} rows" if parameters else ""
        self.lines.append(f"query    {sql}{given}")
        if not sql.endswith(f"FROM `{FACTS}`"):
            return []
        version = "100" if "t" in self.tables else "0"
        return [("conformance-state/17/shop.public.t", "conformance", "t", version, "1", "0")]

    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Key]) -> None:
        self._write("upsert", table, columns, rows)

    def update(self, table: str, columns: Sequence[str], rows: Sequence[Key]) -> None:
        self._write("update", table, columns, rows)

    def _write(self, what: str, table: str, columns: Sequence[str], rows: Sequence[Key]) -> None:
        if rows:
            self.lines.append(f"{what}   {table} ({', '.join(columns)}) {_shown(rows)}")

    def delete(self, table: str, keys: Sequence[Key]) -> None:
        if keys:
            self.lines.append(f"delete   {table} {_shown(keys)}")

    def delete_all(self, table: str) -> None:
        self.lines.append(f"delete   {table} all")


def _shown(rows: Sequence[Key]) -> str:
    return " ".join(f"({', '.join(map(repr, row))})" for row in rows)


def _told(
    source: SourceDouble,
    act: Callable[[RowFeed, Any], object],
    *,
    stored: Sequence[Key] = (),
    there: bool = True,
    **options: object,
) -> list[str]:
    sink = open_sink("spanner://p/i/d", options)
    assert isinstance(sink, SpannerSink)
    told = _Told(sink.server, source.log[0].schema if there else None, stored)
    sink._tables.warehouse = told  # type: ignore[assignment]
    feed = RowFeed(source, options=options)
    act(feed, feed.open(sink))
    return told.lines


def _deliver(feed: RowFeed, sink: Any) -> None:
    feed.deliver(sink)


def _changes(schema: TableSchema = KEYED) -> SourceDouble:
    source = SourceDouble(schema)
    one: dict[str, object] = {"name": "x", "total": "1.50", "at": "2024-01-01T00:00:00.5Z"}
    keep = {name: one[name] for name in one if name in {c.name for c in schema.columns}}
    source.commit(insert("t", id=1, **keep), insert("t", id=2, **keep), insert("t", id=3, **keep))
    source.commit(
        update("t", {"id": 1}, name=None), delete("t", id=2), update("t", {"id": 3}, id=4)
    )
    return source


def _unsent() -> SourceDouble:
    source = _changes()
    source.commit(update("t", {"id": 4}, ("name",), total="9.00"))
    return source


def _created() -> list[str]:
    source = _changes()
    return _told(source, _deliver, there=False, sequence_column="none")


def _truncated(**options: Any) -> list[str]:
    source = SourceDouble(KEYED)
    source.commit(truncate("t"))
    return _told(source, _deliver, **options)


def _scanned(schema: TableSchema) -> list[str]:
    source = SourceDouble(schema)
    row = {c.name: None for c in schema.columns} | {"id": 1, "name": "x"}
    source.load("t", [row, row] if schema.keyless else [row])
    source.commit(insert("t", id=2))
    return _told(source, lambda feed, sink: feed.scan(sink, "t"))


def _renamed() -> list[str]:
    old = table_of("t", key=("id",), id="int32", name="text")
    source = SourceDouble(old)
    columns = (old.columns[0], column_of("label", "text", 2), column_of("added", "date", 3))
    source.alter("t", replace(old, columns=columns))
    source.log[0] = replace(source.log[0], schema=old)
    return _told(source, _deliver)


#: Input of the golden file -> what is told.
CASES: Mapping[str, Callable[[], list[str]]] = {
    "create, the number beside": _created,
    "a round of changes": lambda: _told(_changes(), _deliver),
    "a row that is newer in the target": lambda: _told(
        _changes(), _deliver, stored=[("1", str(2**62))]
    ),
    "unsent values": lambda: _told(_unsent(), _deliver),
    "soft deletes": lambda: _told(_changes(), _deliver, stored=[("2", "5")], deletes="soft"),
    "no key": lambda: _told(_changes(KEYLESS), _deliver),
    "a scan": lambda: _scanned(KEYED),
    "a scan, no key": lambda: _scanned(KEYLESS),
    "truncate": _truncated,
    "truncate, soft deletes": lambda: _truncated(deletes="soft"),
    "another shape": _renamed,
}


@pytest.mark.parametrize("file", runner.files("spanner"))
def test_commits(file: Path, rewrite: bool) -> None:
    runner.run(file, lambda case: "\n".join(CASES[case]()), rewrite=rewrite)


def test_every_case_is_there() -> None:
    file = runner.FOLDER / "spanner" / "commits.txt"
    assert [case.input for case in runner.cases(file)] == list(CASES)


def test_a_wider_type_is_refused() -> None:
    old = table_of("t", key=("id",), id="int32", n="int32")
    source = SourceDouble(old)
    wide = replace(old.columns[1], logical=LogicalType(Kind.DECIMAL), type_name="numeric")
    source.alter("t", replace(old, columns=(old.columns[0], wide)))
    source.log[0] = replace(source.log[0], schema=old)
    with pytest.raises(ChangefeedError) as caught:
        _told(source, _deliver)
    assert caught.value.code.number == "CF5006" and "(n)" in caught.value.message
