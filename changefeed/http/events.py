"""Answers as server-sent events: how something is, each time it changes, and rows of a feed.

A client that comes back sends the last ``id`` that it saw. Of a list, the id is the ETag: it is
sent again only if it has changed. Of a feed without a sink, it is a resolved timestamp: the feed
goes on after it, so that rows may come again and none is missing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
from anyio import CapacityLimiter
from starlette.types import Receive, Scope, Send

from changefeed.core.errors import ChangefeedError, Code
from changefeed.http.forms import problem
from grammar import nodes

#: The media type.
EVENTS = "text/event-stream"

#: Why a request cannot go on where the one before it ended.
ONE_FEED = "Last-Event-ID goes with one statement, a feed without INTO"

#: Seconds between two looks at whether something has changed.
LOOK = 1.0
#: Seconds after which a list is read although the state has no new version: lags and rates.
COARSE = 5.0
#: Seconds without an event until a comment shows whether the client is there.
QUIET = 15.0

#: What a client gets that has seen an ETag: the same or another one, and the body.
Look = Callable[[], Awaitable[tuple[str, bytes]]]


def event(name: str, data: bytes, identity: str = "") -> bytes:
    """One event; ``data`` is JSON on one line."""
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"


def of_line(value: Mapping[str, Any], encode: Callable[[object], bytes]) -> bytes:
    """A line of :meth:`changefeed.http.statements.StatementRun.lines` as an event."""
    ((name, data),) = value.items()
    if name == "row" and data[0] is None:
        return event("resolved", encode(data), _resolved(data[2]))
    return event(name, encode(data))


def _resolved(value: str | None) -> str:
    try:
        return str(json.loads(value or "")["resolved"])
    except (ValueError, KeyError, TypeError):
        return ""  # a format that has it elsewhere


def going_on(statement: nodes.Statement, last: str) -> nodes.CreateChangefeed:
    """The feed from the resolved timestamp on that its client saw last, or from its beginning.

    Raises:
        ChangefeedError: CF1204, only a feed without a sink can go on.
    """
    if not isinstance(statement, nodes.CreateChangefeed) or statement.sink is not None:
        raise ChangefeedError(Code.INVALID_OPTION_VALUE, ONE_FEED)
    begins = ("cursor", "initial_scan", "no_initial_scan", "initial_scan_only") if last else ()
    options = [option for option in statement.options if option.name not in begins]
    if last:
        options.append(nodes.Option("cursor", nodes.Literal(last)))
    if all(option.name != "resolved" for option in options):
        options.append(nodes.Option("resolved", nodes.Literal("1s")))
    return replace(statement, options=tuple(options))


class ListEvents:
    """The answer that has no end: a list, each time that it has changed."""

    def __init__(
        self,
        look: Look,
        version: Callable[[], Awaitable[object]],
        known: str,
        stalled: float,
        stopping: Callable[[], bool],
        limiter: CapacityLimiter,
    ) -> None:
        """
        Args:
            look: reads the list; raises a ChangefeedError once the client may not.
            version: rises when a statement or a node has changed something.
            known: the ETag that the client saw last.
            stalled: seconds for which a client may leave events unread.
            stopping: the server ends.
            limiter: of the clients that may be there at once.
        """
        self._look, self._version = look, version
        self._known, self._stalled, self._stopping = known, stalled, stopping
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(part: bytes, more: bool = True) -> None:
            with anyio.fail_after(self._stalled):
                await send({"type": "http.response.body", "body": part, "more_body": more})

        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", EVENTS.encode())],
            }
        )
        async with self._limiter, anyio.create_task_group() as tasks:

            async def leave() -> None:
                while (await receive())["type"] != "http.disconnect":
                    continue
                tasks.cancel_scope.cancel()

            tasks.start_soon(leave)
            try:
                await self._follow(write)
            except ChangefeedError as error:
                await write(event("error", json.dumps(problem(error)).encode()))
            except TimeoutError:
                tasks.cancel_scope.cancel()
                return
            await write(b"", False)
            tasks.cancel_scope.cancel()

    async def _follow(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        version, known = None, self._known
        read = said = anyio.current_time() - COARSE
        while not self._stopping():
            now = anyio.current_time()
            present = await self._version()
            if present != version or now - read >= COARSE:
                version, read = present, now
                tag, body = await self._look()
                if tag != known:
                    known, said = tag, now
                    await write(event("change", body, tag))
            if now - said >= QUIET:
                said = now
                await write(b":\n\n")
            await anyio.sleep(LOOK)
