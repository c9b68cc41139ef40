"""An S3 server for tests (moto, in a process of its own), and a proxy that spoils its answers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from pyarrow import fs

from changefeed.embedded.server import free_port

KEY, SECRET = "AKIATESTTESTTESTTEST", "s3cr3t+/s3cr3t"
_CLOSE = b"Connection: close\r\nContent-Length: 0\r\n\r\n"


class S3Server:
    """moto's server on the loopback."""

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

    def bucket(self, name: str) -> str:
        """Make a bucket."""
        self.client().create_dir(name)
        return name

    def parameters(self, port: int = 0) -> str:
        """The query of a sink URI for this server (or a proxy's port before it)."""
        endpoint = quote(f"http://127.0.0.1:{port or self.port}", safe="")
        return (
            f"AWS_ACCESS_KEY_ID={KEY}&AWS_SECRET_ACCESS_KEY={quote(SECRET, safe='')}"
            f"&AWS_REGION=us-east-1&AWS_ENDPOINT={endpoint}"
        )

    def download(self, bucket: str, prefix: str, folder: Path) -> Path:
        """Every object below a prefix as a file: what a reader sees."""
        client = self.client()
        selector = fs.FileSelector(f"{bucket}/{prefix}", recursive=True, allow_not_found=True)
        for info in client.get_file_info(selector):
            if info.type != fs.FileType.File:
                continue
            path = folder / os.path.relpath(info.path, f"{bucket}/{prefix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with client.open_input_stream(info.path, compression=None) as stream:
                path.write_bytes(stream.read())
        return folder


class Proxy:
    """Hands connections on to a port, or spoils them.

    Attributes:
        mode: ``pass``; ``cut`` ends connections after ``after`` bytes of the request; a number
            of three digits answers every request with that status.
        spoiled: connections that were.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.mode = "pass"
        self.after = 0
        self.spoiled = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._drop()

    @contextmanager
    def spoiling(self, mode: str, after: int = 0) -> Iterator[None]:
        """Another mode inside the block; connections that are open end."""
        self.mode, self.after = mode, after
        self._drop()
        yield
        self.mode = "pass"
        self._drop()

    def _drop(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        self._open.add(client)
        with client, contextlib.suppress(OSError):
            if self.mode == "pass":
                self._pass(client)
            elif self.mode == "cut":
                self.spoiled += 1
                _read(client, self.after)
            else:
                self.spoiled += 1
                _read(client, 1)
                client.sendall(f"HTTP/1.1 {self.mode} Spoiled\r\n".encode() + _CLOSE)
        self._open.discard(client)

    def _pass(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            self._open.add(server)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()
            self._open.discard(server)


def _read(source: socket.socket, amount: int) -> None:
    while amount > 0 and (data := source.recv(65536)):
        amount -= len(data)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
