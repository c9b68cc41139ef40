"""PostgreSQL's protocol with one client, from its first byte to its last."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread

from changefeed.core.errors import ChangefeedError
from changefeed.core.telemetry import log
from changefeed.pg import messages
from changefeed.pg.copying import copy_row
from changefeed.pg.messages import Body, PgError, message
from changefeed.pg.session import Answer, PgSession, PgStatement
from changefeed.pg.values import TEXT, Value, encoders, parameter

#: PgStatement statements of one client, their characters and parameters, and its portals.
_MOST_STATEMENTS = 1000
_LONGEST_STATEMENTS = 4 << 20
_MOST_PORTALS = 50

#: Bytes that wait for a slow client before its statement does.
_WAITING = 1 << 18

_READY_STATES = {"I": b"I", "T": b"T", "E": b"E"}


@dataclass(slots=True)
class _Portal:
    """A statement with its parameters, ready to run or running."""

    statement: PgStatement
    values: Sequence[Value]
    formats: Sequence[int]
    answer: Answer | None = None
    sent: int = 0


class Outlet:
    """What is sent to a client, from any thread, in order."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._woken = False

    def put(self, data: bytes) -> None:
        """Send soon; does not wait."""
        with self._lock:
            self._waiting += data
            wake, self._woken = not self._woken, True
        if wake:
            self._loop.call_soon_threadsafe(self._write)

    def put_rows(self, data: bytes) -> None:
        """Send from a statement's thread, which waits while the client does not read.

        Raises:
            OSError: the client has gone.
        """
        self.put(data)
        if len(self._waiting) > _WAITING or self._writer.transport.get_write_buffer_size():
            asyncio.run_coroutine_threadsafe(self.drain(), self._loop).result()

    def _write(self) -> None:
        with self._lock:
            data, self._waiting, self._woken = bytes(self._waiting), bytearray(), False
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken nearly everything."""
        self._write()
        await self._writer.drain()


@dataclass(slots=True)
class Inbox:
    """Messages of a client, read ahead, so that its leaving is seen while a statement runs."""

    reader: asyncio.StreamReader
    left: threading.Event
    _queue: asyncio.Queue[tuple[bytes, Body] | Exception] = field(
        default_factory=lambda: asyncio.Queue(4)
    )

    async def fill(self) -> None:
        """Read until the client ends."""
        try:
            while True:
                await self._queue.put(await messages.read_message(self.reader))
        except (OSError, asyncio.IncompleteReadError, PgError) as error:
            if not isinstance(error, PgError):
                self.left.set()
            await self._queue.put(error)

    async def take(self) -> tuple[bytes, Body]:
        """The next message.

        Raises:
            OSError, asyncio.IncompleteReadError: the client has gone.
            PgError: it does not speak the protocol.
        """
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        return found


class PgConnection:
    """Serves one client that has logged in."""

    def __init__(
        self,
        session: PgSession,
        inbox: Inbox,
        outlet: Outlet,
        *,
        limiter: CapacityLimiter,
        cancelled: threading.Event,
        stopping: threading.Event,
        doomed: Callable[[], PgError | None],
    ) -> None:
        """
        Args:
            session: carries out its statements.
            limiter: of the threads that they run in.
            cancelled: set by a request to cancel, cleared here.
            stopping: the server ends.
            doomed: why its login holds no longer; asked before each statement, in a thread.
        """
        self._session, self._inbox, self._outlet = session, inbox, outlet
        self._limiter, self._cancelled, self._stopping = limiter, cancelled, stopping
        self._doomed = doomed
        self._statements: dict[str, PgStatement] = {}
        self._portals: dict[str, _Portal] = {}

    async def serve(self) -> None:
        """Answer until the client ends.

        Raises:
            OSError, asyncio.IncompleteReadError: it has gone.
            PgError: fatal: the connection has to end.
        """
        self._ready()
        skipping = False
        while True:
            kind, body = await self._inbox.take()
            if kind == b"X":
                return
            if kind == b"S":
                skipping = False
                self._close_portals()
                self._ready()
                continue
            if skipping:
                continue
            try:
                await self._handle(kind, body)
            except PgError as error:
                if error.fatal:
                    raise
                self._fail(error)
                skipping = kind != b"Q"
            except ChangefeedError as error:
                self._fail(PgError.of(error, 0))
                skipping = kind != b"Q"
            if kind == b"Q":
                self._close_portals()
                self._ready()
            await self._outlet.drain()

    def close(self) -> None:
        """End what still gives rows."""
        self._close_portals()

    async def _handle(self, kind: bytes, body: Body) -> None:
        match kind:
            case b"Q":
                text = body.text()
                body.end()
                await self._query(text)
            case b"P":
                await self._parse(body)
            case b"B":
                self._bind(body)
            case b"D":
                await self._describe(body)
            case b"E":
                await self._execute(body)
            case b"C":
                self._close(body)
            case b"H":
                await self._outlet.drain()
            case b"d" | b"c" | b"f":
                pass  # of a COPY FROM that was refused
            case b"F":
                raise PgError("0A000", "function calls of the protocol are not supported")
            case _:
                raise messages.protocol_error("there is no message of this type")

    def _fail(self, error: PgError) -> None:
        self._session.fail()
        self._outlet.put(error.form())

    def _ready(self) -> None:
        for name, value in self._session.variables.changes():
            self._outlet.put(messages.parameter(name, value))
        self._outlet.put(message(b"Z", _READY_STATES[self._session.transaction]))

    async def _work(self, work: Callable[[], Any]) -> Any:
        """What ``work`` returns, in a thread.

        Raises:
            PgError: it failed, or was cancelled.
        """

        def guarded() -> Any:
            gone = self._doomed()
            if gone is not None:
                raise gone
            try:
                return work()
            except ChangefeedError as error:
                if self._cancelled.is_set():
                    raise _cancelled() from error
                raise
            except (PgError, OSError):
                raise
            except RecursionError:
                raise PgError("54001", "the statement is too deep") from None
            except Exception as error:
                log.error("pg: a statement failed", exc_info=error)
                raise PgError("XX000", "internal error", hint="node.log has it.") from error

        return await to_thread.run_sync(guarded, limiter=self._limiter)

    # -- simple queries -------------------------------------------------------------------

    async def _query(self, text: str) -> None:
        self._cancelled.clear()
        for statement in await self._work(lambda: self._session.prepare(text)):
            if statement.parameters:
                raise PgError("42P02", "there is no parameter $1")
            portal = _Portal(statement, (), ())
            if statement.kind == "empty":
                self._outlet.put(message(b"I"))
            else:
                await self._work(partial(self._run, portal, 0, describe=True))

    def _run(self, portal: _Portal, most: int, *, describe: bool) -> None:
        """Run a portal, or go on with it; in a thread. ``most`` rows, 0 is all."""
        answer = portal.answer
        if answer is None:
            answer = portal.answer = self._session.run(portal.statement, portal.values)
            for text in answer.notices:
                self._outlet.put(messages.notice(text))
            if answer.warning:
                self._outlet.put(messages.notice(answer.warning, state="25000", severity="WARNING"))
            if answer.copies:
                head = struct.pack("!bh", 0, len(answer.columns or ()))
                formats = struct.pack("!h", 0) * len(answer.columns or ())
                self._outlet.put(message(b"H", head, formats))
            elif describe and answer.columns is not None:
                self._outlet.put(_described(answer, portal.formats))
        if answer.columns is not None and self._send_rows(portal, answer, most):
            self._outlet.put(message(b"s"))
            return
        answer.close()
        if answer.forgets == "*":
            self._statements.clear()
        elif answer.forgets and self._statements.pop(answer.forgets, None) is None:
            raise PgError("26000", f'prepared statement "{answer.forgets}" does not exist')
        if self._cancelled.is_set():
            raise _cancelled()
        if self._stopping.is_set():
            raise PgError("57P01", "the node ends", fatal=True)
        if answer.copies:
            self._outlet.put(message(b"c"))
        tag = f"COPY {portal.sent}" if answer.copies else answer.tag
        counted = answer.counted and not answer.copies
        self._outlet.put(messages.complete(f"{tag} {portal.sent}" if counted else tag))

    def _send_rows(self, portal: _Portal, answer: Answer, most: int) -> bool:
        """Send rows; returns whether there may be more than ``most``."""
        columns = answer.columns or ()
        encode = encoders(columns, _spread(portal.formats, len(columns)))
        for count, row in enumerate(answer.rows, 1):
            values = [
                None if value is None else make(value)
                for make, value in zip(encode, row, strict=True)
            ]
            if answer.copies:
                data = message(b"d", copy_row(values, csv=answer.copies == "csv"))
            else:
                data = messages.data_row(values)
            self._outlet.put_rows(data)
            portal.sent += 1
            if count == most:
                return True
            if self._cancelled.is_set():
                break
        return False

    # -- extended queries -----------------------------------------------------------------

    async def _parse(self, body: Body) -> None:
        name, text = body.text(), body.text()
        oids = [body.int32() for _ in range(body.count())]
        body.end()
        if name and name in self._statements:
            raise PgError("42P05", f'prepared statement "{name}" already exists')
        found = await self._work(lambda: self._session.prepare(text, oids))
        if len(found) > 1:
            raise PgError("42601", "cannot insert multiple commands into a prepared statement")
        kept = self._statements.values()
        weight = sum(len(each.text) + len(each.parameters) for each in kept)
        if len(kept) >= _MOST_STATEMENTS or weight > _LONGEST_STATEMENTS:
            raise PgError("53400", "there are too many prepared statements")
        self._statements[name] = found[0]
        self._outlet.put(message(b"1"))

    def _statement(self, name: str) -> PgStatement:
        found = self._statements.get(name)
        if found is None:
            raise PgError("26000", f'prepared statement "{name}" does not exist')
        return found

    def _portal(self, name: str) -> _Portal:
        found = self._portals.get(name)
        if found is None:
            raise PgError("34000", f'portal "{name}" does not exist')
        return found

    def _bind(self, body: Body) -> None:
        name, statement = body.text(), self._statement(body.text())
        forms = body.int16s()
        data = [body.value() for _ in range(body.count())]
        results = body.int16s()
        body.end()
        if len(data) != len(statement.parameters):
            raise PgError(
                "08P01",
                f"bind message supplies {len(data)} parameters, but the prepared statement"
                f" requires {len(statement.parameters)}",
            )
        values = [
            parameter(each, oid, form)
            for each, oid, form in zip(
                data, statement.parameters, _spread(forms, len(data)), strict=True
            )
        ]
        self._drop_portal(name)
        if len(self._portals) >= _MOST_PORTALS:
            raise PgError("53400", f"there are {_MOST_PORTALS} portals already")
        self._portals[name] = _Portal(statement, values, results)
        self._outlet.put(message(b"2"))

    async def _describe(self, body: Body) -> None:
        kind, name = body.take(1), body.text()
        body.end()
        formats: Sequence[int] = ()
        values: Sequence[Value] | None = None
        if kind == b"S":
            statement = self._statement(name)
            oids = [oid or TEXT for oid in statement.parameters]
            shape = struct.pack(f"!h{len(oids)}i", len(oids), *oids)
            self._outlet.put(message(b"t", shape))
        elif kind == b"P":
            portal = self._portal(name)
            statement, formats, values = portal.statement, portal.formats, portal.values
        else:
            raise messages.protocol_error("a description is of a statement or a portal")
        if kind == b"P" and statement.kind == "select" and not statement.copies:
            # A query changes nothing: with its parameters its types are known.
            columns = await self._work(lambda: self._begin(portal).columns)
        else:
            columns = await self._work(lambda: self._session.columns(statement, values))
        if columns is None:
            self._outlet.put(message(b"n"))
        else:
            self._outlet.put(_described(Answer(columns), formats))

    def _begin(self, portal: _Portal) -> Answer:
        if portal.answer is None:
            portal.answer = self._session.run(portal.statement, portal.values)
        return portal.answer

    async def _execute(self, body: Body) -> None:
        portal, most = self._portal(body.text()), body.int32()
        body.end()
        self._cancelled.clear()
        if portal.statement.kind == "empty":
            self._outlet.put(message(b"I"))
        else:
            await self._work(lambda: self._run(portal, max(most, 0), describe=False))

    def _close(self, body: Body) -> None:
        kind, name = body.take(1), body.text()
        body.end()
        if kind == b"S":
            self._statements.pop(name, None)
        elif kind == b"P":
            self._drop_portal(name)
        else:
            raise messages.protocol_error("what is closed is a statement or a portal")
        self._outlet.put(message(b"3"))

    def _drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None and portal.answer is not None:
            portal.answer.close()

    def _close_portals(self) -> None:
        """At the end of a transaction; without one, of each query."""
        if self._session.transaction == "I":
            for name in list(self._portals):
                self._drop_portal(name)


def _cancelled() -> PgError:
    return PgError("57014", "canceling statement due to user request")


def _described(answer: Answer, formats: Sequence[int]) -> bytes:
    columns = answer.columns or ()
    shown = [(column.name, column.oid) for column in columns]
    return messages.row_description(shown, _spread(formats, len(columns)))


def _spread(formats: Sequence[int], count: int) -> Sequence[int]:
    """One format for each: none is text, one is that of all."""
    if len(formats) == count:
        return formats
    if len(formats) > 1:
        raise PgError("08P01", f"there are {len(formats)} formats for {count} values")
    return list(formats) * count if formats else [0] * count
