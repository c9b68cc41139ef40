"""Feeds without INTO: their rows go to one client in this process, and they end with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from changefeed.capture.source_runtime import SourceRuntime
from changefeed.catalog.model import Job, JobSpec, Status
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import ClientRow
from changefeed.core.telemetry import log
from changefeed.core.work_stages import UNMEASURED, MeasuredStages, Stages
from changefeed.feeds.runner import FeedRunner, FeedServices
from changefeed.node.measured import MeasuredSink
from changefeed.options import Options
from changefeed.plan.stages import FeedPlan
from changefeed.statements.context import Measurement
from sinks.base import ClientSink, Sink
from sinks.registry import open_sink

STOP_SECONDS = 10.0


class SinklessFeeds:
    """Runs sinkless feeds, outside of the node's loop."""

    def __init__(
        self,
        services: FeedServices,
        *,
        source_runtime: Callable[[str], SourceRuntime],
        covered: Callable[[Job], bool],
        register: Callable[[Job, FeedRunner | None], None],
        wake: Callable[[], None],
        keeps_leases: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        """
        Args:
            services: what the feeds of the node share.
            source_runtime: returns the runtime of a source by its name.
            covered: whether the source sends the tables of a job.
            register: gives the node's loop the runner of a job; None when it has ended.
            wake: makes the node's loop read the jobs now.
            keeps_leases: whether the node renews the leases of its runners.
        """
        self._services = services
        self._catalog = services.catalog
        self._clock = services.clock
        self._timings = services.timings
        self._source_runtime = source_runtime
        self._covered = covered
        self._register = register
        self._wake = wake
        self._keeps_leases = keeps_leases
        self._stopping = stopping

    def rows(self, plan: FeedPlan, gone: Callable[[], bool]) -> Iterator[ClientRow]:
        """Run a feed; closing the iterator ends it, or that the client is ``gone``.

        Its job exists in the state while it runs, so that the node that captures the source
        (maybe another process) includes its tables; afterwards the job is removed.

        Raises:
            ChangefeedError: the source refuses, another node took the feed, or the feed failed;
                CF1303 it wants row images, and another node captures.
        """
        sink = cast("ClientSink", open_sink("sinkless://"))
        with self._running(plan.spec(), sink) as runner:
            try:
                yield from self._delivered(sink, runner, gone)
            finally:
                sink.leave()

    def measured(self, plan: FeedPlan, seconds: float, gone: Callable[[], bool]) -> Measurement:
        """Run a feed of messages for so long, or until it ends, into a sink that only counts.

        Raises:
            ChangefeedError: as :meth:`rows`; CF1304, the client is ``gone``.
        """
        stages = MeasuredStages(self._clock)
        # Without its address, so that nothing is made there, nor in a schema registry.
        spec = replace(plan.spec(), name=None, sink_uri=None, sinkless=True)
        sink = MeasuredSink(self._clock)
        with self._running(spec, sink, stages) as runner:
            sink.begin()
            began = self._clock.monotonic()
            spent = 0.0
            while runner.is_alive() and spent < seconds:
                if gone():
                    raise ChangefeedError(Code.TIMED_OUT, "the client of the statement has ended")
                self._clock.wait(self._stopping, min(0.1, seconds - spent))
                spent = self._clock.monotonic() - began
            costs = stages.costs()
            job = self._catalog.job(runner.job_id)
            if job.status is Status.FAILED:
                raise _ended_with(job)
            if (lacking := self._catalog.hindrance(job.id)) is not None:
                raise lacking
            tables = self._catalog.tables(job.id)
        return Measurement(spent, costs, sink.scan, sink.changes, tables)

    @contextmanager
    def _running(
        self, spec: JobSpec, sink: Sink, stages: Stages = UNMEASURED
    ) -> Iterator[FeedRunner]:
        """A runner of a feed that is no longer than this context; nothing of its job stays."""
        job = self._catalog.create_job(spec)
        runner: FeedRunner | None = None
        try:
            lease = self._catalog.acquire_lease(job.id, self._services.node_id, self._timings.lease)
            if lease is None:
                raise ChangefeedError(Code.STATE_HELD_BY_ANOTHER_NODE, "another node took the feed")
            self._wake()
            self._await_source(job)
            source_runtime = self._source_runtime(job.source)
            if source_runtime.elsewhere and Options.from_dict(job.options).stores_images:
                raise ChangefeedError(
                    Code.NOT_SUPPORTED,
                    f"the row images of {job.source!r} are with the node that captures it",
                    hint="leave row_images out, or let the feed deliver to a sink: the node runs "
                    "it then.",
                )
            if source_runtime.log.error is not None:
                source_runtime.retry()
            runner = FeedRunner(job, lease, self._services, source_runtime, sink, stages)
            # Before the loop sees it: a runner that is not alive gives its lease back.
            runner.start()
            self._register(job, runner)
            if not self._keeps_leases():
                # A client may look at one row for long.
                threading.Thread(target=self._keep_lease, args=(runner,), daemon=True).start()
            yield runner
        finally:
            if runner is not None:
                runner.request_stop()
                runner.join(STOP_SECONDS)
                self._register(job, None)
            self._catalog.delete_job(job.id)
            self._wake()

    def _await_source(self, job: Job) -> None:
        """Wait until the source sends the tables of a feed whose client is waiting.

        Raises:
            ChangefeedError: the source refuses, or is not ready in time.
        """
        tables = {t.table: t.table_id for t in self._catalog.tables(job.id)}

        def ready() -> bool:
            return (
                self._covered(job)
                or tables.items() <= self._catalog.captured_table_ids(job.source).items()
            )

        deadline = self._clock.monotonic() + self._timings.begin
        while not ready():
            now = self._catalog.job(job.id)
            if now.status is Status.FAILED:
                raise ChangefeedError(
                    now.error_code or Code.SOURCE_NOT_SET_UP,
                    now.error or now.reason,
                    hint=now.hint or "",
                )
            if self._clock.monotonic() > deadline:
                raise ChangefeedError(
                    Code.STREAM_BROKE,
                    f"capture from {job.source!r} did not begin",
                    detail=self._catalog.source_state(job.source).error
                    or "no node of this state started it",
                )
            self._clock.wait(self._stopping, self._timings.node_loop / 2)

    def _delivered(
        self, sink: ClientSink, runner: FeedRunner, gone: Callable[[], bool]
    ) -> Iterator[ClientRow]:
        while not sink.ended:
            if gone():
                return
            row = sink.take(0.2)
            if row is not None:
                yield row
        job = self._catalog.job(runner.job_id)
        if job.status is Status.FAILED:
            raise _ended_with(job)
        if (lacking := self._catalog.hindrance(runner.job_id)) is not None:
            raise lacking
        if job.status is not Status.SUCCEEDED:
            raise ChangefeedError(
                Code.LEASE_LOST, f'the stream of "{job.name}" was cut off: {job.reason}'
            )

    def _keep_lease(self, runner: FeedRunner) -> None:
        node = self._services.node_id
        while runner.is_alive() and not self._clock.wait(self._stopping, self._timings.pulse):
            try:
                if self._catalog.heartbeat(node, [runner.lease], self._timings.lease):
                    runner.request_stop()
                    return
            except ChangefeedError as error:
                log.error("feed %s: %s", runner.name, error.message)


def _ended_with(job: Job) -> ChangefeedError:
    return ChangefeedError(job.error_code or Code.SPARK_FAILED, job.error or job.reason)
