"""Feeds from MongoDB into files and Kafka: the scan, every change, killed processes.

An emulator stands for the server.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tests.e2e.feeds import Feeds, consumed, rebuilt, running
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.mongodb import MongoEmulator, Write

pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.usefixtures("mongodb_jars")]


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[Feeds]:
    with running(tmp_path / "state") as made:
        yield made


@pytest.fixture
def emulator(feeds: Feeds) -> Iterator[MongoEmulator]:
    with MongoEmulator() as made:
        made.create("shop", "orders", images=True)
        made.insert("shop", "orders", {"_id": 1, "v": "a"}, {"_id": "x", "v": None})
        feeds.connect(shop=made.uri("shop"))
        yield made


def write(emulator: MongoEmulator, *documents: dict[str, Any]) -> None:
    """Insert or replace documents in one transaction."""
    emulator.commit("shop", [Write("orders", each["_id"], each) for each in documents])


def engine_of(feeds: Feeds) -> psutil.Process:
    """The JVM with Debezium's engine that reads ``shop``."""
    found: list[psutil.Process] = []

    def there() -> bool:
        pid = feeds.node.source_runtime("shop").capture_pid
        children = [] if pid is None else psutil.Process(pid).children(recursive=True)
        # The JVM that answers questions has less memory.
        found[:] = [each for each in children if "-Xmx512m" in each.cmdline()]
        return len(found) == 1

    until(there, "the engine runs")
    return found[0]


def documents(folder: Path) -> dict[str, object]:
    """The documents of the collection as a consumer has them, by key."""
    rows = rebuilt(consumed(folder, "orders"))
    return {key: cast(dict[str, object], row)["document"] for key, row in rows.items()}


def test_into_files_across_killed_processes(
    feeds: Feeds, emulator: MongoEmulator, tmp_path: Path
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE shop.orders INTO 'file://{tmp_path}/out'"
        " WITH updated, resolved = '200ms'"
    )
    feeds.sync("f")
    assert documents(tmp_path / "out") == {
        '["1"]': {"_id": 1, "v": "a"},
        '["\\"x\\""]': {"_id": "x", "v": None},
    }
    write(emulator, {"_id": 1, "v": "b"}, {"_id": 2, "v": "b"})
    engine_of(feeds).send_signal(signal.SIGKILL)
    write(emulator, *({"_id": key, "v": "c"} for key in range(2, 2000)))
    restarted = feeds.kill_capture()
    emulator.commit("shop", [Write("orders", "x", None)])
    until(restarted)
    engine_of(feeds)
    write(emulator, {"_id": 3, "v": "d"})
    feeds.sync("f")
    assert documents(tmp_path / "out") == {
        '["1"]': {"_id": 1, "v": "b"},
        **{f'["{key}"]': {"_id": key, "v": "c"} for key in range(2, 2000)},
        '["3"]': {"_id": 3, "v": "d"},
    }
    feeds.execute("DROP CHANGEFEED f")


def test_a_table_of_a_warehouse_is_the_collection(
    feeds: Feeds, emulator: MongoEmulator, tmp_path: Path
) -> None:
    feeds.execute(f"CREATE CHANGEFEED f FOR TABLE shop.orders INTO 'duckdb:///{tmp_path}/out.db'")
    feeds.sync("f")
    write(emulator, {"_id": 1, "v": "b"}, {"_id": 2, "v": ["c", {"d": 1.0}]})
    emulator.commit("shop", [Write("orders", "x", None)])
    feeds.sync("f")
    assert feeds.verified() == ["f"]
    feeds.execute("DROP CHANGEFEED f")


@pytest.mark.kafka
def test_into_kafka_with_old_documents(
    feeds: Feeds, emulator: MongoEmulator, kafka: KafkaBroker, topic: str
) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED f FOR TABLE shop.shop.orders AS {topic}"
        f" INTO 'kafka://{kafka.bootstrap}' WITH diff"
    )
    feeds.sync("f")
    write(emulator, {"_id": 1, "v": "b"})
    feeds.sync("f")
    engine_of(feeds).send_signal(signal.SIGKILL)
    emulator.commit("shop", [Write("orders", "x", None)])
    feeds.sync("f")
    found = [(m.key, json.loads(m.value or b"null")) for m in kafka.messages(topic)]

    def row(key: str, document: dict[str, Any]) -> dict[str, Any]:
        return {"_id": key, "document": document}

    one, x = b'["1"]', b'["\\"x\\""]'
    assert [value for key, value in found if key == one] == [
        {"after": row("1", {"_id": 1, "v": "a"}), "before": None},
        {"after": row("1", {"_id": 1, "v": "b"}), "before": row("1", {"_id": 1, "v": "a"})},
    ]
    assert [value for key, value in found if key == x] == [
        {"after": row('"x"', {"_id": "x", "v": None}), "before": None},
        {"after": None, "before": row('"x"', {"_id": "x", "v": None})},
    ]
    feeds.execute("DROP CHANGEFEED f")
