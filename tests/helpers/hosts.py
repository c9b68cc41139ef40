"""Hosts as processes: each has a home of its own, may be killed, frozen, or lose its disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from changefeed.catalog import Catalog
from tests.helpers.wall_clock import sitecustomize

#: Seconds until a supervisor starts a node again that has ended.
RESTART = 1.0
#: Seconds that a node may take to end in good order: less than service managers give it.
STOP_SECONDS = 60.0


class Host:
    """A machine with one node of a state; its files are in ``home``.

    Args:
        within: the beginning of its command line, which puts the node where it runs, in the same
            process.
        supervised: a node that ends by itself is started again, as systemd and Kubernetes do.
    """

    def __init__(
        self,
        home: Path,
        state: str,
        *flags: str,
        within: Sequence[str] = (),
        supervised: bool = False,
    ) -> None:
        self.home = home
        self.state = state
        self._flags = flags
        self._within = within
        self._supervised = supervised
        self._process: subprocess.Popen[bytes] | None = None
        #: Set when the node is to end.
        self._ending = threading.Event()
        self._supervisor: threading.Thread | None = None
        self._clock = home.parent / f"{home.name}.clock"

    def set_clock(self, seconds: float) -> None:
        """Set the machine's wall clock so far before that of this process, or behind it."""
        shift = int(seconds * 1e9).to_bytes(8, "little", signed=True)
        # In place: its processes have it in memory.
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(shift)

    def start(self) -> Host:
        """Start the node."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self._clock.exists():
            self.set_clock(0)
        self._ending = threading.Event()
        self._run()
        if self._supervised:
            self._supervisor = threading.Thread(target=self._supervise, args=(self._ending,))
            self._supervisor.start()
        return self

    def _run(self) -> None:
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._within,
                    *(sys.executable, "-m", "shell", "start", "--state", self.state),
                    *self._flags,
                ],
                env={
                    **os.environ,
                    "HOME": str(self.home),
                    "XDG_DATA_HOME": str(self.home),
                    "PYTHONPATH": os.pathsep.join(
                        [str(Path(sitecustomize.__file__).parent), *filter(None, paths)]
                    ),
                    sitecustomize.VARIABLE: str(self._clock),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def _supervise(self, ending: threading.Event) -> None:
        while not ending.wait(RESTART):
            if not self.runs:
                self._run()

    def _end_supervision(self) -> None:
        self._ending.set()
        if self._supervisor is not None:
            self._supervisor.join()

    @property
    def pid(self) -> int | None:
        """Of the node that was started last."""
        return None if self._process is None else self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the node's process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def printed(self) -> str:
        """What the node wrote to standard error."""
        return (self.home.parent / f"{self.home.name}.log").read_text()

    @property
    def waits(self) -> bool:
        """Whether the node has a capture process for the next source that becomes free."""
        node = None if self._process is None else psutil.Process(self._process.pid)
        return node is not None and any("--standby" in child.cmdline() for child in node.children())

    def _send(self, number: int) -> None:
        if self._process is None or not self.runs:
            return
        node = psutil.Process(self._process.pid)
        # The node first: it would start its children again.
        for process in (node, *node.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self, *, disk: bool = False) -> None:
        """The machine fails; ``disk``: and nothing that it had is left."""
        self._end_supervision()
        self._send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        if disk:
            # The folder itself may be where a file system is mounted.
            for path in self.home.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def freeze(self) -> None:
        """Nothing on the machine goes on."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """All goes on as if no time had passed."""
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """End the node in good order."""
        self._end_supervision()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # it writes its stacks
            self._process.wait(STOP_SECONDS)
            stacks = self.printed.rpartition("Fatal Python error: Aborted")[2]
            raise AssertionError(f"{self.home.name} did not end; it was at\n{stacks}") from None


@contextmanager
def hosts(
    folder: Path, state: str, *names: str, log: str = "", more: Sequence[str] = ()
) -> Iterator[list[Host]]:
    """Hosts that share a state, none of which runs yet; all are gone at the end. ``more``: flags of
    their nodes."""
    flags = ("--log", log) if log else ()
    made = [Host(folder / name, state, *flags, *more) for name in names]
    try:
        yield made
    finally:
        for host in made:
            host.kill()


@contextmanager
def catalog_of(state: str, folder: Path) -> Iterator[Catalog]:
    """The state as a client sees it that has a home of its own."""
    with closing(Catalog.open(state, directory=folder)) as catalog:
        yield catalog
