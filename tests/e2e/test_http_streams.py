"""Rows of a feed without a sink over HTTP, from a real source: where a client goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from changefeed.api import Session
from changefeed.http.application import Api
from changefeed.http.client import RemoteNode
from changefeed.http.server import HttpServer
from changefeed.monitor import Monitor
from tests.e2e.feeds import Feeds, running
from tests.helpers.waiting import until
from tests.services.postgres import Database

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]

STATEMENT = "CREATE CHANGEFEED FOR t WITH updated, resolved = '100ms'"


@pytest.fixture
def served(tmp_path: Path, postgres: Database) -> Iterator[tuple[Feeds, str]]:
    """Feeds of a table with one row, and the address of their node."""
    postgres.execute("create table t (a int primary key); insert into t values (1)")
    with running(tmp_path / "state") as feeds:
        feeds.connect(shop=postgres.uri)
        monitor = Monitor(feeds.interpreter, lambda: None)
        with HttpServer("127.0.0.1", 0, Api(monitor, local=True).application) as server:
            yield feeds, server.address


def read(address: str, last: str, wanted: int) -> tuple[list[int], str]:
    """Keys until there are so many, and the id of the next resolved timestamp."""
    keys: list[int] = []
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    body = {"statement": STATEMENT}
    with httpx.stream(
        "POST", f"{address}/v1/statements", json=body, headers=headers, timeout=60
    ) as answer:
        identity = kind = ""
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                identity = value
            elif name == "event":
                kind = value
            elif name == "data" and kind == "row":
                keys += json.loads(json.loads(value)[1])
            elif not line and identity and len(keys) >= wanted:
                return keys, identity
    raise AssertionError(f"the events ended after {keys}")


def test_a_client_goes_on_where_it_was(served: tuple[Feeds, str], postgres: Database) -> None:
    feeds, address = served
    # So that the change log is there between two requests.
    feeds.execute("CREATE CHANGEFEED other FOR t INTO 'null://'")
    feeds.sync("other")
    keys, last = read(address, "", 1)
    assert keys == [1], "the initial scan"
    postgres.execute("insert into t values (2), (3)")
    keys, last = read(address, last, 2)
    assert keys == [2, 3], "no row is missing, and the scan is not repeated"
    postgres.execute("insert into t values (4)")
    assert read(address, last, 1)[0] == [4]


def test_the_shell_elsewhere_gets_rows_and_takes_the_feed_down(served: tuple[Feeds, str]) -> None:
    feeds, address = served
    node = RemoteNode(address)
    stream = node.execute(STATEMENT, Session(source="shop"), endless=True).stream
    assert stream is not None
    assert next(row for row in stream if row[0] is not None)[1] == "[1]"
    assert len(feeds.catalog.jobs(include_finished=False)) == 1
    stream.close()  # type: ignore[attr-defined]
    node.close()
    until(lambda: not feeds.catalog.jobs(include_finished=False), "the feed is gone")
