"""One JVM and its Spark session, from start to end."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from changefeed.core.child_path import import_path
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.spark.failure import translate
from changefeed.spark.internals.sessions import core_count, extended_session
from changefeed.spark.internals.starting import (
    PYSPARK,
    broken_connection,
    connect,
    launch_for_cluster,
    quiet_py4j,
    site_properties,
    start_session,
)
from changefeed.spark.java import find_java
from changefeed.spark.jvm import Launch, launch_jvm, spark_jars
from changefeed.spark.node_session import NodeSession
from changefeed.spark.packs import cached, pack, paths
from changefeed.spark.properties import (
    STORE_PROPERTIES,
    choose_properties,
    default_heap,
    is_local,
    launch_properties,
    our_properties,
    site_defaults,
    with_attempts,
    without_launched,
)
from changefeed.spark.shipping import ship_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long an address may take to answer, seconds.
ANSWER_SECONDS = 5.0
_STANDALONE = "spark://"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """The parameters of a session.

    Attributes:
        master: Spark's master URL.
        cores: the number of tasks at the same time, if this machine runs them.
        heap: ``-Xmx`` of the driver; None: the site's, or a share of the memory.
        defaults: properties in addition to changefeed's own.
        properties: the user's, which override both.
        flags: further JVM flags.
        packs: jar packs on its class path, downloaded where they are missing.
        log: file for the output of JVM and workers; None: one in the scratch directory.
        scratch: where its directory for temporary files is made; None: the system's.
    """

    master: str
    cores: int
    heap: str | None
    defaults: Mapping[str, str]
    properties: Mapping[str, str]
    flags: tuple[str, ...]
    packs: frozenset[str]
    log: Path | None
    scratch: Path | None


class JvmSession(NodeSession):
    """One JVM and its session, from start to end."""

    step = "Spark starts after what is left of its previous JVM"

    def __init__(
        self, spec: SessionSpec, lost: Callable[[ChangefeedError], None] = lambda error: None
    ) -> None:
        """``lost`` is called when the JVM ends although :meth:`end` was not called."""
        super().__init__(spec.packs | cached(), spec.scratch)
        self._lost = lost
        self._ending = False
        self._spec = spec
        self._started = threading.Event()
        self._log = spec.log or self.scratch / "spark.log"

    @property
    def cores(self) -> int:
        if not is_local(self._spec.master):
            # If the session dies meanwhile, the job fails with the reason.
            with contextlib.suppress(Exception):
                return core_count(self.session.result())
        return self._spec.cores

    @property
    def over(self) -> bool:
        if self.session.done() and self.session.exception() is not None:
            return True
        return self.jvm is not None and self.session.done() and not self.jvm.alive

    def begin(self, after: NodeSession | None) -> None:
        threading.Thread(target=self._run, args=(after,), name="spark-start", daemon=True).start()

    def _run(self, after: NodeSession | None) -> None:
        try:
            if after is not None:
                after.end()
            self._offer(self._start())
        except ChangefeedError as error:
            self._abandon(error)
        except Exception as failure:
            died = self.died(failure)
            self._abandon(translate(failure, jvm_died=died, master=self._spec.master))
        else:
            threading.Thread(target=self._watch, name="spark-watch", daemon=True).start()
        finally:
            self._started.set()

    def _watch(self) -> None:
        assert self.jvm is not None
        how = self.jvm.wait_for_end()
        if not self._ending:
            error = ChangefeedError(Code.SPARK_FAILED, f"Spark's JVM ended ({how})")
            log.error("%s %s", error.code.number, error.message)
            self._lost(error)

    def _abandon(self, error: ChangefeedError) -> None:
        if self.jvm is not None:
            self.jvm.stop(grace=0)
        PYSPARK.release(self)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.session.set_exception(error)

    def _start(self) -> SparkSession:
        spark_jars()  # the errors that name what is missing come first
        spec = self._spec
        java = find_java() if is_local(spec.master) else None
        check_master(spec.master)
        PYSPARK.take(self)
        quiet_py4j()
        person, heap = dict(spec.properties), spec.heap or default_heap()
        self.step = "Spark fetches its jars"
        jars = paths(sorted(self.packs))
        self.step = "Spark starts its JVM"
        if java is not None:
            self.jvm, gateway = launch_jvm(
                Launch(
                    java=java,
                    heap=heap,
                    master=with_attempts(spec.master),
                    scratch=self.scratch,
                    log=self._log,
                    flags=spec.flags,
                    environment={"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": import_path()},
                    jars=jars,
                )
            )
            client = connect(gateway)
        else:
            defaults = site_defaults(spark_jars().parent)
            person |= self._shipped(defaults | person)
            given = launch_properties(spec.heap, defaults, person, jars)
            self.jvm, client = launch_for_cluster(spec.master, given, self._log)
        settings = our_properties(spec.master, spec.cores, self.scratch) | dict(spec.defaults)
        if "hadoop-aws" in self.packs:
            settings |= STORE_PROPERTIES
        site: dict[str, str] = {}
        if java is not None:
            settings["spark.driver.memory"] = heap
        else:
            site = without_launched(site_properties(client))
            # The launcher was given these together with changefeed's.
            person.pop("spark.jars", None)
        settings = choose_properties(settings, site, person)
        self.step = "Spark starts its session"
        python = settings.get("spark.pyspark.python", sys.executable)
        return start_session(settings, client, os.environ.get("PYSPARK_PYTHON", python))

    def _shipped(self, given: Mapping[str, str]) -> dict[str, str]:
        """Properties that ship Python packages to executors, unless they are installed there."""
        if "spark.pyspark.python" in given or "PYSPARK_PYTHON" in os.environ:
            return {}
        return ship_python(self.scratch).properties(given)

    def died(self, failure: BaseException) -> bool:
        if self.jvm is None:
            return False
        # The socket breaks a moment before the end of the process is known, so an error of the
        # connection is given a second.
        return self.jvm.wait(1.0 if broken_connection(failure) else 0.0)

    def _made_extended(self) -> SparkSession:
        formats = [pack(name) for name in sorted(self.packs) if pack(name).extension]
        return extended_session(
            self.session.result(),
            [each.extension for each in formats],
            dict(setting for each in formats for setting in each.settings),
        )

    def end(self) -> None:
        self._ending = True
        while not self._started.wait(0.05):
            if self.jvm is not None:
                self.jvm.stop(grace=0)  # its session is no longer wanted
        if self.jvm is not None:
            if self.jvm.alive:
                self._stop_context()
            self.jvm.stop()
        PYSPARK.release(self)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _stop_context(self) -> None:
        if self.session.exception() is None:
            # A JVM that fails to stop is killed right after.
            with contextlib.suppress(Exception):
                self.session.result().stop()


def check_master(master: str, seconds: float = ANSWER_SECONDS) -> None:
    """Refuse a standalone master none of whose addresses takes a connection.

    Spark would try for a minute, without a message.

    Raises:
        ChangefeedError: CF4002.
    """
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        except (OSError, OverflowError) as failure:
            reasons.append(getattr(failure, "strerror", None) or str(failure))
        else:
            return
    raise ChangefeedError(
        Code.SPARK_FAILED,
        f"Spark could not be started with master {master}: {', '.join(dict.fromkeys(reasons))}",
        hint="check --master, and that the master runs and this machine reaches it.",
    )
