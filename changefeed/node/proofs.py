"""Copies that prove themselves: a thread for each feed that runs here with option ``verify``.

A thread compares one part of one table after the other, as VERIFY does, while the feed goes on: it
asks the source for no more bytes a second than the feed allows, and waits until the feed has
delivered what was read; the sink is not hurried. How far each table is stands in its progress
(:class:`changefeed.catalog.model.TableProof`), so that another process goes on there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import Protocol

from changefeed.catalog import Job, TableProgress, TableState
from changefeed.catalog.model import TableProof
from changefeed.core.clock import Timestamp
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.internal_errors import FailureCounter
from changefeed.core.references import has_references
from changefeed.core.schema import KeyRange, TableName
from changefeed.core.telemetry import log
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.options import VERIFY, VERIFY_MAX_RATE, VERIFY_REPAIR, Options
from changefeed.query.evaluate import QuerySessions
from changefeed.sources.base import Source
from changefeed.sources.registry import open_source
from changefeed.statements.context import DeliveryWait, log_lookup_of, wait_until
from changefeed.statements.verify import after, ask_for_repair, found_rows, repaired
from changefeed.verify.table import TableOutcome, TableVerifier
from sinks.base import SparkAccess

#: How often a thread without work looks whether a table is due, seconds.
LOOK_SECONDS = 1.0
#: A comparison that a sink or Spark is busy with is not waited for any longer at the end.
STOP_SECONDS = 2.0
#: Keys that an event names, and letters of each.
NAMED_KEYS, KEY_LETTERS = 5, 80


class ProofHost(Protocol):
    """What a comparison needs of the node."""

    def spark_with(self, packs: Sequence[str]) -> SparkAccess:
        """The node's Spark with jar packs."""
        ...

    def query_sessions(self) -> QuerySessions:
        """Where CDC queries are evaluated."""
        ...

    def hasten(self, source: str) -> None:
        """Make capture catch up now."""
        ...

    def wake(self) -> None:
        """Look at the job table now."""
        ...


class ProofThreads:
    """Used by the node's loop only."""

    def __init__(
        self,
        services: FeedServices,
        host: ProofHost,
        runner: Callable[[int], FeedRunner | None],
    ) -> None:
        """``runner``: of a job, if it has one here."""
        self._services = services
        self._host = host
        self._runner = runner
        self._threads: dict[int, ProofThread] = {}

    def want(self, jobs: Sequence[Job]) -> None:
        """Prove the feeds among these that run here and ask for it, and no others."""
        wanted = {}
        for job in jobs:
            runner = self._runner(job.id) if VERIFY.name in job.options and job.sink_uri else None
            if runner is not None and runner.is_alive():
                wanted[job.id] = runner
        for job_id, thread in list(self._threads.items()):
            if thread.runner is not wanted.get(job_id):
                self._threads.pop(job_id).stop()
        for job_id in wanted.keys() - self._threads.keys():
            made = ProofThread(self._services, self._host, wanted[job_id])
            self._threads[job_id] = made
            made.start()

    def stop(self) -> None:
        """End the threads; a part that is being compared is compared again by the next node."""
        for thread in self._threads.values():
            thread.stop()
        for thread in self._threads.values():
            thread.join(STOP_SECONDS)


