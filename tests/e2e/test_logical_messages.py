"""``FOR MESSAGES``: what an application writes into the log arrives with the rows beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.errors import ChangefeedError
from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.kafka import KafkaBroker
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


def emit(database: Database, *messages: tuple[bool, str, str]) -> None:
    """Write messages one by one: transactional or not, prefix, content."""
    for transactional, prefix, content in messages:
        database.execute(
            "SELECT pg_logical_emit_message(%s, %s, %s)", (transactional, prefix, content)
        )


def table_rows(folder: Path) -> list[tuple[str, Any, Any]]:
    """Topic, key and value of every row, in the order in which they were delivered."""
    with sqlite3.connect(folder / "out.db") as found:
        rows = found.execute(
            'SELECT "table", key, value FROM changefeed_messages ORDER BY rowid'
        ).fetchall()
    return [(topic, json.loads(key), json.loads(value)) for topic, key, value in rows if key]


@pytest.mark.kafka
def test_contents_are_the_values(
    feeds: Feeds, postgres: Database, kafka: KafkaBroker, topic: str
) -> None:
    """Several prefixes, rows of the same transaction, no content but bytes, and none before."""
    feeds.connect(shop=postgres.uri)
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    # A feed that runs already: its stream does not ask for messages yet.
    feeds.execute(f"CREATE CHANGEFEED rows FOR orders AS '{topic}_orders' "
                  f"INTO 'kafka://{kafka.bootstrap}'")  # fmt: skip
    feeds.sync("rows")
    emit(postgres, (True, "orders.early", "before the feed"))
    feeds.execute(
        f"CREATE CHANGEFEED events FOR MESSAGES PREFIX 'orders.*', 'audit' AS '{topic}', orders "
        f"AS '{topic}_orders_2' INTO 'kafka://{kafka.bootstrap}' WITH resolved"
    )
    emit(postgres, (True, "orders.made", '{"id": 1}'), (False, "audit", "looked at"))
    with postgres.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute("SELECT pg_logical_emit_message(true, 'orders.made', '{\"id\":  2}')")
        connection.execute("INSERT INTO orders VALUES (2)")
        connection.execute("SELECT pg_logical_emit_message(true, 'other', 'nobody wants it')")
        connection.execute(r"SELECT pg_logical_emit_message(true, 'audit', '\xff00'::bytea)")
    with postgres.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'audit', 'undone')")
        connection.rollback()
    feeds.sync("events")
    found = [(r.key, r.value) for r in kafka.messages(topic) if r.key is not None]
    assert found == [
        (b'["orders.made"]', b'{"id": 1}'),
        (b'["audit"]', b"looked at"),
        (b'["orders.made"]', b'{"id":  2}'),
        (b'["audit"]', b"\xff\x00"),
    ]
    rows = [r.key for r in kafka.messages(f"{topic}_orders_2") if r.key is not None]
    assert sorted(rows) == [b"[1]", b"[2]"]


def test_rows_keep_their_place_in_the_transaction(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    feeds.connect(shop=postgres.uri)
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    feeds.execute(
        f"CREATE CHANGEFEED f FOR MESSAGES PREFIX '*', orders "
        f"INTO 'experimental-sql:///sqlite:///{tmp_path}/out.db' WITH transaction_metadata"
    )
    feeds.sync("f")
    with postgres.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'a', 'first')")
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute("SELECT pg_logical_emit_message(true, 'b', 'third')")
    emit(postgres, (False, "c", "alone"))
    feeds.sync("f")
    found = table_rows(tmp_path)
    changes = [(t, k, v) for t, k, v in found if t != "transaction"]
    orders = {(topic, *key): value["transaction"]["total_order"] for topic, key, value in changes}
    assert orders == {
        ("messages", "a"): 1,
        ("orders", 1): 2,
        ("messages", "b"): 3,
        ("messages", "c"): 1,
    }
    row = next(value["after"] for _, key, value in changes if key == ["a"])
    assert row.pop("lsn") > 0
    assert row == {"prefix": "a", "transactional": True, "content": "first", "bytes": None}
    ends = [v for t, _, v in found if t == "transaction" and v["status"] == "END"]
    assert [end["event_count"] for end in ends] == [3, 1]


def test_nothing_is_lost_when_the_capture_is_killed(
    feeds: Feeds, postgres: Database, tmp_path: Path
) -> None:
    feeds.connect(shop=postgres.uri)
    feeds.execute(
        f"CREATE CHANGEFEED f FOR MESSAGES PREFIX 'n' "
        f"INTO 'experimental-sql:///sqlite:///{tmp_path}/out.db'"
    )
    source_runtime = feeds.node.source_runtime("shop")
    for turn in range(3):
        until(lambda: source_runtime.capture_pid is not None)
        for n in range(40):
            emit(postgres, (n % 2 == 0, "n", f"{turn} {n}"))
            if n == 20 and (pid := source_runtime.capture_pid) is not None:
                # One that the turn before killed may be gone by now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    feeds.sync("f")
    contents = [value["after"]["content"] for _, _, value in table_rows(tmp_path)]
    assert list(dict.fromkeys(contents)) == [f"{r} {n}" for r in range(3) for n in range(40)]


def test_what_cannot_be_asked(feeds: Feeds, postgres: Database, tmp_path: Path) -> None:
    feeds.connect(shop=postgres.uri)
    into = f"INTO 'experimental-sql:///sqlite:///{tmp_path}/out.db'"
    with pytest.raises(ChangefeedError, match="only one MESSAGES target"):
        feeds.execute(f"CREATE CHANGEFEED f FOR MESSAGES PREFIX 'a', MESSAGES PREFIX 'b' {into}")
    with pytest.raises(ChangefeedError, match="initial_scan='only'"):
        feeds.execute(
            f"CREATE CHANGEFEED f FOR MESSAGES PREFIX 'a' {into} WITH initial_scan = 'only'"
        )
    feeds.execute(f"CREATE CHANGEFEED f FOR MESSAGES PREFIX 'a', 'b*' {into}")
    created = feeds.execute("SHOW CREATE CHANGEFEED f").rows[0]
    assert "FOR MESSAGES PREFIX 'a', 'b*' FROM shop" in " ".join(map(str, created))
    with pytest.raises(ChangefeedError, match="only one MESSAGES target"):
        feeds.execute("ALTER CHANGEFEED f ADD MESSAGES PREFIX 'c'")
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    feeds.execute("ALTER CHANGEFEED f ADD orders")
    with pytest.raises(ChangefeedError, match="no MESSAGES target of these prefixes"):
        feeds.execute("ALTER CHANGEFEED f DROP MESSAGES PREFIX 'c'")
    feeds.execute("ALTER CHANGEFEED f RESCAN")
    emit(postgres, (True, "b1", "after the rescan"))
    feeds.sync("f")
    assert [v["after"]["content"] for t, _, v in table_rows(tmp_path) if t == "messages"] == [
        "after the rescan"
    ]
    feeds.execute("ALTER CHANGEFEED f DROP MESSAGES PREFIX 'a', 'b*'")
    emit(postgres, (True, "a", "nobody wants it"))
    feeds.sync("f")
    assert len([t for t, _, _ in table_rows(tmp_path) if t == "messages"]) == 1
