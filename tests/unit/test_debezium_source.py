"""Sources that Debezium reads: addresses, errors, frames and flushes, without a JVM."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ChangeBatch, Flush, Frontier, SchemaChange, Truncate
from changefeed.core.schema import BeforeImage, Column, KeyRange, TableName, TableSchema
from changefeed.core.types import Kind, LogicalType
from changefeed.sources.debezium import DebeziumSource
from changefeed.sources.debezium.address import parse
from changefeed.sources.debezium.assemble import Assembler, Shapes
from changefeed.sources.debezium.carriers import Carrier, carried, fits, log_values
from changefeed.sources.debezium.connectors import CONNECTORS
from changefeed.sources.debezium.connectors.base import escaped
from changefeed.sources.debezium.connectors.binlog import MariaDB, position_of
from changefeed.sources.debezium.connectors.mongodb import MongoDB, position_of_token
from changefeed.sources.debezium.failures import Cause, failure
from changefeed.sources.debezium.frames import TableShape, read_batch
from changefeed.sources.debezium.snapshot import in_range, range_problem
from changefeed.sources.registry import open_source, schemes
from changefeed.spark.packs import packs
from changefeed_testing.sources.reader import SchemaVersions

# ------------------------------------------------------------------------------- addresses


def test_the_address_of_a_server() -> None:
    found = parse(
        "sqlserver://sa:p%40ss@db.example/erp?debezium.driver.encrypt=false&heap=2G", 1433
    )
    assert (found.host, found.port, found.user, found.password) == (
        "db.example",
        1433,
        "sa",
        "p@ss",
    )
    assert (found.database, found.heap) == ("erp", "2g")
    assert found.properties == (("driver.encrypt", "false"),)
    assert found.driver_properties == {"encrypt": "false"}
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("oracle://a@one,two/x", "CF1201"),
        ("oracle:///x", "CF1201"),
        ("oracle://a@one/x?heapp=1g", "CF1202"),
        ("oracle://a@one/x?heap=lots", "CF1207"),
        ("oracle://a@one/x?connect_timeout=0", "CF1207"),
        ("oracle://a@one/x?debezium.offset.storage=x", "CF1207"),
        ("oracle://a@one/x?debezium.snapshot.mode=always", "CF1207"),
        ("oracle://a@one/x?debezium.database.password=x", "CF1207"),
    ],
)
def test_an_address_that_is_none(uri: str, code: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        parse(uri, 1521)
    assert caught.value.code.number == code


def test_every_connector_is_a_source_with_jars() -> None:
    assert CONNECTORS.keys() <= set(schemes())
    for scheme, connector in CONNECTORS.items():
        source = open_source("erp", f"{scheme}://a:secret@db/erp")
        assert isinstance(source, DebeziumSource) and connector.scheme == scheme
        assert {"debezium", *connector.packs} <= packs().keys()
        assert "secret" not in repr(source) + repr(source.connector.address)
        assert source.attach("abc123", None).holds


@pytest.mark.parametrize("scheme", ["vitess", "spanner-source"])
def test_what_is_not_read_is_told_as_such(scheme: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        open_source("erp", f"{scheme}://a:secret@db/erp")
    assert caught.value.code is Code.INVALID_URI
    assert caught.value.message == f"connection 'erp' cannot be a source: {scheme} is not read"


def test_the_address_of_a_replica_set() -> None:
    uri = "mongodb://ada:p%40ss@one,two:27018/shop?replicaSet=rs0&authSource=admin&heap=1g"
    found = MongoDB.of(uri)
    assert (found.address.database, found.address.heap) == ("shop", "1g")
    assert found.login()["mongodb.connection.string"] == (
        "mongodb://ada:p%40ss@one,two:27018/shop?replicaSet=rs0&authSource=admin"
    )
    assert found.login()["database.include.list"] == "shop"
    assert MongoDB.of("mongodb://one/shop").login()["mongodb.connection.string"] == (
        "mongodb://one/shop"
    )


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("mongodb://one", "CF1201"),
        ("mongodb:///shop", "CF1201"),
        ("mongodb://one,/shop", "CF1201"),
        ("mongodb://one/shop?replcaSet=rs0", "CF1202"),
        ("mongodb://one/shop?readPreference=secondary", "CF1202"),
        ("mongodb://one/shop?debezium.capture.mode=change_streams", "CF1207"),
        ("mongodb://one/shop?debezium.mongodb.connection.string=x", "CF1207"),
    ],
)
def test_an_address_of_mongodb_that_is_none(uri: str, code: str) -> None:
    with pytest.raises(ChangefeedError) as caught:
        MongoDB.of(uri)
    assert caught.value.code.number == code


def test_what_mongodb_calls_a_place_in_its_log() -> None:
    digits = b"8265F0C0FE0000000A2B0229296E04\0"
    for fields in (b"", b"\x02_typeBits\0\x02\0\0\0x\0"):
        data = b"\x02_data\0" + struct.pack("<i", len(digits)) + digits
        token = base64.b64encode(struct.pack("<i", 99) + data + fields + b"\0").decode()
        assert position_of_token(token) == "1710276862.0000000010"
    with pytest.raises(ChangefeedError) as caught:
        position_of_token(base64.b64encode(b"nothing").decode())
    assert caught.value.code is Code.UNEXPECTED_MESSAGE


def test_names_are_no_patterns() -> None:
    assert escaped("a.b,c$") == r"a\.b\,c\$"


# ---------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("causes", "code"),
    [
        ([Cause("x", "Access denied for user 'a'@'b'", "28000", 1045)], Code.SOURCE_REFUSED_LOGIN),
        ([Cause("x", "what", "28P01")], Code.SOURCE_REFUSED_LOGIN),
        ([Cause("x", "what", "08S01")], Code.SOURCE_UNREACHABLE),
        ([Cause("x", "Connection refused")], Code.SOURCE_UNREACHABLE),
        ([Cause("x", "not valid. Unable to connect: Failed to resolve")], Code.SOURCE_UNREACHABLE),
        ([Cause("x", "ORA-01031: insufficient privileges")], Code.SOURCE_PERMISSION_MISSING),
        ([Cause("x", "is no longer available on the server")], Code.SOURCE_LOG_GONE),
        ([Cause("x", "error 286 (ChangeStreamHistoryLost): 'Resume'")], Code.SOURCE_LOG_GONE),
        ([Cause("x", "error 260 (InvalidResumeToken): 'Bad'")], Code.SOURCE_LOG_GONE),
        ([Cause("x", "failed with error 13 (Unauthorized)")], Code.SOURCE_PERMISSION_MISSING),
        ([Cause("java.lang.NoClassDefFoundError", "a/b")], Code.SPARK_NOT_AVAILABLE),
        ([Cause("x", "Failed looking up SRV record for 'x'.")], Code.SOURCE_UNREACHABLE),
        ([Cause("x", "the 'com.sun.jndi.dns.DnsContextFactory' class")], Code.SPARK_NOT_AVAILABLE),
        ([Cause("x", "surprise")], Code.STREAM_BROKE),
        ([], Code.STREAM_BROKE),
    ],
)
def test_causes_become_codes(causes: list[Cause], code: Code) -> None:
    assert failure(causes).code is code


def test_an_error_holds_no_secret_and_no_row() -> None:
    told = failure([Cause("a.B", "bad: password=pa55word; row [1, Ada Lovelace] of t")])
    assert "pa55word" not in told.detail and "Ada" not in told.detail
    assert told.detail.startswith("B: bad")


# ---------------------------------------------------------------------------------- values

CASES = [
    ("int32", "io.debezium.time.Date", "i", [19813, -1], ["2024-03-31", "1969-12-31"]),
    ("int64", "io.debezium.time.MicroTime", "i", [3_723_500_000], ["01:02:03.5"]),
    ("int32", "io.debezium.time.Time", "i", [3_723_000], ["01:02:03"]),
    ("int64", "io.debezium.time.Timestamp", "i", [-1, 0], ["1969-12-31T23:59:59.999", None]),
    ("int64", "io.debezium.time.NanoTimestamp", "i", [1_999], ["1970-01-01T00:00:00.000001"]),
    ("double", "", "d", [0.1, 1e300, float("nan")], ["0.1", "1e+300", '"NaN"']),
    ("float", "", "d", [0.10000000149011612], ["0.1"]),
    ("boolean", "", "z", [True], [True]),
    ("int16", "", "i", [7], [7]),
    ("string", "", "t", ["a"], ["a"]),
]


@pytest.mark.parametrize(("type_", "semantic", "kind", "values", "wanted"), CASES)
def test_values(type_: str, semantic: str, kind: str, values: list[Any], wanted: list[Any]) -> None:
    carrier = Carrier("c", type_, semantic, kind)
    column = Column("c", "?", carried(carrier, long_times=False))
    given = [
        value if want is not None else None for value, want in zip(values, wanted, strict=True)
    ]
    found = log_values(carrier, column, pa.array(given))
    assert found.to_pylist() == wanted and found.type == column.arrow


def test_times_of_mysql_have_a_sign_and_many_hours() -> None:
    carrier = Carrier("c", "int64", "io.debezium.time.MicroTime", "i")
    column = Column("c", "time", carried(carrier, long_times=True))
    values = pa.array([-3_020_399_000_000, 3_723_500_000, None])
    assert log_values(carrier, column, values).to_pylist() == ["-838:59:59", "01:02:03.5", None]


def test_a_carrier_fits_what_the_catalog_knows_better() -> None:
    decimal = Carrier("c", "bytes", "org.apache.kafka.connect.data.Decimal", "t")
    assert fits(decimal, Column("c", "?", LogicalType(Kind.DECIMAL, 12, 2)), long_times=False)
    assert not fits(decimal, Column("c", "?", LogicalType(Kind.TEXT)), long_times=False)
    assert not fits(decimal, Column("d", "?", LogicalType(Kind.DECIMAL)), long_times=False)


# ----------------------------------------------------------------------------- frames

COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "int32", "semantic": "", "kind": "i", "optional": False},
    {"name": "v", "type": "string", "semantic": "", "kind": "t"},
]
SOURCE = {"db": "shop", "table": "t"}
Row = tuple[int, str | None] | None


def shape(
    number: int = 0, columns: Sequence[Mapping[str, Any]] = COLUMNS, key: str = "id"
) -> TableShape:
    """The table t in some shape."""
    told = {"table": number, "columns": columns, "key": [key] if key else [], "source": SOURCE}
    return TableShape.parse(json.dumps(told).encode())


class FrameWriter:
    """Frames as ``java/Door.java`` writes them."""

    def __init__(self) -> None:
        self.records = 0
        self.marks: list[dict[str, Any]] = []
        self.rows: dict[int, list[tuple[int, str, Row, Row]]] = {}
        self.place = 100
        self.unsent: list[tuple[int, int]] = []

    def mark(self, kind: str, pos: int, **more: Any) -> None:
        offset = {"file": "binlog.000001", "pos": pos}
        told = {"at": self.records, "kind": kind, "partition": {"server": "s"}, "offset": offset}
        self.marks.append({**told, **more})
        self.records += 1

    def row(self, op: str, before: Row, after: Row, table: int = 0) -> None:
        self.rows.setdefault(table, []).append((self.records, op, before, after))
        self.records += 1

    def transaction(self, pos: int, *rows: tuple[str, Row, Row], table: int = 0) -> None:
        self.mark("begin", pos)
        for row in rows:
            self.row(*row, table=table)
        self.mark("end", pos, source={**SOURCE, **_place(pos)})

    def bytes(self) -> bytes:
        blob, groups = b"", []
        for table, rows in self.rows.items():
            parts: list[list[int]] = []

            def part(content: bytes) -> None:
                nonlocal blob
                blob += bytes(-len(blob) % 8)
                parts.append([len(blob), len(content)])  # noqa: B023
                blob += content

            part(np.array([at for at, *_ in rows], "<i4").tobytes())
            part(bytes(ord(op) for _, op, *_ in rows))
            part(bytes(before is not None for _, _, before, _ in rows))
            for side in (3, 2):
                cells: list[Row] = [row[side] for row in rows]  # type: ignore[misc]
                if not any(cells):
                    continue
                part(bytes(cell is not None for cell in cells))
                part(np.array([cell[0] if cell else 0 for cell in cells], "<i8").tobytes())
                texts = [(cell[1] if cell else None) for cell in cells]
                part(bytes(text is not None for text in texts))
                data = [(text or "").encode() for text in texts]
                part(np.cumsum([0, *map(len, data)]).astype("<i4").tobytes())
                part(b"".join(data))
            unsent = [[column, row] for column, row in self.unsent]
            told = {"table": table, "rows": len(rows), "parts": parts, "unsent": unsent}
            sides = zip(
                ("before", "after"), zip(*(row[2:] for row in rows), strict=True), strict=True
            )
            groups.append({**told, **{side: any(cells) for side, cells in sides}})
        head = {"frame": 1, "records": self.records, "marks": self.marks, "groups": groups}
        text = json.dumps(head).encode()
        whole = struct.pack("<i", len(text)) + text
        return whole + bytes(-len(whole) % 8) + blob


def _place(pos: int) -> dict[str, Any]:
    return {"file": "binlog.000001", "pos": pos, "ts_us": pos * 1_000_000}


def described(keyless: bool = False) -> TableSchema:
    """The table t as the database describes it."""
    columns = (
        Column("id", "int", LogicalType(Kind.INT32), False),
        Column("v", "text", LogicalType(Kind.TEXT)),
    )
    key = (0, 1) if keyless else (0,)
    table = TableName("shop", "shop", "t")
    return TableSchema(table, columns, key, BeforeImage.FULL, keyless)


class Stream:
    """An assembler that is given frames."""

    def __init__(self, folder: Path, *, keyless: bool = False, batch_bytes: int = 1 << 20) -> None:
        schemas = SchemaVersions()
        shapes = Shapes(
            lambda _: described(keyless), schemas.intern, schemas.latest, long_times=True
        )
        connector = MariaDB(parse("debezium-mariadb://a@b/shop", 3306))
        start = Frontier(Timestamp(1), position_of("binlog.000001", 1), 0)
        self.assembler = Assembler(
            start, connector, "shop", shapes, folder / "spool", batch_bytes=batch_bytes
        )
        self.assembler.watch(frozenset({("shop", "t")}))
        self.assembler.shape(shape(key="" if keyless else "id"))
        self.flushes: list[Flush] = []

    def take(self, frame: FrameWriter) -> None:
        batch = read_batch(frame.bytes(), self.assembler.shapes)
        self.flushes += self.assembler.take(batch)

    def events(self) -> list[tuple[Any, ...]]:
        """Operations, number, ordinal and value of all rows, and the names of other events."""
        found: list[tuple[Any, ...]] = []
        for event in (event for flush in self.flushes for event in flush.events):
            if isinstance(event, ChangeBatch):
                found += [
                    (c.op, c.seq, c.ordinal, (c.after or c.before or {}).get("v"))
                    for c in event.changes()
                ]
            else:
                found.append((type(event).__name__, event.seq))
        return found


def test_transactions_of_one_frame(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    frame.transaction(10, ("c", None, (1, "a")), ("c", None, (2, None)))
    frame.transaction(20, ("u", (1, "a"), (1, "b")))
    frame.transaction(30)
    frame.transaction(40, ("d", (2, "x"), None))
    stream.take(frame)
    assert stream.events() == [
        ("c", 1, 0, "a"),
        ("c", 2, 1, None),
        ("u", 3, 0, "b"),
        ("d", 4, 0, "x"),
    ]
    [flush] = stream.flushes
    assert flush.commits.position == [position_of("binlog.000001", p + 1) for p in (10, 20, 40)]
    assert flush.frontier is not None and flush.frontier.seq == 4
    assert json.loads(flush.frontier.history)[1]["pos"] == 40


def test_a_transaction_over_several_frames(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for place in range(3):
        frame = FrameWriter()
        if place == 0:
            frame.mark("begin", 10)
        frame.row("c", None, (place, str(place)))
        if place == 2:
            frame.mark("end", 10, source={**SOURCE, **_place(10)})
        stream.take(frame)
        assert bool(stream.flushes) == (place == 2)
    assert stream.events() == [("c", 1, 0, "0"), ("c", 2, 1, "1"), ("c", 3, 2, "2")]
    assert stream.assembler.idle


def test_a_large_transaction_comes_in_flushes_of_which_the_last_has_a_frontier(
    tmp_path: Path,
) -> None:
    stream = Stream(tmp_path, batch_bytes=1)
    first, second, third = FrameWriter(), FrameWriter(), FrameWriter()
    first.mark("begin", 10)
    first.row("c", None, (1, "a"))
    second.row("u", (1, "a"), (1, "b"))
    third.row("c", None, (2, "c"))
    third.mark("end", 10, source={**SOURCE, **_place(10)})
    third.transaction(20, ("c", None, (3, "d")))
    for frame in (first, second, third):
        stream.take(frame)
    assert stream.events() == [
        ("c", 1, 0, "a"),
        ("c", 2, 1, "b"),
        ("c", 3, 2, "c"),
        ("c", 4, 0, "d"),
    ]
    assert [flush.frontier is None for flush in stream.flushes][-1] is False
    assert all(flush.frontier is None for flush in stream.flushes[:-1])
    lasts = [
        c.last
        for flush in stream.flushes
        for event in flush.events
        if isinstance(event, ChangeBatch)
        for c in event.changes()
    ]
    assert lasts == [False, True, True, True]
    assert not (tmp_path / "spool" / "transaction").exists()


def test_a_new_shape_is_told_before_its_first_row(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    frame.transaction(10, ("c", None, (1, "a")))
    stream.take(frame)
    renamed = [COLUMNS[0], {**COLUMNS[1], "name": "w"}]
    stream.assembler.shape(shape(1, renamed))
    frame = FrameWriter()
    frame.transaction(20, ("c", None, (2, "b")), table=0)
    frame.transaction(30, ("c", None, (3, "c")), table=1)
    stream.take(frame)
    assert stream.events() == [
        ("c", 1, 0, "a"),
        ("c", 2, 0, "b"),
        ("SchemaChange", 3),
        ("c", 4, 0, None),
    ]
    change = stream.flushes[-1].events[1]
    assert isinstance(change, SchemaChange) and not change.rewritten
    assert [column.name for column in change.new.columns] == ["id", "w"]


def test_truncate_ends_a_transaction_of_its_own(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    frame.transaction(10, ("c", None, (1, "a")))
    frame.mark("truncate", 20, table=0, source={**SOURCE, **_place(20)})
    frame.transaction(30, ("c", None, (2, "b")))
    stream.take(frame)
    assert stream.events() == [("c", 1, 0, "a"), ("Truncate", 2), ("c", 3, 0, "b")]
    [event] = [e for e in stream.flushes[0].events if isinstance(e, Truncate)]
    assert event.schema.table.name == "t"


def test_an_update_without_a_key_is_a_delete_and_an_insert(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path, keyless=True), FrameWriter()
    frame.transaction(10, ("u", (1, "a"), (1, "b")), ("c", None, (2, "c")))
    stream.take(frame)
    assert stream.events() == [("d", 1, 0, "a"), ("c", 2, 1, "b"), ("c", 3, 2, "c")]


def test_rows_that_nobody_watches_are_dropped(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    stream.assembler.watch(frozenset())
    frame.transaction(10, ("c", None, (1, "a")))
    frame.mark("beat", 20)
    stream.take(frame)
    assert stream.flushes == []
    assert stream.assembler.frontier.position == position_of("binlog.000001", 20)


def test_a_beat_inside_a_transaction_moves_nothing(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    before = stream.assembler.frontier
    frame.mark("begin", 10)
    frame.mark("beat", 99)
    stream.take(frame)
    assert stream.assembler.frontier == before and not stream.assembler.idle


def test_an_unsent_value_is_taken_from_the_old_row(tmp_path: Path) -> None:
    stream, frame = Stream(tmp_path), FrameWriter()
    frame.transaction(10, ("u", (1, "kept"), (1, None)))
    frame.unsent.append((1, 0))
    stream.take(frame)
    assert stream.events() == [("u", 1, 0, "kept")]


# ---------------------------------------------------------------------------------- ranges


def test_ranges_of_keys() -> None:
    schema = described()
    batch = pa.RecordBatch.from_pydict(
        {"a0": pa.array([1, 2, 3, 10], pa.int32()), "a1": pa.array(["a", "b", "c", "d"])}
    )
    assert in_range(schema, KeyRange(("2",), ("10",)), batch).column(0).to_pylist() == [2, 3]
    assert in_range(schema, KeyRange(None, ("2",)), batch).column(0).to_pylist() == [1]
    assert in_range(schema, KeyRange(), batch).num_rows == 4
    assert range_problem(schema, KeyRange(("2",), ("10",))) is None
    for keys in (KeyRange(("x",), None), KeyRange(("5",), ("5",))):
        problem = range_problem(schema, keys)
        assert problem is not None and problem.code.number == "CF1303"
