"""Which transactions the server shows to other sessions.

The server sends a transaction as soon as its commit is in the log, and shows it to other sessions
a moment later: on a busy machine after milliseconds, with synchronous replication when the standby
has it. What is read from a table or from the catalog before is of the time before the transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.sources.postgres.connect import PsycopgConnection

#: Seconds between two looks.
LOOK_AGAIN = 0.005

#: Of the transactions (low 32 bits of their numbers) those that other sessions do not see.
Unseen = Callable[[Collection[int]], set[int]]

_logger = logging.getLogger(__name__)


def read_unseen(connection: PsycopgConnection, xids: Collection[int]) -> set[int]:
    """Those of the committing transactions ``xids`` that a statement would not see now."""
    # The name of version 12, our oldest; later ones keep it.
    [(text,)] = connection.execute("select txid_current_snapshot()::text").fetchall()
    _, end, running = text.split(":")
    mask = 0xFFFFFFFF
    open_ones = {int(xid) & mask for xid in running.split(",") if xid}
    # Numbers wrap around: one up to 2**31 ahead of the end is later than it.
    return {x for x in xids if x in open_ones or (x - int(end)) & mask < 1 << 31}


class Visibility:
    """Waits for transactions to be seen.

    One that is not seen for ``patience`` seconds (its synchronous standby is away) is given up, and
    none is waited for until a look finds all of them seen: the stream goes on.
    """

    def __init__(self, unseen: Unseen, patience: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._unseen = unseen
        self._patience = patience
        self._patient = True

    def wait(self, xids: Collection[int]) -> set[int]:
        """Wait until other sessions see these transactions; those that they still do not."""
        if not xids:
            return set()
        deadline = self._clock.monotonic() + (self._patience if self._patient else 0.0)
        while left := self._unseen(xids):
            if self._clock.monotonic() >= deadline:
                if self._patient:
                    _logger.warning(
                        "the server sent transaction %s and does not show it to other sessions"
                        " yet (is a synchronous standby away?): the catalog is looked at again"
                        " with later rows",
                        min(left),
                    )
                self._patient = False
                return left
            self._clock.sleep(LOOK_AGAIN)
        self._patient = True
        return set()
