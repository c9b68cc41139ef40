"""A server that takes files by PUT into a directory, as WebDAV servers do."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class PutServer:
    """Keeps what it is sent below ``root``.

    Attributes:
        login: ``user:password`` a client must have; empty lets everybody in.
        status: answer to every PUT instead of taking it; 0 takes it.
    """

    def __init__(self, root: Path, login: str = "") -> None:
        self.root = root
        self.login = login
        self.status = 0
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def start(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Answers nothing but 500 inside the block."""
        self.status = 500
        yield
        self.status = 0


class _Handler(BaseHTTPRequestHandler):
    service: PutServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement
    timeout = 30

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refusal(self) -> int:
        wanted = base64.b64encode(self.service.login.encode()).decode()
        if self.service.login and self.headers.get("Authorization") != f"Basic {wanted}":
            return 401
        return self.service.status

    def _path(self) -> Path:
        return self.service.root / unquote(self.path).lstrip("/")

    def do_PUT(self) -> None:
        """Keep the file, as a whole."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        refusal = self._refusal()
        if not refusal:
            path = self._path()
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}")
            temporary.write_bytes(content)
            temporary.rename(path)
        self._answer(refusal or 201)

    def do_DELETE(self) -> None:
        """Forget the file."""
        refusal = self._refusal()
        if not refusal:
            self._path().unlink(missing_ok=True)
        self._answer(refusal or 204)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
