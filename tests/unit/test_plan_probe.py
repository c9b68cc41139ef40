"""VALIDATE's look at a target, through the sinks themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from changefeed.catalog import Catalog
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.schema import TableName
from changefeed.options import Options, to_span
from changefeed.plan.sink_resolution import check_sink, find_sink, probe_of
from grammar import nodes
from sinks.base import Sink, SinkContext, Target
from sinks.kafka.sink import KafkaSink
from sinks.null.sink import NullSink
from sinks.table.sink import MessageTableSink

TARGETS = (Target(TableName("shop", "public", "t"), "t"),)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path / "state")
    yield catalog
    catalog.close()


def codes(catalog: Catalog, uri: str | None) -> list[str]:
    sink = find_sink(catalog, uri, None)
    if isinstance(sink, KafkaSink):
        sink.request_seconds = 1.0
    problems, _ = probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
    return [problem.code.number for problem in problems]


@pytest.mark.parametrize(
    "uri",
    [
        "kafka://127.0.0.1:1",
        "elasticsearch://127.0.0.1:1/",
        "experimental-sql:///postgresql://u@127.0.0.1:1/d?connect_timeout=2",
        "webhook-http://127.0.0.1:1/in",
        "webhook-https://127.0.0.1:1/in",
        "http://127.0.0.1:1/files",
    ],
)
def test_a_target_that_does_not_answer(catalog: Catalog, uri: str) -> None:
    assert codes(catalog, uri) == ["CF5001"]


def test_what_there_is_nothing_to_ask_of(catalog: Catalog, tmp_path: Path) -> None:
    assert codes(catalog, None) == []
    assert codes(catalog, "null://") == []
    assert codes(catalog, f"experimental-sql:///sqlite:///{tmp_path}/m.db") == []
    assert codes(catalog, "kafka://127.0.0.1:1?nothing=1") == [], "its URI is told without it"
    assert not (tmp_path / "m.db").exists()


@pytest.mark.parametrize("uri", ["experimental-sql:///", "null://"])
def test_a_sink_that_declares_it_alone_is_told_the_state_database(
    catalog: Catalog, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = find_sink(catalog, uri, None)
    assert check_sink(sink, Options.from_dict({})) == []
    told: list[str] = []

    def check(self: Sink, context: SinkContext) -> list[ChangefeedError]:
        told.append(context.state_database)
        assert catalog.url not in repr(context)
        return []

    for kind in (NullSink, MessageTableSink):
        monkeypatch.setattr(kind, "check", check)
    probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
    assert told == [catalog.url if uri.startswith("experimental") else ""]


def test_the_problem_points_at_the_uri(catalog: Catalog) -> None:
    span = to_span(nodes.Span(5, 9))
    sink = find_sink(catalog, "elasticsearch://127.0.0.1:1/", span)
    (problem,), _ = probe_of(catalog)(sink, Options.from_dict({}), ())
    assert problem.span == span


def test_what_a_sink_does_not_look_at_is_said(catalog: Catalog, tmp_path: Path) -> None:
    def overlooked(uri: str) -> list[str]:
        sink = find_sink(catalog, uri, None)
        problems, words = probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
        assert problems == []
        return words

    (word,) = overlooked("delta:///gs://bucket/lake?fs.gs.auth.key=pa55word")
    assert word.startswith("gs://bucket/lake was not checked")
    assert "pa55" not in word
    assert overlooked(f"delta://{tmp_path}/lake") == overlooked("null://") == []
    (word,) = overlooked("s3://bucket/x?AWS_ACCESS_KEY_ID=a&AWS_SECRET_ACCESS_KEY=pa55word")
    assert word.startswith("s3://bucket/x was not checked") and "pa55" not in word
    assert overlooked(f"file://{tmp_path}/new/folder") == []
    assert list(tmp_path.iterdir()) == [tmp_path / "state"], "nothing is left there"


def test_a_folder_that_cannot_be_written(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "below", Path("/proc/none")):
        sink = find_sink(catalog, f"file://{path}", None)
        (problem,), _ = probe_of(catalog)(sink, Options.from_dict({}), TARGETS)
        assert problem.code is Code.SINK_REFUSED_LOGIN
        assert f"{path} cannot be written" in problem.message
        assert problem.hint == "check the path, its owner and its rights."


def test_a_webhook_that_answers_is_asked_nothing_more(catalog: Catalog) -> None:
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(405)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Nothing on standard error."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert codes(catalog, f"webhook-http://127.0.0.1:{server.server_port}/in") == []
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["HEAD /in"]
