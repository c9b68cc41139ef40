"""A process with its own Spark, for tests that kill things.

Prints one JSON object on its last line; everything else on its output is a finding too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from changefeed.core.errors import ChangefeedError
from changefeed.spark.session import NodeSpark
from tests.helpers.waiting import until
from tests.services.spark_cluster import SparkCluster


def work(engine: NodeSpark) -> int:
    """One small job."""
    with engine.use() as session:
        return session.range(3, numPartitions=2).count()


def heal() -> dict[str, object]:
    """Kill the JVM under a session: the error, then the next session."""
    engine = NodeSpark(heap="512m")
    began = time.monotonic()
    engine.start()
    returned = time.monotonic() - began
    found: dict[str, object] = {"returned": returned, "alive": engine.alive, "early": engine.ready}
    found["worked"] = work(engine)
    found["ready"] = engine.ready
    first = engine.pid or 0
    ports = psutil.Process(first).net_connections("inet")
    found["addresses"] = sorted({c.laddr.ip for c in ports if c.status == psutil.CONN_LISTEN})
    scratch = engine.scratch
    os.kill(first, signal.SIGKILL)
    try:
        work(engine)
    except ChangefeedError as error:
        found["error"] = [error.code.number, error.action]
    found["alive_after"] = engine.alive
    found["worked_again"] = work(engine)
    found["starts"] = engine.starts
    found["other_jvm"] = engine.pid != first
    second = engine.pid or 0
    later = engine.scratch
    engine.close()
    engine.close()
    found["left"] = [p.pid for p in psutil.Process().children(recursive=True) if p.is_running()]
    found["jvms"] = [psutil.pid_exists(first), psutil.pid_exists(second)]
    found["files"] = [scratch.exists(), later.exists()]
    try:
        engine.session()
    except ChangefeedError as error:
        found["closed"] = error.message
    return found


def orphan() -> dict[str, object]:
    """Start Spark, its workers and a forked child that outlives us; the parent kills us."""
    engine = NodeSpark(heap="512m")
    work(engine)
    session = engine.session()
    session.range(2, numPartitions=2).mapInArrow(lambda batches: batches, "id long").collect()
    forked = os.fork()
    if not forked:
        time.sleep(120)
        os._exit(0)
    jvm = psutil.Process(engine.pid)
    pids = [jvm.pid, *(p.pid for p in jvm.children(recursive=True))]
    print(json.dumps({"pids": pids, "forked": forked, "scratch": str(engine.scratch)}), flush=True)
    time.sleep(120)
    return {}


def stop_early() -> dict[str, object]:
    """Close an engine that is still starting."""
    engine = NodeSpark(heap="512m")
    engine.start()
    engine.close()
    left = [p.name() for p in psutil.Process().children(recursive=True)]
    return {"left": left, "alive": engine.alive}


def cores() -> dict[str, object]:
    """Workers come to a cluster in the folder of the second argument, and one is killed: the cores
    that the node counts."""
    cluster = SparkCluster(Path(sys.argv[2]), workers=1).start()
    try:
        with NodeSpark(master=cluster.master, settings=cluster.properties) as spark:
            spark.session()
            found = [spark.state().cores]
            cluster.add_worker()
            cluster.add_worker()
            until(lambda: spark.state().cores == 3, "the node sees executors that came late")
            found += [spark.report().cores]
            cluster.kill_worker(2)
            until(lambda: spark.state().cores == 2, "the node sees that one is gone")
        return {"cores": found}
    finally:
        cluster.stop()


SCENARIOS: dict[str, Callable[[], dict[str, object]]] = {
    "cores": cores,
    "heal": heal,
    "orphan": orphan,
    "stop_early": stop_early,
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]]()), flush=True)
