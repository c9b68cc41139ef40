"""Receive a changefeed's webhooks and keep the table; the least a receiver should do.

    python receive.py 8080 'a secret of both sides'

It checks the signature, takes each version of a row once, and prints what changes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import threading
import time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def genuine(secret: bytes, header: str, body: bytes) -> bool:
    """The body was signed with our secret, in the last five minutes."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    stamp = parts.get("t", "")
    wanted = hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    fresh = stamp.isdigit() and abs(time.time() - int(stamp)) < 300
    return fresh and hmac.compare_digest(wanted, parts.get("v1", ""))


class Table:
    """Rows by key, and the newest version that was seen of each."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, Decimal] = {}
        self._lock = threading.Lock()

    def take(self, message: dict[str, Any]) -> None:
        """Apply a change unless it is a repeat."""
        key, version = json.dumps(message["key"]), Decimal(message["updated"])
        with self._lock:
            if version <= self._versions.get(key, Decimal(0)):
                return
            self._versions[key] = version
            if message["after"] is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = message["after"]
        print(message["topic"], key, json.dumps(message["after"]), flush=True)


def server(port: int, secret: bytes, table: Table) -> ThreadingHTTPServer:
    """A server on the loopback that keeps ``table``."""

    class Receiver(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are used again

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            ours = genuine(secret, self.headers.get("X-Changefeed-Signature", ""), body)
            if ours:
                for message in json.loads(body).get("payload", ()):
                    table.take(message)
            self.send_response(204 if ours else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Only changes are printed."""

    return ThreadingHTTPServer(("127.0.0.1", port), Receiver)


if __name__ == "__main__":
    server(int(sys.argv[1]), sys.argv[2].encode(), Table()).serve_forever()
