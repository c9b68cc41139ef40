"""One JVM and PySpark's client of it; PySpark's module-wide state."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.spark.jvm import Gateway, Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet_py4j() -> None:
    """Do not print a broken connection or a failed query: both are raised as well.

    py4j reports the former with the functions of the module ``logging``, which write to standard
    error if logging is not set up; pyspark reports the latter with its own handlers, with values of
    rows.
    """
    from py4j import java_gateway
    from pyspark import accumulators

    quiet = logging.getLogger("py4j")
    quiet.setLevel(logging.CRITICAL)
    java_gateway.logging = quiet
    with contextlib.suppress(ImportError):  # 3.5 has no such loggers
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True
    # The names differ: one class in 4.0, one for each kind of socket in 4.1.
    for name in ("AccumulatorServer", "AccumulatorTCPServer", "AccumulatorUnixServer"):
        kind = getattr(accumulators, name, None)
        if isinstance(kind, type):
            kind.handle_error = _log_accumulators  # type: ignore[attr-defined]


def _log_accumulators(server: object, request: object, client_address: object) -> None:
    """Replaces the traceback that pyspark's server of accumulators prints. A killed JVM breaks its
    connection, which is reported elsewhere."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        log.exception("Spark's accumulators")


def connect(gateway: Gateway) -> Any:
    """pyspark's own client for a JVM that runs already."""
    from pyspark.java_gateway import launch_gateway

    # pyspark takes the address only from the environment; it is removed right after.
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def launch_for_cluster(master: str, properties: Mapping[str, str], log: Path) -> tuple[Jvm, Any]:
    """Spark's own launcher: it reads the cluster's settings (spark-env.sh, Hadoop's files)."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    # Some properties only count when the JVM starts, such as the class path.
    conf = SparkConf(loadDefaults=False).set("spark.master", master)
    conf.setAll(list(properties.items()))
    with open(log, "ab") as output:
        client = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stdout": output, "stderr": output}
        )
    return Jvm(client.proc), client


def site_properties(gateway: Any) -> dict[str, str]:
    """The properties that Spark's launcher found: spark-defaults.conf of the site."""
    return {pair._1(): pair._2() for pair in gateway.jvm.org.apache.spark.SparkConf().getAll()}


def start_session(properties: Mapping[str, str], client: Any, python: str) -> SparkSession:
    """The session of a JVM that runs already; ``python`` is the interpreter of its workers."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
    context = SparkContext(conf=conf, gateway=client)
    # The default is the first python3 of PATH, which may lack pyarrow.
    context.pythonExec = python
    for module in _LATER:
        importlib.import_module(module)
    return SparkSession(context)


#: Modules of pyspark that are imported on use: imported once here, before several threads do so
#: at the same time.
_LATER = ("pyspark.sql.functions", "pyspark.sql.pandas.types")


def broken_connection(failure: BaseException) -> bool:
    """Whether it is an error of the connection to the JVM, not an answer from it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    # These are answers, so the JVM was there to give them.
    return not isinstance(failure, Py4JJavaError | PySparkException)


class Globals:
    """pyspark's module-wide state, which only one session at a time may use.

    pyspark keeps its context, gateway and JVM in class attributes, so a second session in one
    process would use those of the first, and its end would take them away from the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object | None = None

    def take(self, owner: object) -> None:
        """Claim the state for a session that starts now.

        Raises:
            ChangefeedError: CF4002 if the session of another owner has not ended.
        """
        with self._lock:
            if self._owner not in (None, owner):
                raise ChangefeedError(
                    Code.SPARK_FAILED,
                    "Spark runs in this process already",
                    hint="close the other session first, or give it to both",
                )
            self._owner = owner

    def release(self, owner: object) -> None:
        """Make pyspark ready for another JVM, if ``owner`` had the state."""
        with self._lock:
            if self._owner is owner:
                _forget_singletons()
                self._owner = None


#: The state of this process.
PYSPARK = Globals()


def _forget_singletons() -> None:
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with SparkContext._lock:
        context = SparkContext._active_spark_context
        server = getattr(context, "_accumulatorServer", None)
        if server is not None:
            server.shutdown()
        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):  # it talks to the JVM, which may be gone
                SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
