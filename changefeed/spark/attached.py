"""A Spark session that exists already, or that a server of Spark Connect gives.

changefeed works in further sessions of the same Spark, with settings, temporary views and
functions of their own. It starts no JVM and no context, sets nothing of the given session, and
never stops it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking, require_spark
from changefeed.spark.failure import kind_of
from changefeed.spark.internals.sessions import (
    another_session,
    cancel_group,
    core_count,
    extensions_of,
    has_context,
    has_ended,
    is_classic,
    release_sessions,
    with_settings,
)
from changefeed.spark.node_session import NodeSession
from changefeed.spark.packs import pack, packs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from changefeed.spark.executor_check import ExecutorCheck

#: ``--spark existing``: the session of this process.
EXISTING = "existing"
#: ``--spark sc://host:port``: a server of Spark Connect.
REMOTE = "sc://"
#: What a client of Spark Connect imports.
_CLIENT = ("grpc", "grpc_status", "zstandard")
#: Variables that say which Spark a process belongs to: of spark-submit, and of Spark Connect.
_BELONGS = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")

_NO_TASKS = "over Spark Connect the node runs no tasks of its own"

Find = Callable[[], "SparkSession"]


def finder(where: str) -> Find:
    """Finds the session that ``--spark`` names: ``existing``, or the URL of a Connect server.

    Raises:
        ChangefeedError: CF4003, a package is missing.
    """
    require_spark("--spark")
    if where == EXISTING:
        return _existing
    missing = lacking("--spark sc://", _CLIENT, "spark-connect", code=Code.SPARK_NOT_AVAILABLE)
    if missing is not None:
        raise missing
    return lambda: _remote(where)


def shown_url(where: str) -> str:
    """A Connect server's URL without its parameters, one of which may be a token."""
    return where.partition("/;")[0].partition(";")[0]


def _existing() -> SparkSession:
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()  # of this thread
    if found is not None:
        return found
    if has_context() or any(name in os.environ for name in _BELONGS):
        return SparkSession.builder.getOrCreate()
    raise ChangefeedError(
        Code.SPARK_NOT_AVAILABLE,
        "there is no Spark session in this process",
        hint="run changefeed by spark-submit or in a notebook, set SPARK_REMOTE, or leave out "
        "--spark existing: the node then starts a Spark of its own.",
    )


def _remote(url: str) -> SparkSession:
    from pyspark.sql import SparkSession

    # Of the client of Spark Connect; the other builder has no such method.
    builder: Any = SparkSession.builder.remote(url)
    found: SparkSession = builder.create()
    return found


class AttachedSession(NodeSession):
    """A session of a Spark that the node has not started."""

    step = "Spark is looked for"

    def __init__(self, find: Find, scratch: Path | None) -> None:
        # Its jars are what they are: see :meth:`extended`.
        super().__init__(frozenset(packs()), scratch)
        self._find = find
        self._lost = False
        self._first_cores = 1
        self._extensions: frozenset[str] = frozenset()
        self._check: ExecutorCheck | None = None

    @property
    def cores(self) -> int:
        if self.usable and is_classic(self.session.result()):
            with contextlib.suppress(Exception):  # what is done in it fails with the reason
                return core_count(self.session.result())
        return self._first_cores

    @property
    def over(self) -> bool:
        return self._lost or (self.session.done() and self.session.exception() is not None)

    def begin(self, after: NodeSession | None) -> None:
        threading.Thread(target=self._run, args=(after,), name="spark-attach", daemon=True).start()

    def _run(self, after: NodeSession | None) -> None:
        if after is not None:
            # Not all of its end: that would wait for a server that is gone.
            shutil.rmtree(after.scratch, ignore_errors=True)
        try:
            session = another_session(self._find())
            self._first_cores = core_count(session)
            self._extensions = extensions_of(session)
            if is_classic(session):
                from changefeed.spark.executor_check import ExecutorCheck

                self._check = ExecutorCheck(self._look, partial(cancel_group, session))
            self._offer(session)
        except ChangefeedError as error:
            self.session.set_exception(error)
        except Exception as failure:
            lost = ChangefeedError(
                Code.SPARK_FAILED,
                f"the Spark session cannot be used: {kind_of(failure)}",
                hint="check that its server runs, and its address; the feed tries again by itself.",
            )
            lost.__cause__ = failure
            self.session.set_exception(lost)

    def died(self, failure: BaseException) -> bool:
        if has_ended(self.session.result(), failure):
            self._lost = True
        return self._lost

    @property
    def hindrances(self) -> Mapping[str, str]:
        return {"": _NO_TASKS} if self._check is None else self._check.hindrances

    def ask(self, folder: str, stopping: Callable[[], bool]) -> str:
        return _NO_TASKS if self._check is None else self._check.ask(folder, stopping)

    def _look(self, group: str, folder: str) -> str:
        from changefeed.spark.executor_check import look

        try:
            return look(self.session.result(), group, folder)
        except Exception as failure:
            self.died(failure)  # then who asks next looks for another session
            raise

    def extended(self, wanted: Sequence[str]) -> SparkSession:
        for each in map(pack, wanted):
            if each.extension and each.extension not in self._extensions:
                jar = ":".join(each.jars[0].coordinates)
                raise ChangefeedError(
                    Code.SPARK_NOT_AVAILABLE,
                    f"this Spark was started without {each.name}",
                    hint=f"start it with --packages {jar} and --conf spark.sql.extensions="
                    f"{each.extension} (several are separated by commas).",
                )
        return super().extended(wanted)

    def _made_extended(self) -> SparkSession:
        settings = (each for name in sorted(self.packs) for each in pack(name).settings)
        return with_settings(another_session(self.session.result()), dict(settings))

    def end(self) -> None:
        release_sessions()
        shutil.rmtree(self.scratch, ignore_errors=True)
