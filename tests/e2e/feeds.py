"""A state with a node in this process, for tests that go from a statement to a sink."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from changefeed.api import Interpreter, Result, Session
from changefeed.catalog import Catalog, Status
from changefeed.catalog.model import TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.sizes import Sizes
from changefeed.core.timings import Timings
from changefeed.node.node import Node
from changefeed.spark.session import NodeSpark
from changefeed_testing.sinks.messages import Message
from changefeed_testing.sinks.readers import read_files
from changefeed_testing.sinks.validators import OrderValidator, ResolvedValidator, validate
from grammar.split import split
from tests.helpers.forked_captures import ForkedCaptures
from tests.helpers.waiting import until

#: Of tests that run once with the node's own scans and backlogs, and once with jobs of Spark.
EITHER_ENGINE = pytest.mark.parametrize(
    "bulk_engine", ["node", pytest.param("spark", marks=pytest.mark.extended)], indirect=True
)
#: So that files are there in a second.
SECONDS = Timings(rest_longest=1.0)
#: So that sinks that merge every few seconds do so at once.
BRISK = Timings(rest_longest=0.1)


class Feeds:
    """Statements against one state, all in one session."""

    def __init__(
        self,
        state: Path,
        spark: NodeSpark | None = None,
        *,
        max_disk: int | None = None,
        timings: Timings | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self._timings = timings or SECONDS
        self._sizes = sizes
        self.state = state
        self._spark = spark
        self._max_disk = max_disk
        self.session = Session(client="tests")
        self.open()

    def open(self) -> None:
        """Open the state and start its node (again)."""
        self.catalog = Catalog.open(str(self.state))
        self.node = Node(
            self.catalog,
            str(self.state),
            spark=self._spark,
            max_disk=self._max_disk,
            timings=self._timings,
            sizes=self._sizes,
            ready=ForkedCaptures(str(self.state)),
        )
        assert self.node.start(), "another node runs this state"
        self.interpreter = Interpreter(self.catalog, host=self.node)

    def close(self) -> None:
        """Stop the node, keep the state."""
        self.node.stop()
        self.catalog.close()

    def restart(self, sizes: Sizes) -> None:
        """Another node goes on with the state, with these sizes."""
        self.close()
        self._sizes = sizes
        self.open()

    def execute(self, sql: str) -> Result:
        """One statement."""
        return self.interpreter.execute(sql, self.session)

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

    def kill_capture(self, source: str = "shop") -> Callable[[], bool]:
        """Kill the process that reads a source; what is returned says whether the next one runs."""
        source_runtime = self.node.source_runtime(source)
        until(lambda: source_runtime.capture_pid is not None, "the capture runs")
        pid = source_runtime.capture_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return lambda: source_runtime.capture_pid not in (None, pid)

    def verified(self) -> list[str]:
        """VERIFY finds the target of each feed that runs equal to its source; the names of those.

        A feed with a failed table is behind, and one whose target says nothing of the rows as
        they are (a history, a query over changes) cannot be compared.
        """
        equal = []
        for job in self.catalog.jobs(include_finished=False):
            failed = any(t.state is TableState.FAILED for t in self.catalog.tables(job.id))
            if job.status is not Status.RUNNING or failed:
                continue
            try:
                answer = self.execute(f'VERIFY CHANGEFEED "{job.name}"')
            except ChangefeedError as error:
                if error.code is not Code.NOT_SUPPORTED:
                    raise
                continue
            assert answer.failure is None, (job.name, answer.rows[:5])
            equal.append(job.name)
        return equal


def consumed(folder: Path, *topics: str) -> list[Message]:
    """What a consumer reads; order and resolved are checked on the way."""
    found = read_files(folder, topics)
    validate(found, OrderValidator(), ResolvedValidator())
    return found


def rebuilt(messages: Iterable[Message]) -> dict[str, object]:
    """A table as a consumer of its topic rebuilds it, by key."""
    rows: dict[str, tuple[Timestamp, object]] = {}
    for message in messages:
        if message.truncated is not None:
            rows = {k: v for k, v in rows.items() if v[0] > message.truncated}
        if not message.is_row or message.key is None:
            continue
        at = message.at or Timestamp.ZERO
        if message.key not in rows or rows[message.key][0] <= at:
            rows[message.key] = (at, message.after)
    return {key: row for key, (_, row) in rows.items() if row is not None}


@contextmanager
def running(
    state: Path,
    spark: NodeSpark | None = None,
    *,
    max_disk: int | None = None,
    timings: Timings | None = None,
    sizes: Sizes | None = None,
) -> Iterator[Feeds]:
    """Feeds on a fresh state, stopped afterwards.

    Without ``spark`` a node has its own, which starts when a feed needs it.
    ``max_disk`` limits the change log's bytes; ``timings`` says how often the node acts, ``sizes``
    how much in one go.
    """
    state.mkdir(parents=True, exist_ok=True)
    feeds = Feeds(state, spark, max_disk=max_disk, timings=timings, sizes=sizes)
    try:
        yield feeds
    finally:
        feeds.close()
