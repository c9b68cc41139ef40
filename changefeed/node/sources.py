"""The sources of a node: each has a runtime, and a thread that makes it ready for its feeds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from changefeed.capture.reconciler import DesiredState, SourceReconciler
from changefeed.capture.source_runtime import SourceRuntime
from changefeed.capture.standby import Standby
from changefeed.catalog import AnyLease, Catalog, NodeRow, SourceLease
from changefeed.catalog.model import Job, TableProgress
from changefeed.core.clock import Clock
from changefeed.core.errors import ChangefeedError
from changefeed.core.events import Frontier
from changefeed.core.state import StateLayout
from changefeed.core.telemetry import log
from changefeed.core.timings import Timings
from changefeed.log.ledger import HEAD_NAME, LEDGER_NAME

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
        self._draining = False
        self._clock = clock
        self._timings = timings
        self._max_disk = max_disk
        self._standby = standby
        self._capturing = capturing
        self._runs = runs
        self._changed = changed
        self._held_up = held_up
        self._mutex = threading.Lock()
        self._runtimes: dict[str, SourceRuntime] = {}
        #: Those of sources that another node captures, for feeds without a sink of this process.
        self._followed: dict[str, SourceRuntime] = {}
        self._reconcilers: dict[str, SourceReconciler] = {}
        self._saved_frontiers: dict[str, Frontier] = {}

    def runtime(self, name: str) -> SourceRuntime:
        """The runtime of a source, created on first use and again after its last feed was
        dropped. One that another node captures has a runtime that only reads.
        """
        with self._mutex:
            ours = not self._shared or name in self._leases
            runtimes = self._runtimes if ours else self._followed
            known = runtimes.get(name)
            if known is None or known.log.closed:
                known = runtimes[name] = SourceRuntime(
                    self._catalog,
                    self._state,
                    name,
                    capturing=ours and self._capturing(),
                    lease=self._leases.get(name),
                    disk=self._max_disk,
                    ready=self._standby,
                    clock=self._clock,
                    timings=self._timings,
                    held_up=partial(self._held_up, name),
                )
            return known

    # -- whose a source is ------------------------------------------------------------------

    def look(self) -> None:
        """Read which other nodes there are, and whether this one drains."""
        if not self._shared:
            return
        nodes = {node.id: node for node in self._catalog.live_nodes()}
        own = nodes.pop(self._node, None)
        self._draining = own is not None and own.draining
        self._others = list(nodes.values())

    @property
    def given_away(self) -> set[str]:
        """The sources that another node is to take, because this one drains. It keeps them while
        no node would take them."""
        taken_up = self._draining and any(not node.draining for node in self._others)
        return set(self._leases) if taken_up else set()

    def owned(self, names: Iterable[str]) -> set[str]:
        """Those of these sources that this node captures; takes those that no node has.

        All of them, unless logs are shared: then the state has one node.
        """
        if not self._shared:
            return set(names)
        wanted = set(names)
        free = wanted - self._leases.keys()
        if free and not self._draining:
            # One read for all of them: each try to take one is a write.
            alive = {node.id for node in self._others}
            holders = self._catalog.source_holders()
            for name in free:
                if holders.get(name) not in alive:
                    self._take(name)
        return wanted & self._leases.keys()

    def _take(self, name: str) -> None:
        layout = StateLayout(Path(self._catalog.directory))
        if name in self._catalog.unmoved_logs() and not (layout.log(name) / LEDGER_NAME).exists():
            self._catalog.save_source_state(
                name,
                error="its change log is on the disk of another node: start that node with --log",
            )
            return
        lease = self._catalog.acquire_source(name, self._node, self._timings.lease)
        if lease is None:
            return
        # What is here may be older than the log: readers wait until capture has made the copy.
        (layout.log(name) / HEAD_NAME).unlink(missing_ok=True)
        self._leases[name] = lease
        log.info("source %s: this node captures it", name)

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
        reconciler = self._reconcilers.get(job.source)
        return reconciler is not None and reconciler.covers(job)

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
                self._catalog.save_source_state(
                    name, position=frontier.position, frontier=frontier.at
                )

    # -- the end ----------------------------------------------------------------------------

    def request_stop(self) -> None:
        """No source is prepared from here on."""
        for reconciler in list(self._reconcilers.values()):
            reconciler.stop()

    def wake(self) -> None:
        """Wake all threads that wait for a log, so that they check whether to stop."""
        for runtime in [*self._runtimes.values(), *self._followed.values()]:
            runtime.log.wake()

    def close(self) -> None:
        """End captures; what is held at the sources stays."""
        for reconciler in list(self._reconcilers.values()):
            reconciler.join(STOP_SECONDS)
        for runtime in [*self._runtimes.values(), *self._followed.values()]:
            runtime.close()
        for lease in list(self._leases.values()):
            self._catalog.release_lease(lease)
        if self._standby is not None:
            self._standby.close()
