"""Whether the executors of a Spark that the node has not started can run the node's tasks.

A job of one task finds out where bulk work asks for it: it imports changefeed on an executor,
compares the versions, and gets its key as every task does (:mod:`.sealed`). Who waits for the
answer can stop waiting. A "no" holds for a minute only, because an executor that comes later, or
one that has more time, may answer differently.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import ChangefeedError
from changefeed.core.extras import installed
from changefeed.core.telemetry import log
from changefeed.core.version import __version__
from changefeed.spark.failure import kind_of, unpack
from changefeed.spark.internals.sessions import job_group
from changefeed.spark.progress import driver_host
from changefeed.spark.sealed import sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changefeed.spark.sealed import BatchFunction

#: How long the job may take: a busy cluster has no core, a cold executor unpacks Python.
ANSWER_SECONDS = 60.0
#: How long a "no" holds.
AGAIN_SECONDS = 60.0
_LOOK_SECONDS = 0.2
#: Clients that tasks use, by their import names; executors need those that the node has.
_CLIENTS = (
    "confluent_kafka", "elasticsearch", "fastavro", "httpx", "numpy", "pandas", "psycopg",
    "pymysql",
)  # fmt: skip
NOT_KNOWN = "it is not known yet whether the executors can run changefeed's tasks"
_SHIP = "ship it by spark-submit --archives (changefeed pack), or install it there"
_AGAIN = "the next scan or backlog asks again"
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class _Answer:
    """What is known: ``why`` they cannot, and since when; ``over``: it was found out."""

    why: str = NOT_KNOWN
    at: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)


class ExecutorCheck:
    """What the executors of one session can do; safe for many threads."""

    def __init__(
        self,
        look: Callable[[str, str], str],
        cancel: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        Args:
            look: runs the job, as :func:`look` does for a session: takes the name of its group and
                the folder.
            cancel: cancels the jobs of a group.
        """
        self._look = look
        self._cancel = cancel
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}

    @property
    def hindrances(self) -> dict[str, str]:
        """By folder why executors cannot, as far as that is known and holds; asks nothing."""
        with self._lock:
            known = list(self._answers.items())
        return {folder: its.why for folder, its in known if its.over.is_set() and self._no(its)}

    def ask(self, folder: str, stopping: Callable[[], bool]) -> str:
        """Why executors cannot run tasks that read a folder of this machine (empty: none); empty if
        they can. Waits until that is known, for :data:`ANSWER_SECONDS` at most.

        Args:
            stopping: asked meanwhile; true ends the wait, and the reason is that it is not known.
        """
        with self._lock:
            answer = self._answers.get(folder)
            if answer is None or (answer.over.is_set() and answer.why and not self._no(answer)):
                answer = self._answers[folder] = _Answer()
                name = "spark-check"
                threading.Thread(
                    target=self._find, args=(answer, folder), name=name, daemon=True
                ).start()
        while not answer.over.is_set() and not stopping():
            self._clock.wait(answer.over, _LOOK_SECONDS)
        return answer.why

    def _no(self, answer: _Answer) -> bool:
        return bool(answer.why) and self._clock.monotonic() - answer.at < AGAIN_SECONDS

    def _find(self, answer: _Answer, folder: str) -> None:
        group = f"changefeed executors {next(_numbers)}"

        def run() -> None:
            try:
                why = self._look(group, folder)
            except Exception as failure:
                why = reason(failure)
            self._settle(answer, why)

        threading.Thread(target=run, name="spark-check-job", daemon=True).start()
        if not self._clock.wait(answer.over, ANSWER_SECONDS):
            late = f"no executor has answered within {ANSWER_SECONDS:.0f} s, perhaps none is free"
            self._settle(answer, f"{late}: {_AGAIN}")
            with suppress(Exception):  # the cluster may be gone
                self._cancel(group)

    def _settle(self, answer: _Answer, why: str) -> None:
        with self._lock:
            if not answer.over.is_set():
                answer.why, answer.at = why, self._clock.monotonic()
                answer.over.set()
        if why:
            log.info("scans and backlogs run in the node: %s", why)


def look(session: SparkSession, group: str, folder: str) -> str:
    """Ask an executor by a job why it cannot run tasks; empty if it can. What is raised has a
    :func:`reason`, too."""
    packages = tuple(each for each in _CLIENTS if installed(each))
    with job_group(session, group), sealed(_Look(packages, folder), driver_host(session)) as rest:
        question = asking(__version__, pickle.dumps(rest))
        one = session.range(1, numPartitions=1).mapInArrow(question, "why string")
        return str(one.collect()[0]["why"])


def asking(version: str, rest: bytes) -> BatchFunction:
    """A function for a worker, which needs nothing of changefeed there: it is pickled by value.

    Args:
        version: of changefeed in this process.
        rest: the pickled function that is called where the version is the same.
    """

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            from changefeed.core.version import __version__ as its
        except ImportError as error:
            why = f"the executors lack {error.name or error}: {_SHIP}"
        else:
            if its == version:
                yield from pickle.loads(rest)(batches)
                return
            why = f"the executors have changefeed {its}, and the node has {version}: {_SHIP}"
        for _ in batches:
            yield pa.record_batch({"why": [why]})

    return ask


@dataclass(frozen=True, slots=True)
class _Look:
    """What an executor with the same changefeed lacks of some packages and of a folder."""

    packages: tuple[str, ...]
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        why, missing = "", next((each for each in self.packages if not installed(each)), "")
        if missing:
            why = f"the executors lack {missing}: {_SHIP}"
        elif self.folder and not _readable(self.folder):
            why = f"the executors cannot read {self.folder}: name a place that they can (--staging)"
        for _ in batches:
            yield pa.record_batch({"why": [why]})


def _readable(folder: str) -> bool:
    if not os.access(folder, os.R_OK | os.X_OK):
        return False
    with os.scandir(folder) as entries:
        return all(os.access(entry.path, os.R_OK) for entry in entries)


def reason(failure: Exception) -> str:
    """Why a job that failed so has no answer; without the text of the failure."""
    text = str(failure)
    error = failure if isinstance(failure, ChangefeedError) else unpack(text)
    if error is not None:
        return f"{error.message} ({error.hint.rstrip('.')})"
    if "[PYTHON_VERSION_MISMATCH]" in text:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"the executors have another Python than the node's {minor}: "
            f"set spark.pyspark.python to a Python {minor} there"
        )
    if (missing := _NO_MODULE.search(text)) is not None:
        return f"the executors lack {missing[1]}: {_SHIP}"
    what = f"the job that asks whether the executors have changefeed failed ({kind_of(failure)})"
    return f"{what}: {_AGAIN}"
