"""A world with a made-up source and node, served over HTTP on a free port."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from changefeed.core.errors import ChangefeedError
from changefeed.http.application import Api
from changefeed.http.server import HttpServer
from changefeed.monitor import Monitor
from tests.golden.world import World


class Bench:
    """A served world; ``ill`` makes its node sick."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ill = ""
        self.stopping = threading.Event()
        self.token = ""
        self.monitor = Monitor(world.interpreter, self._check)
        self.server = self.serve()

    def serve(
        self,
        *,
        local: bool = True,
        logins: bool = False,
        patience: float = 10.0,
        read_timeout: float = 10.0,
        **limits: Any,
    ) -> HttpServer:
        """A server of the world, not entered yet; see Api and HttpServer."""
        api = Api(
            self.monitor,
            local=local,
            logins=logins,
            stopping=self.stopping,
            largest=10_000,
            patience=patience,
            **limits,
        )
        return HttpServer(
            "127.0.0.1",
            0,
            api.application,
            stopping=self.stopping,
            read_timeout=read_timeout,
        )

    def _check(self) -> None:
        if self.ill:
            raise ChangefeedError("CF6005", self.ill)

    def ask(
        self, path: str, body: object = None, method: str | None = None, **headers: str
    ) -> tuple[int, Message, bytes]:
        """Status, headers and body; ``body`` is sent as JSON, bytes as they are."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        request = urllib.request.Request(
            self.server.address + path,
            data.encode() if isinstance(data, str) else data,
            {name.replace("_", "-"): value for name, value in headers.items()},
            method=method,
        )
        if data is not None and not request.has_header("Content-type"):
            request.add_header("Content-Type", "application/json")
        if self.token and not request.has_header("Authorization"):
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        status, _, body = self.ask(path)
        return status, body.decode()

    def json(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and document."""
        status, _, text = self.ask(path, body, **headers)
        return status, json.loads(text)

    def run(self, statement: str, **fields: object) -> tuple[int, Any]:
        """What ``POST /v1/statements`` says."""
        return self.json("/v1/statements", {"statement": statement, **fields})

    def figures(self) -> dict[tuple[str, str], float]:
        """Values by name and feed (or source)."""
        return {
            (sample.name, sample.labels.get("feed", sample.labels.get("source", ""))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def statuses(self) -> dict[str, str]:
        """The status of each feed, which stands in a label."""
        return {
            sample.labels["feed"]: sample.labels["status"]
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == "changefeed_status"
        }
