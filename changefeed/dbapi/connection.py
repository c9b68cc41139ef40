"""The connection and the cursor of PEP 249, over a state in this process or a node elsewhere."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self
from urllib.parse import urlsplit
from weakref import WeakSet

from changefeed.api import Result, parsed_statement
from changefeed.backend import Backend, LocalBackend, RemoteBackend
from changefeed.core.clock import SYSTEM_CLOCK, Clock, Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import redact
from changefeed.dbapi import errors
from changefeed.dbapi.errors import InterfaceError, NotSupportedError, ProgrammingError, raised
from changefeed.dbapi.feed import (
    STATUS,
    FeedProgress,
    Moment,
    ResolvedWait,
    status_of,
    sync_of,
    synced_to,
    upto_of,
)
from changefeed.dbapi.values import Description, description_of, parameter_of, row_of
from grammar.binding import substituted

#: Where the shell looks for a token, too.
TOKEN_VARIABLE = "CHANGEFEED_TOKEN"
#: Notices that a connection keeps.
NOTICES = 100

_NUMERIC = re.compile(r"(?<![\w$:]):([1-9]\d{0,3})(?!\w)")
#: Of the rows of a feed without a sink.
_STREAM = ("table", "key", "value")


def connect(
    url_or_state: str, *, token: str | None = None, source: str | None = None
) -> ClientConnection:
    """Connect to a node's HTTP API, or open a state in this process.

    ::

        with changefeed.connect("https://node:8443", token=token) as connection:
            for name, lag in connection.execute("SHOW CHANGEFEEDS WHERE lag > :1", [60]):
                ...
            connection.feed("orders").wait_until("now", timeout=300)

    Args:
        url_or_state: ``https://host:port`` of a node that was started with ``--http``; else the
            directory or the ``postgresql://`` URL of a state. A state is as in the shell: a
            statement that waits for a feed starts a node in this process if none runs elsewhere.
        token: of a user, for a node; by default that of the variable ``CHANGEFEED_TOKEN``.
        source: the source of unqualified table names, as of ``USE``.

    Raises:
        OperationalError: the node does not answer or wants another token; the state cannot be
            opened.
        ProgrammingError: the URL or the source is wrong.
    """
    return ClientConnection(_backend(url_or_state, token, source))


def _backend(place: str, token: str | None, source: str | None) -> Backend:
    if place.startswith(("http://", "https://")):
        parts = urlsplit(place)
        if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise errors.error_of(
                ChangefeedError(
                    Code.INVALID_URI,
                    f"not the address of a node: {redact(place)}",
                    hint="write https://host:port; a token is an argument of its own.",
                )
            )
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE, "").strip()
        return RemoteBackend(place, token, source=source)
    if token is not None:
        raise InterfaceError("a state takes no token", hint="tokens are for the URL of a node.")
    return LocalBackend(place, source=source, client="python")


class ClientConnection:
    """Statements to one node or state, in a session of its own (``USE``). For one thread.

    A statement takes effect when it is executed: there are no transactions. Use it as a context
    manager, which closes it.

    Attributes:
        notices: what the last statements had to say, the newest last.
        autocommit: always true.
        clock: for waiting.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    autocommit = True

    def __init__(self, backend: Backend, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """See :func:`connect`."""
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self._backend: Backend | None = backend
        self._where = backend.where
        self.clock = clock
        self._cursors: WeakSet[ClientCursor] = WeakSet()
        with raised():
            try:
                backend.check()
            except BaseException:
                backend.close()
                raise

    def __repr__(self) -> str:
        return f"<changefeed.Connection {'closed' if self._backend is None else self._where}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._backend is None

    def cursor(self) -> ClientCursor:
        """A cursor; several of one connection share its session."""
        self._open()
        cursor = ClientCursor(self)
        self._cursors.add(cursor)
        return cursor

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> ClientCursor:
        """Execute a statement with a cursor of its own; see :meth:`ClientCursor.execute`."""
        return self.cursor().execute(operation, parameters)

    def feed(self, name: str) -> FeedHandle:
        """A changefeed by its name, to wait for; it need not exist yet."""
        return FeedHandle(self, name, self.clock)

    def commit(self) -> None:
        """Nothing: statements take effect at once."""
        self._open()

    def rollback(self) -> None:
        """
        Raises:
            NotSupportedError: statements take effect at once.
        """
        self._open()
        raise NotSupportedError("statements take effect at once: nothing can be rolled back")

    def close(self) -> None:
        """End its feeds without a sink, and a node that it started. A second time is allowed."""
        backend = self._backend
        for cursor in list(self._cursors):
            cursor.close()
        self._backend = None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Backend:
        if self._backend is None:
            raise InterfaceError("the connection is closed")
        return self._backend

    def need_node(self) -> None:
        """See that the feeds run, because a caller waits for one.

        Raises:
            OperationalError: no node can start.
        """
        with raised():
            self._open().need_node()

    def _run(self, operation: str, parameters: Sequence[object]) -> Result:
        backend = self._open()
        if isinstance(parameters, str | bytes | Mapping) or not isinstance(parameters, Sequence):
            raise ProgrammingError("the parameters are a list or a tuple, for :1, :2, ..")
        values = [parameter_of(value) for value in parameters]
        text = operation
        if values:
            text = substituted(operation, lambda found: f"${found[1]}", _NUMERIC)
        with raised():
            result = backend.execute(parsed_statement(text, values), text, values)
        self.notices.extend(result.notices)
        return result


class ClientCursor:
    """Executes statements and has the rows of the last one.

    Attributes:
        connection: whose cursor it is.
        description: (name, type, None ..) of each column; None where the last statement has none.
        rowcount: of the last statement; -1 where that is not known.
        arraysize: how many rows :meth:`fetchmany` takes if it is not said.
        notices: what the last statement had to say.
        failure: what a VALIDATE found, or that a VERIFY found differences; else None. The rows say
            more.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self.description: tuple[Description, ...] | None = None
        self.rowcount = -1
        self.notices: list[str] = []
        self.failure: errors.DatabaseError | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._stream: Any = None

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> Self:
        """Execute one statement.

        Rows of a feed without ``INTO`` come as they are committed: fetching waits for them, and
        closing the cursor ends the feed.

        Args:
            operation: the statement, with or without ``;``.
            parameters: the values of ``:1``, ``:2``, .. in it. Where the language takes a name, as
                in ``PAUSE CHANGEFEED :1``, a text is that name.

        Raises:
            DatabaseError: it failed.
        """
        self._open()
        self._end_stream()
        self._forget()
        result = self.connection._run(operation, parameters)
        self.notices = list(result.notices)
        if result.failure is not None:
            self.failure = errors.error_of(result.failure)
        if result.stream is not None:
            self._stream = result.stream
            self.description = description_of(_STREAM, typed=False)
            self._rows = (row[:3] for row in result.stream)
        elif result.columns:
            columns = self.description = description_of(result.columns)
            self.rowcount = len(result.rows)
            self._rows = (row_of(row, columns) for row in result.rows)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[object]]) -> Self:
        """Execute a statement once for each list of values; the rows are those of the last."""
        self._open()
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, ``arraysize`` if not said; fewer or none at the end."""
        rows = self._fetched()
        with raised():
            return list(islice(rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left. Those of a feed without ``INTO`` have no end."""
        rows = self._fetched()
        with raised():
            return list(rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def close(self) -> None:
        """End a feed without a sink; the cursor cannot be used any more."""
        self._closed = True
        self._end_stream()

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing, as PEP 249 allows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self.connection._open()
        if self._closed:
            raise InterfaceError("the cursor is closed")

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        self._open()
        if self._rows is None:
            raise ProgrammingError("no statement with rows was executed")
        return self._rows

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        close = getattr(stream, "close", None)
        if close is not None:
            # Taking the feed down: its job is gone when this returns.
            close()


class FeedHandle:
    """A changefeed, by its name."""

    def __init__(self, connection: ClientConnection, name: str, clock: Clock) -> None:
        """Of :meth:`ClientConnection.feed`."""
        self.name = name
        self._connection = connection
        self._clock = clock

    def __repr__(self) -> str:
        return f"<changefeed.FeedHandle {self.name!r} of {self._connection!r}>"

    def status(self) -> FeedProgress:
        """How it is now.

        Raises:
            ProgrammingError: CF1101, there is no such feed.
        """
        cursor = self._connection.execute(STATUS, (self.name,))
        return status_of(self.name, cursor.description, cursor.fetchone())

    def wait_until(self, moment: Moment = "now", *, timeout: float | None = None) -> Timestamp:
        """Wait until the resolved timestamp is at or after a moment: everything committed up to it
        is in the sink then.

        Args:
            moment: ``'now'`` is everything that is committed at the source when this is called,
                which the source is asked for (``SYNC``, a right of operators). Others are compared
                with the resolved timestamp, which viewers may read, too: a datetime (UTC if it does
                not say), a text as the option ``cursor`` takes it, ns since 1970, or a
                ``Timestamp``, as is ``upto`` of a subscription.
            timeout: seconds; without end if not given.

        Returns:
            The resolved timestamp that was reached.

        Raises:
            OperationalError: CF1304 it was not reached in time; CF1301 the feed is paused or has
                failed, or one of its tables has, or no node runs it.
            ProgrammingError: CF1101 there is no such feed.
        """
        if moment == "now":
            return synced_to(self._connection.execute(*sync_of(self.name, timeout)).fetchone())
        wait = ResolvedWait(self.name, upto_of(moment, self._clock), timeout, self._clock)
        self._connection.need_node()
        for pause in wait.pauses():
            if wait.reached(self.status()):
                break
            self._clock.sleep(pause)
        return wait.resolved
