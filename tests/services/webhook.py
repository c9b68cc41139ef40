"""A real HTTP or HTTPS server that takes webhooks and can be told to misbehave."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa

from changefeed_testing.sinks.messages import Message, parse_message

Answer = tuple[int, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came; ``body`` is unpacked, ``status`` what it was answered."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def value(self) -> dict[str, Any]:
        """The body as JSON."""
        loaded: dict[str, Any] = json.loads(self.body)
        return loaded


@dataclass
class WebhookServer:
    """Keeps what it was sent.

    Attributes:
        certificates: a folder of ``tests.services.certificates``; with one it speaks TLS.
        wants_client: TLS clients need a certificate.
        authorization: what the header must be; else 401.
        max_body: longer bodies are answered with 413; 0 takes all.
        answers: taken one by one before anything is accepted: a status with headers, or
            something to do (raising cuts the connection).
        judge: the status for a body; called by several threads at once.
    """

    certificates: Path | None = None
    wants_client: bool = False
    authorization: str = ""
    max_body: int = 0
    answers: deque[Answer | Callable[[], None]] = field(default_factory=deque)
    judge: Callable[[bytes], int] = lambda body: 200
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def uri(self) -> str:
        """The sink URI of the server."""
        scheme = "webhook-https" if self.certificates else "webhook-http"
        return f"{scheme}://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"service": self})
        server = _Server(("127.0.0.1", self.port), handler)
        self.port = server.server_address[1]
        if self.certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificates / "server-keystore.pem")
            if self.wants_client:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.certificates / "ca.pem")
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening and cut every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Away inside the block."""
        self.stop()
        yield
        self.start()

    def take(self, request: Request) -> Answer:
        """Judge a request; called by the handlers."""
        with self._lock:
            answer = self.answers.popleft() if self.answers else None
        if callable(answer):
            answer()
            answer = None
        status, headers = answer or (self._status(request), {})
        with self._lock:
            self.requests.append(Request(request.path, request.headers, request.body, status))
        return status, headers

    def _status(self, request: Request) -> int:
        if self.authorization and request.headers.get("authorization") != self.authorization:
            return 401
        if self.max_body and len(request.body) > self.max_body:
            return 413
        return self.judge(request.body)

    @property
    def taken(self) -> list[Request]:
        """The requests that were answered with success, in the order of the answers."""
        with self._lock:
            return [r for r in self.requests if r.status == 200]

    def messages(self, topics: Iterator[str] | list[str]) -> list[Message]:
        """What a consumer reads; a resolved mark reaches every topic."""
        names = list(topics)
        found: list[Message] = []
        for request in self.taken:
            value = request.value
            if "payload" in value:
                assert value["length"] == len(value["payload"])
                found += [_message(member) for member in value["payload"]]
            elif "truncate" in value:
                found.append(parse_message(value.pop("topic"), 0, None, json.dumps(value).encode()))
            else:
                found += [parse_message(name, 0, None, request.body) for name in names]
        return found


def _message(member: dict[str, Any]) -> Message:
    return parse_message(member["topic"], 0, None, json.dumps(member).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.open: set[Any] = set()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away, or do not trust us, are part of the tests."""

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self.open):
            self.shutdown_request(connection)


class _Handler(BaseHTTPRequestHandler):
    service: WebhookServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement
    timeout = 30

    def do_POST(self) -> None:
        """Read, judge, answer."""
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client has ended in the middle: no request
            return
        packing = self.headers.get("Content-Encoding")
        if packing == "gzip":
            body = gzip.decompress(body)
        elif packing == "zstd":
            with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
                body = bytes(stream.read())
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, more = self.service.take(Request(self.path, headers, body, 0))
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
