"""What is MongoDB's alone: values of documents, documents that are looked up late, checks, and
errors. An emulator stands for the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson import Code as JavaScript

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.base import Watch
from changefeed.sources.debezium import DebeziumSource
from changefeed_testing.sources.copy import scan
from changefeed_testing.sources.reader import OWNER, CaptureDouble, State, reading
from tests.services.mongodb import CommandError, MongoEmulator, Write

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("mongodb_jars")]


class Shop:
    """The database ``shop`` of an emulator, and a source for it."""

    def __init__(self, emulator: MongoEmulator, folder: Path, opened: ExitStack) -> None:
        self.emulator = emulator
        self._folder = folder
        self._opened = opened

    def source(self, parameters: str = "", uri: str = "") -> DebeziumSource:
        source = DebeziumSource("shop", (uri or self.emulator.uri("shop")) + parameters)
        self._opened.callback(source.close)
        return source

    def insert(self, *documents: dict[str, Any]) -> None:
        self.emulator.insert("shop", "t", *documents)

    def update(self, document: dict[str, Any]) -> None:
        self.emulator.commit("shop", [Write("t", document["_id"], document)])

    def delete(self, key: object) -> None:
        self.emulator.commit("shop", [Write("t", key, None)])

    def state(self, source: DebeziumSource) -> State:
        """A new state that captures ``t``."""
        state = State(self._folder, deadline=60.0)
        assert state.capture(source, "t").problems == {}
        return state

    @contextmanager
    def reading(self, source: DebeziumSource) -> Iterator[tuple[State, CaptureDouble]]:
        state = self.state(source)
        with reading(state, source) as reader:
            yield state, reader


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with MongoEmulator() as emulator, ExitStack() as opened:
        emulator.create("shop", "t")
        yield Shop(emulator, tmp_path, opened)


def rows(state: State) -> list[tuple[str, Any, Any]]:
    """Operation, old and new document of each change."""

    def document(row: dict[str, Any] | None) -> Any:
        return None if row is None else json.loads(row.get("document") or "null")

    return [(c.op, document(c.before), document(c.after)) for c in state.changes()]


#: A value, and how documents of the log have it: MongoDB's Extended JSON, relaxed.
VALUES: list[tuple[object, object]] = [
    (1, 1),
    (Int64(1 << 60), 1 << 60),
    (0.5, 0.5),
    (2.0, 2.0),
    (float("nan"), {"$numberDouble": "NaN"}),
    (float("-inf"), {"$numberDouble": "-Infinity"}),
    (Decimal128("12.50"), {"$numberDecimal": "12.50"}),
    ('aä😀\n"\\', 'aä😀\n"\\'),
    (True, True),
    (None, None),
    ([1, [2, {"x": None}]], [1, [2, {"x": None}]]),
    ({"b": 1, "a": {}}, {"b": 1, "a": {}}),
    (ObjectId("65f0c0ffee65f0c0ffee65f0"), {"$oid": "65f0c0ffee65f0c0ffee65f0"}),
    (datetime(2024, 3, 31, 1, 2, 3, 250_000, UTC), {"$date": "2024-03-31T01:02:03.25Z"}),
    (datetime(1969, 12, 31, tzinfo=UTC), {"$date": {"$numberLong": "-86400000"}}),
    (Binary(b"\x00\xff"), {"$binary": {"base64": "AP8=", "subType": "00"}}),
    (
        UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        {"$binary": {"base64": "oO68mZwLTvi7bWu5vTgKEQ==", "subType": "04"}},
    ),
    (Regex("^a", "i"), {"$regularExpression": {"pattern": "^a", "options": "i"}}),
    (Timestamp(7, 8), {"$timestamp": {"t": 7, "i": 8}}),
    (JavaScript("f()"), {"$code": "f()"}),
    (MaxKey(), {"$maxKey": 1}),
]
#: An ``_id``, and the text of the column ``_id``.
IDS: list[tuple[object, str]] = [
    (1, "1"),
    ("1", '"1"'),
    (Int64(1 << 60), str(1 << 60)),
    (ObjectId("65f0c0ffee65f0c0ffee65f0"), '{"$oid": "65f0c0ffee65f0c0ffee65f0"}'),
    ({"a": 1, "b": "x"}, '{"a": 1,"b": "x"}'),
    (datetime(2024, 3, 31, tzinfo=UTC), '{"$date": "2024-03-31T00:00:00Z"}'),
]


def test_a_document_is_the_same_in_a_scan_and_in_a_stream(shop: Shop) -> None:
    values = {f"v{n}": value for n, (value, _) in enumerate(VALUES)}
    wanted = {f"v{n}": value for n, (_, value) in enumerate(VALUES)}
    shop.insert(*({"_id": key, **values} for key, _ in IDS))
    source = shop.source()
    with shop.reading(source) as (state, reader):
        schema = source.describe(None, "t")
        with source.snapshot([schema]) as snapshot:
            scanned = scan(snapshot, schema)
        for key, _ in IDS:
            shop.delete(key)
            shop.insert({"_id": key, **values})
        reader.catch_up()
        streamed = [change.after for change in state.changes() if change.after]
    assert [row["_id"] for row in scanned] == [text for _, text in IDS]
    assert streamed == scanned
    assert [c.before for c in state.changes() if c.op == "d"] == [{"_id": text} for _, text in IDS]
    for row in scanned:
        fields = json.loads(row["document"])
        fields.pop("_id")
        assert fields == wanted
        assert "\n" not in row["document"]


def test_old_documents_are_kept_where_the_collection_keeps_them(shop: Shop) -> None:
    source = shop.source()
    [problem] = source.attach(OWNER, None).check([Watch("t", diff=True)])
    assert problem.code is Code.SOURCE_NOT_SET_UP and problem.hint == (
        'in mongosh: db.getSiblingDB("shop").runCommand({collMod: "t",'
        " changeStreamPreAndPostImages: {enabled: true}})"
    )
    assert source.attach(OWNER, None).check([Watch("t")]) == []
    shop.emulator.keep_images("shop", "t")
    assert source.attach(OWNER, None).check([Watch("t", diff=True)]) == []
    with shop.reading(source) as (state, reader):
        shop.insert({"_id": 1, "v": "a"})
        shop.update({"_id": 1, "v": "b"})
        reader.catch_up()
        shop.delete(1)
        reader.catch_up()
        assert rows(state) == [
            ("c", None, {"_id": 1, "v": "a"}),
            ("u", {"_id": 1, "v": "a"}, {"_id": 1, "v": "b"}),
            ("d", {"_id": 1, "v": "b"}, None),
        ]


@pytest.mark.parametrize("images", [False, True])
def test_a_document_is_looked_up_later_than_its_change(shop: Shop, images: bool) -> None:
    """... unless its collection keeps it, and the stream is told to read what was kept."""
    if images:
        shop.emulator.keep_images("shop", "t")
    kept = "&debezium.capture.mode.full.update.type=post_image" if images else ""
    source = shop.source(kept)
    state = shop.state(source)
    shop.insert({"_id": 1, "v": "a"}, {"_id": 2, "v": "a"})
    for document in ({"_id": 1, "v": "b"}, {"_id": 1, "v": "c"}, {"_id": 2, "v": "b"}):
        shop.update(document)
    shop.delete(2)
    with reading(state, source) as reader:
        reader.catch_up()
    assert [(op, new) for op, _, new in rows(state)] == [
        ("c", {"_id": 1, "v": "a"}),
        ("c", {"_id": 2, "v": "a"}),
        ("u", {"_id": 1, "v": "b" if images else "c"}),
        ("u", {"_id": 1, "v": "c"}),
        ("u", {"_id": 2, "v": "b"} if images else None),
        ("d", None),
    ]


def test_other_databases_only_move_the_position(shop: Shop) -> None:
    source = shop.source()
    with shop.reading(source) as (state, reader):
        shop.emulator.insert("elsewhere", "t", {"_id": 1})
        shop.emulator.insert("SHOP", "t", {"_id": 1})
        before = state.frontier
        reader.catch_up()
        assert state.frontier is not None and before is not None
        assert state.frontier.position > before.position and state.changes() == []


def test_a_database_that_is_dropped_and_made_again_is_read_on(shop: Shop) -> None:
    source = shop.source()
    with shop.reading(source) as (state, reader):
        shop.insert({"_id": 1})
        shop.emulator.drop("shop")
        shop.insert({"_id": 2})
        reader.catch_up()
        assert [new for _, _, new in rows(state)] == [{"_id": 1}, {"_id": 2}]


def test_the_uri_must_name_the_replica_set(shop: Shop) -> None:
    source = shop.source(uri=f"mongodb://127.0.0.1:{shop.emulator.port}/shop")
    [problem] = source.attach(OWNER, None).check([Watch("t")])
    assert problem.code is Code.SOURCE_NOT_SET_UP and "replicaSet=rs0" in problem.hint
    with reading(shop.state(source), source) as reader:
        assert reader.failed().code is Code.SOURCE_NOT_SET_UP


def test_a_lost_log_is_told_as_such(shop: Shop) -> None:
    source = shop.source()
    state = shop.state(source)
    shop.insert({"_id": 1})
    shop.emulator.forget()
    with reading(state, source) as reader:
        error = reader.failed()
    assert error.code is Code.SOURCE_LOG_GONE, error.detail
    assert "ChangeStreamHistoryLost" in error.detail


def test_a_right_that_is_taken_away_is_no_lost_log(shop: Shop) -> None:
    source = shop.source()
    state = shop.state(source)
    shop.emulator.overrides["aggregate"] = CommandError(13, "Unauthorized", "not authorized")
    with reading(state, source) as reader:
        assert reader.failed().code is Code.SOURCE_PERMISSION_MISSING


def test_a_login(tmp_path: Path) -> None:
    password = "p@ss:w/rd?&=%, ü"
    with MongoEmulator({"ada=,@": password}) as emulator, ExitStack() as opened:
        emulator.create("shop", "t")
        shop = Shop(emulator, tmp_path, opened)
        at = f"127.0.0.1:{emulator.port}/shop?replicaSet=rs0&authSource=admin"
        user = quote("ada=,@", safe="")
        source = shop.source(uri=f"mongodb://{user}:{quote(password, safe='')}@{at}")
        with shop.reading(source) as (state, reader):
            shop.insert({"_id": 1})
            reader.catch_up()
            assert len(state.changes()) == 1
        with pytest.raises(ChangefeedError) as caught:
            shop.source(uri=f"mongodb://{user}:pa55word@{at}").tables()
        assert caught.value.code is Code.SOURCE_REFUSED_LOGIN
        assert "pa55word" not in f"{caught.value.message} {caught.value.detail}"
        with pytest.raises(ChangefeedError) as caught:
            shop.source(uri=f"mongodb://{at}").tables()
        assert caught.value.code is Code.SOURCE_PERMISSION_MISSING


def test_a_server_that_does_not_answer() -> None:
    source = DebeziumSource("shop", "mongodb://ada:pa55word@127.0.0.1:9/shop?connect_timeout=1")
    with pytest.raises(ChangefeedError) as caught:
        source.tables()
    source.close()
    assert caught.value.code is Code.SOURCE_UNREACHABLE
    assert "pa55word" not in caught.value.detail


HELLO: dict[str, tuple[dict[str, Any], str]] = {
    "alone": ({"setName": None}, "not a member of a replica set"),
    "old": ({"maxWireVersion": 13}, "older than MongoDB 6.0"),
}


@pytest.mark.parametrize("kind", HELLO)
def test_a_server_that_cannot_be_captured(shop: Shop, kind: str) -> None:
    told, message = HELLO[kind]
    source = shop.source(uri=f"mongodb://127.0.0.1:{shop.emulator.port}/shop")
    source.tables()  # the driver itself refuses some servers at first sight
    shop.emulator.overrides["hello"] = told
    [problem] = source.attach(OWNER, None).check([Watch("t")])
    assert problem.code is Code.SOURCE_NOT_SET_UP and message in problem.message and problem.hint


def test_rights_that_are_missing(shop: Shop) -> None:
    of_any: dict[str, Any] = {"db": "", "collection": ""}
    listed = {"resource": of_any, "actions": ["find", "listCollections", "collStats"]}
    shop.emulator.overrides["connectionstatus"] = {
        "authInfo": {
            "authenticatedUsers": [{"user": "feeds", "db": "admin"}],
            "authenticatedUserPrivileges": [
                listed,
                {"resource": {"db": "shop", "collection": ""}, "actions": ["changeStream"]},
                {"resource": {"cluster": True}, "actions": ["listDatabases"]},
            ],
        }
    }
    [problem] = shop.source().attach(OWNER, None).check([])
    assert problem.code is Code.SOURCE_PERMISSION_MISSING
    assert problem.message == "user feeds may not changeStream, replSetGetConfig"
    assert problem.hint == (
        'in mongosh: db.getSiblingDB("admin").grantRolesToUser("feeds",'
        ' [{role: "readAnyDatabase", db: "admin"}, {role: "clusterMonitor", db: "admin"}])'
    )
