"""A feed whose consumer reads the change log itself, and commits its progress."""

from __future__ import annotations

from changefeed.catalog.model import TableState
from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.feeds.feed import Feed
from changefeed.feeds.scan_coordinator import ScanCoordinator


def follow_consumer(
    feed: Feed, consumed: Timestamp | None, scanning: ScanCoordinator, oldest: Timestamp
) -> None:
    """Set the progress of the feed's tables to that of the consumer.

    Args:
        consumed: what the consumer has committed; None before its first commit.
        oldest: the change log holds everything above this.

    Raises:
        ChangefeedError: CF3002, retention removed changes that the consumer has not read.
    """
    for table in feed.in_state(TableState.RUNNING, TableState.SCANNING):
        done = table.done_upto
        if done is None:
            continue
        if scanning.holds(table):
            # A repeated scan: no consumer saw the rows of the interrupted one, so no changes
            # need to be delivered between the two.
            if scanning.at is not None:
                feed.advance([table.table], scanning.at)
            continue
        reached = done if consumed is None else max(done, consumed)
        if oldest is not Timestamp.MAX and reached < oldest:
            raise ChangefeedError(
                Code.POSITION_TOO_OLD,
                f"the reader of {table.table} has committed {reached}, and the change log begins "
                f"at {oldest}",
                hint="make another reader, which begins with a scan of the table.",
            )
        feed.advance([table.table], reached)
