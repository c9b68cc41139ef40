"""Is this still the history that we read? A server is held against what the frontier remembers.

A restored snapshot, a promoted standby that lacks the last changes, an old primary that came back:
each is the same server by its identifier, and each would lose rows, because positions that were
read once mean other changes now. Three things distinguish them:

* **Where the log ends.** A server whose log ends below the frontier has lost what we read.
* **Timelines.** A promotion begins a new timeline; its history file says where it left ours.
* **A witness**: the last transaction of ours below the frontier, known by the position of its
  commit record, its number and its commit time. The slot's confirmed position moves only by what
  we acknowledge, and it is part of the server's state: a server restored to an earlier state
  has it where it was then. So everything between that position and the frontier is asked for
  again: it must hold the witness (when that lies there), and nothing of ours behind it. This finds
  the server that was restored and has passed the frontier before we look.

Until that is settled nothing is written to the change log, and nothing is acknowledged. The
witness costs no write at the source and holds back no log: in the usual case the slot stands at
the frontier and nothing is sent again; after a crash it is one transaction more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.lsn import format_lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class Witness:
    """A transaction that was read: position of its commit record, number, commit time.

    ``commit_us`` counts microseconds since 1970, as the stream's messages are read.
    """

    lsn: int
    xid: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """What a frontier remembers of the server's history.

    Attributes:
        timeline: the server's when the frontier was read; 0: not known.
        witness: the last transaction with rows of ours at or below the frontier; None: not known.
    """

    timeline: int = 0
    witness: Witness | None = None

    def text(self) -> str:
        """As the frontier keeps it: ``timeline`` or ``timeline lsn xid commit_us``."""
        if self.witness is None:
            return str(self.timeline) if self.timeline else ""
        witness = self.witness
        return f"{self.timeline} {format_lsn(witness.lsn)} {witness.xid} {witness.commit_us}"

    @classmethod
    def parse(cls, text: str) -> ServerHistory:
        """The inverse of :meth:`text`.

        Raises:
            ChangefeedError: CF3001 the change log holds something else.
        """
        try:
            match text.split():
                case []:
                    return cls()
                case [timeline]:
                    return cls(int(timeline))
                case [timeline, lsn, xid, commit_us]:
                    return cls(int(timeline), Witness(parse_lsn(lsn), int(xid), int(commit_us)))
        except ValueError:
            pass
        raise ChangefeedError(
            Code.LOG_DAMAGED,
            "the change log's frontier has an unknown form",
            detail=f"history {text!r}",
            hint="a newer version of changefeed wrote it: run that version.",
        )

    def on(self, timeline: int) -> ServerHistory:
        """The same history, on the server's present timeline."""
        return replace(self, timeline=timeline)


def other_history(what: str) -> ChangefeedError:
    """The server does not have the history that was read."""
    return ChangefeedError(
        Code.SOURCE_IS_ANOTHER, f"the history of the source is not the one that was read: {what}"
    )


def check_end(end: int, frontier: int, *, in_recovery: bool) -> None:
    """Hold the end of the server's log against the frontier.

    Raises:
        ChangefeedError: CF2104 the server has lost what was read; CF2101 it is a standby that
            has not replayed so far yet.
    """
    if end >= frontier:
        return
    where = f"{format_lsn(end)}, but changes up to {format_lsn(frontier)} had been read"
    if in_recovery:
        raise ChangefeedError(
            Code.STREAM_BROKE, f"the standby has replayed its log only up to {where}"
        )
    raise other_history(f"its log ends at {where}")


def check_timeline(
    known: int, present: int, frontier: int, history: Callable[[int], str | None]
) -> None:
    """Hold the server's timeline against the one the frontier was read on.

    Args:
        known: the timeline of the frontier; 0: not known.
        present: the server's.
        frontier: the position that was read.
        history: the text of a timeline's history file; None where the server has none.

    Raises:
        ChangefeedError: CF2104 the server left our timeline before the frontier.
    """
    if not known or known == present:
        return
    switch = _switch(history(present), known) if present > known else None
    if switch is None:
        raise other_history(
            f"it is on timeline {present}, which does not come from timeline {known}"
        )
    if switch < frontier:
        raise other_history(
            f"its timeline {present} left timeline {known} at {format_lsn(switch)}, but changes "
            f"up to {format_lsn(frontier)} had been read"
        )


def _switch(history: str | None, timeline: int) -> int | None:
    """Where a history file says that ``timeline`` was left; None when it does not name it."""
    for line in (history or "").splitlines():
        fields = line.split()
        # Timeline, position, reason; comments begin with a #.
        if len(fields) >= 2 and fields[0] == str(timeline):
            return parse_lsn(fields[1])
    return None


class Redelivery:
    """Holds the transactions below the frontier, which the server sends again, against the witness.

    Used by one thread: :meth:`repeated` for each transaction below the frontier, in order, then
    :meth:`passed` once.
    """

    def __init__(
        self, witness: Witness | None, *, begin: int, frontier: int, settled: Callable[[], None]
    ) -> None:
        """
        Args:
            witness: what the frontier remembers; None: everything is taken.
            begin: from here on the server sends.
            frontier: up to here everything had been read.
            settled: called once the server's history is known to be ours.
        """
        self._witness = witness
        self._frontier = frontier
        self._settled = settled
        self._missing = witness is not None and witness.lsn >= begin

    def repeated(self, transaction: Witness, *, touched: bool) -> None:
        """A transaction below the frontier; ``touched``: it has rows of ours.

        Raises:
            ChangefeedError: CF2104 it was not there when we read.
        """
        witness = self._witness
        if witness is None or transaction.lsn < witness.lsn:
            return
        if transaction == witness:
            self._missing = False
        elif touched:
            raise other_history(
                f"transaction {transaction.xid} committed at {format_lsn(transaction.lsn)}, where "
                f"it had not been when changes up to {format_lsn(self._frontier)} were read"
            )

    def passed(self) -> None:
        """The server has come to the frontier.

        Raises:
            ChangefeedError: CF2104 the witness did not come.
        """
        if self._missing and self._witness is not None:
            raise other_history(
                f"transaction {self._witness.xid}, which committed at "
                f"{format_lsn(self._witness.lsn)} and was read, is not in its log"
            )
        self._settled()
