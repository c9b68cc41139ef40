"""Streams of many tables of which one is hurt: the others are as if nothing had been."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Change, ChangeBatch, Flush, Frontier, SchemaChange
from changefeed.core.schema import BeforeImage, TableName, TableSchema
from changefeed.sources.mysql.binlog import EventType
from changefeed.sources.mysql.gtid import MariaGtid
from changefeed.sources.mysql.position import GtidPosition
from changefeed.sources.mysql.shapes import Shapes
from changefeed.sources.mysql.tablemap import Charset
from changefeed.sources.mysql.transactions import Assembler
from changefeed.sources.mysql.types import ColumnInfo, column_of
from changefeed.sources.mysql.wire import EventBytes
from tests.helpers import binlog_writer as write
from tests.helpers.binlog_writer import COMPRESSED, HASH, ID, NUMBER, TEXT, WrittenColumn
from tests.helpers.mysql_recordings import Described

SOURCE, COUNT, TRANSACTIONS = "src", 50, 120
INSERT, UPDATE, DELETE = (
    EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_V1,
)
#: The middle third of the transactions is where the table is hurt.
FIRST, LAST = TRANSACTIONS // 3, 2 * TRANSACTIONS // 3
#: So many transactions are decoded together.
EVERY = 7


def _compressed(text: str) -> bytes:
    """Some values as they are, others packed, with and without zlib's own frame."""
    data = text.encode()
    if len(data) < 8:
        return b"\0" + data if data else b""
    packed = zlib.compress(data)
    if len(data) % 2:
        return bytes([0x81, len(data)]) + packed
    return bytes([0x89, len(data)]) + packed[2:-4]


@dataclass
class Table:
    """One table and what its rows are."""

    number: int
    columns: tuple[WrittenColumn, ...]
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"t{self.number}"

    def map(self) -> bytes:
        return write.table_map(self.number, self.name, self.columns)

    def image(self, row: tuple[Any, ...]) -> bytes:
        values = [_compressed(v) if c is COMPRESSED and v is not None else v
                  for c, v in zip(self.columns, (*row, 77), strict=False)]  # fmt: skip
        return write.image(self.columns, values)

    def change(self, chosen: random.Random) -> tuple[int, bytes]:
        """A random change of a row: the kind of its event, and the body."""
        key = chosen.randrange(20)
        row = (
            key,
            chosen.choice([None, 1, 2]),
            chosen.choice([None, "", "ü", "wxyz" * 3, "x" * 9]),
        )
        old = self.rows.get(key)
        if old is None:
            kind, images = INSERT, self.image(row)
        elif chosen.random() < 0.7:
            kind, images = UPDATE, self.image(old) + self.image(row)
        else:
            kind, images = DELETE, self.image(old)
        if kind is DELETE:
            del self.rows[key]
        else:
            self.rows[key] = row
        return kind, write.rows(self.number, len(self.columns), kind, images)

    def schema(self) -> TableSchema:
        texts = {"id": "int", "v": "int", "s": "varchar(20)"}
        shown = [column for column in self.columns if column is not HASH]
        return TableSchema(
            TableName(SOURCE, write.DATABASE, self.name),
            tuple(column_of(ColumnInfo(c.name, texts[c.name], c is not ID)) for c in shown),
            (0,),
            BeforeImage.FULL,
        )


#: What is done to a change of a table: its description, the kind and body of its rows -> events.
Hurt = Callable[[bytes, int, bytes, Table], list[EventBytes]]