class ProofThread(threading.Thread):
    """Compares the tables of one feed for as long as its runner lives."""

    def __init__(self, services: FeedServices, host: ProofHost, runner: FeedRunner) -> None:
        super().__init__(name=f"verify-{runner.name}", daemon=True)
        self.runner = runner
        self._catalog = services.catalog
        self._clock = services.clock
        self._timings = services.timings
        self._part_rows = services.sizes.proof_rows
        self._host = host
        self._failures = FailureCounter(services.clock)
        self._stopping = threading.Event()
        self._lookup = log_lookup_of(services.catalog)
        #: The source by its URI, which an ALTER of the connection changes.
        self._sources: dict[str, Source] = {}
        #: Bytes a second that may be read.
        self._rate = 1
        #: Tables that could not be compared, and when they are tried again (monotonic seconds).
        self._later: dict[TableName, float] = {}

    def stop(self) -> None:
        """End soon."""
        self._stopping.set()

    def run(self) -> None:
        """What the thread does."""
        while not self._stopping.is_set():
            pause = self._timings.retry_longest
            with self._failures.survived(f"verify of feed {self.runner.name}"):
                pause = 0.0 if self._turn() else LOOK_SECONDS
            self._clock.wait(self._stopping, pause)

    def _turn(self) -> bool:
        """Compare a part; False if no table is due."""
        job = self._catalog.job(self.runner.job_id)
        options = Options.from_dict(job.options)
        period = options[VERIFY]
        if period is None:
            return False
        self._rate = options[VERIFY_MAX_RATE]
        due = [t for t in self._catalog.tables(job.id) if self._is_due(t, period)]
        if not due:
            return False
        # A round that has begun is ended before the next one begins.
        table = min(due, key=lambda t: (not t.proof.open, t.proof.begun, t.table))
        try:
            self._prove(job, table, repair=options[VERIFY_REPAIR])
        except ChangefeedError as error:
            if not self._stopping.is_set() and self.runner.is_alive():
                self._put_off(job, table, error)
        return True

    def _is_due(self, table: TableProgress, period: float) -> bool:
        if table.state is not TableState.RUNNING or table.scan_wanted:
            return False
        if self._clock.monotonic() < self._later.get(table.table, 0.0):
            return False
        return table.proof.open or self._now() >= table.proof.begun + period * 1e9

    def _now(self) -> int:
        return self._clock.now().wall

    def _put_off(self, job: Job, table: TableProgress, error: ChangefeedError) -> None:
        """A table that cannot be compared waits: for its next round, if this one has no hope."""
        proof = replace(self._present(job, table).proof, problem=error.message)
        self._later[table.table] = self._clock.monotonic() + self._timings.retry_longest
        if error.action is not Action.RETRY:
            begun = proof.begun if proof.open else self._now()
            proof = replace(proof, open=False, next_key=None, begun=begun)
        if proof.problem != table.proof.problem:
            log.warning("feed %s: verify of %s: %s", job.name, table.table, error.explained)
            self._tell(job, table, f"cannot be compared: {error.message}")
        self._catalog.save_proof(job.id, table.table, proof)

    def _tell(self, job: Job, table: TableProgress, text: str) -> None:
        self._catalog.record_event(job.id, "verify", text, table=str(table.table))

    def _present(self, job: Job, table: TableProgress) -> TableProgress:
        """The table as the state has it now.

        Raises:
            ChangefeedError: CF1101 the feed no longer has it.
        """
        for found in self._catalog.tables(job.id):
            if found.table == table.table:
                return found
        raise ChangefeedError(Code.NAME_UNKNOWN, f"{table.table} is no longer in the feed")

    # -- one part -----------------------------------------------------------------------------

    def _prove(self, job: Job, table: TableProgress, *, repair: bool) -> None:
        proof = table.proof
        if not proof.open:
            proof = replace(
                proof,
                open=True,
                begun=self._now(),
                next_key=None,
                rows=0,
                changing=0,
                differing=0,
                earlier=proof.differing,
                unrepaired=(),
                unrepaired_before=proof.unrepaired,
            )
        source = self._source(job)

        def delivered() -> None:
            wait = DeliveryWait(
                job.source,
                source.current_position(),
                self._lookup,
                self._clock,
                self._host.hasten,
                self.runner.request_checkpoint,
                lambda upto: self._delivered(job, table, upto),
            )
            wait_until(self._catalog, self._clock, wait.reached, inf, self._go_on)

        verifier = TableVerifier(
            self._catalog,
            job,
            source,
            delivered,
            self._host.spark_with,
            self._host.query_sessions,
            self._go_on,
        )
        part = verifier.part_after(table, proof.next_key, self._part_rows)
        if part is None:
            proof = replace(proof, rows=0)
        outcome = verifier.verify(table, part)
        left = outcome
        if outcome.differences:
            if self._present(job, table).rescan != table.rescan:
                return  # they may be mended by now: the part is compared again
            tried = repair and _digest(outcome) in proof.unrepaired_before
            if not tried:
                self._tell(job, table, _found(outcome))
                tried = repair and (outcome.repair is not None or table.rescan <= proof.begun)
                if tried:
                    left = self._repaired(job, table, verifier, part, outcome, delivered)
            if tried and _digest(left) == _digest(outcome):
                proof = replace(proof, unrepaired=(*proof.unrepaired, _digest(left)))
        self._save(job, table, _moved(proof, part, outcome, len(left.differences), self._now()))
        # The target read as much; nobody waits there, so the pause is behind it.
        self._go_on(outcome.target_bytes)

    def _repaired(
        self,
        job: Job,
        table: TableProgress,
        verifier: TableVerifier,
        part: KeyRange | None,
        outcome: TableOutcome,
        delivered: Callable[[], None],
    ) -> TableOutcome:
        """What differs after the repair of what differed."""
        ask_for_repair(self._catalog, job, [outcome])
        self._host.wake()
        delivered()
        left = verifier.verify(self._present(job, table), part)
        result = after(outcome, [left] if left.differences else [])
        if _digest(left) == _digest(outcome):
            result += f": {_why_left(left)}. The feed tries again when they change"
        self._tell(job, table, f"{repaired(outcome)}: {result}")
        return left

    def _source(self, job: Job) -> Source:
        uri = self._catalog.connection(job.source).uri
        known = self._sources.get(uri)
        if known is None or has_references(uri):
            self._sources = {uri: (known := open_source(job.source, uri))}
        return known

    def _save(self, job: Job, table: TableProgress, proof: TableProof) -> None:
        self._catalog.save_proof(job.id, table.table, proof)
        if not proof.open:
            log.info("feed %s: %s: %s rows compared, %s differ", job.name, table.table,
                     f"{proof.rows:,}", f"{proof.differing:,}")  # fmt: skip

    def _go_on(self, size: int = 0) -> None:
        """Pause for what was read.

        Raises:
            ChangefeedError: CF1304, the thread is to end.
        """
        if size:
            self._clock.wait(self._stopping, size / self._rate)
        if self._stopping.is_set() or not self.runner.is_alive():
            raise ChangefeedError(Code.TIMED_OUT, "the feed has stopped")

    def _delivered(self, job: Job, table: TableProgress, upto: Timestamp) -> bool:
        """The feed has delivered the table up to a place of the log."""
        found = self._present(job, table)
        if found.state is TableState.FAILED:
            raise ChangefeedError(Code.WRONG_JOB_STATE, f"the table has failed: {found.error}")
        if found.state is TableState.PAUSED:
            raise ChangefeedError(Code.WRONG_JOB_STATE, "the table is paused")
        done = found.done_upto
        reached = done is not None and done >= upto and not found.scan_wanted
        return reached and found.state is TableState.RUNNING


