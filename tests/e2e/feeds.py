"""A state with a node in this process, for tests that go from a statement to a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from changefeed.api import Engine, Result, Session
from changefeed.catalog import Catalog
from changefeed.node.node import Node
from changefeed.spark.session import SparkEngine
from grammar.split import split


class Feeds:
    """Statements against one state, all in one session."""

    def __init__(self, state: Path, spark: SparkEngine, *, max_disk: int | None = None) -> None:
        self.state = state
        self._spark = spark
        self._max_disk = max_disk
        self.session = Session(client="tests")
        self.open()

    def open(self) -> None:
        """Open the state and start its node (again)."""
        self.catalog = Catalog.open(str(self.state))
        self.node = Node(self.catalog, str(self.state), engine=self._spark, max_disk=self._max_disk)
        assert self.node.start(), "another node runs this state"
        self.engine = Engine(self.catalog, host=self.node)

    def close(self) -> None:
        """Stop the node, keep the state."""
        self.node.stop()
        self.catalog.close()

    def execute(self, sql: str) -> Result:
        """One statement."""
        return self.engine.execute(sql, self.session)

    def connect(self, **uris: str) -> None:
        """An external connection for each name."""
        for name, uri in uris.items():
            self.execute(f"CREATE EXTERNAL CONNECTION {name} AS '{uri}'")

    def run_file(self, path: Path) -> list[Result]:
        """Every statement of a file; sinkless feeds are left out."""
        return [self.execute(piece.text) for piece in split(path.read_text()) if piece.text.strip()]

    def sync(self, name: str, timeout: str = "300s") -> None:
        """Wait until everything committed before now is durable in the feed's sink."""
        self.execute(f"SYNC CHANGEFEED {name} TIMEOUT '{timeout}'")


@contextmanager
def running(state: Path, spark: SparkEngine, *, max_disk: int | None = None) -> Iterator[Feeds]:
    """Feeds on a fresh state, stopped afterwards; ``max_disk`` limits the change log's bytes."""
    state.mkdir(parents=True, exist_ok=True)
    feeds = Feeds(state, spark, max_disk=max_disk)
    try:
        yield feeds
    finally:
        feeds.close()
