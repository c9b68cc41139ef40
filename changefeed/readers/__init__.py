"""Readers: consumers that take the changes of one table from the change log themselves.

A reader is a changefeed whose sink is ``reader://``: the node scans the table for it and keeps the
log as far as the reader needs it, and the reader reads the log's files (:mod:`.table_log`), turns
their rows into changes (:mod:`.changes`) and commits how far it is (:mod:`.reader`).
:mod:`.subscription` is the reader of plain Python, :mod:`changefeed.spark_source` that of Spark.
"""

from changefeed.readers.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from changefeed.readers.subscription import Changes, Subscription, subscribe

__all__ = [
    "CHANGE_TYPE",
    "COMMIT_TIMESTAMP",
    "COMMIT_VERSION",
    "Changes",
    "Subscription",
    "subscribe",
]
