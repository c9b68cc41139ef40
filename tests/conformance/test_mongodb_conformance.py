"""MongoDB, read by Debezium, passes the list of what every source must do, but for what a database
of documents has not. An emulator stands for the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from changefeed.sources.base import Source
from changefeed.sources.debezium import DebeziumSource
from changefeed_testing.sources.conformance import CASES, Case, run_case
from changefeed_testing.sources.harness import SourceHarness, Type, UserSession
from tests.services.mongodb import Document, MongoEmulator, Write, key_of

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("mongodb_jars")]

_NAME = r'"(?:[^"]|"")*"|\w+'
_VALUE = re.compile(r"'(?:[^']|'')*'|NULL|-?\d+")
_COLUMN = re.compile(rf"[(,]\s*({_NAME})\s+(?:INT|VARCHAR\(\d+\))")
_CREATE = re.compile(rf"CREATE TABLE ({_NAME}) \(")
_INSERT = re.compile(rf"INSERT INTO ({_NAME}) VALUES ")
_UPDATE = re.compile(rf"UPDATE ({_NAME}) SET (\w+) = (\S+|'[^']*')(?: WHERE id = (-?\d+))?")
_DELETE = re.compile(rf"DELETE FROM ({_NAME})(?: WHERE id = (-?\d+))?")
_RENAME = re.compile(rf"ALTER TABLE ({_NAME}) RENAME TO ({_NAME})")
_IMAGES = re.compile(rf"KEEP IMAGES OF ({_NAME})")


def _name(quoted: str) -> str:
    return quoted[1:-1].replace('""', '"') if quoted.startswith('"') else quoted


def _value(text: str) -> int | str | None:
    if text == "NULL":
        return None
    return text[1:-1].replace("''", "'") if text.startswith("'") else int(text)


class _Session:
    """The SQL of the cases as writes of documents; ``id`` is ``_id``, and what changes it writes
    another document. Definitions take effect at once."""

    def __init__(self, emulator: MongoEmulator, columns: dict[str, list[str]]) -> None:
        self._emulator = emulator
        self._columns = columns
        self._writes: list[Write] = []
        self._written: dict[tuple[str, bytes], Document | None] = {}

    def execute(self, sql: str) -> object:
        for pattern, run in (
            (_CREATE, self._create),
            (_INSERT, self._insert),
            (_UPDATE, self._update),
            (_DELETE, self._delete),
            (_RENAME, self._rename),
            (_IMAGES, self._keep_images),
        ):
            if found := pattern.match(sql):
                return run(sql, *found.groups())
        raise AssertionError(f"a statement that documents have nothing for: {sql}")

    def commit(self) -> None:
        self._emulator.commit("shop", self._writes)
        self.rollback()

    def rollback(self) -> None:
        self._writes = []
        self._written = {}

    def close(self) -> None:
        self.rollback()

    def _create(self, sql: str, name: str) -> None:
        self._columns[_name(name)] = [_name(column) for column in _COLUMN.findall(sql)]
        self._emulator.create("shop", _name(name))

    def _rename(self, sql: str, old: str, new: str) -> None:
        self._emulator.rename("shop", old, new)
        self._columns[new] = self._columns.pop(old)

    def _keep_images(self, sql: str, name: str) -> None:
        self._emulator.keep_images("shop", _name(name))

    def _insert(self, sql: str, name: str) -> None:
        columns = ["_id", *self._columns[_name(name)][1:]]
        values = [_value(found) for found in _VALUE.findall(sql, sql.index(" VALUES "))]
        for start in range(0, len(values), len(columns)):
            row = values[start : start + len(columns)]
            self._write(_name(name), dict(zip(columns, row, strict=True)))

    def _update(self, sql: str, name: str, column: str, value: str, key: str | None) -> None:
        for document in self._found(name, key):
            if column == "id":
                self._remove(name, document)
            field = "_id" if column == "id" else column
            self._write(name, {**document, field: _value(value)})

    def _delete(self, sql: str, name: str, key: str | None) -> None:
        for document in self._found(name, key):
            self._remove(name, document)

    def _found(self, name: str, key: str | None) -> list[Document]:
        there: dict[bytes, Document | None]
        if key is not None:
            stored = self._emulator.document("shop", name, int(key))
            there = {b"": self._written.get((name, key_of(int(key))), stored)}
        else:
            there = dict(self._emulator.documents("shop", name))
            there.update({of: doc for (table, of), doc in self._written.items() if table == name})
        return [document for document in there.values() if document is not None]

    def _write(self, name: str, document: Document) -> None:
        self._writes.append(Write(name, document["_id"], document))
        self._written[name, key_of(document["_id"])] = document

    def _remove(self, name: str, document: Document) -> None:
        self._writes.append(Write(name, document["_id"], None))
        self._written[name, key_of(document["_id"])] = None


class MongoHarness(SourceHarness):
    """A database of an emulator."""

    deadline = 120.0
    never = {
        **dict.fromkeys(
            (
                "describes_tables",
                "a_scan_takes_chosen_columns",
                "every_type_there_and_back",
                "a_table_without_a_key",
                "columns_come_and_go",
                "a_column_gets_another_name",
            ),
            "every collection has the columns _id and document, and the key _id",
        ),
        "a_snapshot_stands_still": "Debezium reads a collection while it changes, and what has"
        " changed comes again as a change",
        "a_scan_takes_a_range_of_keys": "_id is text, and a range is one of texts",
        "truncate": "MongoDB has none",
        "what_is_undone_never_was": "MongoDB has no savepoints",
    }

    def __init__(self, emulator: MongoEmulator, other: MongoEmulator, folder: Path) -> None:
        self.folder = folder
        self.emulator = emulator
        self._other = other
        self._columns: dict[str, list[str]] = {}
        self._opened = ExitStack()

    def source(self) -> Source:
        return self._open(self.emulator)

    def other(self) -> Source:
        return self._open(self._other)

    def _open(self, emulator: MongoEmulator) -> Source:
        source = DebeziumSource("shop", emulator.uri("shop"))
        self._opened.callback(source.close)
        return source

    def connect(self) -> UserSession:
        return _Session(self.emulator, self._columns)

    def types(self) -> Sequence[Type]:
        return ()

    def full_images(self, table: str) -> str:
        return f"KEEP IMAGES OF {self.quote(table)}"

    def lose_log(self, memo: Mapping[str, object]) -> None:
        self.emulator.forget()

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        fields = json.loads(row["document"]) if row.get("document") else {}
        fields.pop("_id", None)
        return {"id": json.loads(row["_id"]), **fields}

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def mongodb(tmp_path: Path) -> Iterator[MongoHarness]:
    with MongoEmulator() as emulator, MongoEmulator() as other:
        other.insert("shop", "t", {"_id": 1})
        made = MongoHarness(emulator, other, tmp_path)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mongodb(case: Case, mongodb: MongoHarness) -> None:
    if reason := run_case(case, mongodb):
        pytest.skip(reason)
