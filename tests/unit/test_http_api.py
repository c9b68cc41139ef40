"""The HTTP API on a loopback address: statements, resources, and what is refused."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from changefeed.api import Result, Seconds
from changefeed.core.addresses import listen
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.schema import TableName
from changefeed.http.answers import error_of, result_of
from changefeed.http.forms import status_of
from changefeed.http.resources import FACTS, RESOURCES, Fact
from shell.diagnostics import error_json
from tests.golden.world import NOW, SECRETS, shape
from tests.helpers.served import Bench
from tests.helpers.waiting import until

MADE = "CREATE CHANGEFEED f FOR orders, items INTO 'kafka://u:hunter2@k:9092'"


def refused(bench: Bench, statement: str) -> tuple[int, dict[str, Any]]:
    """The answer over HTTP, which has the fields that the shell prints."""
    status, body = bench.run(statement)
    with pytest.raises(ChangefeedError) as caught:
        bench.world.run(statement)
    error = caught.value
    each = error.problems if isinstance(error, Problems) else [error]
    assert status == status_of(error) == body["status"]
    shown = body.get("problems", [body])
    for one, fields in zip(each, shown, strict=True):
        printed = json.loads(error_json(one))
        assert {name: fields.get(name) for name in printed} == printed
    assert str(error_of(body)) == str(error)
    return status, body


def test_a_statement_answers_rows_with_types_and_notices(bench: Bench) -> None:
    status, answer = bench.run(f"{MADE};\nSHOW CHANGEFEEDS;")
    assert status == 200
    made, shown = answer["results"]
    assert made["tag"] == "CREATE CHANGEFEED" and made["feed"] == {"id": 1, "name": "f"}
    assert made["notices"][0] == "changefeed will emit to topic orders"
    types = {column["name"]: column["type"] for column in shown["columns"]}
    assert types["job_id"] == "integer" and types["full_table_names"] == "list"
    assert types["name"] == "text" and types["error"] is None
    row = dict(zip(types, shown["rows"][0], strict=True))
    assert row["full_table_names"] == ["shop.public.items", "shop.public.orders"]


def test_a_client_can_show_results_as_the_shell_does(bench: Bench) -> None:
    bench.run(MADE)
    bench.world.node.deliver("f", NOW - 90 * 10**9, rows=50)
    for statement in ("SHOW CHANGEFEEDS", "SHOW CHANGEFEED f", "SHOW CHANGEFEED f EVENTS"):
        here = bench.world.run(statement)
        there = result_of(bench.run(statement, display=True)[1]["results"][0])
        assert repr(there) == repr(here)
        for mine, other in zip(_cells(there), _cells(here), strict=True):
            assert type(mine) is type(other) or isinstance(other, type(mine))
            assert str(mine) == str(other)
            assert getattr(mine, "words", None) == getattr(other, "words", None)
    lag = result_of(bench.run("SHOW CHANGEFEEDS", display=True)[1]["results"][0]).rows[0][5]
    assert isinstance(lag, Seconds) and str(lag) == "1m 30s"


def _cells(result: Result) -> list[object]:
    rows = [*result.rows, *(result.brief.rows if result.brief else ())]
    facts = [fact for section in result.sections for _, fact in section.facts]
    return [cell for row in rows for cell in row] + facts


def test_a_session_lasts_as_long_as_its_client_sends_it_back(bench: Bench) -> None:
    bench.world.run("CREATE EXTERNAL CONNECTION other AS 'postgresql://o/o' WITH check = 'no'")
    status, answer = bench.run("USE other")
    assert (status, answer["session"]["source"]) == (200, "other")
    answer = bench.run("SHOW TABLES", session=answer["session"])[1]
    assert answer["session"]["source"] == "other"
    assert bench.run("SHOW CHANGEFEEDS")[1]["session"]["source"] is None


@pytest.mark.parametrize(
    ("statement", "status"),
    [
        ("SHOW CHANGFEEDS", 400),
        ("CREATE CHANGEFEED FOR orders INTO 'kafak://k' WITH formt = 'json', updted", 400),
        ("SHOW CHANGEFEED nobody", 404),
        ("CREATE EXTERNAL CONNECTION shop AS 'postgresql://p/p' WITH check = 'no'", 409),
        ("RESUME CHANGEFEED f", 409),
    ],
)
def test_an_error_has_the_fields_and_the_status_of_its_class(
    bench: Bench, statement: str, status: int
) -> None:
    bench.world.run(MADE)
    found, body = refused(bench, statement)
    assert found == status
    if "SHOW CHANGF" in statement:
        assert (body["line"], body["start"], body["end"]) == (1, 5, 15) and body["hint"]


def test_the_statements_before_a_failed_one_have_run(bench: Bench) -> None:
    text = f"{MADE}; SHOW CHANGEFEED nobody; DROP CHANGEFEED f"
    status, body = bench.run(text)
    assert status == 404
    assert text[body["offset"] :][body["start"] : body["end"]] == "nobody"
    assert [result["tag"] for result in body["results"]] == ["CREATE CHANGEFEED"]
    assert bench.world.interpreter.feeds() == ["f"]


def test_an_answer_in_two_pieces_does_not_wait_for_the_client() -> None:
    with (
        closing(listen("127.0.0.1", 0)) as listener,
        closing(socket.create_connection(listener.getsockname())),
        closing(listener.accept()[0]) as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_line_by_line(bench: Bench) -> None:
    accept = {"Accept": "application/x-ndjson"}
    ask = {"statement": "SHOW NODES; SHOW CHANGEFEED nobody"}
    status, headers, text = bench.ask("/v1/statements", ask, **accept)
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    first, last = map(json.loads, text.splitlines())
    assert first["result"]["columns"] and last["error"]["code"] == "CF1101"


def test_every_resource_answers_as_its_statement(bench: Bench) -> None:
    bench.world.run(MADE)
    bench.world.run("CREATE SCHEDULE f FOR CHANGEFEED orders INTO 'null://' RECURRING '@daily'")
    for resource in RESOURCES:
        name = "shop" if "/sources/" in resource.path else "f"
        path = resource.path.replace("{name}", name)
        if path.endswith("/skip-transaction"):
            continue  # no table has failed; see below
        if path.endswith(("/resume", "/retry")):
            bench.world.run("PAUSE CHANGEFEED f")
        status, headers, text = bench.ask(path, method=resource.method)
        assert (status, headers["Content-Type"]) == (200, "application/json"), (path, text)
        answer = json.loads(text)
        assert ("items" in answer) is not resource.one
        if resource.method == "GET":
            assert bench.ask(path, If_None_Match=headers["ETag"])[::2] == (304, b"")
            status, head, nothing = bench.ask(path, method="HEAD")
            assert (status, head["ETag"], nothing) == (200, headers["ETag"], b"")
    (feed,) = bench.json("/v1/feeds")[1]["items"]
    assert feed == bench.world.run("SHOW CHANGEFEEDS").objects()[0]
    assert len(bench.json("/v1/feeds/f/events?limit=2")[1]["items"]) == 2
    bench.world.run(MADE.replace(" f ", " g "))
    assert [item["name"] for item in bench.json("/v1/feeds?limit=1")[1]["items"]] == ["f"]


def test_a_name_may_have_a_slash(bench: Bench) -> None:
    for name in ("a/b", "a", "a/tables"):
        bench.world.run(MADE.replace(" f ", f' "{name}" '))
    for path, name in (("a%2Fb", "a/b"), ("a%2fb", "a/b"), ("a%2Ftables", "a/tables"), ("a", "a")):
        assert bench.json(f"/v1/feeds/{path}")[1]["name"] == name
        assert len(bench.json(f"/v1/feeds/{path}/tables")[1]["items"]) == 2
    assert bench.json("/v1/feeds/b%2Fa")[1]["error"] == 'changefeed "b/a" does not exist'


def test_schedules(bench: Bench) -> None:
    made = "CREATE SCHEDULE s FOR CHANGEFEED orders INTO 'null://' RECURRING '@daily'"
    bench.world.run(made)
    for verb, status in (("pause", "paused"), ("resume", "active")):
        assert bench.json(f"/v1/schedules/s/{verb}", {})[0] == 200
        (schedule,) = bench.json("/v1/schedules")[1]["items"]
        assert (schedule["name"], schedule["status"]) == ("s", status)
    assert bench.json("/v1/schedules/none/pause", {})[0] == 404


def test_a_feed_is_steered(bench: Bench) -> None:
    bench.world.run(MADE)
    bench.world.node.deliver("f", NOW)
    assert bench.json("/v1/feeds/f/pause", {})[1]["status"] == "paused"
    assert bench.json("/v1/feeds/f/pause", {})[1]["notices"] == ['changefeed "f" is paused already']
    assert bench.json("/v1/feeds/f/resume", {})[0] == 200
    assert bench.json("/v1/feeds/f/rescan", {"tables": ["public.items"]})[0] == 200
    wanted = {t.table.name: t.scan_wanted for t in bench.world.catalog.tables(1)}
    assert wanted["items"]
    status, body = bench.json("/v1/feeds/f/rescan", {"tables": ["nothing"]})
    assert (status, body["code"]) == (404, "CF1101")
    for action, paused in (("pause", ["public.items"]), ("resume", [])):
        status, body = bench.json(f"/v1/feeds/f/{action}", {"tables": ["public.items"]})
        assert (status, body["status"], body["paused_tables"]) == (200, "running", paused)


def test_a_transaction_at_which_a_table_failed_is_skipped(bench: Bench) -> None:
    bench.world.run(MADE)
    bench.world.node.deliver("f", NOW)
    catalog, at = bench.world.catalog, Timestamp(NOW, 3)
    (items,) = (t for t in catalog.tables(1) if t.table.name == "items")
    failed = items.failed(ChangefeedError("CF4001", "value cannot be encoded"), at)
    catalog.save_progress(1, {items.table: failed}, lease=bench.world.node._leases[1])
    for wrong in ({}, {"transaction": "1.0"}):
        status, body = bench.json("/v1/feeds/f/skip-transaction", wrong)
        assert (status, body["code"]) == (409, "CF1301")
    (row,) = (r for r in bench.json("/v1/feeds/f/tables")[1]["items"] if r["transaction"])
    status, body = bench.json("/v1/feeds/f/skip-transaction", {"transaction": row["transaction"]})
    assert (status, body["items"]) == (200, [{"table": "public.items", "transaction": str(at)}])
    assert next(t for t in catalog.tables(1) if t.table.name == "items").skipped == at


def test_a_table_with_a_dot_in_its_name_is_read_again(bench: Bench) -> None:
    table = TableName("shop", "public", "Items.of day")
    bench.world.sources["shop"].schemas[table] = shape(table, {"id": "bigint"}, ["id"])
    bench.world.run("CREATE CHANGEFEED f FOR orders, public.\"Items.of day\" INTO 'null://'")
    bench.world.node.deliver("f", NOW)
    for name in ('public."Items.of day"', '"Items.of day"'):
        assert bench.json("/v1/feeds/f/rescan", {"tables": [name]})[0] == 200
    wanted = {t.table.name: t.scan_wanted for t in bench.world.catalog.tables(1)}
    assert wanted == {"orders": False, "Items.of day": True}
    assert bench.json("/v1/feeds/f/rescan", {"tables": ["public.Items.of day"]})[0] == 404


def test_parameters_are_values_and_names(bench: Bench) -> None:
    bench.world.run(MADE)
    shown = bench.run("SHOW CHANGEFEEDS WHERE name = $1 AND job_id < $2", parameters=["f", 1.5])
    assert [len(result["rows"]) for result in shown[1]["results"]] == [1]
    hostile = "x'; DROP CHANGEFEED f; --"
    assert bench.run("SHOW CHANGEFEEDS WHERE name = $1", parameters=[hostile])[0] == 200
    status, body = bench.run("SHOW\nCHANGEFEED $1", parameters=[hostile])
    assert (status, body["code"], body["line"]) == (404, "CF1101", 2)
    assert (body["start"], body["end"]) == (16, 18)
    assert bench.run("PAUSE CHANGEFEED $1", parameters=["f"])[0] == 200
    for statement, given in (
        ("SHOW JOBS LIMIT $1", [None]),
        ("SHOW JOBS LIMIT $1", {"1": 1}),
        ("SHOW JOBS LIMIT $1", []),
        ("SHOW JOBS LIMIT $1; SHOW JOBS", [1]),
        ("SHOW JOBS", [1]),
    ):
        assert bench.run(statement, parameters=given)[0] == 400


REFUSED: list[tuple[str, object, dict[str, str], int]] = [
    ("/v1/nothing", None, {}, 404),
    ("/v1/statements", None, {}, 405),
    ("/v1/statements", b"{", {}, 400),
    ("/v1/statements", b"\xff\xfe", {}, 400),
    ("/v1/statements", b"[" * 9_000, {}, 400),
    ("/v1/statements", b'{"statement": "' + b"x" * 10_000 + b'"}', {}, 413),
    ("/v1/statements", [], {}, 400),
    ("/v1/statements", {"statement": 1}, {}, 400),
    ("/v1/statements", {"statement": " ; "}, {}, 400),
    ("/v1/statements", {"statement": "SHOW NODES", "sesion": {}}, {}, 400),
    ("/v1/statements", {"statement": "SHOW NODES", "session": {"heard": 1}}, {}, 400),
    ("/v1/statements", {"statement": "SHOW NODES", "display": "yes"}, {}, 400),
    ("/v1/statements", {"statement": "CREATE CHANGEFEED FOR orders"}, {}, 422),
    ("/v1/statements", b'{"statement": "SHOW NODES"}', {"Content_Type": "text/plain"}, 415),
    ("/v1/feeds/f/rescan", {"tables": "items"}, {}, 400),
    ("/v1/feeds/f/pause", {"tables": []}, {}, 400),
    ("/v1/feeds/f/events?limit=0", None, {}, 400),
    ("/v1/feeds/f/events?limit=all", None, {}, 400),
    ("/v1/feeds?limt=1", None, {}, 400),
    ("/v1/statements", {"statement": "SHOW NODES"}, {"Origin": "https://evil.example"}, 403),
    ("/v1/feeds/f/pause", {}, {"Sec_Fetch_Site": "cross-site"}, 403),
    ("/v1/feeds", None, {"Host": "evil.example"}, 421),
    ("/v1/openapi.json", None, {"Host": "evil.example"}, 421),
]


def test_what_is_refused_says_why(bench: Bench) -> None:
    bench.world.run(MADE)
    for path, body, headers, status in REFUSED:
        found, answer, text = bench.ask(path, body, **headers)
        case = path, body, text
        assert (found, answer["Content-Type"]) == (status, "application/problem+json"), case
        said = json.loads(text)
        assert said["status"] == status and said["error"] and said["code"].startswith("CF"), case
        assert not [secret for secret in SECRETS if secret.encode() in text]
    assert bench.get("/livez") == (200, "ok\n")


def test_a_page_of_the_server_itself_may_ask(bench: Bench) -> None:
    own = {"Origin": bench.server.address, "Sec_Fetch_Site": "same-origin"}
    assert bench.json("/v1/statements", {"statement": "SHOW NODES"}, **own)[0] == 200


def test_no_answer_has_a_secret(bench: Bench) -> None:
    bench.world.run(MADE)
    bench.run("CREATE EXTERNAL CONNECTION k AS 'kafka://u:hunter2@k:9092' WITH check = 'no'")
    answers = [bench.run("CREATE CHANGEFEED x FOR orders INTO 'kafka://u:hunter2@k:9' WITH y")]
    answers += [bench.run("SHOW CREATE CHANGEFEED f"), bench.run("CREATE 'hunter2'")]
    answers += [bench.json(path) for path in ("/v1/feeds", "/v1/feeds/f", "/v1/sources")]
    answers += [bench.json(f"/v1/feeds/f/{part}") for part in ("events", "errors", "tables")]
    assert not [secret for secret in SECRETS if secret in json.dumps(answers)]


def test_closing_the_request_cancels_a_statement(bench: Bench) -> None:
    bench.world.run(MADE)
    ended = threading.Event()
    waiting = bench.world.interpreter.execute

    def execute(statement: Any, session: Any, *_: Any) -> Result:
        try:
            return waiting(statement, session)
        finally:
            ended.set()

    bench.world.interpreter.execute = execute  # type: ignore[assignment, method-assign]
    bench.world.catalog.save_source_state("shop", position="0/1")
    place = urlsplit(bench.server.address)
    asked = HTTPConnection(str(place.hostname), place.port, timeout=30)
    body = json.dumps({"statement": "SYNC CHANGEFEED f TIMEOUT '1h'"})
    asked.request("POST", "/v1/statements", body, {"Content-Type": "application/json"})
    time.sleep(0)
    assert not ended.wait(0.3), "it waits for the feed"
    asked.close()
    until(ended.is_set, seconds=10)


def test_a_client_that_does_not_read_holds_nothing_for_ever(bench: Bench) -> None:
    """Feeds without a sink have no end; their clients have other threads than statements."""
    ended = threading.Event()

    def rows() -> Iterator[Any]:
        try:
            while True:
                yield ("orders", "[1]", "x" * 100_000, "c")
        finally:
            ended.set()

    execute = bench.world.interpreter.execute

    def stream(statement: Any, session: Any, *_: Any) -> Result:
        endless = isinstance(statement, str) and statement.startswith("CREATE")
        return Result("stream", stream=rows()) if endless else execute(statement, session)

    bench.world.interpreter.execute = stream  # type: ignore[assignment, method-assign]
    asked = {"statement": "CREATE CHANGEFEED FOR orders"}
    with bench.serve(streams=1, stalled=0.5, read_timeout=0.5) as bench.server:
        place = urlsplit(bench.server.address)
        deaf = HTTPConnection(str(place.hostname), place.port, timeout=30)
        lines = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        deaf.request("POST", "/v1/statements", json.dumps(asked), lines)
        deaf.getresponse()
        assert bench.run("SHOW JOBS")[0] == 200
        status, _, body = bench.ask("/v1/statements", asked, accept="application/x-ndjson")
        assert status == 503 and b"read lines as may" in body
        assert ended.wait(30), "it is left"
        known = bench.server._server.server_state
        until(lambda: not known.connections, seconds=30)
        deaf.close()


def test_a_body_that_does_not_come_is_not_waited_for(bench: Bench) -> None:
    with bench.serve(patience=0.2) as server:
        place = urlsplit(server.address)
        with socket.create_connection((str(place.hostname), place.port or 0), timeout=30) as slow:
            slow.sendall(
                b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02", b"GET / HTTP/9\r\n\r\n", b"\0" * 70_000])
def test_bytes_that_are_no_request(bench: Bench, garbage: bytes) -> None:
    place = urlsplit(bench.server.address)
    with socket.create_connection((str(place.hostname), place.port or 0), timeout=30) as hostile:
        hostile.sendall(garbage + b"\r\n\r\n")
        assert hostile.recv(12) in (b"", b"HTTP/1.1 400")
    assert bench.get("/livez") == (200, "ok\n")


def test_the_openapi_document_is_valid_and_whole(bench: Bench) -> None:
    status, document = bench.json("/v1/openapi.json")
    assert status == 200
    validate(document)
    rows = {(row.path, row.method.lower()) for row in RESOURCES}
    rows |= {(fact.path, "get") for fact in FACTS}
    assert rows <= {(path, method) for path, each in document["paths"].items() for method in each}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.path)
def test_what_a_prompt_reads_is_as_the_document_says(bench: Bench, fact: Fact) -> None:
    bench.world.run(MADE)
    path = fact.path.replace("feeds/{name}", "feeds/f").replace("{name}", "shop")
    path += "?table=items" * bool(fact.query)
    status, headers, body = bench.ask(path)
    assert status == 200, body
    OAS31Validator({**fact.answer, "additionalProperties": False}).validate(json.loads(body))
    assert bench.ask(path, If_None_Match=headers["ETag"])[0] == 304
    assert bench.json(f"{path}&x=1" if fact.query else f"{path}?x=1")[1]["code"] == "CF1204"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/sources/shop/columns", 400, "CF1204"),
        ("/v1/sources/shop/columns?table=", 404, "CF1101"),
        ("/v1/sources/shop/columns?table=nothing", 404, "CF1101"),
        ("/v1/sources/nothing/columns?table=orders", 404, "CF1101"),
    ],
)
def test_columns_that_cannot_be_had(bench: Bench, path: str, status: int, code: str) -> None:
    answered, body = bench.json(path)
    assert (answered, body["code"]) == (status, code)


def test_probes(bench: Bench) -> None:
    assert bench.get("/livez") == bench.get("/readyz") == (200, "ok\n")
    for path in ("/livez", "/readyz", "/metrics", "/v1/feeds"):
        status, headers, body = bench.ask(path, method="HEAD", accept="text/event-stream")
        assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0, path
    bench.ill = "the node's thread has ended"
    assert bench.get("/livez")[0] == 200
    assert bench.get("/readyz") == (503, "the node's thread has ended\n")
