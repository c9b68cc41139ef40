"""Elasticsearch turned unkind: refusals, cut connections, late requests, documents refused.

On both majors where the server itself decides: versions, refused documents, requests that are too
large. What a proxy makes up is the same before any server.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from changefeed.core.arrow import MESSAGE_SCHEMA
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Truncate
from changefeed.core.schema import Column, TableName, TableSchema
from changefeed.core.types import LogicalType
from sinks.base import Batch, Epoch, SinkContext, Target
from sinks.elasticsearch.sink import ElasticsearchSink
from tests.services.elasticsearch import MAJORS, MAX_CONTENT_BYTES, Elasticsearch
from tests.services.http_faults import FaultyProxy, Reply, Request, answer, cut, lose_answer

pytestmark = pytest.mark.elasticsearch

on_every_major = pytest.mark.parametrize("elasticsearch", MAJORS, indirect=True)

Row = tuple[int, str | None, int]
"""Key, the JSON of column ``v`` (None deletes the row), version."""

_NAME = TableName("shop", "public", "t")
SCHEMA = TableSchema(
    _NAME,
    (
        Column("id", "integer", LogicalType.parse("int32"), nullable=False, column_id=1),
        Column("v", "jsonb", LogicalType.parse("json"), column_id=2),
    ),
    (0,),
    version=1,
)


class Bench:
    """A sink on a table of its own."""

    def __init__(self, server: Elasticsearch, proxy: FaultyProxy, index: str) -> None:
        self.server = server
        self.proxy = proxy
        self.index = index.lower()[:100]
        self._epoch = 0
        self._opened: list[ElasticsearchSink] = []

    def sink(
        self, parameters: str = "", *, direct: bool = False, patience: float = 30.0
    ) -> ElasticsearchSink:
        port = self.server.port if direct else self.proxy.port
        sink = ElasticsearchSink(f"elasticsearch://127.0.0.1:{port}/?{parameters}")
        sink.patience_seconds = patience
        sink.open(SinkContext("f", 1, (Target(_NAME, self.index),)))
        self._opened.append(sink)
        return sink

    def batch(self, rows: Sequence[Row]) -> Batch:
        self._epoch += 1
        table = pa.Table.from_pylist(
            [
                {
                    "key": f"[{key}]".encode(),
                    "value": None if v is None else f'{{"id": {key}, "v": {v}}}'.encode(),
                    "wall": version,
                    "logical": 0,
                    "seq": version,
                    "op": "d" if v is None else "u",
                }
                for key, v, version in rows
            ],
            schema=MESSAGE_SCHEMA,
        )
        epoch = Epoch(self._epoch, Timestamp(max(row[2] for row in rows)))
        return Batch("f", epoch, 0, Target(_NAME, self.index), SCHEMA, table)

    def deliver(self, sink: ElasticsearchSink, *rows: Row) -> None:
        batch = self.batch(rows)
        sink.commit(batch.epoch, [sink.write(batch)])

    def values(self) -> dict[str, object]:
        return {key: row["v"] for key, row in self.server.documents(self.index).items()}

    def close(self) -> None:
        for sink in self._opened:
            sink.close()


@pytest.fixture
def bench(elasticsearch: Elasticsearch, topic: str) -> Iterator[Bench]:
    with FaultyProxy(elasticsearch.port) as proxy:
        bench = Bench(elasticsearch, proxy, topic)
        yield bench
        bench.close()


def refused(act: Callable[[], object]) -> ChangefeedError:
    with pytest.raises(ChangefeedError) as caught:
        act()
    return caught.value


ROWS: list[Row] = [(key, f'{{"n": {key}}}', 10 + key) for key in range(20)]
VALUES = {str(key): {"n": key} for key in range(20)}


# -------------------------------------------------------------------------------- busy


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_cluster_is_asked_again(bench: Bench, status: int) -> None:
    bench.proxy.script.extend([answer(status), answer(status)])
    bench.deliver(bench.sink(), *ROWS)
    assert bench.values() == VALUES
    assert len(bench.proxy.seen) == 3


def test_only_what_was_turned_away_is_sent_again(bench: Bench) -> None:
    def first_half(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        """As a full queue of one shard looks: some operations done, some not."""
        lines = request.body.splitlines(keepends=True)
        half = b"".join(lines[:20])
        done = forward(Request(request.method, request.path, half, request.headers))
        found = json.loads(done.body)
        busy = {"status": 429, "error": {"type": "es_rejected_execution_exception"}}
        found["items"] += [{"index": busy}] * 10
        return Reply(200, json.dumps({**found, "errors": True}).encode(), done.headers)

    bench.proxy.script.append(first_half)
    bench.deliver(bench.sink(), *ROWS)
    assert bench.values() == VALUES
    assert [len(r.body.splitlines()) for r in bench.proxy.seen] == [40, 20]


def test_why_it_was_busy_is_said(bench: Bench) -> None:
    def full(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        busy = {"status": 429, "error": {"type": "es_rejected_execution_exception"}}
        items = [{"index": busy}] * (len(request.body.splitlines()) // 2)
        return Reply(200, json.dumps({"errors": True, "items": items}).encode())

    bench.proxy.always = full
    error = refused(lambda: bench.deliver(bench.sink(patience=0.3), *ROWS))
    assert error.code.number == "CF5004"
    assert f"127.0.0.1:{bench.proxy.port}" in error.detail
    assert "20 documents: 20 x es_rejected_execution_exception; retried for" in error.detail


def test_patience_ends(bench: Bench) -> None:
    bench.proxy.always = answer(429)
    sink = bench.sink(patience=0.3)
    error = refused(lambda: bench.deliver(sink, *ROWS))
    assert (error.code.number, error.action) == ("CF5004", Action.RETRY)
    sink.abort(Epoch(1, Timestamp(1)), ())
    bench.proxy.always = None
    bench.deliver(sink, *ROWS)
    assert bench.values() == VALUES


def test_a_wait_the_server_asks_for_is_kept_to(bench: Bench) -> None:
    bench.proxy.script.append(answer(429, retry_after="3600"))
    error = refused(lambda: bench.deliver(bench.sink(), *ROWS))
    assert error.code.number == "CF5004"


# -------------------------------------------------------------------------------- connections


@pytest.mark.parametrize("fault", [cut, lose_answer], ids=["before", "after"])
def test_a_cut_connection_is_an_error_to_retry(
    bench: Bench, fault: Callable[[Request, Callable[[Request], Reply]], Reply | None]
) -> None:
    sink = bench.sink()
    bench.deliver(sink, (1, '{"n": 0}', 1))
    bench.proxy.script.append(fault)
    error = refused(lambda: bench.deliver(sink, (1, '{"n": 1}', 2), (2, '{"n": 2}', 2)))
    assert (error.code.number, error.action) == ("CF5001", Action.RETRY)
    sink.abort(Epoch(2, Timestamp(2)), ())
    bench.deliver(sink, (1, '{"n": 1}', 2), (2, '{"n": 2}', 2))
    bench.deliver(sink, (2, None, 3))
    assert bench.values() == {"1": {"n": 1}}


def test_a_server_that_hangs_is_an_error_to_retry(bench: Bench) -> None:
    released = threading.Event()

    def hang(request: Request, forward: Callable[[Request], Reply]) -> None:
        released.wait(30)

    sink = bench.sink("timeout=300ms")
    bench.proxy.script.append(hang)
    error = refused(lambda: bench.deliver(sink, *ROWS))
    released.set()
    assert error.code.number == "CF5001"
    assert "300" in error.detail or "0.3 s" in error.detail


def test_nobody_listens(bench: Bench) -> None:
    sink = ElasticsearchSink("elasticsearch://127.0.0.1:1")
    error = refused(lambda: sink.open(SinkContext("f", 1, ())))
    assert error.code.number == "CF5001"
    assert "127.0.0.1:1" in error.detail


# ------------------------------------------------------------------------------ late and again


def test_an_older_request_that_comes_last_changes_nothing(bench: Bench) -> None:
    newer_done = threading.Event()

    def late(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        assert newer_done.wait(30)
        return forward(request)

    def newer(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        try:
            return forward(request)
        finally:
            newer_done.set()

    sink = bench.sink("bulk_size=2&in_flight=2")
    bench.deliver(sink, (9, '{"n": 9}', 1))
    bench.proxy.script.extend([late, newer])
    bench.deliver(
        sink,
        *[(1, '{"n": 1}', 5), (2, '{"n": 1}', 5)],
        *[(1, '{"n": 2}', 6), (2, None, 6)],
    )
    assert bench.values() == {"1": {"n": 2}, "9": {"n": 9}}


@on_every_major
def test_a_replay_changes_nothing(bench: Bench) -> None:
    rows: list[Row] = [(1, "1", 1), (2, "1", 1), (1, "2", 2), (2, None, 3), (3, "3", 3)]
    sink = bench.sink("json=stored")
    bench.deliver(sink, *rows)
    before = bench.server.versions(bench.index)
    again = bench.sink()
    bench.deliver(again, *rows[:2])
    assert bench.server.versions(bench.index) == before
    bench.deliver(again, *rows)
    assert bench.server.versions(bench.index) == before == {"1": 2, "3": 3}


@on_every_major
def test_a_truncate_that_is_replayed_takes_no_newer_row(bench: Bench) -> None:
    sink = bench.sink("bulk_size=3&json=stored")
    bench.deliver(sink, *((key, "0", 1) for key in range(10)))
    event, target = Truncate(SCHEMA, Timestamp(5), 5), Target(_NAME, bench.index)
    after: list[Row] = [(3, "1", 5), (4, "1", 6)]
    for _ in range(2):
        sink.truncate(event, target, b"{}")
        assert set(bench.values()) in ({"3", "4"}, set())
        bench.deliver(sink, *after)
        assert bench.server.versions(bench.index) == {"3": 5, "4": 6}


@on_every_major
def test_the_end_of_a_scan_removes_what_it_did_not_find(bench: Bench) -> None:
    sink = bench.sink("json=stored")
    bench.deliver(sink, *((key, "0", 5) for key in range(6)))  # a scan that broke off
    bench.deliver(sink, *((key, "1", 9) for key in range(4)))  # the next one
    bench.deliver(sink, (7, "2", 10))  # a change after it
    sink.end_scan(Target(_NAME, bench.index), SCHEMA, Timestamp(9))
    assert bench.server.versions(bench.index) == {"0": 9, "1": 9, "2": 9, "3": 9, "7": 10}


# -------------------------------------------------------------------------- documents refused

#: A flattened field takes an object, not a number.
POISON = "4711"


@on_every_major
def test_a_refused_document_stops_its_table_and_says_no_value(bench: Bench) -> None:
    sink = bench.sink()
    error = refused(lambda: bench.deliver(sink, (1, '{"n": 1}', 1), (2, POISON, 1)))
    assert error.code.number == "CF5003"
    shown = f"{error.message} {error.detail} {error.hint}"
    assert bench.index in shown.split() and "shop.public.t" in shown
    assert "document_parsing_exception (field v of type flattened)" in shown
    assert POISON not in shown and "dead_letter_index" in shown


@on_every_major
def test_a_refused_document_goes_to_the_dead_letters(bench: Bench) -> None:
    letters = f"{bench.index}_letters"
    sink = bench.sink(f"dead_letter_index={letters}")
    rows: list[Row] = [(1, '{"n": 1}', 1), (2, POISON, 1), (3, '{"n": 3}', 1)]
    for _ in range(2):  # the second time changes nothing
        bench.deliver(sink, *rows)
        assert bench.values() == {"1": {"n": 1}, "3": {"n": 3}}
        (letter,) = bench.server.documents(letters).values()
    assert letter["document"] == f'{{"id": 2, "v": {POISON}}}'
    assert (letter["index"], letter["id"], letter["version"]) == (bench.index, "2", 1)
    assert (letter["table"], letter["operation"]) == ("shop.public.t", "index")
    assert letter["error"] == "document_parsing_exception"
    bench.deliver(sink, (2, '{"n": 2}', 2))
    assert bench.values()["2"] == {"n": 2}


BUSY_LETTERS = b'{"errors":true,"items":[{"index":{"status":429,"error":{"type":"busy"}}}]}'


@pytest.mark.parametrize("reply", [answer(429), answer(200, BUSY_LETTERS)], ids=["all", "one"])
def test_busy_dead_letters_are_an_error_to_retry(
    bench: Bench, reply: Callable[[Request, Callable[[Request], Reply]], Reply | None]
) -> None:
    letters = f"{bench.index}_letters"
    sink = bench.sink(f"dead_letter_index={letters}")
    bench.proxy.script.extend([lambda request, forward: forward(request), reply])
    error = refused(lambda: bench.deliver(sink, (1, POISON, 1)))
    assert (error.code.number, error.action) == ("CF5004", Action.RETRY)
    sink.abort(Epoch(1, Timestamp(1)), ())
    bench.deliver(sink, (1, POISON, 1))
    assert [d["id"] for d in bench.server.documents(letters).values()] == ["1"]


@on_every_major
def test_letters_larger_than_their_documents_go_in_several_requests(bench: Bench) -> None:
    letters = f"{bench.index}_letters"
    sink = bench.sink(f"dead_letter_index={letters}")
    quotes = json.dumps('"' * 600_000)  # 1.2 MB here, twice that as text of a letter
    bench.deliver(sink, (1, quotes, 1), (2, quotes, 1), (3, '{"n": 3}', 1))
    assert bench.values() == {"3": {"n": 3}}
    found = bench.server.documents(letters).values()
    assert sorted(d["id"] for d in found) == ["1", "2"]
    assert all(len(d["document"]) > len(quotes) for d in found)


def test_a_letter_that_is_refused_too_stops_the_table(bench: Bench) -> None:
    letters = f"{bench.index}_letters"
    mappings = {"properties": {"document": {"type": "long"}}}
    bench.server.call("PUT", f"/{letters}", {"mappings": mappings})
    sink = bench.sink(f"dead_letter_index={letters}")
    error = refused(lambda: bench.deliver(sink, (1, POISON, 1)))
    assert (error.code.number, error.action) == ("CF5003", Action.STOP)
    assert f"dead letter index {letters} refused" in error.message
    assert POISON not in f"{error.message} {error.detail} {error.hint}"


@on_every_major
def test_a_closed_index_is_no_reason_for_dead_letters(bench: Bench) -> None:
    letters = f"{bench.index}_letters"
    sink = bench.sink(f"dead_letter_index={letters}")
    bench.deliver(sink, *ROWS)
    bench.server.call("POST", f"/{bench.index}/_close")
    error = refused(lambda: bench.deliver(sink, (1, '{"n": 1}', 99)))
    assert (error.code.number, error.action) == ("CF5003", Action.STOP)
    assert bench.index in error.message.split() and "index_closed_exception" in error.detail
    assert bench.server.documents(letters) == {}
    sink.abort(Epoch(2, Timestamp(99)), ())
    bench.server.call("POST", f"/{bench.index}/_open")
    bench.deliver(sink, (1, '{"n": "new"}', 99))
    assert bench.values() == {**VALUES, "1": {"n": "new"}}


@on_every_major
def test_scalars_can_be_kept_when_asked(bench: Bench) -> None:
    bench.deliver(bench.sink("json=stored"), (1, POISON, 1), (2, "[1]", 1), (3, '"x"', 1))
    assert bench.values() == {"1": 4711, "2": [1], "3": "x"}


def test_a_request_that_is_too_large_is_halved(bench: Bench) -> None:
    def picky(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        return Reply(413) if len(request.body) > 1_000 else forward(request)

    bench.proxy.always = picky
    sink = bench.sink()
    bench.deliver(sink, *ROWS)
    assert bench.values() == VALUES
    long = json.dumps({"n": "x" * 2_000})
    error = refused(lambda: bench.deliver(sink, (1, long, 99)))
    assert error.code.number == "CF5006"
    assert "xxx" not in f"{error.message}{error.detail}"


@on_every_major
def test_a_row_the_server_does_not_take_is_no_row_to_retry(bench: Bench) -> None:
    """By a copy for an executor, which was not told the limit: the server says so itself."""
    sink = bench.sink("json=stored", direct=True)
    bench.deliver(sink, (1, "1", 1))
    copy: ElasticsearchSink = pickle.loads(pickle.dumps(sink))
    long = json.dumps("x" * (MAX_CONTENT_BYTES + 1))
    error = refused(lambda: copy.write(bench.batch([(2, "2", 2), (3, long, 2), (4, "4", 2)])))
    assert (error.code.number, error.action) == ("CF5006", Action.STOP)
    assert "xxx" not in f"{error.message}{error.detail}"
    copy.close()


def test_requests_are_compressed(bench: Bench) -> None:
    sink = ElasticsearchSink(
        f"elasticsearch://127.0.0.1:{bench.proxy.port}", {"compression": "gzip"}
    )
    sink.open(SinkContext("f", 1, (Target(_NAME, bench.index),)))
    bench.deliver(sink, *ROWS)
    sink.close()
    assert bench.proxy.seen[0].body[:2] == b"\x1f\x8b"
    assert bench.values() == VALUES


# ------------------------------------------------------------------------------ who is there


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (answer(401, b'{"error": {"type": "security_exception"}}'), "CF5002", "login"),
        (answer(200, b'{"nodes": {"a": {"version": "2.19.6"}}}'), "CF1303", "not Elasticsearch"),
        (answer(404, b"<html>nginx</html>"), "CF1303", "not Elasticsearch"),
        (
            answer(
                200, b'{"nodes": {"a": {"version": "7.17.0"}}}', x_elastic_product="Elasticsearch"
            ),
            "CF1303",
            "7.17.0 is too old",
        ),
        (
            answer(
                400,
                b'{"error": {"type": "media_type_header_exception"}}',
                x_elastic_product="Elasticsearch",
            ),
            "CF1303",
            "too old",
        ),
        (answer(503), "CF5004", "busy"),
    ],
)
def test_what_is_no_server_of_ours_is_said_at_open(
    reply: Callable[[Request, Callable[[Request], Reply]], Reply | None], code: str, words: str
) -> None:
    with FaultyProxy(1, matching="/_nodes") as proxy:
        proxy.always = reply
        sink = ElasticsearchSink(f"elasticsearch://u:pw@127.0.0.1:{proxy.port}")
        error = refused(lambda: sink.open(SinkContext("f", 1, ())))
    assert (error.code.number, words in error.message) == (code, True), error.message
    assert "pw" not in f"{error.message} {error.detail} {error.hint}".split()


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_server_that_tells_nothing_of_itself_will_do(bench: Bench, status: int) -> None:
    with FaultyProxy(bench.server.port, matching="/_nodes") as proxy:
        proxy.always = answer(status, x_elastic_product="Elasticsearch")
        bench.proxy = proxy
        bench.deliver(bench.sink(), *ROWS)
    assert bench.values() == VALUES


def test_tables_do_not_share_an_index(bench: Bench) -> None:
    other = TableName("shop", "public", "T")
    sink = ElasticsearchSink(f"elasticsearch://127.0.0.1:{bench.server.port}")
    targets = (Target(_NAME, bench.index), Target(other, bench.index))
    error = refused(lambda: sink.open(SinkContext("f", 1, targets)))
    assert error.code.number == "CF5003"
    bench.deliver(bench.sink(), *ROWS)
    target = Target(other, bench.index)
    batch = bench.batch(ROWS)
    stranger = Batch("g", batch.epoch, 0, target, SCHEMA, batch.rows)
    sink.open(SinkContext("g", 2, (target,)))
    error = refused(lambda: sink.write(stranger))
    assert error.code.number == "CF5008"
    assert "was made for changefeed" in error.message and "shop.public.t" in error.message
    sink.close()
