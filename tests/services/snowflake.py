"""Snowflake's stand-in: the server of `fakesnow`, which runs Snowflake's SQL on DuckDB.

The real client library talks to it over HTTP, uploads (PUT) included. Its data is in memory,
so a new start is an empty account; databases are made when a client connects to them.
"""

from __future__ import annotations

import itertools
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import snowflake.connector

from changefeed.embedded.server import free_port
from tests.services.python import PythonServer, environment, our_python, packages

USER, PASSWORD, ACCOUNT = "fake", "snow-secret", "fakesnow"
_LOCK = Path(__file__).with_name("fakesnow.lock")


class SnowflakeEmulator(PythonServer):
    """A fakesnow server."""

    ending = signal.SIGINT
    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, free_port())
        self._packages = packages(_LOCK, our_python())

    def uri(self, database: str, schema: str = "PUBLIC", parameters: str = "") -> str:
        """A sink URI."""
        more = f"&{parameters}" if parameters else ""
        return (
            f"snowflake://{USER}:{PASSWORD}@{ACCOUNT}/{database}/{schema}"
            f"?api_endpoint=http://127.0.0.1:{self.port}{more}"
        )

    def connect(
        self, database: str, schema: str = "PUBLIC"
    ) -> snowflake.connector.SnowflakeConnection:
        """A connection of Snowflake's own library."""
        return snowflake.connector.connect(
            user=USER,
            password=PASSWORD,
            account=ACCOUNT,
            host="127.0.0.1",
            port=self.port,
            protocol="http",
            database=database,
            schema=schema,
            session_parameters={"CLIENT_OUT_OF_BAND_TELEMETRY_ENABLED": False},
        )

    def query(self, database: str, sql: str) -> list[Any]:
        """All rows of a query."""
        with self.connect(database) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall())

    def database(self) -> str:
        """A name no other test uses (this server has no DROP DATABASE; all ends with it)."""
        return f"TEST_{next(self._numbers)}"

    # ------------------------------------------------------------------ details

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        program = Path(__file__).with_name("snowflake_server.py")
        words: list[str | Path] = [our_python(), "-S", "-P", program, "-s"]
        words += ["-p", str(self.port), "--host", "127.0.0.1"]
        return words, environment(self._packages, TMPDIR=str(self.folder))

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=20):
                return True
        except urllib.error.HTTPError:
            return True  # it answers; there is just nothing at the root
        except (urllib.error.URLError, OSError):
            return False
