"""pyspark's module-wide state, and how a JVM gets its client of pyspark."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.spark.jvm import Gateway, Jvm


def quiet_py4j() -> None:
    """Keep a broken connection and a failed query from being printed: they are raised as well.

    py4j reports the one by the functions of the module ``logging`` themselves, which write to
    standard error where nobody has set logging up; pyspark the other by handlers of its own,
    with the values of rows in it.
    """
    from py4j import java_gateway
    from pyspark import accumulators
    from pyspark.logger import PySparkLogger

    quiet = logging.getLogger("py4j")
    quiet.setLevel(logging.CRITICAL)
    java_gateway.logging = quiet
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    for kind in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        kind.handle_error = _log_accumulators  # type: ignore[assignment]


def _log_accumulators(server: object, request: object, client_address: object) -> None:
    """Where pyspark's server of accumulators ends with a traceback on standard error: a JVM that
    is killed breaks its connection, which is told elsewhere."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        log.exception("Spark's accumulators")


def connect(gateway: Gateway) -> Any:
    """pyspark's own client for a JVM that runs already."""
    from pyspark.java_gateway import launch_gateway

    # pyspark takes the address from the environment only; it is gone again right after.
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


def broken_connection(failure: BaseException) -> bool:
    """An error of the connection to the JVM, not an answer of it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    # These are answers, so the JVM was there to give them.
    return not isinstance(failure, Py4JJavaError | PySparkException)


class Globals:
    """pyspark's module-wide state, which one life at a time may have.

    pyspark keeps its context, gateway and JVM in class attributes, so a second session in one
    process would use the first one's, and its end would take them away from the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object | None = None

    def take(self, life: object) -> None:
        """Say that this life starts a session now.

        Raises:
            ChangefeedError: CF4002 when another one has not ended.
        """
        with self._lock:
            if self._owner not in (None, life):
                raise ChangefeedError(
                    Code.SPARK_FAILED,
                    "Spark runs in this process already",
                    hint="close the other session first, or give it to both",
                )
            self._owner = life

    def release(self, life: object) -> None:
        """Make pyspark ready for another JVM, if it was this life that had it."""
        with self._lock:
            if self._owner is life:
                _forget_singletons()
                self._owner = None


#: Of this process.
PYSPARK = Globals()


def _forget_singletons() -> None:
    """Make pyspark ready for another JVM after its JVM has gone."""
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
