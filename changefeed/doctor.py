"""Looks at an installation, its state, its sources, sinks and feeds, and changes none of them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from changefeed.api import Interpreter, Result, Session
from changefeed.core.errors import ChangefeedError, Problems
from changefeed.core.extras import installed
from changefeed.core.state import StateLayout
from changefeed.core.version import __version__
from changefeed.plan.check import COLUMNS, CONNECTION, Row
from changefeed.spark.java import find_java
from changefeed.statements import brief
from grammar.printer import name as name_sql

#: Values of ``place`` beside those of VALIDATE.
MACHINE, STATE, NODE, FEED = "machine", "state", "node", "feed"

#: A node has some files open for each feed, source and part of a log.
_FEW_FILES = 4096
_LITTLE_DISK = 0.1

#: What a bundle has of a state, and of each feed.
_STATE_STATEMENTS = (
    "SHOW CHANGEFEEDS",
    "SHOW JOBS",
    "SHOW NODES",
    "SHOW EXTERNAL CONNECTIONS",
    "SHOW FUNCTIONS",
    "SHOW SCHEDULES",
    "SHOW CREATE ALL",
)
_FEED_STATEMENTS = ("", " TABLES", " ERRORS LIMIT 1000", " EVENTS LIMIT 1000")


def examine(interpreter: Interpreter) -> Result:
    """Every problem that can be found from here as a row, in the columns of VALIDATE.

    Each connection is tried and each feed is checked as ``VALIDATE CHANGEFEED`` checks it, so this
    takes as long as their servers do. ``failure`` of the result is the first error.
    """
    examination = _Examination(interpreter)
    rows: list[Row] = []
    for look in (
        examination.machine,
        examination.state,
        examination.nodes,
        examination.connections,
        examination.feeds,
    ):
        rows += look()
    return Result(
        "rows", COLUMNS, list(rows), failure=examination.failure, brief=brief.checks(COLUMNS, rows)
    )


class _Examination:
    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._catalog = interpreter.catalog
        self._layout = StateLayout(Path(interpreter.catalog.directory))
        self._session = Session(client="doctor")
        self.failure: ChangefeedError | None = None

    def machine(self) -> Iterator[Row]:
        words = (
            f"changefeed {__version__}, Python {platform.python_version()}, {platform.system()} "
        )
        yield _ok(MACHINE, "", f"{words}{platform.machine()}, {os.cpu_count()} cores")
        yield from self._open_files()
        yield from self._java()

    def _open_files(self) -> Iterator[Row]:
        try:
            import resource
        except ModuleNotFoundError:  # Windows has no such limit
            return
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft not in (resource.RLIM_INFINITY, -1) and soft < _FEW_FILES:
            yield _warning(
                MACHINE,
                "open files",
                f"a process may open {soft} files: a node with hundreds of feeds needs more",
                f"ulimit -n {_FEW_FILES}, or LimitNOFILE of the service",
            )

    def _java(self) -> Iterator[Row]:
        if not installed("pyspark"):
            yield _ok(MACHINE, "Spark", "PySpark is not installed: changefeed[spark] adds it")
            return
        try:
            java = find_java()
        except ChangefeedError as error:
            needs = "lakes, CDC queries and datasets need one"
            yield _warning(MACHINE, "Spark", f"{error.message}: {needs}", error.hint)
            return
        yield _ok(MACHINE, "Spark", f"Java {java.major} was found ({java.found_by})")

    def state(self) -> Iterator[Row]:
        key = self._catalog.key
        how = f"; its secrets are encrypted by key {key}" if key else ""
        yield _ok(STATE, "", f"{self._catalog.shown} was opened{how}")
        root = self._layout.root
        if not root.is_dir():
            return
        disk = shutil.disk_usage(root)
        if disk.free < _LITTLE_DISK * disk.total:
            free = f"{disk.free / 1e9:.1f} of {disk.total / 1e9:.1f} GB"
            yield _warning(
                STATE,
                "disk",
                f"{free} are free where the change logs are",
                "make room, or limit the logs: --max-disk, gc_size, max_disk",
            )
        if self._layout.open_to_others:
            yield _warning(STATE, "directory", "other users may list it", f"chmod 700 {root}")

    def nodes(self) -> Iterator[Row]:
        nodes = self._catalog.live_nodes()
        for node in nodes:
            if node.version != __version__:
                yield _warning(
                    NODE, node.id, f"it is changefeed {node.version}, this is {__version__}", ""
                )
        if nodes:
            yield _ok(NODE, "", f"nodes that run: {len(nodes)}")
        elif waiting := sum(job.status.active for job in self._catalog.jobs()):
            said = f"no node runs; feeds that wait for one: {waiting}"
            yield _warning(NODE, "", said, "changefeed start")

    def connections(self) -> Iterator[Row]:
        for connection in self._catalog.connections():
            statement = f"CHECK EXTERNAL CONNECTION {name_sql(connection.name)}"
            yield from self._checked(statement, CONNECTION, connection.name)

    def feeds(self) -> Iterator[Row]:
        for job in self._catalog.jobs(include_finished=False):
            yield from self._checked(f"VALIDATE CHANGEFEED {name_sql(job.name)}", FEED, job.name)

    def _checked(self, statement: str, place: str, name: str) -> Iterator[Row]:
        try:
            result = self._interpreter.execute(statement, self._session)
        except Problems as problems:
            for each in problems.problems:
                yield self._error(place, name, each)
            return
        except ChangefeedError as error:
            yield self._error(place, name, error)
            return
        self.failure = self.failure or result.failure
        for severity, code, about, where, problem, hint in result.rows:
            shown = name if place == CONNECTION or not where else f"{name}, {about} {where}"
            yield (str(severity), str(code), place, shown, str(problem), str(hint))

    def _error(self, place: str, where: str, found: ChangefeedError) -> Row:
        self.failure = self.failure or found
        said = f"{found.message} ({found.detail})" if found.detail else found.message
        return ("error", found.code.number, place, where, said, found.hint)


def _ok(place: str, where: str, said: str) -> Row:
    return ("ok", "", place, where, said, "")


def _warning(place: str, where: str, said: str, hint: str) -> Row:
    return ("warning", "", place, where, said, hint)


def write_bundle(interpreter: Interpreter, examined: Result, file: Path) -> None:
    """Write a zip archive for a report of a problem, without secrets and without rows.

    It has the rows of :func:`examine`, what SHOW says of the state and of each feed, the versions
    of the packages, and the node's log. ``spark.log``, which Spark writes, is not in it.

    Raises:
        OSError: the file cannot be written.
    """
    session = Session(client="doctor")

    def answer(statement: str) -> object:
        try:
            return interpreter.execute(statement, session).objects()
        except ChangefeedError as error:
            return {"error": error.message, "code": error.code.number}

    shown = {statement: answer(statement) for statement in _STATE_STATEMENTS}
    for job in interpreter.catalog.jobs():
        for rest in _FEED_STATEMENTS:
            statement = f"SHOW CHANGEFEED {name_sql(job.name)}{rest}"
            shown[statement] = answer(statement)
    packages = sorted({f"{found.name}=={found.version}" for found in distributions()})
    log = StateLayout(Path(interpreter.catalog.directory)).node_log
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("doctor.json", json.dumps(examined.objects(), indent=1))
        bundle.writestr("show.json", json.dumps(shown, indent=1))
        bundle.writestr("packages.txt", "".join(f"{package}\n" for package in packages))
        for part in sorted(log.parent.glob(f"{log.name}*")):
            bundle.write(part, part.name)
