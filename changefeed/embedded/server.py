"""One PostgreSQL server: made, started, stopped, killed, all on 127.0.0.1.

The server is a child of this process and dies with it. Its data folder is the one it was
given; its settings are command-line settings, so that another start may have others.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Self

from changefeed.core.errors import ChangefeedError, Code
from changefeed.embedded.account import Account, server_account
from changefeed.embedded.binaries import readable_by, wheel_installation
from changefeed.embedded.child import spawn

#: What logical decoding needs, and nothing that reaches out of this machine.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
}


#: The postmaster takes connections; a standby those that only read.
_ANSWERS = ("ready", "standby")


class EmbeddedPostgres:
    """A server over the data folder ``data`` (made by ``initdb`` when it is empty).

    Args:
        data: folder of the cluster; its parents must exist and be passable for the server's
            account (when we are root that is ``postgres`` or ``nobody``).
        installation: folder with ``bin``, ``lib`` and ``share``; the wheel's by default.
        port: TCP port on 127.0.0.1; a free one by default, the same for every start.
        settings: further settings, over :data:`SETTINGS`.
    """

    def __init__(
        self,
        data: Path,
        *,
        installation: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        user: str = "postgres",
    ) -> None:
        self.account: Account = server_account()
        self.installation = readable_by(self.account, installation or wheel_installation())
        self.data = data
        self.port = port or free_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self.user = user
        self.log_file = data.with_name(data.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------ life

    @property
    def running(self) -> bool:
        """Whether the postmaster lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the postmaster.

        Raises:
            RuntimeError: the server was not started.
        """
        if self._process is None:
            raise RuntimeError("the server is not started")
        return self._process.pid

    def start(self, timeout: float = 60.0) -> Self:
        """Start and wait until the server takes connections.

        Raises:
            ChangefeedError: CF2001 with the end of the server's log when it does not come up
                within ``timeout`` seconds.
        """
        if self.running:
            return self
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        command = [self._program("postgres"), "-D", str(self.data), "-p", str(self.port), *options]
        self._process = self._spawn(command)
        atexit.register(self.stop)
        self._wait_ready(time.monotonic() + timeout)
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Shut down (PostgreSQL's *fast* mode); killed after ``timeout`` seconds."""
        atexit.unregister(self.stop)
        if self.running:
            os.kill(self.pid, signal.SIGINT)
            self._reap(timeout)
        self._process = None

    def kill(self) -> None:
        """End the postmaster and its children at once, as a crash of the machine would."""
        if not self.running:
            return
        family = [self.pid, *_children(self.pid)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was quicker
        self._reap(10.0)
        deadline = time.monotonic() + 10.0
        while any(_alive(pid) for pid in family[1:]) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process = None

    def restart(self) -> Self:
        """Stop, then start on the same port."""
        self.stop()
        return self.start()

    def reload(self) -> None:
        """Have the server read ``pg_hba.conf`` and ``postgresql.conf`` again."""
        os.kill(self.pid, signal.SIGHUP)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ addresses

    def uri(self, database: str = "postgres", *, user: str | None = None) -> str:
        """``postgresql://user@127.0.0.1:port/database`` (the server trusts local users)."""
        return f"postgresql://{user or self.user}@127.0.0.1:{self.port}/{database}"

    # ------------------------------------------------------------------ details

    def _program(self, name: str) -> str:
        return str(self.installation / "bin" / name)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        return spawn(
            command,
            log_file=self.log_file,
            account=self.account,
            at_our_death=signal.SIGQUIT,  # PostgreSQL's immediate shutdown
            environment={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
        )

    def _initialise(self) -> None:
        self.account.take(self.data)
        command = [self._program("initdb"), "-D", str(self.data), "-U", self.user]
        command += ["-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        if self._spawn(command).wait(120) != 0:
            raise self._failed("initdb failed")

    def _wait_ready(self, deadline: float) -> None:
        status = self.data / "postmaster.pid"
        while True:
            if not self.running:
                raise self._failed("PostgreSQL did not start")
            # Line 8 of the lock file is the postmaster's own word on its state.
            lines = status.read_text().splitlines() if status.exists() else []
            if len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() in _ANSWERS:
                return
            if time.monotonic() > deadline:
                self.kill()
                raise self._failed("PostgreSQL did not become ready in time")
            time.sleep(0.02)

    def _reap(self, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def _failed(self, message: str) -> ChangefeedError:
        tail = self.log_file.read_text(errors="replace")[-2000:] if self.log_file.exists() else ""
        return ChangefeedError(Code.SOURCE_UNREACHABLE, message, detail=tail)


#: Below the ports that systems give to outgoing connections (Linux: 32768 and above), any of which
#: could take a free one before its server does.
_PORTS = range(20_000, 32_768)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago.

    Raises:
        OSError: none of a thousand is free.
    """
    for port in SystemRandom().sample(_PORTS, 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def _children(pid: int) -> list[int]:
    """Direct children of a process (Linux; elsewhere none are named and they end by themselves)."""
    found: list[int] = []
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in entry.read_text().split()]
    return found


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