def _unknown_type(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    at = told.index(bytes([3, *(c.wire for c in table.columns)])) + 1
    return _events(told[:at] + b"\xc8" + told[at + 1 :], kind, body)


def _short_map(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told[: -len(table.columns) - 4], kind, body)


def _cut_rows(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, kind, body[:-1])


def _longer_rows(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, kind, body + b"\0\1")


def _other_count(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, kind, body[:8] + bytes([9]) + body[9:])


def _nothing_behind_the_head(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, kind, body[:9])


def _packed_badly(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    row = write.image(table.columns, [1, 1, b"\x91\x05abc", 77][: len(table.columns)])
    return _events(told, INSERT, write.rows(table.number, len(table.columns), INSERT, row))


def _packed_garbage(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    row = write.image(table.columns, [1, 1, b"\x81\x05abc", 77][: len(table.columns)])
    return _events(told, INSERT, write.rows(table.number, len(table.columns), INSERT, row))


def _packed_event(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, EventType.MARIA_WRITE_ROWS_COMPRESSED_V1, body[:10] + b"\x93" + body[10:])


def _parts_of_json(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, EventType.PARTIAL_UPDATE_ROWS, body)


def _unknown_event(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return _events(told, 201, body)


def _statement(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    return [write.query(f"UPDATE `shop`.{table.name.upper()} SET v = 't1 t2 `t3`' -- t4, t5")]


def _load(told: bytes, kind: int, body: bytes, table: Table) -> list[EventBytes]:
    text = f"LOAD DATA INFILE 't9' INTO TABLE `{table.name}` FIELDS TERMINATED BY ','"
    return [write.query(text, loads=True)]


def _events(told: bytes, kind: int, body: bytes) -> list[EventBytes]:
    return [write.event(EventType.TABLE_MAP, told), write.event(kind, body)]


UNREADABLE: list[Hurt] = [
    _unknown_type, _short_map, _cut_rows, _longer_rows, _other_count, _nothing_behind_the_head,
    _packed_badly, _packed_garbage, _packed_event, _parts_of_json, _unknown_event,
]  # fmt: skip
READ_AGAIN: list[Hurt] = [_statement, _load]


def _tables() -> list[Table]:
    kinds = [(ID, NUMBER, TEXT), (ID, NUMBER, COMPRESSED), (ID, NUMBER, TEXT, HASH)]
    return [Table(number, kinds[number % 3]) for number in range(1, COUNT + 1)]


def _stream(seed: int, victim: int, hurt: Hurt | None) -> Iterator[list[EventBytes]]:
    """The transactions; ``hurt`` the changes of a table in the middle third of them."""
    chosen, tables = random.Random(seed), _tables()
    for number in range(TRANSACTIONS):
        seconds = 1_700_000_000 + number
        events = [write.gtid(number + 2, seconds)]
        changed = chosen.sample(tables, 5)
        if number % 4 == 0 and tables[victim - 1] not in changed:
            changed[0] = tables[victim - 1]
        for table in sorted(changed, key=lambda t: t.number):
            for _ in range(chosen.randint(1, 2)):
                kind, body = table.change(chosen)
                if hurt is not None and table.number == victim and FIRST <= number < LAST:
                    events += hurt(table.map(), kind, body, table)
                else:
                    events += _events(table.map(), kind, body)
        yield [*events, write.xid(seconds)]


def _assembler(folder: Path, **given: Any) -> Assembler:
    schemas = {table.schema().table: table.schema() for table in _tables()}
    state = Described(schemas)
    charsets = {write.UTF8: Charset("utf8mb4", 4)}
    shapes = Shapes(SOURCE, charsets, state.describe, state.intern, state.latest.get)
    place = GtidPosition(MariaGtid.parse("0-1-1"))
    start = Frontier(Timestamp(0), place.position, 0, place.history)
    made = Assembler(start, place, shapes, folder / "spool", folder / "kept", **given)
    made.watch(frozenset((name.schema, name.name) for name in schemas))
    return made


def _read(folder: Path, transactions: Sequence[list[EventBytes]], **given: Any) -> list[Flush]:
    assembler = _assembler(folder, **given)
    found = list(assembler.take(write.description()) or ())
    for number, events in enumerate(transactions):
        for raw in events:
            found += assembler.take(raw) or ()
        if number % EVERY == 0:
            found += assembler.flush()
    return [*found, *assembler.flush()]


Told = tuple[str, int, str, Any, Any, int, bool]


def _changes(flushes: list[Flush]) -> list[Told]:
    batches = [e for flush in flushes for e in flush.events if isinstance(e, ChangeBatch)]
    found = sorted((c for batch in batches for c in batch.changes()), key=lambda c: c.seq)
    return [_told(change) for change in found]


def _told(c: Change) -> Told:
    return c.table.name, c.at.wall, c.op, c.before, c.after, c.xid, c.last


def _shape_changes(flushes: list[Flush]) -> list[SchemaChange]:
    return [e for flush in flushes for e in flush.events if isinstance(e, SchemaChange)]


@pytest.mark.parametrize("hurt", UNREADABLE + READ_AGAIN, ids=lambda hurt: hurt.__name__)
@pytest.mark.parametrize(
    "given",
    [{"small": 0}, {"small": 1 << 40}, {"batch_bytes": 200}],
    ids=["columns", "rows", "disk"],
)
def test_one_table_is_hurt_and_the_others_are_as_before(
    tmp_path: Path, hurt: Hurt, given: dict[str, Any]
) -> None:
    seed = zlib.crc32(f"{hurt.__name__} {given}".encode())
    victim = random.Random(seed).randrange(COUNT) // 3 * 3 + 1  # compressed
    name = f"t{victim}"
    assert _tables()[victim - 1].columns[2] is COMPRESSED
    whole = _read(tmp_path / "whole", list(_stream(seed, victim, None)), **given)
    flushes = _read(tmp_path / "hurt", list(_stream(seed, victim, hurt)), **given)
    expected, found = _changes(whole), _changes(flushes)
    assert len(expected) > 5 * TRANSACTIONS and not _shape_changes(whole)

    assert [c for c in found if c[0] != name] == [c for c in expected if c[0] != name]
    told = _shape_changes(flushes)
    assert {e.new.table.name for e in told} == {name}
    begin, end = ((1_700_000_000 + n) * 10**9 for n in (FIRST, LAST))
    lost = [c[1] for c in expected if c[0] == name and begin <= c[1] < end]
    assert lost, "the table has changes there"
    assert all(
        e.unreadable == (hurt in UNREADABLE) and e.moved == (hurt in READ_AGAIN) for e in told
    )
    of_table = [c[1] for c in found if c[0] == name]
    missing = [c[1] for c in expected if c[0] == name and c not in found]
    assert missing[-1] >= lost[-1]
    for at in missing:
        # Readers meet the event behind every change that is lost, before any later change. What
        # was decoded together with it is lost, too.
        assert begin - EVERY * 10**9 <= at < end + EVERY * 10**9
        event = next(e.at.wall for e in told if e.at.wall >= at)
        assert not any(at < other < event for other in of_table)


def test_a_table_that_cannot_be_read_says_which_column_and_why(tmp_path: Path) -> None:
    for hurt, says in (
        (_packed_badly, "column 's': compressed in a way that is not known"),
        (_unknown_type, "unknown type 200"),
        (_parts_of_json, "binlog_row_value_options"),
    ):
        flushes = _read(tmp_path, list(_stream(5, 4, hurt)), small=0)
        told = _shape_changes(flushes)
        assert "the binlog has changes of shop.t4 that cannot be read" in told[0].why
        assert says in told[0].why


def _undone(name: str) -> list[EventBytes]:
    """A transaction that goes back to a savepoint, as written beside a table without them."""
    table = Table(4, (ID, NUMBER, COMPRESSED))
    parts = [write.rows(4, 3, INSERT, table.image((key, key, ""))) for key in (30, 31, 32)]
    kept, undone, more = (_events(table.map(), INSERT, part) for part in parts)
    return [
        write.gtid(2, 1_700_000_000), *kept, write.query(f"SAVEPOINT {name}"), *undone,
        write.query(f"ROLLBACK TO {name}"), *more, write.xid(1_700_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize("batch_bytes", [1 << 20, 8])
def test_rows_behind_a_savepoint_are_undone(tmp_path: Path, batch_bytes: int) -> None:
    """Those that are on disk by then cannot be taken back: the table is read again."""
    flushes = _read(tmp_path, [_undone("`my ``point`")], batch_bytes=batch_bytes)
    keys = [c[4]["id"] for c in _changes(flushes)]
    told = _shape_changes(flushes)
    if batch_bytes > 8:
        assert keys == [30, 32] and not told
    else:
        assert [(e.new.table.name, e.moved) for e in told] == [("t4", True)]
        assert "savepoint" in told[0].why


def test_an_event_of_an_unknown_type_outside_of_tables_stops_the_source(tmp_path: Path) -> None:
    with pytest.raises(ChangefeedError, match="type 201") as error:
        _read(tmp_path, [[write.gtid(2, 1), write.event(201, b"")]])
    assert error.value.code.number == "CF2105"
    ignorable = write.event(201, b"", flags=0x80)
    table = Table(5, (ID, NUMBER, TEXT))
    row = _events(table.map(), INSERT, write.rows(5, 3, INSERT, table.image((1, 1, ""))))
    events = [write.gtid(2, 1), ignorable, write.event(29, b"x"), *row, write.xid(1)]
    assert len(_changes(_read(tmp_path, [events]))) == 1


def test_a_table_that_joins_in_a_half_read_transaction_stops_nothing(tmp_path: Path) -> None:
    """The rows of the transaction refer to what was described before the list of tables changed."""
    assembler = _assembler(tmp_path)
    every = frozenset((write.DATABASE, table.name) for table in _tables())
    assembler.watch(every - {(write.DATABASE, "t1")})
    list(assembler.take(write.description()) or ())
    found: list[Flush] = []
    for events in _stream(1, 5, None):
        for raw in events:
            found += assembler.take(raw) or ()
            assembler.watch(every)
            assembler.watch(every - {(write.DATABASE, "t1")})
    found += assembler.flush()
    told = [c for c in _changes(found) if c[0] != "t1"]
    whole = _changes(_read(tmp_path / "whole", list(_stream(1, 5, None))))
    assert told == [c for c in whole if c[0] != "t1"]
