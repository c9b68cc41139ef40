"""``transaction_metadata``: the numbers of a transaction's messages, however it is cut, and whoever
reads it again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from changefeed.core.sizes import Sizes
from changefeed_testing.sinks.readers import file_bytes, visible_files
from tests.e2e.feeds import Feeds
from tests.helpers.waiting import until
from tests.services.postgres import Database
from tests.services.webhook import WebhookServer

pytestmark = pytest.mark.e2e

Place = tuple[str, int, int]


class Received:
    """The messages of a feed: topic, key and value."""

    def __init__(self, rows: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        self.rows = list(rows)

    @classmethod
    def in_table(cls, file: Path) -> Received:
        """What is in a table sink."""
        with sqlite3.connect(file) as found:
            rows = found.execute(
                'SELECT "table", key, value FROM changefeed_messages ORDER BY rowid'
            ).fetchall()
        return cls((topic, key, json.loads(value)) for topic, key, value in rows if key)

    @classmethod
    def of_values(cls, values: Iterable[dict[str, Any]]) -> Received:
        """What came without keys beside the values: each has its key and topic in it."""
        return cls(
            ("transaction", value["id"], value)
            if "status" in value
            else (value["topic"], json.dumps(value["key"]), value)
            for value in values
        )

    @property
    def places(self) -> dict[tuple[str, str], list[Place]]:
        """By topic and key, the places of its messages, but of a scan."""
        found: dict[tuple[str, str], list[Place]] = {}
        for topic, key, value in self.rows:
            if "status" not in value and value["transaction"] is not None:
                found.setdefault((topic, key), []).append(tuple(value["transaction"].values()))
        return found

    @property
    def transactions(self) -> list[dict[str, Any]]:
        """The messages of the topic of transactions."""
        return [value for topic, _, value in self.rows if topic == "transaction"]

    @property
    def by_transaction(self) -> dict[str, list[dict[str, Any]]]:
        """These messages by the id of the transaction, which is their key: a webhook keeps the
        order of each key, and no other."""
        found: dict[str, list[dict[str, Any]]] = {}
        for value in self.transactions:
            found.setdefault(value["id"], []).append(value)
        return found


def create(feeds: Feeds, name: str, folder: Path, *options: str) -> None:
    feeds.execute(
        f"CREATE CHANGEFEED {name} FOR a, b INTO 'experimental-sql:///sqlite:///{folder}/{name}.db'"
        f" WITH {', '.join(['transaction_metadata', *options])}"
    )
    feeds.sync(name)


def received(folder: Path, name: str) -> Received:
    return Received.in_table(folder / f"{name}.db")


def check(found: Received) -> None:
    """Each transaction's messages are numbered without a gap, and its end counts them."""
    by_id: dict[str, list[tuple[str, Place]]] = {}
    for (topic, _), places in found.places.items():
        for place in places:
            by_id.setdefault(place[0], []).append((topic, place))
    ends = {t["id"]: t for t in found.transactions if t["status"] == "END"}
    begins = Counter(t["id"] for t in found.transactions if t["status"] == "BEGIN")
    assert set(ends) == set(begins) == set(by_id)
    assert len(found.transactions) == 2 * len(ends)
    for name, messages in by_id.items():
        assert sorted(total for _, (_, total, _) in messages) == list(range(1, len(messages) + 1))
        counts = Counter(topic for topic, _ in messages)
        for topic, count in counts.items():
            orders = sorted(own for t, (_, _, own) in messages if t == topic)
            assert orders == list(range(1, count + 1))
        assert ends[name]["event_count"] == len(messages)
        assert {c["data_collection"]: c["event_count"] for c in ends[name]["data_collections"]} == {
            f"public.{topic}": count for topic, count in counts.items()
        }


@pytest.fixture
def shop(postgres: Database, feeds: Feeds) -> Database:
    for table in "ab":
        postgres.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    feeds.connect(shop=postgres.uri)
    feeds.execute("USE shop")
    return postgres


