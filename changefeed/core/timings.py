"""How often the parts of a node act: one object, which a node passes to its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: The bounds of :attr:`Timings.lease`, seconds: a pulse may be late, and no crash may hold up feeds
#: for long.
SHORTEST_LEASE = 3.0
LONGEST_LEASE = 60.0

#: A node not heard of for this long is dead, seconds.
NODE_TTL = 10.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Intervals, all in seconds. Tests pass shorter ones.

    Attributes:
        node_loop: between two looks of the node's loop at what woke it.
        node_turn: the job table is read this often though nothing in it has changed: leases end
            by time.
        pulse: between two renewals of leases.
        lease: how long a lease lasts without renewal.
        source_look: how often a source is examined, or tried again when it did not answer.
        source_busy: the same while it waits for a transaction or a lock there.
        expand: how often SCHEMA and DATABASE feeds look for new tables.
        extract_look: how often a node looks for a new extract of a dataset.
        gaps: how often the state is asked for gaps that another process found.
        begin: how long a feed waits for its tables to be captured before it reports that and tries
            again.
        restart_first: the pause before a capture process that ended is started again.
        restart_longest: the pauses double up to this one.
        upkeep: between two compactions of the change log.
        stall: between two looks whether a full change log has room again.
        budgets: how often capture asks the state what feeds with a limit have left to deliver.
        over_limit: for how long a feed that works may have more on disk than its limit, counted
            from when that last became less.
        feed_idle: how long an idle feed sleeps, at most, before it checks for work by itself.
        gather: rounds of a feed begin at most this often. A round of one row costs as much as one
            of fifty.
        rest_longest: the longest pause of a feed between two rounds, whatever its sink asks for.
        scan_status: how often the progress of a scan is saved.
        save: progress of a feed that delivers is saved about this often.
        save_idle: the same of a feed that only watches time pass and is saved by itself: because
            consumers want resolved timestamps more often, or no node writes for all feeds.
        save_gather: the progress that is saved for all feeds waits so long for that of others.
        retry_first: the pause before a feed that met an error tries again.
        retry_longest: the pauses double up to this one.
        unanswered: a call of a sink that takes longer shows as what the feed waits for.
        silent: a change log that has not grown for longer shows as what its feeds wait for.
        resume: how long RESUME waits for the feed to begin before it returns with a notice.
        answer: how long a statement waits for the node to carry it out.
    """

    node_loop: float = 0.1
    node_turn: float = 5.0
    pulse: float = 1.0
    lease: float = 10.0
    source_look: float = 5.0
    source_busy: float = 0.5
    expand: float = 10.0
    extract_look: float = 5.0
    gaps: float = 1.0
    begin: float = 60.0
    restart_first: float = 0.5
    restart_longest: float = 15.0
    upkeep: float = 30.0
    stall: float = 0.25
    budgets: float = 1.0
    over_limit: float = 600.0
    feed_idle: float = 1.0
    gather: float = 0.005
    rest_longest: float = math.inf
    scan_status: float = 1.0
    save: float = 1.0
    save_idle: float = 2.0
    save_gather: float = 0.05
    retry_first: float = 0.5
    retry_longest: float = 30.0
    unanswered: float = 10.0
    silent: float = 30.0
    resume: float = 10.0
    answer: float = 30.0

    @property
    def task_lease(self) -> float:
        """How long a task of Spark may write after it last heard of its node: it ends before
        another node may have taken the feed."""
        return max(self.pulse, self.lease - 2 * self.pulse)
