"""A ClickHouse engine behind as much of ClickHouse's HTTP interface as its client library uses.

The engine is that of ClickHouse itself, in this process (`chdb-core`); it runs on the packages
:mod:`.clickhouse` gives it. A request is a statement, in the parameter ``query`` or the beginning
of the body, behind which data of an INSERT follow. Other parameters are settings of that request.
One statement at a time; there is one user, and no compression.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb.session  # type: ignore[import-not-found]

_RESERVED = frozenset(
    {"query", "database", "default_format", "session_id", "session_timeout", "session_check"}
    | {"query_id", "user", "password", "compress", "decompress", "wait_end_of_query"}
    | {"client_protocol_version", "enable_http_compression", "quota_key", "role"}
    | {"send_progress_in_http_headers", "http_headers_progress_interval_ms"}
)
_INSERT = re.compile(rb"\s*INSERT\s+INTO\s[^\n]*?\sFORMAT\s+(\w+)\s*\n", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"Code:\s*(\d+)")
_LOGIN_FAILED = 516


class _Engine:
    """The one session of the process."""

    def __init__(self, folder: Path) -> None:
        self._session: Any = chdb.session.Session(str(folder / "data"))
        self._scratch = folder
        self._lock = threading.Lock()
        self._set: dict[str, str] = {}

    def run(self, statement: bytes, form: str, database: str, settings: dict[str, str]) -> bytes:
        """The answer to one statement."""
        with self._lock:
            self._settle(settings)
            if database:
                self._one(f"USE `{database}`")
            insert = _INSERT.match(statement)
            if insert is None:
                return self._one(statement.decode("utf-8"), form)
            return self._insert(insert, statement)

    def _insert(self, insert: re.Match[bytes], statement: bytes) -> bytes:
        path = self._scratch / "insert.data"
        path.write_bytes(statement[insert.end() :])
        form = insert[1].decode()
        head = insert[0].decode("utf-8").strip()
        head = head[: head.upper().rindex("FORMAT")]
        return self._one(f"{head} FROM INFILE '{path}' FORMAT {form}")

    def _settle(self, settings: dict[str, str]) -> None:
        for name in self._set.keys() - settings.keys():
            self._one(f"SET {name} = DEFAULT")
        for name, value in settings.items():
            if self._set.get(name) != value:
                quoted = value.replace("\\", "\\\\").replace("'", "\\'")
                self._one(f"SET {name} = '{quoted}'")
        self._set = dict(settings)

    def _one(self, sql: str, form: str = "TabSeparated") -> bytes:
        return bytes(self._session.query(sql, form).bytes())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: _Engine
    login: str

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n", {})
            return
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if self.headers.get("Authorization") != self.login:
            self._refuse(_LOGIN_FAILED, "Authentication failed", "AUTHENTICATION_FAILED")
            return
        query = parameters.get("query", "").encode()
        statement = query + (b"\n" if query and body else b"") + body
        form = self.headers.get("X-ClickHouse-Format") or parameters.get("default_format")
        settings = {n: v for n, v in parameters.items() if n not in _RESERVED}
        try:
            found = self.engine.run(
                statement, form or "TabSeparated", parameters.get("database", ""), settings
            )
        except Exception as error:
            text = str(error)
            number = _CODE.search(text)
            self._refuse(int(number[1]) if number else 0, text)
            return
        self._answer(200, found, {"X-ClickHouse-Timezone": "UTC"})

    def _refuse(self, number: int, text: str, name: str = "") -> None:
        shown = f"Code: {number}. DB::Exception: {text} ({name})\n" if name else f"{text}\n"
        status = 403 if number == _LOGIN_FAILED else 500
        self._answer(status, shown.encode(), {"X-ClickHouse-Exception-Code": str(number)})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: errors go to the client."""


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--port", type=int, required=True)
    words.add_argument("--folder", type=Path, required=True)
    words.add_argument("--user", required=True)
    words.add_argument("--password", required=True)
    given = words.parse_args()
    _Handler.engine = _Engine(given.folder)
    # The engine has put a handler of its own there, which would wait for a shutdown of a server.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    token = base64.b64encode(f"{given.user}:{given.password}".encode()).decode()
    _Handler.login = f"Basic {token}"
    ThreadingHTTPServer(("127.0.0.1", given.port), _Handler).serve_forever()
