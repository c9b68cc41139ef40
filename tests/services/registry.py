"""Schema registries for tests: a real one, and a fake of its protocol inside the process.

:class:`Registry` is Apicurio in its Confluent-compatible form, with the compatibility rule
BACKWARD as Confluent's has by default. :class:`FakeRegistry` knows the routes our client and
the deserializers use, and the same rule: of Avro as far as records, unions and defaults go, of
protobuf as far as messages and fields do.
"""

from __future__ import annotations

import atexit
import base64
import json
import re
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from tests.helpers.proto_reader import file_of
from tests.services.cache import cache_root, made_once
from tests.services.ivy import Artifact, fetch

#: The newest line that runs on Java 17.
VERSION = "2.6.13.Final"
_APP = Artifact("io.apicurio", "apicurio-registry-app", VERSION, "tar.gz", "all")


class Registry:
    """A real registry in memory; ``url`` is for Confluent's clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self.log_file = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 90.0) -> Registry:
        """Start, wait until it answers, and set the compatibility rule."""
        command: list[str | Path] = [find_java().executable, "-Xmx384m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={self.port}"]
        command += ["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.log.level=WARN"]
        command += ["-jar", _program()]
        self._process = spawn(command, log_file=self.log_file)
        atexit.register(self.kill)
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log = self.log_file.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the registry did not start\n{log}")
            time.sleep(0.1)
        self.request("PUT", "/config", {"compatibility": "BACKWARD"})
        return self

    def _answers(self) -> bool:
        try:
            self.request("GET", "/subjects")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def request(self, method: str, path: str, body: object = None) -> Any:
        """One call of its HTTP interface."""
        return _request(self.url, method, path, body)

    def versions(self, subject: str) -> list[int]:
        """Versions of a subject, oldest first."""
        found: list[int] = self.request("GET", f"/subjects/{subject}/versions")
        return found

    def schema(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """The schema of a subject's version."""
        schema: dict[str, Any] = json.loads(self.text(subject, version))
        return schema

    def text(self, subject: str, version: int | str = "latest") -> str:
        """The schema of a subject's version as it is written."""
        found = self.request("GET", f"/subjects/{subject}/versions/{version}")
        return str(found["schema"])

    def kill(self) -> None:
        """SIGKILL: it keeps nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.kill)
        self._process = None


def _program() -> Path:
    def unpack(partial: Path) -> None:
        with tarfile.open(fetch(_APP)) as packed:
            # Python 3.11 has filters from 3.11.4 on; before, the archive is trusted.
            if hasattr(tarfile, "data_filter"):
                packed.extractall(partial, filter="data")
            else:
                packed.extractall(partial)

    folder = made_once(cache_root() / f"apicurio-{VERSION}", unpack)
    return next(folder.glob("*-runner.jar"))


def _request(url: str, method: str, path: str, body: object) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or b"null")


# ------------------------------------------------------------------------------- the fake


@dataclass
class FakeRegistry:
    """The protocol in this process.

    Attributes:
        login: ``user:password`` it wants; empty for none.
        failing: HTTP status of every answer, to play a registry in trouble; 0 for none.
        requests: ``METHOD path`` of every request.
    """

    login: str = ""
    failing: int = 0
    compatibility: str = "BACKWARD"
    requests: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    subjects: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = free_port()

    @property
    def url(self) -> str:
        """Its address, without the login."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> FakeRegistry:
        """Serve."""
        fake = self

        class Handler(_Handler):
            registry = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Refuse connections from now on; what was registered stays."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> FakeRegistry:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def schemas(self, subject: str) -> list[dict[str, Any]]:
        """The versions of a subject."""
        return [json.loads(text) for text in self.subjects.get(subject, [])]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, object]:
        """Status and body of the answer to a request."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            if self.failing:
                return self.failing, {"error_code": self.failing, "message": "in trouble"}
            for wanted, pattern, route in _ROUTES:
                match = re.fullmatch(pattern, path)
                if match and method == wanted:
                    return route(self, [unquote(part) for part in match.groups()], body)
        return 404, {"error_code": 404, "message": "no such route"}

    def _register(self, names: list[str], body: Any) -> tuple[int, object]:
        text = str(body["schema"])
        protobuf = body.get("schemaType") == "PROTOBUF"
        if not protobuf:
            text = json.dumps(json.loads(text), sort_keys=True)
        versions = self.subjects.setdefault(names[0], [])
        if text not in versions:
            if versions and self.compatibility == "BACKWARD":
                if protobuf:
                    problem = differs(file_of(text), file_of(versions[-1]))
                else:
                    problem = cannot_read(json.loads(text), json.loads(versions[-1]))
                if problem:
                    return 409, {"error_code": 409, "message": problem}
            versions.append(text)
        return 200, {"id": self.ids.setdefault(text, len(self.ids) + 1)}

    def _by_id(self, names: list[str], body: Any) -> tuple[int, object]:
        for text, number in self.ids.items():
            if number == int(names[0]):
                return 200, {"schema": text}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _list(self, names: list[str], body: Any) -> tuple[int, object]:
        return 200, sorted(self.subjects)

    def _versions(self, names: list[str], body: Any) -> tuple[int, object]:
        found = self.subjects.get(names[0])
        if found is None:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        return 200, list(range(1, len(found) + 1))


_ROUTES: list[tuple[str, str, Callable[[FakeRegistry, list[str], Any], tuple[int, object]]]] = [
    ("POST", r"/subjects/([^/]+)/versions", FakeRegistry._register),
    ("GET", r"/schemas/ids/(\d+)", FakeRegistry._by_id),
    ("GET", r"/subjects", FakeRegistry._list),
    ("GET", r"/subjects/([^/]+)/versions", FakeRegistry._versions),
]


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        login = base64.b64encode(self.registry.login.encode()).decode()
        if self.registry.login and self.headers.get("Authorization") != f"Basic {login}":
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            path = self.path.partition("?")[0]
            status, found = self.registry.answer(self.command, path, body)
            answer = found  # type: ignore[assignment]
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _do

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what it is asked for."""