def write(shop: Database) -> None:
    """Transactions of one table and of both, with a key change and a row that is written twice."""
    shop.execute("INSERT INTO a SELECT i, 'x' FROM generate_series(1, 7) i")
    shop.execute(
        "INSERT INTO b VALUES (1, 'x'), (2, 'y'); UPDATE a SET v = 'y' WHERE id < 4;"
        "UPDATE a SET v = 'z' WHERE id = 2; UPDATE b SET id = 9 WHERE id = 1;"
        "DELETE FROM a WHERE id = 7; INSERT INTO b VALUES (3, 'z')"
    )
    shop.execute("DELETE FROM b WHERE id = 2")


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_numbers_do_not_depend_on_how_the_log_is_cut(
    shop: Database, feeds: Feeds, tmp_path: Path
) -> None:
    shop.execute("INSERT INTO a VALUES (100, 'scanned')")
    create(feeds, "f", tmp_path)
    write(shop)
    feeds.sync("f")
    whole = received(tmp_path, "f")
    check(whole)
    assert len(whole.transactions) == 6
    assert [v["transaction"] for _, k, v in whole.rows if k == "[100]"] == [None]

    feeds.restart(Sizes(slice_rows=3, chunk_rows=2))
    cursor = min(v["id"].split(":")[1] for v in whole.transactions)
    before = f"{int(cursor.split('.')[0]) - 1}.0000000000"
    create(feeds, "g", tmp_path, f"cursor = '{before}'")
    cut = received(tmp_path, "g")
    check(cut)
    assert cut.places == whole.places
    assert cut.transactions == whole.transactions


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_files_and_webhooks_have_the_same_numbers(
    shop: Database, feeds: Feeds, tmp_path: Path
) -> None:
    """Sinks without keys beside their messages, which keep another order between topics."""
    server, folder = WebhookServer(), tmp_path / "files"
    create(feeds, "f", tmp_path)
    for name, uri in (("g", f"file://{folder}"), ("h", server.uri)):
        feeds.execute(
            f"CREATE CHANGEFEED {name} FOR a, b INTO '{uri}'"
            " WITH transaction_metadata, key_in_value, topic_in_value"
        )
        feeds.sync(name)
    write(shop)
    for name in "fgh":
        feeds.sync(name)
    server.stop()
    lines = [line for path in visible_files(folder) for line in file_bytes(path).splitlines()]
    posted = [value for request in server.taken for value in request.value["payload"]]
    expected = received(tmp_path, "f")
    assert len(expected.transactions) == 6
    for values in ([json.loads(line) for line in lines], posted):
        found = Received.of_values(values)
        check(found)
        assert found.places == expected.places
        assert found.by_transaction == expected.by_transaction
    assert Received.of_values(map(json.loads, lines)).transactions == expected.transactions


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_table_that_failed_has_its_places_when_it_goes_on(
    shop: Database, feeds: Feeds, tmp_path: Path
) -> None:
    create(feeds, "f", tmp_path, "unsent_values = 'fail'", "min_checkpoint_frequency = '500ms'")
    shop.execute("INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 'x')")
    feeds.sync("f")
    # Paused, as an ALTER answers before a feed that runs goes by it.
    feeds.execute("PAUSE CHANGEFEED f")
    feeds.execute("ALTER CHANGEFEED f SET schema_change_policy = 'stop'")
    feeds.execute("RESUME CHANGEFEED f")
    shop.execute("ALTER TABLE b ALTER v TYPE int USING 1")
    shop.execute("INSERT INTO a VALUES (2, 'x'); INSERT INTO b VALUES (2, 5)")
    until(lambda: "failed" in str(feeds.execute("SHOW CHANGEFEED f TABLES").rows))
    until(lambda: len(received(tmp_path, "f").transactions) == 4)
    found = received(tmp_path, "f")
    (end,) = [t for t in found.transactions if t["status"] == "END"][1:]
    assert end["event_count"] == 2, "the changes of a table that failed are counted"
    assert found.places["a", "[2]"] == [(end["id"], 1, 1)]

    feeds.execute("ALTER CHANGEFEED f SET schema_change_policy = 'nobackfill'")
    feeds.execute("RESUME CHANGEFEED f")
    feeds.sync("f")
    check(received(tmp_path, "f"))


@pytest.mark.parametrize("postgres", [16], indirect=True)
def test_a_node_that_starts_again_goes_on_with_the_same_numbers(
    shop: Database, feeds: Feeds, tmp_path: Path
) -> None:
    create(feeds, "f", tmp_path)
    write(shop)
    feeds.sync("f")
    feeds.close()
    shop.execute("UPDATE a SET v = 'w'; UPDATE b SET v = 'w'")
    feeds.open()
    feeds.sync("f")
    found = received(tmp_path, "f")
    check(found)
    assert len(found.transactions) == 8
