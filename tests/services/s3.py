"""An S3 server for tests: moto, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pyarrow import fs

from changefeed.embedded.server import free_port
from tests.services.stores import ObjectStore

KEY, SECRET = "AKIATESTTESTTESTTEST", "s3cr3t+/s3cr3t"


class S3Server(ObjectStore):
    """moto's server on the loopback. It lets everybody in."""

    scheme: ClassVar[str] = "s3"
    secret: ClassVar[str] = SECRET

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._log = folder / "moto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> S3Server:
        """Start and wait until it answers."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + timeout
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"moto did not start: {self._log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def client(self) -> fs.S3FileSystem:
        """A filesystem on the server that may make buckets."""
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )

    def parameters(self, port: int = 0) -> str:
        """The query of a sink URI for this server (or a proxy's port before it)."""
        endpoint = quote(f"http://127.0.0.1:{port or self.port}", safe="")
        return (
            f"AWS_ACCESS_KEY_ID={KEY}&AWS_SECRET_ACCESS_KEY={quote(SECRET, safe='')}"
            f"&AWS_REGION=us-east-1&AWS_ENDPOINT={endpoint}"
        )
