"""Server-sent events: what they say, and where a client goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from changefeed.api import Result, Session
from changefeed.http.events import going_on
from grammar.parser import parse
from grammar.printer import to_sql
from tests.helpers.served import Bench

MADE = "CREATE CHANGEFEED f FOR orders INTO 'kafka://k:9092'"
#: (name, id, data) of an event.
Event = tuple[str, str, Any]


@contextmanager
def watching(
    bench: Bench, path: str, last: str = "", body: object = None
) -> Iterator[Iterator[Event]]:
    """The events of an answer, as they come."""
    place = urlsplit(bench.server.address)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=30)
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    if bench.token:
        headers["Authorization"] = f"Bearer {bench.token}"
    if body is None:
        connection.request("GET", path, headers=headers)
    else:
        headers["Content-Type"] = "application/json"
        connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    try:
        assert answer.headers["Content-Type"] == "text/event-stream", answer.read()
        yield _events(answer)
    finally:
        answer.close()
        connection.close()


def _events(answer: HTTPResponse) -> Iterator[Event]:
    found: dict[str, str] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            found[name] = value
        elif found:
            yield found["event"], found.get("id", ""), json.loads(found["data"])
            found = {}


def test_a_list_comes_again_when_it_has_changed(bench: Bench) -> None:
    with watching(bench, "/v1/feeds") as events:
        name, first, listed = next(events)
        assert (name, listed["items"]) == ("change", [])
        bench.world.run(MADE)
        name, second, listed = next(events)
        assert [item["name"] for item in listed["items"]] == ["f"] and second != first
        _, headers, _ = bench.ask("/v1/feeds")
        assert headers["ETag"] == second
    with watching(bench, "/v1/feeds", last=second) as events:
        bench.world.run("PAUSE CHANGEFEED f")
        _, third, listed = next(events)
        assert listed["items"][0]["status"] == "paused", "what the client has is not sent again"
    assert third not in (first, second)


def test_a_feed_that_is_gone_ends_its_events(bench: Bench) -> None:
    bench.world.run(MADE)
    with watching(bench, "/v1/feeds/f") as events:
        assert next(events)[2]["name"] == "f"
        bench.world.run("DROP CHANGEFEED f")
        told = list(events)
    assert told[-1][0] == "error" and told[-1][2]["code"] in ("CF1101", "CF1102"), told


def test_a_user_whose_token_ends_sees_no_more(bench: Bench) -> None:
    bench.token = str(bench.world.run("CREATE USER ann WITH role = 'viewer'").rows[0][-1])
    with bench.serve(logins=True) as bench.server, watching(bench, "/v1/feeds") as events:
        next(events)
        bench.world.run("DROP USER ann")
        assert [(name, data["code"]) for name, _, data in events] == [("error", "CF1402")]


def test_what_cannot_be_watched(bench: Bench) -> None:
    status, headers, _ = bench.ask("/v1/sources/shop/tables", accept="text/event-stream")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    with bench.serve(watches=1) as bench.server, watching(bench, "/v1/feeds") as events:
        next(events)
        assert bench.ask("/v1/feeds", accept="text/event-stream")[0] == 503
        assert bench.ask("/v1/feeds")[0] == 200


def test_rows_of_a_feed_and_where_it_goes_on(bench: Bench) -> None:
    asked: list[str] = []
    rows = [("t", "[1]", "{}", "c"), (None, None, '{"resolved": "17.0000000000"}', "r")]

    def execute(statement: Any, session: Session, *_: Any) -> Result:
        asked.append(to_sql(statement))
        return Result("stream", stream=iter(rows))

    bench.world.interpreter.execute = execute  # type: ignore[assignment, method-assign]
    body = {"statement": "CREATE CHANGEFEED FOR orders WITH updated, initial_scan = 'yes'"}
    with watching(bench, "/v1/statements", body=body) as events:
        told = list(events)
    assert [name for name, _, _ in told] == ["result", "row", "resolved", "session"]
    assert [identity for _, identity, _ in told] == ["", "", "17.0000000000", ""]
    assert told[1][2] == ["t", "[1]", "{}", "c"]
    with watching(bench, "/v1/statements", "17.0000000000", body) as events:
        list(events)
    assert asked == [
        "CREATE CHANGEFEED FOR orders WITH updated, initial_scan = 'yes', resolved = '1s'",
        "CREATE CHANGEFEED FOR orders WITH updated, cursor = '17.0000000000', resolved = '1s'",
    ]


@pytest.mark.parametrize("statement", ["SHOW JOBS", MADE, "USE shop; CREATE CHANGEFEED FOR orders"])
def test_nothing_else_goes_on(bench: Bench, statement: str) -> None:
    body = {"statement": statement}
    with watching(bench, "/v1/statements", "17.0000000000", body) as events:
        ((name, _, data),) = events
    assert (name, data["code"]) == ("error", "CF1204")
    assert bench.world.run("SHOW CHANGEFEEDS").rows == []


def test_a_resolved_option_of_the_statement_stays() -> None:
    given = parse("CREATE CHANGEFEED FOR t WITH resolved = '5s', cursor = '-1h'")
    again = to_sql(going_on(given, "17.0000000000"))
    assert "resolved = '5s'" in again and "-1h" not in again and "17.0000000000" in again