def cannot_read(reader: Any, writer: Any) -> str:
    """Why data of ``writer`` cannot be read as ``reader``; empty when it can (Avro
    specification, Schema Resolution, for the types we write)."""
    if isinstance(writer, list):
        return next((p for branch in writer if (p := cannot_read(reader, branch))), "")
    if isinstance(reader, list):
        problems = [cannot_read(branch, writer) for branch in reader]
        return "" if "" in problems else f"no branch reads {_kind(writer)}"
    if _kind(reader) != _kind(writer):
        widened = (_kind(writer), _kind(reader)) in (("int", "long"), ("long", "double"))
        return "" if widened else f"{_kind(writer)} became {_kind(reader)}"
    if _kind(reader) == "array":
        return cannot_read(reader["items"], writer["items"])
    if _kind(reader) != "record":
        return ""
    if reader["name"] != writer["name"]:
        return f"{writer['name']} became {reader['name']}"
    known = {f["name"]: f["type"] for f in writer["fields"]}
    for member in reader["fields"]:
        name = member["name"]
        if name in known:
            if problem := cannot_read(member["type"], known[name]):
                return f"{name}: {problem}"
        elif "default" not in member:
            return f"{name} has no default"
    return ""


def _kind(schema: Any) -> str:
    return schema["type"] if isinstance(schema, dict) else str(schema)


def differs(reader: Any, writer: Any) -> str:
    """Why messages of ``writer`` cannot be read as ``reader``, as Confluent's registry sees it;
    empty when they can. Both are ``FileDescriptorProto``."""
    known = {message.name: message for message in reader.message_type}
    for message in writer.message_type:
        if message.name not in known:
            return f"{message.name} was removed"
        fields = {one.number: one for one in known[message.name].field}
        for one in message.field:
            now = fields.get(one.number, one)
            if (now.type, now.type_name) != (one.type, one.type_name):
                return f"field {one.number} of {message.name} has another type"
    return ""
