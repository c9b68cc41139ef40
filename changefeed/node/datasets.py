"""Datasets that the node compares: one thread for each dataset that a feed reads.

A thread looks for an extract that is due and no longer changes, and compares it with the node's
Spark. Feeds learn of a comparison from the files, as they do of one from the command. A refused
extract is reported to the dataset's feeds, which are stalled, and not compared again before it
changes. After each comparison the dataset's tables in Spark's catalog, if it has such, are made to
show it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from changefeed.catalog import Catalog
from changefeed.core.clock import Clock
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.dataset.definition import Definition, definition_of, is_definition
from changefeed.dataset.extracts import FoundExtract, next_extract
from changefeed.dataset.run import RunOutcome, run_next
from changefeed.dataset.store import DatasetFolders
from changefeed.dataset.tables import is_registered, register
from changefeed.spark.session import NodeSpark

#: A comparison that Spark is busy with is not waited for any longer at the end.
STOP_SECONDS = 2.0
#: What can fail by itself.
_COMPARISON, _TABLES = "comparison", "tables"


class DatasetThreads:
    """Used by the node's loop only."""

    def __init__(self, catalog: Catalog, spark: NodeSpark, clock: Clock, timings: Timings) -> None:
        self._catalog = catalog
        self._spark = spark
        self._clock = clock
        self._timings = timings
        self._threads: dict[str, DatasetThread] = {}

    def want(self, sources: Collection[str]) -> None:
        """Compare the datasets among these sources, and no others."""
        uris = {c.name: c.uri for c in self._catalog.connections()} if sources else {}
        wanted = {name for name in sources if is_definition(uris.get(name, ""))}
        for name in self._threads.keys() - wanted:
            self._threads.pop(name).stop()
        for name in wanted - self._threads.keys():
            made = DatasetThread(self._catalog, self._spark, self._clock, self._timings, name)
            self._threads[name] = made
            made.start()

    def held_up(self, source: str) -> str:
        """Why the feeds of a dataset get nothing new; empty: they do, or it is none. Safe from any
        thread.
        """
        thread = self._threads.get(source)
        return "" if thread is None else thread.held_up

    def stop(self) -> None:
        """End the threads; an interrupted comparison leaves the dataset unchanged."""
        for thread in self._threads.values():
            thread.stop()
        for thread in self._threads.values():
            thread.join(STOP_SECONDS)


class DatasetThread:
    """Compares the extracts of one dataset."""

    def __init__(
        self, catalog: Catalog, spark: NodeSpark, clock: Clock, timings: Timings, name: str
    ) -> None:
        self._catalog = catalog
        self._spark = spark
        self._clock = clock
        self._timings = timings
        self._name = name
        #: See :meth:`DatasetThreads.held_up`.
        self.held_up = ""
        self._failures = FailureCounter(clock)
        self._stopping = threading.Event()
        #: What the last look found: an extract that is being written looks different each time.
        self._seen: FoundExtract | None = None
        self._refused: FoundExtract | None = None
        self._again_at = 0.0
        #: The last error that was logged, by what failed.
        self._logged: dict[str, str] = {}
        self._register_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"dataset-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the running comparison."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # The dataset's feeds depend on this thread. It survives an internal error, and a state
            # that cannot be reached: then not even the error can be shown.
            with self._failures.survived(f"dataset {self._name}"):
                self._turn(self._look, f"dataset {self._name}", self._failed)
            where = f"tables of dataset {self._name}"
            with self._failures.survived(where):
                self._turn(self._register, where, self._registration_failed)
            self._clock.wait(self._stopping, self._timings.extract_look)

    def _turn(
        self, work: Callable[[], None], where: str, failed: Callable[[ChangefeedError], None]
    ) -> None:
        try:
            work()
        except ChangefeedError as error:
            failed(error)
        except Exception as failure:
            failed(self._failures.error(where, failure))

    def _look(self) -> None:
        definition = definition_of(self._catalog.connection(self._name).uri)
        store = DatasetFolders(definition.dataset)
        found = next_extract(definition.schedule, store.latest(), self._clock.now().wall / 1e9)
        before, self._seen = self._seen, found
        if found is None:
            self.held_up = ""
        if found is None or (definition.schedule.local and found != before):
            return
        if found == self._refused and self._clock.monotonic() < self._again_at:
            return
        # An error below is about this extract.
        self._refused, self._again_at = found, self._next_try(definition)
        try:
            outcome = run_next(self._spark, definition, found, self._clock)
        except ChangefeedError as error:
            # SYNC, maybe of another process, waits for an extract that may still be compared.
            if error.action is not Action.RETRY and error.code is not Code.WRONG_JOB_STATE:
                store.refuse(found.mark, error)
            raise
        self._refused = None
        self.held_up = ""
        self._logged.pop(_COMPARISON, None)
        if outcome is not None:
            self._tell(outcome)

    def _register(self) -> None:
        if self._clock.monotonic() < self._register_at:
            return
        dataset = definition_of(self._catalog.connection(self._name).uri).dataset
        store = DatasetFolders(dataset)
        if is_registered(dataset, store):
            return
        with store.locked():
            register(self._spark, dataset, store)
        self._logged.pop(_TABLES, None)

    def _registration_failed(self, error: ChangefeedError) -> None:
        if self._stopping.is_set() or error.code is Code.WRONG_JOB_STATE:
            # Another node is at work there.
            return
        self._register_at = self._clock.monotonic() + self._timings.retry_longest
        self._tell_failure(_TABLES, error)

    def _next_try(self, definition: Definition) -> float:
        """When to compare the same files again: for watched files, when they change."""
        every = definition.schedule.every
        if every is None:
            return float("inf")
        return self._clock.monotonic() + every

    def _tell(self, outcome: RunOutcome) -> None:
        counts = ", ".join(f"{o} {n:,}" for o, n in outcome.counts.items()) or "no rows"
        log.info(
            "dataset %s: compared, effective %s: %s (%.1f s)",
            self._name, outcome.version.date, counts, outcome.seconds,
        )  # fmt: skip

    def _failed(self, error: ChangefeedError) -> None:
        if self._stopping.is_set():
            return
        if error.code is Code.WRONG_JOB_STATE:
            # Another node compares it.
            self._refused = None
            return
        if error.action is Action.RETRY:
            self._again_at = self._clock.monotonic() + self._timings.retry_longest
        self.held_up = f"the next extract is not delivered: {error.explained}"
        self._tell_failure(_COMPARISON, error)

    def _tell_failure(self, what: str, error: ChangefeedError) -> None:
        text = " ".join(filter(None, (error.message, error.detail and f"({error.detail})")))
        if error.hint:
            # Among other things where the rows in question are: an event has no place of its own.
            text = f"{text}; {error.hint.rstrip('.')}"
        if text == self._logged.get(what):
            return
        self._logged[what] = text
        log.warning("dataset %s: %s %s", self._name, error.code.number, text)
        for job in self._catalog.jobs(include_finished=False):
            if job.source == self._name:
                self._catalog.record_event(job.id, "error", text, code=error.code.number)
