"""``changefeed.connect``: the statements of changefeed by Python's database API (PEP 249).

::

    connection.py    connection, cursor, feed   feed.py     how far a feed is; waits for it
    asynchronous.py  the same for asyncio       magic.py    %%changefeed in a notebook
    errors.py        the exceptions             values.py   Python values of cells and parameters
"""

from __future__ import annotations

from changefeed.dbapi.asynchronous import AsyncConnection, AsyncCursor, AsyncFeedHandle, aconnect
from changefeed.dbapi.connection import ClientConnection as Connection
from changefeed.dbapi.connection import ClientCursor as Cursor
from changefeed.dbapi.connection import FeedHandle, connect
from changefeed.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name that PEP 249 gives it
)
from changefeed.dbapi.feed import FeedProgress
from changefeed.dbapi.values import (
    BINARY,
    DATETIME,
    LIST,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

apilevel = "2.0"
#: Threads may share the module; each has a connection of its own.
threadsafety = 1
#: ``:1``; ``$1``, as the HTTP API has it, is the same.
paramstyle = "numeric"

__all__ = [
    "BINARY",
    "DATETIME",
    "LIST",
    "NUMBER",
    "ROWID",
    "STRING",
    "AsyncConnection",
    "AsyncCursor",
    "AsyncFeedHandle",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "FeedHandle",
    "FeedProgress",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "aconnect",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
