"""An HTTP server between a client and another server, which does wrong on purpose.

with FaultyProxy(target_port) as proxy:
    proxy.script.append(Fault.BUSY)     # for the next request that matches
    connect(f"127.0.0.1:{proxy.port}")
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Headers of answers that clients read.
_KEPT = ("content-type", "x-elastic-product", "retry-after", "etag", "last-modified")


#: Headers of requests that say how the body comes.
_OF_BODY = ("content-length", "transfer-encoding", "expect")


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body and headers of an answer; ``pause``: seconds between its bytes, from ``slow``
    on (0: the first one, which is of the status line)."""

    status: int
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    slow: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What the client asked."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


#: Gets the request and a function that forwards one; None cuts the connection.
Fault = Callable[[Request, Callable[[Request], Reply]], Reply | None]


def answer(status: int, body: bytes = b"{}", **headers: str) -> Fault:
    """This answer, and the request goes nowhere."""
    return lambda request, forward: Reply(status, body, headers)


def drip(pause: float, *, headers: bool) -> Fault:
    """An answer of a byte every ``pause`` seconds; only its body when not ``headers``."""
    body = b" " * 100_000
    return lambda request, forward: Reply(200, body, pause=pause, slow=0 if headers else 60)


def late(seconds: float) -> Fault:
    """What the server answers, so much later."""

    def wait(request: Request, forward: Callable[[Request], Reply]) -> Reply:
        time.sleep(seconds)
        return forward(request)

    return wait


def cut(request: Request, forward: Callable[[Request], Reply]) -> Reply | None:
    """The connection breaks before the server heard of the request."""
    return None


def lose_answer(request: Request, forward: Callable[[Request], Reply]) -> Reply | None:
    """The server does it, and nobody hears of that."""
    forward(request)
    return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that refuses our certificate is part of a test."""


class FaultyProxy:
    """Forwards requests to ``127.0.0.1:port``; with ``tls`` it speaks TLS to the client, who finds
    it at ``host``.

    Attributes:
        script: faults for the next requests to a path that holds ``matching``, one each.
        always: a fault for every other such request.
        seen: every such request.
    """

    def __init__(
        self,
        port: int,
        matching: str = "/_bulk",
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.script: deque[Fault] = deque()
        self.always: Fault | None = None
        self.seen: list[Request] = []
        self._matching = matching
        self._target = port
        self.closed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                request = Request(
                    self.command, self.path, self.read_body(), dict(self.headers.items())
                )
                reply = proxy.reply(request)
                if reply is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if reply.pause:
                    self.drip(reply)
                    return
                self.send_response(reply.status)
                # Of what HEAD asks about the length is all that there is.
                headers = {"content-length": str(len(reply.body))} | reply.headers
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

            def read_body(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length") or 0))
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)

            def drip(self, reply: Reply) -> None:
                head = f"HTTP/1.1 {reply.status} OK\r\ncontent-length: {len(reply.body)}\r\n\r\n"
                answer = head.encode() + reply.body
                self.wfile.write(answer[: reply.slow])
                with contextlib.suppress(OSError):  # the client had enough
                    for place in range(reply.slow, len(answer)):
                        self.wfile.write(answer[place : place + 1])
                        if proxy.closed.wait(reply.pause):
                            break
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = _Server((host, 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, request: Request) -> Reply | None:
        """What the client gets."""
        fault = None
        if self._matching in request.path:
            self.seen.append(request)
            fault = self.script.popleft() if self.script else self.always
        return fault(request, self._forward) if fault else self._forward(request)

    def _forward(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _OF_BODY}
            connection.request(request.method, request.path, request.body or None, headers)
            answered = connection.getresponse()
            body = answered.read()
            headers = {n: v for n in _KEPT if (v := answered.getheader(n))}
            if request.method == "HEAD" and (length := answered.getheader("content-length")):
                headers["content-length"] = length
            return Reply(answered.status, body, headers)
        finally:
            connection.close()
