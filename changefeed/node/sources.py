"""The sources of a node: each has a runtime, and a thread that makes it ready for its feeds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from changefeed.capture.reconciler import DesiredState, SourceReconciler, given_up
from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.standby import Standby
from changefeed.catalog import AnyLease, CaptureNews, Catalog, NodeRow, SourceLease
from changefeed.catalog.database import CachedRead
from changefeed.catalog.model import DesiredStatus, Job, Status, TableProgress
from changefeed.core.clock import Clock
from changefeed.core.errors import Action, ChangefeedError
from changefeed.core.events import Frontier
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import NODE_TTL, Timings
from changefeed.log.ledger import HEAD_NAME, LEDGER_NAME
from changefeed.node.lost_sources import LostSources
from changefeed.node.placement import FeedPlace, place

#: A source that does not answer is not waited for any longer at the end.
STOP_SECONDS = 2.0


class NodeSources:
    """Used by the node's threads and by the threads of statements."""

    def __init__(
        self,
        catalog: Catalog,
        state: str,
        node: str,
        *,
        clock: Clock,
        timings: Timings,
        max_disk: int | None,
        max_copies: int | None = None,
        standby: Standby | None,
        capturing: Callable[[], bool],
        runs: Callable[[int], bool],
        changed: Callable[[], None],
        held_up: Callable[[str], str],
    ) -> None:
        """
        Args:
            state: what ``--state`` named, for capture processes.
            node: its id, which owns leases.
            timings: how often a source is looked at.
            max_disk: bytes the change log of a source may take.
            max_copies: bytes the copies of a source's shared log may take.
            standby: a capture process for the first source; where logs are shared, there is one
                for each source that becomes free.
            capturing: whether this process captures; else it reads what the node's captures write.
            runs: whether a job has a runner in this process.
            changed: called when a source is ready for other jobs than before.
            held_up: says of a source why nothing of it can be captured for now, if so.
        """
        self._catalog = catalog
        self._state = state
        self._node = node
        #: Whether logs are shared, and a source belongs to the node that has its lease.
        self._shared = catalog.log_place is not None
        self._leases: dict[str, SourceLease] = {}
        self._lost: set[str] = set()
        #: The other nodes as of :meth:`look`, and whether this one is to give its sources away.
        self._others: list[NodeRow] = []
        self._own: NodeRow | None = None
        #: What the state says of other nodes is older than this moment.
        self._blind_until = 0.0
        #: What :meth:`want` was called with, by source.
        self._feeds: dict[str, list[tuple[Job, list[TableProgress]]]] = {}
        self._draining = False
        self._clock = clock
        self._timings = timings
        self._max_disk = max_disk
        self._max_copies = max_copies
        self._standby = standby
        self._capturing = capturing
        self._runs = runs
        self._changed = changed
        self._held_up = held_up
        self._mutex = threading.Lock()
        self._runtimes: dict[str, SourceRuntime] = {}
        #: Those of sources that another node captures: for feeds without a sink, and for others,
        #: which only the node's loop starts and ends.
        self._followed: dict[str, SourceRuntime] = {}
        self._read: dict[str, SourceRuntime] = {}
        self._reconcilers: dict[str, SourceReconciler] = {}
        self._saved_frontiers: dict[str, Frontier] = {}
        self._lost_elsewhere = LostSources(catalog, clock, timings, changed)
        #: What the captures of all nodes say.
        self._news = CachedRead(catalog.version, catalog.capture_news)
        #: The node that captures each source, and the node that runs each feed, as of :meth:`look`.
        self._captors: dict[str, str] = {}
        self._holders: dict[int, str] = {}

    def runtime(self, name: str) -> SourceRuntime:
        """The runtime of a source, created on first use and again after its last feed was
        dropped. One that another node captures has a runtime that only reads.
        """
        with self._mutex:
            ours = not self._shared or name in self._leases
            runtimes = self._runtimes if ours else self._followed
            known = runtimes.get(name)
            if known is None or known.log.closed:
                known = runtimes[name] = self._made(name, capturing=ours)
            return known

    def _made(self, name: str, *, capturing: bool) -> SourceRuntime:
        return SourceRuntime(
            self._catalog,
            self._state,
            name,
            capturing=self._capturing if capturing else lambda: False,
            lease=self._leases.get(name),
            disk=self._max_disk,
            copies=self._max_copies,
            ready=self._standby,
            clock=self._clock,
            timings=self._timings,
            held_up=partial(self._held_up, name),
        )

    def runtime_for(self, job: Job) -> SourceRuntime | None:
        """The runtime of a feed's source, for a feed with a sink; None while a log that another
        node writes is not here.

        Raises:
            ChangefeedError: why it is not.
        """
        if not self.elsewhere(job.source):
            return self.runtime(job.source)
        runtime = self._read.get(job.source)
        if runtime is None:
            runtime = self._read[job.source] = self._made(job.source, capturing=False)
            # Apart from the node's loop: the store may be slow.
            runtime.log.follow()
        if runtime.log.opened:
            return runtime
        if runtime.log.error is not None:
            raise runtime.log.error
        return None

    # -- whose a source is ------------------------------------------------------------------

    def look(self) -> None:
        """Read which other nodes there are, and whether this one drains."""
        if not self._shared:
            return
        # One whose leases end is none to give feeds to.
        silent = min(NODE_TTL, self._timings.lease)
        nodes = {node.id: node for node in self._catalog.live_nodes(silent)}
        own = nodes.pop(self._node, None)
        now = self._clock.monotonic()
        if own is None and self._own is not None:
            self._blind_until = now + 2 * self._timings.pulse
        if now < self._blind_until:
            # The state did not answer, or this process stood still: other nodes that live renew
            # what is theirs first.
            return
        self._own = own
        self._draining = self._own is not None and self._own.draining
        self._others = list(nodes.values())
        self._captors = self._catalog.source_holders()
        alive = {self._node, *nodes}
        self._holders = {
            job_id: node for job_id, node in self._catalog.job_holders().items() if node in alive
        }
        news = self._news()
        others = {name: node for name, node in self._captors.items() if node in nodes}
        self._lost_elsewhere.look({} if self._draining else others, news)
        for name, runtime in self._read.items():
            if not runtime.log.opened:
                # It is being filled, which must not hold up the node's loop.
                continue
            runtime.follow_connection()
            said, error = news.get(name, CaptureNews()), None
            if said.error is not None:
                code, message, detail, hint = said.error
                error = ChangefeedError(code, message, detail=detail, hint=hint)
            runtime.log.report(error, said.held_up)

    @property
    def given_away(self) -> set[str]:
        """The sources that another node is to take, because this one drains. It keeps them while
        no node would take them."""
        taken_up = self._draining and any(not node.draining for node in self._others)
        return set(self._leases) if taken_up else set()

    def owned(self, names: Iterable[str]) -> set[str]:
        """Those of these sources that this node captures; takes those that no node has, or only
        one that has lost them.

        All of them, unless logs are shared: then the state has one node.
        """
        if not self._shared:
            return set(names)
        wanted = set(names)
        free = wanted - self._leases.keys()
        if free and not self._draining:
            # Each try to take one is a write.
            alive = {node.id for node in self._others}
            for name in free:
                lost_by = self._lost_elsewhere.reached(name)
                if lost_by is not None or self._captors.get(name) not in alive:
                    self._take(name, lost_by)
        return wanted & self._leases.keys()

    def _take(self, name: str, lost_by: str | None = None) -> None:
        layout = StateLayout(Path(self._catalog.directory))
        if name in self._catalog.unmoved_logs() and not (layout.log(name) / LEDGER_NAME).exists():
            self._await_log(name)
            return
        lease = self._catalog.acquire_source(name, self._node, self._timings.lease, lost_by)
        if lease is None:
            return
        if lost_by is not None:
            log.warning("source %s: node %s does not reach it, this one does", name, lost_by)
        # What is here may be older than the log: readers wait until capture has made the copy.
        (layout.log(name) / HEAD_NAME).unlink(missing_ok=True)
        self._leases[name] = lease
        self._captors[name] = self._node
        log.info("source %s: this node captures it", name)

    def _await_log(self, name: str) -> None:
        why = "its change log is on the disk of another node: start that node with --log"
        self._catalog.save_source_state(name, error=why)
        reason = f"source: {why}"
        for job in self._catalog.jobs(include_finished=False):
            if job.source == name and job.status.active and job.reason != reason:
                self._catalog.transition(job.id, Status.STALLED, reason=reason)

    @property
    def leases(self) -> set[AnyLease]:
        return set(self._leases.values())

    def note_lost(self, leases: Collection[AnyLease]) -> None:
        """Make :attr:`lost` name the sources of leases that are another node's."""
        lost = {name for name, lease in list(self._leases.items()) if lease in leases}
        if lost:
            self._lost |= lost
            self._changed()

    @property
    def lost(self) -> set[str]:
        """Sources that another node has taken, until :meth:`let_go`."""
        return self._lost & self._leases.keys()

    def let_go(self, name: str) -> None:
        """Stop the capture of a source, and leave what is held there, for another node."""
        reconciler = self._reconcilers.pop(name, None)
        if reconciler is not None:
            reconciler.stop()
        with self._mutex:
            runtime = self._runtimes.pop(name, None)
        if runtime is not None:
            runtime.close()
        lease = self._leases.pop(name, None)
        self._lost.discard(name)
        if lease is not None:
            self._catalog.release_lease(lease)

    @property
    def waits(self) -> bool:
        """Whether a source may become free whose feeds this node would run."""
        return self._shared

    def hasten(self, name: str) -> None:
        """Make capture catch up now, because a caller waits for what a source has committed."""
        runtime = self._runtimes.get(name)
        if runtime is not None:
            runtime.hasten()

    def covered(self, job: Job) -> bool:
        """Whether the source is ready for the job as it is now."""
        if self.elsewhere(job.source):
            news = self._news().get(job.source)
            return news is not None and news.ready.get(job.id) == job.generation
        reconciler = self._reconcilers.get(job.source)
        return reconciler is not None and reconciler.covers(job)

    def elsewhere(self, name: str) -> bool:
        """Whether this node can only follow the log of a source."""
        return self._shared and name not in self._leases

    # -- where feeds run --------------------------------------------------------------------

    def held_elsewhere(self, job_id: int) -> bool:
        """Whether another node runs the feed, as of :meth:`look`."""
        return self._holders.get(job_id, self._node) != self._node

    def placed(self, jobs: Sequence[Job]) -> set[int]:
        """The feeds among these that this node is to run."""
        wanted = [job for job in jobs if job.wanted is DesiredStatus.RUNNING and not job.sinkless]
        if not self._shared:
            return {job.id for job in wanted}
        nodes = [*self._others] if self._own is None else [*self._others, self._own]
        taking = [node for node in nodes if not node.draining] or nodes
        # Of sources that change hands at once: their feeds would start twice.
        going = {node.id for node in nodes if node.draining} - {node.id for node in taking}
        bound = {job_id for news in self._news().values() for job_id in news.bound}
        feeds = [
            FeedPlace(
                job.id,
                self._holders.get(job.id),
                self._captors.get(job.source),
                job.id in bound,
            )
            for job in wanted
            if job.id in self._holders
            or (
                self._captors.get(job.source) not in going
                and (job.status.active or job.status is Status.PAUSED)
            )
        ]
        found = place(feeds, {node.id: node.max_feeds for node in taking})
        return {job_id for job_id, node in found.items() if node == self._node}

    def publish(self) -> None:
        """Say to the other nodes what they must know of the sources that this one captures, if it
        is something else than before. After :meth:`want`.
        """
        if not self._shared or not self._others:
            return
        known = self._news()
        for name, lease in list(self._leases.items()):
            reconciler, runtime = self._reconcilers.get(name), self._runtimes.get(name)
            if reconciler is None or runtime is None:
                continue
            before = known.get(name, CaptureNews())
            ready = reconciler.ready
            error = runtime.log.error or (None if ready else reconciler.error)
            said = None
            if error is not None:
                said = error.code.number, error.message, error.detail, error.hint
            over = runtime.over_limits
            # A feed that starts here makes a capture that ended with an error try again.
            ended = error.message if error and error.action is not Action.RETRY else ""
            meant = {
                job.id: [(t.table, t.table_id) for t in tables if not given_up(t)]
                for job, tables in self._feeds.get(name, ())
                if job.id in ready
            }
            bound = runtime.tables.bound(meant)
            for feed in meant:
                if why := over.get(feed) or ended:
                    bound[feed] = why
            news = CaptureNews(
                ready or before.ready,
                bound if ready else before.bound,
                runtime.held_up,
                said,
            )
            if news != before:
                self._catalog.save_capture_news(lease, news)

    def close_unused(self, busy: Collection[str]) -> None:
        """Follow no log of which no feed runs here any more.

        Args:
            busy: sources with a runner.
        """
        for name in self._read.keys() - set(busy):
            self._read.pop(name).close()

    def want(self, jobs: Sequence[Job], busy: Collection[str]) -> None:
        """Give each source's thread what its feeds need; no source waits for another.

        Args:
            busy: sources with a runner.
        """
        feeds: dict[str, list[tuple[Job, list[TableProgress]]]] = {}
        unfinished = [job for job in jobs if not job.status.finished]
        tables = self._catalog.tables_of_jobs([job.id for job in unfinished])
        for job in unfinished:
            feeds.setdefault(job.source, []).append((job, tables[job.id]))
        states = self.owned(state.name for state in self._catalog.source_states())
        known = states | self._reconcilers.keys()
        for name in known - feeds.keys() - set(busy):
            feeds[name] = []
        self._feeds = feeds
        for name, of_source in feeds.items():
            self._want(name, DesiredState.of(of_source))
        if self._standby is None:
            return
        if self._shared:
            # A source may become free at any time.
            self._standby.renew()
        elif not self._reconcilers:
            self._standby.close()

    def _want(self, name: str, wish: DesiredState) -> None:
        reconciler = self._reconcilers.get(name)
        if reconciler is not None and reconciler.want(wish):
            return
        if reconciler is not None and not wish.jobs:
            # It has ended: nothing is left at the source.
            del self._reconcilers[name]
            if name in self._leases:
                self.let_go(name)
            return
        reconciler = self._reconcilers[name] = SourceReconciler(
            self._catalog,
            name,
            lambda: self.runtime(name),
            runs=self._runs,
            changed=self._changed,
            clock=self._clock,
            timings=self._timings,
        )
        reconciler.want(wish)
        reconciler.start()

    def save_frontiers(self) -> None:
        """Save how far the logs reach, for other processes (SHOW, SYNC)."""
        for name, runtime in list(self._runtimes.items()):
            try:
                frontier = runtime.log.frontier
            except ChangefeedError:
                continue  # the log's own thread reports it; other sources have theirs saved
            if frontier is not None and frontier != self._saved_frontiers.get(name):
                self._saved_frontiers[name] = frontier
                self._catalog.save_frontier(name, frontier)

    # -- the end ----------------------------------------------------------------------------

    def request_stop(self) -> None:
        """No source is prepared from here on."""
        for reconciler in list(self._reconcilers.values()):
            reconciler.stop()

    def wake(self) -> None:
        """Wake all threads that wait for a log, so that they check whether to stop."""
        for runtime in self._all_runtimes():
            runtime.log.wake()

    def _all_runtimes(self) -> list[SourceRuntime]:
        return [*self._runtimes.values(), *self._followed.values(), *self._read.values()]

    def close(self) -> None:
        """End captures; what is held at the sources stays."""
        for reconciler in list(self._reconcilers.values()):
            reconciler.join(STOP_SECONDS)
        # At once: each waits for a process to end.
        with ThreadPoolExecutor(thread_name_prefix="source-close") as pool:
            list(pool.map(SourceRuntime.close, self._all_runtimes()))
        self._catalog.release_leases(list(self._leases.values()))
        if self._standby is not None:
            self._standby.close()
