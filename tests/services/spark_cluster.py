"""A standalone Spark cluster on loopback: a master and workers, each a process of its own.

The classes come with PySpark's jars. Executors have no package of ours: the driver ships them. As
root the workers run under an account of their own, so they see no more of the driver's files than
other machines do.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from changefeed.embedded.account import Account
from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from changefeed.spark.jvm import spark_jars

#: Small processes that start fast.
_FLAGS = ("-Xmx256m", "-Djava.net.preferIPv4Stack=true")
#: Of every JVM, in the environment, which executors have from their worker: half of the CPU of one
#: that lives for a minute would go into HotSpot's second compiler.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: What was shipped to an executor is 440 MB in a folder of its own, and stays by default for a week
#: after its application has ended.
_TIDY = tuple(
    f"-Dspark.worker.cleanup.{name}={value}"
    for name, value in (("enabled", "true"), ("interval", "20"), ("appDataTtl", "20"))
)


class SparkCluster:
    """A master and ``workers`` workers of one core each, every one on an address of its own.

    Spark speculates only on another host than that of the first attempt.

    Attributes:
        master: the URL for ``--master``.

    Args:
        folder: for the logs and the executors' files.
        account: whom the workers and their executors run as; ourselves when not given.
    """

    def __init__(self, folder: Path, workers: int = 2, account: Account | None = None) -> None:
        self.folder = folder
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._count = workers
        self._account = account
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def properties(self) -> dict[str, str]:
        """What a driver on this machine must say beside the master's URL."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "768m",
            # Else there is a copy for all executors of an application, which outlives a killed one.
            "spark.files.useFetchCache": "false",
        }

    @property
    def flags(self) -> list[str]:
        """The flags of a command line that runs Spark here."""
        flags = ["--master", self.master]
        for name, value in self.properties.items():
            flags += ["--conf", f"{name}={value}"]
        return flags

    def start(self, timeout: float = 90.0) -> SparkCluster:
        """Start all and wait until every worker is registered."""
        atexit.register(self.stop)
        self.start_master(timeout)
        for _ in range(self._count):
            self.add_worker()
        self._wait(lambda: self._registered() >= self._count, "the workers registered", timeout)
        return self

    def start_master(self, timeout: float = 90.0) -> None:
        """Start the master on its port (again)."""
        log = self._log("master")
        before = log.stat().st_size if log.exists() else 0
        arguments = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._master = self._spawn("org.apache.spark.deploy.master.Master", arguments, log)
        self._wait(lambda: b"ALIVE" in log.read_bytes()[before:], "the master leads", timeout)

    def add_worker(self) -> None:
        """Start one more worker."""
        number = len(self._workers)
        work = self.folder / f"worker{number}"
        scratch = self.folder / f"scratch{number}"
        for folder in (work, scratch):
            folder.mkdir(exist_ok=True)
            if self._account is not None:
                self._account.own(folder)
        host = f"127.0.0.{number + 1}"
        arguments = ["--host", host, "--cores", "1", "--memory", "1g"]
        arguments += ["--webui-port", "0", "--work-dir", str(work), self.master]
        self._workers.append(
            self._spawn(
                "org.apache.spark.deploy.worker.Worker",
                arguments,
                self._log(f"worker{number}"),
                self._account,
                flags=_TIDY,
                SPARK_LOCAL_DIRS=str(scratch),
                SPARK_LOCAL_IP=host,
            )
        )

    def kill_master(self) -> None:
        """End the master without notice; workers and applications go on and wait for it."""
        if self._master is not None:
            self._master.kill()
            self._master.wait(10)

    def kill_worker(self, number: int = 0) -> None:
        """End a worker and its executors without notice."""
        worker = self._workers[number]
        executors = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        worker.wait(10)
        _kill(executors)

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks now."""
        found = []
        for worker in self._workers:
            if worker.poll() is None:
                found += _with_word(worker.pid, "CoarseGrainedExecutorBackend")
        return found

    def stop(self) -> None:
        """End everything."""
        atexit.unregister(self.stop)
        for worker in self._workers:
            if worker.poll() is None:
                executors = psutil.Process(worker.pid).children(recursive=True)
                worker.kill()
                worker.wait(10)
                _kill(executors)
        self._workers.clear()
        self.kill_master()

    def _spawn(
        self,
        name: str,
        arguments: list[str],
        log: Path,
        account: Account | None = None,
        *,
        flags: Sequence[str] = (),
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        jars = spark_jars()
        java = str(find_java().executable)
        command = [java, "-cp", f"{jars}/*", *_FLAGS, *flags, name, *arguments]
        environment = {
            "PATH": f"{self._python(account)}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "JDK_JAVA_OPTIONS": _OPTIONS,
            # A worker builds the command line of its executors from these.
            "SPARK_HOME": str(jars.parent),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **variables,
        }
        return spawn(command, log_file=log, environment=environment, account=account)

    def _python(self, account: Account | None) -> Path:
        """A directory with the Python that executors call by its name: this one's, without its
        packages, or one like it that their account may run."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = Path(sys.base_prefix) / "bin" / version
        others = (Path(place) / version for place in ("/usr/bin", "/usr/local/bin"))
        for found in (own, *others):
            if found.exists() and (account is None or account.reaches(found)):
                return found.parent
        copy = self.folder / "python"
        if not copy.exists():
            left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__")
            shutil.copytree(
                Path(sys.base_prefix) / "lib" / version, copy / "lib" / version, ignore=left_out
            )
            (copy / "bin").mkdir()
            shutil.copy(own.resolve(), copy / "bin" / version)
        return copy / "bin"

    def _registered(self) -> int:
        return len(re.findall(rb"Registering worker", self._log("master").read_bytes()))

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            dead = self._master is None or self._master.poll() is not None
            if dead or time.monotonic() > deadline:
                log = self._log("master").read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"not within {timeout:.0f} s: {what}\n{log}")
            time.sleep(0.05)


def _with_word(pid: int, word: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if any(word in part for part in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
