"""Which bulk work of a feed Spark cannot do, and why: for EXPLAIN, scans and backlogs alike.

What Spark can do is not always done by it: :func:`changefeed.core.engines.choose_engine` chooses by
the amount of work.
"""

from __future__ import annotations

from changefeed.options import (
    INITIAL_SCAN_CONCURRENCY,
    INITIAL_SCAN_MAX_RATE,
    ON_ROW_ERROR,
    OnRowError,
    Options,
)
from sinks.base import Capabilities

_QUERY = "a CDC query runs in the node's session"
_STAGED = "the rows of this sink are staged by the node"
_ONE_WRITER = "delivery = 'exactly_once' is one writer's transaction"


def scan_limit(options: Options) -> str:
    """The option of a feed that limits how hard its scans read the source, or makes the node look
    for the rows of them that are refused; empty: none does."""
    if options[ON_ROW_ERROR] is OnRowError.DEAD_LETTER:
        return f"{ON_ROW_ERROR.name} = '{OnRowError.DEAD_LETTER}'"
    limits = (INITIAL_SCAN_CONCURRENCY, INITIAL_SCAN_MAX_RATE)
    return next((row.name for row in limits if row.name in options.given), "")


def scan_hindrance(
    sink: Capabilities,
    *,
    query: bool,
    exactly_once: bool,
    parts_travel: bool,
    takes_workers: bool,
    limit: str = "",
) -> str:
    """Why the node itself reads the tables of a scan; empty: Spark's workers can.

    Args:
        sink: the capabilities of the feed's sink.
        query: the feed is a CDC query.
        exactly_once: the sink keeps the feed's progress.
        parts_travel, takes_workers: see :class:`changefeed.sources.base.Source`.
        limit: as of :func:`scan_limit`.
    """
    if query:
        return _QUERY
    if not parts_travel and not takes_workers:
        return "the snapshot of this source cannot leave the node"
    if limit:
        return f"a scan with {limit} is read by the node"
    if sink.takes_rows:
        return "" if sink.scans_by_spark or sink.loads_parts else _STAGED
    if exactly_once:
        return _ONE_WRITER
    return "" if sink.executor else "this sink is written by the node"


def backlog_hindrance(
    sink: Capabilities, *, query: bool, exactly_once: bool, numbered: bool, dead_letters: bool
) -> str:
    """Why the node itself delivers a backlog; empty: lanes of a Spark job can.

    Args:
        sink: the capabilities of the feed's sink.
        query: the feed is a CDC query.
        exactly_once: the sink keeps the feed's progress.
        numbered: the feed has ``transaction_metadata``.
        dead_letters: the feed keeps rows that are refused.
    """
    if sink.takes_rows:
        return _STAGED
    if not sink.lanes:
        return "this sink keeps its order by one writer"
    if query:
        return _QUERY
    if numbered:
        return "transaction_metadata numbers the changes of all tables together"
    if dead_letters:
        return "the node looks for rows that are refused"
    if exactly_once:
        return _ONE_WRITER
    return ""
