"""A Google Cloud Storage for tests: fake-gcs-server, in memory, built by a Go out of a wheel.

It lets everybody in, whatever the token.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pyarrow import fs

from changefeed.embedded.server import free_port
from tests.services.golang import built
from tests.services.proxy import Proxy
from tests.services.python import PythonServer
from tests.services.stores import ObjectStore

TOKEN = "ya29.s3cr3t/s3cr3t"
_SOURCES = Path(__file__).with_name("gcs_server")


class GcsServer(PythonServer, ObjectStore):
    """A server in memory: what it has is gone with it."""

    scheme: ClassVar[str] = "gs"
    secret: ClassVar[str] = TOKEN

    def __init__(self, folder: Path) -> None:
        """Raises: Unavailable, where it cannot be built."""
        super().__init__(folder, free_port())
        self._program = built("gcs-server", _SOURCES, "github.com/fsouza/fake-gcs-server")

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        """The command line and its whole environment."""
        command: list[str | Path] = [self._program, "-backend", "memory", "-scheme", "http"]
        command += ["-host", "127.0.0.1", "-port", str(self.port), "-data", self.folder]
        command += ["-public-host", f"127.0.0.1:{self.port}"]
        return [*command, "-external-url", f"http://127.0.0.1:{self.port}"], {}

    def ready(self) -> bool:
        """The server answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/_internal/healthcheck", timeout=5
            ) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def client(self) -> fs.FileSystem:
        """A filesystem on the server that may make buckets."""
        return fs.GcsFileSystem(
            anonymous=True,
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            project_id="tests",
        )

    def parameters(self, port: int = 0) -> str:
        """The query of a sink URI for this server (or a proxy's port before it)."""
        endpoint = quote(f"http://127.0.0.1:{port or self.port}", safe="")
        return f"BEARER_TOKEN={quote(TOKEN, safe='')}&GCS_ENDPOINT={endpoint}"

    @contextmanager
    def proxied(self) -> Iterator[Proxy]:
        """A proxy before the server, which sends uploads there too: it tells where they go."""
        with super().proxied() as proxy:
            self._tell(proxy.port)
            try:
                yield proxy
            finally:
                self._tell(self.port)

    def _tell(self, port: int) -> None:
        content = json.dumps({"externalUrl": f"http://127.0.0.1:{port}"}).encode()
        address = f"http://127.0.0.1:{self.port}/_internal/config"
        request = urllib.request.Request(address, data=content, method="PUT")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
