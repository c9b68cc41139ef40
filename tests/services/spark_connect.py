"""A server of Spark Connect on loopback, with the table formats, in a JVM of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from changefeed.embedded.child import spawn
from changefeed.embedded.server import free_port
from changefeed.spark.java import find_java
from changefeed.spark.jvm import FLAGS, spark_jars
from changefeed.spark.packs import pack, paths


class SparkConnectServer:
    """``local[2]`` with the jars and extensions of ``formats``.

    Attributes:
        url: for ``--spark``.

    Args:
        folder: for its log and its files.
    """

    def __init__(self, folder: Path, formats: tuple[str, ...] = ("delta", "iceberg")) -> None:
        self._folder = folder
        self._formats = formats
        self._port = free_port()
        self.url = f"sc://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 120.0) -> SparkConnectServer:
        """Start it and wait until it listens."""
        properties = {
            "spark.master": "local[2]",
            "spark.app.name": "connect",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.extensions": ",".join(pack(name).extension for name in self._formats),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.local.dir": str(self._folder),
        }
        classes = [f"{spark_jars()}/*", *map(str, paths(self._formats))]
        log = self._folder / "connect.log"
        self._process = spawn(
            [
                find_java().executable,
                *FLAGS,
                "-Xmx1500m",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                ":".join(classes),
                *(f"-D{name}={value}" for name, value in properties.items()),
                "org.apache.spark.sql.connect.service.SparkConnectServer",
            ],
            log_file=log,
            environment={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        deadline = time.monotonic() + timeout
        while not self._listens():
            if time.monotonic() > deadline or self._process.poll() is not None:
                text = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"the Connect server did not start: {text}")
            time.sleep(0.1)
        return self

    def _listens(self) -> bool:
        with socket.socket() as made:
            return made.connect_ex(("127.0.0.1", self._port)) == 0

    def stop(self) -> None:
        """End it without notice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None
