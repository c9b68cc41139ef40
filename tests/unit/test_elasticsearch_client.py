"""What Elastic's client does with our requests, against a server that answers as it is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sinks.elasticsearch.client import Cluster
from sinks.elasticsearch.options import ElasticsearchSettings


@contextmanager
def answering(
    status: int, body: bytes, headers: dict[str, str]
) -> Iterator[tuple[Cluster, list[tuple[str, dict[str, str], bytes]]]]:
    """A cluster, and the requests it got: request line, headers, body."""
    requests: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            told = {name.lower(): text for name, text in self.headers.items()}
            requests.append((self.requestline, told, content))
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    cluster = Cluster(
        ElasticsearchSettings.read(f"elasticsearch://127.0.0.1:{server.server_port}/x")
    )
    try:
        yield cluster, requests
    finally:
        cluster.close()
        server.shutdown()
        thread.join()
        server.server_close()


JSON = {"Content-Type": "application/vnd.elasticsearch+json;compatible-with=8"}
OURS = {**JSON, "X-Elastic-Product": "Elasticsearch"}


def test_a_bulk_body_goes_out_as_it_is_with_the_client_s_headers() -> None:
    lines = memoryview('{"index":{}}\n{"a": 1.0, "b": "ä"}\n'.encode())
    with answering(200, b'{"errors": false}', OURS) as (cluster, requests):
        answer = cluster.call("POST", "/t/_bulk", lines=lines, refresh="wait_for")
    assert (answer.status, answer.body, answer.product) == (
        200,
        b'{"errors": false}',
        "Elasticsearch",
    )
    ((line, headers, body),) = requests
    assert line.startswith("POST /x/t/_bulk?refresh=wait_for ")
    assert body == bytes(lines)
    assert headers["content-type"] == "application/vnd.elasticsearch+x-ndjson; compatible-with=8"
    assert headers["accept"] == "application/vnd.elasticsearch+json; compatible-with=8"
    assert headers["x-elastic-client-meta"].startswith("es=8"), "the client itself, not its parts"


@pytest.mark.parametrize("status", [200, 201, 299, 404, 409, 429, 500, 503])
@pytest.mark.parametrize("headers", [OURS, JSON, {"Content-Type": "text/html"}])
def test_any_status_of_any_server_is_an_answer(status: int, headers: dict[str, str]) -> None:
    with answering(status, b"<p>or not</p>", headers) as (cluster, _):
        answer = cluster.call("GET", "/")
    assert (answer.status, answer.body) == (status, b"<p>or not</p>")


def test_a_remark_of_the_server_is_no_warning() -> None:
    # Warnings are errors in these tests.
    remark = {**OURS, "Warning": '299 Elasticsearch-8.19.0 "this will go"'}
    with answering(200, b"{}", remark) as (cluster, _):
        assert cluster.call("GET", "/").ok


def test_what_is_known_of_the_sink_does_not_load_the_client() -> None:
    code = (
        "import sys; from sinks import registry; registry.capabilities('elasticsearch');"
        "assert registry.check('elasticsearch://h:9200/') == [];"
        "print([m for m in ('elasticsearch', 'elastic_transport') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
