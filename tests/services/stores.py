"""What object stores for tests have in common, whatever they speak."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pyarrow import fs

from tests.services.proxy import Proxy


class ObjectStore(ABC):
    """A server on the loopback that keeps objects in memory.

    Attributes:
        scheme: of the sink's URIs.
        secret: what no error may show.
        port: of 127.0.0.1.
    """

    scheme: ClassVar[str]
    secret: ClassVar[str]
    port: int

    @abstractmethod
    def client(self) -> fs.FileSystem:
        """A filesystem on the server that may make buckets."""

    @abstractmethod
    def parameters(self, port: int = 0) -> str:
        """The query of a sink URI for this server (or a proxy's port before it)."""

    def bucket(self, name: str) -> str:
        """Make a bucket."""
        self.client().create_dir(name)
        return name

    def uri(self, path: str, port: int = 0, more: str = "") -> str:
        """A sink URI; ``path`` begins with the bucket, ``more`` with ``&``."""
        return f"{self.scheme}://{path}?{self.parameters(port)}{more}"

    @contextmanager
    def proxied(self) -> Iterator[Proxy]:
        """A proxy before the server."""
        proxy = Proxy(self.port)
        try:
            yield proxy
        finally:
            proxy.close()

    def objects(self, path: str) -> list[str]:
        """The names of all objects below a path, hidden ones too; not the markers of folders."""
        return sorted(info.base_name for info in self._below(path))

    def download(self, bucket: str, prefix: str, folder: Path) -> Path:
        """Every object below a prefix as a file: what a reader sees."""
        client = self.client()
        for info in self._below(f"{bucket}/{prefix}"):
            path = folder / os.path.relpath(info.path, f"{bucket}/{prefix}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with client.open_input_stream(info.path, compression=None) as stream:
                path.write_bytes(stream.read())
        return folder

    def _below(self, path: str) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = self.client().get_file_info(selector)
        return [info for info in found if info.type == fs.FileType.File]
