"""Readers: consumers that take the changes of one table from the change log themselves.

::

    the node scans the table and keeps the log        reader.py: a changefeed with sink reader://
                       |                                 |  how far the reader is
                       v                                 v
    change log --> table_log.py: ranges --> changes.py: typed changes --> subscription.py (Python)
                       |                                                  spark_source (Spark)
                       +--> range_copies.py --> staged_rows.py   where the log cannot be seen
    own_state.py, own_node.py   a reader that was given a source brings its state and node
    snapshot.py                 one read of a table without following it
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