def _moved(
    proof: TableProof, part: KeyRange | None, outcome: TableOutcome, left: int, now: int
) -> TableProof:
    """The proof after a part of which ``left`` rows differ."""
    rows = proof.rows + outcome.rows
    proof = replace(
        proof,
        rows=rows,
        total=max(outcome.table_rows, rows),
        changing=proof.changing + outcome.changing,
        differing=proof.differing + left,
        found=now if left else proof.found,
        problem="",
    )
    if part is not None and part.high is not None:
        return replace(proof, next_key=part.high)
    return replace(proof, open=False, next_key=None, earlier=0, total=rows, whole=proof.begun)


def _found(outcome: TableOutcome) -> str:
    """Which rows differ, by the keys of some; no other value is named."""
    named = [f"{d.kind} {d.key[:KEY_LETTERS]}" for d in outcome.differences if d.values]
    shown = named[:NAMED_KEYS]
    if len(outcome.differences) > len(shown) and shown:
        shown.append("..")
    return found_rows(outcome) + (f": {', '.join(shown)}" if shown else "")


def _digest(outcome: TableOutcome) -> str:
    """What is equal if the same rows differ in the same way."""
    return sha256(repr(sorted(map(repr, outcome.differences))).encode()).hexdigest()[:16]


def _why_left(outcome: TableOutcome) -> str:
    """Why rows differ that were delivered again, as far as the rows show it."""
    changed = [json.loads(d.source or "{}") for d in outcome.differences if d.kind == "changed"]
    columns = sorted({name for row in changed for name in row})
    kept = f" in {', '.join(columns[:NAMED_KEYS])}" if columns else ""
    return f"the target does not keep what is delivered{kept} (a trigger, or another writer)"
