"""The same for asyncio: each connection has a thread that executes its statements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from changefeed.core.clock import Timestamp
from changefeed.dbapi.connection import ClientConnection, ClientCursor, connect
from changefeed.dbapi.errors import DatabaseError, InterfaceError
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
from changefeed.dbapi.values import Description

T = TypeVar("T")


async def aconnect(
    url_or_state: str, *, token: str | None = None, source: str | None = None
) -> AsyncConnection:
    """See :func:`changefeed.connect`."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="changefeed-connection")
    try:
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(
            thread, lambda: connect(url_or_state, token=token, source=source)
        )
    except BaseException:
        thread.shutdown(wait=False)
        raise
    return AsyncConnection(made, thread)


class AsyncConnection:
    """A :class:`ClientConnection` whose statements can be awaited; they run one after another."""

    def __init__(self, connection: ClientConnection, thread: ThreadPoolExecutor) -> None:
        """Of :func:`aconnect`."""
        self._connection = connection
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._connection).replace("Connection", "AsyncConnection", 1)

    @property
    def notices(self) -> Sequence[str]:
        """See :class:`ClientConnection`."""
        return self._connection.notices

    @property
    def closed(self) -> bool:
        """See :class:`ClientConnection`."""
        return self._connection.closed

    def cursor(self) -> AsyncCursor:
        """See :class:`ClientConnection`."""
        return AsyncCursor(self, self._connection.cursor())

    async def execute(self, operation: str, parameters: Sequence[object] = ()) -> AsyncCursor:
        """See :class:`ClientConnection`."""
        return await self.cursor().execute(operation, parameters)

    def feed(self, name: str) -> AsyncFeedHandle:
        """See :class:`ClientConnection`."""
        return AsyncFeedHandle(self, name)

    async def commit(self) -> None:
        """See :class:`ClientConnection`."""
        self._connection.commit()

    async def rollback(self) -> None:
        """See :class:`ClientConnection`."""
        self._connection.rollback()

    async def close(self) -> None:
        """See :class:`ClientConnection`. Waits for a statement under way."""
        if not self.closed:
            await self._call(self._connection.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        if self.closed:
            raise InterfaceError("the connection is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)


class AsyncCursor:
    """A :class:`ClientCursor` whose statements and rows can be awaited."""

    def __init__(self, connection: AsyncConnection, cursor: ClientCursor) -> None:
        """Of :meth:`AsyncConnection.cursor`."""
        self.connection = connection
        self._cursor = cursor

    @property
    def description(self) -> tuple[Description, ...] | None:
        """See :class:`ClientCursor`, as for the next three."""
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def notices(self) -> Sequence[str]:
        return self._cursor.notices

    @property
    def failure(self) -> DatabaseError | None:
        return self._cursor.failure

    async def execute(self, operation: str, parameters: Sequence[object] = ()) -> Self:
        """See :class:`ClientCursor`, as for all below."""
        await self.connection._call(self._cursor.execute, operation, parameters)
        return self

    async def executemany(self, operation: str, parameters: Iterable[Sequence[object]]) -> Self:
        await self.connection._call(self._cursor.executemany, operation, parameters)
        return self

    async def fetchone(self) -> tuple[Any, ...] | None:
        return await self.connection._call(self._cursor.fetchone)

    async def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return await self.connection._call(self._cursor.fetchmany, size)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return await self.connection._call(self._cursor.fetchall)

    async def close(self) -> None:
        await self.connection._call(self._cursor.close)

    async def __aiter__(self) -> AsyncIterator[tuple[Any, ...]]:
        while (row := await self.fetchone()) is not None:
            yield row

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncFeedHandle:
    """A :class:`FeedHandle` that can be awaited."""

    def __init__(self, connection: AsyncConnection, name: str) -> None:
        """Of :meth:`AsyncConnection.feed`."""
        self.name = name
        self._connection = connection

    async def status(self) -> FeedProgress:
        """See :class:`FeedHandle`."""
        cursor = await self._connection.execute(STATUS, (self.name,))
        return status_of(self.name, cursor.description, await cursor.fetchone())

    async def wait_until(
        self, moment: Moment = "now", *, timeout: float | None = None
    ) -> Timestamp:
        """See :class:`FeedHandle`. Other tasks use the connection meanwhile, but not while it waits
        for ``'now'``."""
        if moment == "now":
            cursor = await self._connection.execute(*sync_of(self.name, timeout))
            return synced_to(await cursor.fetchone())
        connection = self._connection._connection
        wait = ResolvedWait(self.name, upto_of(moment, connection.clock), timeout, connection.clock)
        await self._connection._call(connection.need_node)
        for pause in wait.pauses():
            if wait.reached(await self.status()):
                break
            await asyncio.sleep(pause)
        return wait.resolved
