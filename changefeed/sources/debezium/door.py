"""The JVM with Debezium's engine, as a child process that is spoken to by pipes.

The process that captures needs a JVM of its own: the one of Spark belongs to the node, which may
end, or run out of memory in a query, while the capture goes on. It costs no Spark: the
class path has Debezium's jars, and of Spark's those of the compiler and of the log alone.

Passwords go through the pipe: neither arguments nor environment nor a file has them. The JVM ends
when its standard input closes, so it cannot outlive this process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.sources.debezium.failures import Cause, failure
from changefeed.spark.ivy import trust_flags
from changefeed.spark.java import find_java
from changefeed.spark.jvm import spark_jars
from changefeed.spark.packs import jar_folder, paths

#: Frames that wait for a reader.
_AHEAD = 4
#: Seconds for one answer of a database.
ANSWER_SECONDS = 120.0

_SOURCES = Path(__file__).parent / "java"
_SPARKS = ("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl")
_COMPILER = ("janino", "commons-compiler")
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}%n
"""


class Door:
    """One JVM. Its engine's frames are read with :meth:`frame`; :meth:`ask` asks the database."""

    def __init__(self, packs: Sequence[str], *, heap: str = "512m") -> None:
        """Start the JVM; returns when it obeys.

        Raises:
            ChangefeedError: CF4003 no Java or no jars, CF4002 it ended at once.
        """
        self._scratch = Path(tempfile.mkdtemp(prefix="changefeed-door-"))
        self._frames: queue.Queue[tuple[str, bytes]] = queue.Queue(_AHEAD)
        self._answers: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self._closed = False
        self._tail: list[str] = []
        self._process = self._start(packs, heap)
        self._threads = [
            threading.Thread(target=self._read, name="door-frames", daemon=True),
            threading.Thread(target=self._listen, name="door-errors", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def _start(self, packs: Sequence[str], heap: str) -> subprocess.Popen[bytes]:
        missing = lacking(
            "a source that Debezium reads",
            ("pyspark",),
            "debezium",
            code=Code.SPARK_NOT_AVAILABLE,
        )
        if missing is not None:
            raise missing
        java = find_java()
        jars = [*paths(["debezium", *packs]), *_of_spark(_SPARKS)]
        logging = self._scratch / "log4j2.properties"
        logging.write_text(_LOGGING)
        command: list[str | Path] = [
            java.executable,
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            # Records live for one batch: half of the heap is for new objects, from the start.
            f"-Xms{heap}",
            "-XX:NewRatio=1",
            # Standard output is for frames.
            "-XX:+DisplayVMOutputToStderr",
            "-Xlog:all=off:stdout",
            "-Xlog:all=warning:stderr",
            "-Duser.timezone=UTC",
            f"-Djava.io.tmpdir={self._scratch}",
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            *trust_flags(java, self._scratch),
            "-cp",
            os.pathsep.join(map(str, [compiled(jars, packs), *jars])),
            "changefeed.Door",
        ]
        return subprocess.Popen(
            command,
            cwd=self._scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the shell is for the shell
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: Mapping[str, Any]) -> Any:
        """The answer to a command about the database.

        Raises:
            ChangefeedError: what the database or the driver said.
        """
        with self._asking:
            self._send(command)
            return self._answer()

    def start(
        self,
        properties: Mapping[str, str],
        offset: Sequence[Any] | None,
        commit_fields: Sequence[str] = (),
    ) -> None:
        """Start the engine at an offset: a partition and its offset. ``commit_fields``: see
        :class:`changefeed.sources.debezium.connectors.base.Connector`."""
        command = {"do": "start", "properties": properties, "offset": offset}
        self._send({**command, "commit_fields": list(commit_fields) or None})

    def acknowledge(self, frame: int) -> None:
        """Everything up to that frame is durable."""
        self._send({"do": "ack", "frame": frame})

    def frame(self, timeout: float) -> tuple[str, bytes] | None:
        """The engine's next frame: its letter and content; None when none came in time.

        Raises:
            ChangefeedError: what ended the engine.
        """
        try:
            kind, content = self._frames.get(timeout=timeout)
        except queue.Empty:
            return None
        if kind == "E":
            raise _told(content)
        if not kind:
            raise self._ended()
        return kind, content

    def close(self) -> None:
        """End the JVM; safe from any thread, idempotent."""
        self._closed = True
        self._process.kill()
        self._process.wait()
        with self._writing, contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def _send(self, command: Mapping[str, Any]) -> None:
        text = json.dumps(command).encode()
        with self._writing:
            stdin = self._process.stdin
            if stdin is None or stdin.closed:
                raise self._ended()
            try:
                stdin.write(struct.pack(">i", len(text)) + text)
                stdin.flush()
            except OSError as cause:
                raise self._ended() from cause

    def _answer(self) -> Any:
        try:
            kind, content = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            self.close()
            raise ChangefeedError(
                Code.SOURCE_UNREACHABLE, f"no answer of the source within {ANSWER_SECONDS:.0f} s"
            ) from None
        if kind == "F":
            raise _told(content)
        if not kind:
            raise self._ended()
        return json.loads(content)

    def _ended(self) -> ChangefeedError:
        if self._closed:
            return ChangefeedError(Code.STREAM_BROKE, "the stream was closed")
        words = " | ".join(self._tail)
        if re.search(r"OutOfMemoryError", words):
            return ChangefeedError(
                Code.STREAM_BROKE,
                "Debezium's JVM ran out of memory",
                hint="give it more with the parameter heap of the connection, e.g. heap=2g.",
            )
        return ChangefeedError(
            Code.STREAM_BROKE,
            f"Debezium's JVM ended with status {self._process.poll()}",
            detail=words,
        )

    def _read(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        while len(head := stdout.read(5)) == 5:
            (length,) = struct.unpack(">i", head[1:])
            content = stdout.read(length)
            if len(content) < length:
                break
            kind = chr(head[0])
            self._put(kind, content, answer=kind in "JF")
        stdout.close()
        self._process.wait()
        self._put("", b"", answer=True)
        self._put("", b"", answer=False)

    def _put(self, kind: str, content: bytes, *, answer: bool) -> None:
        if answer:
            self._answers.put((kind, content))
            return
        while True:
            with contextlib.suppress(queue.Full):
                self._frames.put((kind, content), timeout=0.2)
                return
            if self._closed:
                return

    def _listen(self) -> None:
        """Classes that logged an error, and what the JVM itself says; texts may hold secrets."""
        stderr = self._process.stderr
        if stderr is None:
            return
        for line in stderr:
            text = line.decode(errors="replace").strip()
            if re.fullmatch(r"[A-Z]+ [\w$.]+|.*(?:OutOfMemoryError|could not be found).*", text):
                self._tail = [*self._tail[-4:], text[:200]]
        stderr.close()


def _told(content: bytes) -> ChangefeedError:
    causes: list[dict[str, Any]] = json.loads(content)
    return failure([Cause(**cause) for cause in causes])


def _of_spark(names: Sequence[str]) -> list[Path]:
    found = []
    for name in names:
        jar = next(iter(sorted(spark_jars().glob(f"{name}-[0-9]*.jar"))), None)
        if jar is None:
            raise ChangefeedError(Code.SPARK_NOT_AVAILABLE, f"the installed pyspark has no {name}")
        found.append(jar)
    return found


def compiled(jars: Sequence[Path], packs: Sequence[str] = ()) -> Path:
    """The folder with the classes of ``java/`` and its folders of these packs, compiled once by the
    compiler that Spark brings.

    Raises:
        ChangefeedError: CF4003 they cannot be compiled.
    """
    folders = [_SOURCES, *(_SOURCES / pack for pack in packs)]
    sources = sorted(
        path for folder in folders for path in folder.glob("*.java") if path.name != "Compile.java"
    )
    digest = hashlib.sha256()
    for path in [*sources, *jars]:
        digest.update(path.read_bytes() if path in sources else path.name.encode())
    folder = jar_folder() / f"door-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=jar_folder()))
    command: list[str | Path] = [
        find_java().executable,
        "-Dorg.codehaus.janino.UnitCompiler.defaultTargetVersion=8",
        "-cp",
        os.pathsep.join(map(str, [*_of_spark(_COMPILER), *jars])),
        "org.codehaus.janino.SimpleCompiler",
        _SOURCES / "Compile.java",
        "Compile",
        partial,
        *sources,
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if run.returncode != 0:
            raise ChangefeedError(
                Code.SPARK_NOT_AVAILABLE,
                "the part of the Debezium source that is Java could not be compiled",
                detail=next((s for s in run.stderr.splitlines() if "Caused" in s), "")[:500],
            )
        # Another thread may have been faster.
        with contextlib.suppress(OSError):
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
