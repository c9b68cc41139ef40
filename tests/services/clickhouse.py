"""ClickHouse's stand-in: ClickHouse's own engine out of a wheel, behind an HTTP server of ours.

The engine is real (`chdb-core`: parser, MergeTree, FINAL, mutations); what is not is the server
around it: users, rights, replicas, several statements at a time. A new start finds the data again.
"""

from __future__ import annotations

import itertools
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from changefeed.embedded.server import free_port
from tests.services.python import PythonServer, environment, our_python, packages

USER, PASSWORD = "feeds", "house-secret"
_LOCK = Path(__file__).with_name("chdb.lock")


class ClickHouseServer(PythonServer):
    """A server with its data in ``folder``."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, free_port())
        self._packages = packages(_LOCK, our_python())

    def uri(self, database: str, parameters: str = "") -> str:
        """A sink URI."""
        more = f"?{parameters}" if parameters else ""
        return f"clickhouse://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}{more}"

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of ClickHouse's own library."""
        client = clickhouse_connect.get_client(
            host="127.0.0.1", port=self.port, username=USER, password=PASSWORD
        )
        with closing(client):
            yield client

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """All rows of a query."""
        with self.client() as client:
            return [tuple(row) for row in client.query(sql).result_rows]

    @contextmanager
    def database(self) -> Iterator[str]:
        """A name no other test uses; the database is dropped afterwards when there is one."""
        name = f"test_{next(self._numbers)}"
        try:
            yield name
        finally:
            if self.running:
                with self.client() as client:
                    client.command(f"DROP DATABASE IF EXISTS {name}")

    # ------------------------------------------------------------------ details

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        program = Path(__file__).with_name("clickhouse_server.py")
        words: list[str | Path] = [our_python(), "-S", "-P", program, "--port", str(self.port)]
        words += ["--folder", self.folder, "--user", USER, "--password", PASSWORD]
        return words, environment(self._packages)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=20) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
