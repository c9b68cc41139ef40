"""BigQuery's stand-in: the emulator `local-bigquery`, which runs GoogleSQL on DuckDB.

Of the emulators there are it is the one that refuses what BigQuery refuses: a job id that was
used, a MERGE with two source rows for one target row. It has no quotas, no access rights and
no sizes of columns; ``BIGNUMERIC`` has 38 digits only; a failed statement ends a transaction.
"""

from __future__ import annotations

import itertools
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from changefeed.embedded.server import free_port
from tests.services.python import PythonServer, environment, packages, python_313

PROJECT = "local"
_LOCK = Path(__file__).with_name("local-bigquery.lock")
#: The wheel of DuckDB has none of them, and loads what it finds under the home folder.
_EXTENSIONS = ("icu", "ducklake", "spatial", "httpfs")


def installation() -> tuple[Path, Path]:
    """Interpreter and packages of the emulator, fetched once.

    Raises:
        Unavailable: this machine cannot have it.
    """
    python = python_313()

    def install_extensions(folder: Path) -> None:
        (folder / "home").mkdir()
        names = ", ".join(map(repr, _EXTENSIONS))
        code = f"import duckdb_extensions as d\nfor n in ({names}): d.import_extension(n)"
        command: list[str | Path] = [python, "-S", "-c", code]
        subprocess.run(command, check=True, env=environment(folder), timeout=120)

    return python, packages(_LOCK, python, install_extensions)


class BigQueryEmulator(PythonServer):
    """An emulator with its data in ``folder``; a new start finds the data again."""

    project = PROJECT
    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, free_port())
        self._storage_port = free_port()
        self._python, self._packages = installation()

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self.port}"

    def uri(self, dataset: str, parameters: str = "") -> str:
        """A sink URI."""
        more = f"&{parameters}" if parameters else ""
        return f"bigquery://{PROJECT}/{dataset}?api_endpoint={self.endpoint}{more}"

    @contextmanager
    def client(self) -> Iterator[bigquery.Client]:
        """A client of Google's own library."""
        client = bigquery.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": self.endpoint},
        )
        with closing(client):
            yield client

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.client() as client:
            return [tuple(row.values()) for row in client.query_and_wait(sql)]

    @contextmanager
    def dataset(self) -> Iterator[str]:
        """A name no other test uses; the dataset is dropped afterwards when there is one."""
        name = f"test_{next(self._numbers)}"
        try:
            yield name
        finally:
            if self.running:
                with self.client() as client:
                    client.delete_dataset(name, delete_contents=True, not_found_ok=True)

    # ------------------------------------------------------------------ details

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        program = Path(__file__).with_name("bigquery_server.py")
        words: list[str | Path] = [self._python, "-S", "-P", program, "--host", "127.0.0.1"]
        words += ["--port", str(self.port), "--grpc-port", str(self._storage_port)]
        words += ["--project", PROJECT, "--data-dir", self.folder / "data"]
        return words, environment(self._packages, GCS_LOCAL_ROOT=str(self.folder / "gcs"))

    def ready(self) -> bool:
        address = f"{self.endpoint}/bigquery/v2/projects/{PROJECT}/datasets"
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
