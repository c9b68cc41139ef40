"""Statements of DDL that the change log has about a feed's tables: sent to the sink and recorded.

A table that joins a feed of a SCHEMA or DATABASE begins with a scan. The statement that made the
table lies before it in the log, so it is sent when the scan's timestamp is known, before the
table's first row.
"""

from __future__ import annotations

from changefeed.capture.growing_log import LogAccess
from changefeed.core.clock import Timestamp
from changefeed.core.events import Ddl
from changefeed.core.schema import TableName
from changefeed.core.sizes import Sizes
from changefeed.core.table_errors import about_table
from changefeed.feeds.chunks import SLICE_BYTES
from changefeed.feeds.feed import Feed
from changefeed.feeds.sink_session import SinkSession

#: The longest text of a statement among a feed's events.
SHOWN_CHARACTERS = 1000


def tell_ddl(feed: Feed, sink_session: SinkSession, event: Ddl) -> None:
    """Send a statement to the sink once everything before it is durable, and record it.

    Raises:
        TableError: the sink refuses the table.
        ChangefeedError: anything else.
    """
    with about_table(event.table):
        sink_session.tell_ddl(event)
    text = event.statement
    if len(text) > SHOWN_CHARACTERS:
        text = text[: SHOWN_CHARACTERS - 1] + "…"
    feed.record_event("ddl", text, event.table, event.at)


def tell_origin(
    feed: Feed,
    table: TableName,
    upto: Timestamp,
    log: LogAccess,
    sink_session: SinkSession,
    sizes: Sizes | None = None,
) -> None:
    """Send the statements that made a table that has joined the feed, and those that changed it up
    to ``upto``, where its scan begins. There are none of a table older than the feed or the change
    log.

    Raises:
        TableError: the sink refuses the table.
        ChangefeedError: the log or the sink failed.
    """
    rows = (sizes or Sizes()).slice_rows
    after = max(log.oldest, Timestamp(feed.job.created))
    found: list[Ddl] = []
    while after < upto:
        part = log.slice({table: after}, upto, rows, SLICE_BYTES)
        for event in part.control_events:
            if isinstance(event, Ddl):
                found = [event] if event.kind in _MAKES else [*found, event]
        if part.upto <= after:
            break
        after = part.upto
    if found and found[0].kind in _MAKES:
        for event in found:
            tell_ddl(feed, sink_session, event)


#: Statements by which a table may get its name.
_MAKES = frozenset({"CREATE", "RENAME"})
