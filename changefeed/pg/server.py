"""One address, served on a thread of its own: connections, TLS, logins and requests to cancel."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from anyio import CapacityLimiter, to_thread

from changefeed.api import Interpreter, Role, Session
from changefeed.core.addresses import address_of, listen, unusable_certificate
from changefeed.core.errors import ChangefeedError
from changefeed.core.scram import MECHANISM, Exchange, ScramError, Verifier
from changefeed.core.telemetry import log
from changefeed.pg import messages
from changefeed.pg.connection import Inbox, Outlet, PgConnection
from changefeed.pg.messages import Body, PgError, message, protocol_error
from changefeed.pg.session import PgSession

#: Clients that are logged in at once, and sockets that may be open for them, those of logins and
#: of requests to cancel included.
CLIENTS = 100
_SOCKETS = 200

#: Seconds until a client must have logged in.
PATIENCE = 10.0

#: Seconds that a client has to read why its connection ends.
_LAST_WORDS = 1.0

#: The user of a client on an address without logins.
_ANYONE = "pg client"


@dataclass(slots=True)
class _Client:
    """One that is logged in: how another connection cancels its statement."""

    secret: bytes
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Streams:
    """The socket of one client, and later its TLS."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encrypted: bool = False


class PgServer:
    """Serves a state until closed. Use as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        interpreter: Interpreter,
        *,
        tls: tuple[str, str] | None = None,
        logins: bool = False,
        patience: float = PATIENCE,
        clients: int = CLIENTS,
    ) -> None:
        """Port 0 takes a free one: see :attr:`address`.

        Args:
            interpreter: runs the statements.
            tls: files of the certificate, with its chain, and of its key, as PEM. With it a client
                without TLS is refused.
            logins: clients log in with name and token of a user; without, each may do everything.
            patience: seconds until a client must have logged in.
            clients: how many there may be.

        Raises:
            ChangefeedError: CF6006 the address is taken or not allowed; CF6007 the certificate or
                the key cannot be used.
        """
        self._interpreter, self._logins, self._patience = interpreter, logins, patience
        self._most = clients
        self._tls = None if tls is None else _context(*tls)
        self._socket = listen(host, port)
        # A client whose machine has gone must not keep its place.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._stopping = threading.Event()
        self._clients: dict[int, _Client] = {}
        self._tasks: dict[asyncio.Task[None], _Streams] = {}
        self._mocks = secrets.token_bytes(32)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pg", daemon=True)

    @property
    def address(self) -> str:
        """``host:port``."""
        return address_of(self._socket)

    def __enter__(self) -> PgServer:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        loop, ended = self._loop, self._ended
        if loop is not None and ended is not None:
            loop.call_soon_threadsafe(ended.set)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._limiter = CapacityLimiter(self._most)
        server = await asyncio.start_server(self._connected, sock=self._socket)
        self._started.set()
        async with server:
            await self._ended.wait()
            server.close()
            tasks = dict(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=2 * _LAST_WORDS)
            # A statement may wait for a client that does not read.
            for streams in tasks.values():
                streams.writer.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("streams run in a task")
        if len(self._tasks) >= _SOCKETS:
            writer.transport.abort()
            return
        streams = self._tasks[task] = _Streams(reader, writer)
        try:
            await self._client(streams)
        except PgError as error:
            await _farewell(streams, error)
        except ChangefeedError as error:
            # Who it is is not known: what the error says of the state is for the log.
            log.warning("pg: a client could not log in: %s", error.message)
            why = PgError("57P03", "the node cannot read its state", hint="try again later.")
            await _farewell(streams, why)
        except (OSError, EOFError, TimeoutError):
            pass  # the client has gone, or never said who it is: there is no one to answer
        except asyncio.CancelledError:
            await _farewell(streams, PgError("57P01", "the node ends", fatal=True))
        finally:
            del self._tasks[task]
            streams.writer.transport.abort()

    async def _client(self, streams: _Streams) -> None:
        async with asyncio.timeout(self._patience):
            given = await self._startup(streams)
            if given is None:
                return
            session, verifier = await self._login(streams, given)
        address = streams.writer.get_extra_info("peername")
        session.origin = str(address[0]) if address else "pg"
        if len(self._clients) >= self._most:
            raise PgError("53300", f"there are {self._most} clients already", fatal=True)
        client, number = _Client(secrets.token_bytes(4)), _number(self._clients)
        self._clients[number] = client
        try:
            await self._serve_client(streams, session, verifier, client, number, given)
        finally:
            del self._clients[number]

    # -- before the login -----------------------------------------------------------------

    async def _startup(self, streams: _Streams) -> dict[str, str] | None:
        """What the client says of itself; None for a request to cancel."""
        while True:
            number, body = await messages.read_startup(streams.reader)
            if number == messages.CANCEL_REQUEST:
                self._cancel(body)
                return None
            if number == messages.GSS_REQUEST:
                streams.writer.write(b"N")
            elif number == messages.SSL_REQUEST and not streams.encrypted:
                if self._tls is None:
                    streams.writer.write(b"N")
                else:
                    await _encrypt(streams, self._tls)
            elif number >> 16 == 3:
                break
            else:
                raise protocol_error("this is a server of PostgreSQL's protocol, version 3")
        if self._tls is not None and not streams.encrypted:
            raise PgError(
                "28000", "the address is served with TLS alone", hint="sslmode=require", fatal=True
            )
        return self._parameters(streams, number, body)

    def _parameters(self, streams: _Streams, number: int, body: Body) -> dict[str, str]:
        found: dict[str, str] = {}
        while name := body.text():
            found[name] = body.text()
        body.end()
        unknown = [name for name in found if name.startswith("_pq_.")]
        if number != messages.PROTOCOL_3 or unknown:
            shape = struct.pack("!ii", messages.PROTOCOL_3, len(unknown))
            names = b"".join(map(messages.cstring, unknown))
            streams.writer.write(message(b"v", shape, names))
        if found.get("replication", "off").lower() not in ("off", "false", "0", "no"):
            raise PgError("0A000", "there is no replication protocol here", fatal=True)
        return found

    def _cancel(self, body: Body) -> None:
        number, secret = body.int32(), body.take(4)
        client = self._clients.get(number)
        if client is not None and hmac.compare_digest(client.secret, secret):
            client.cancelled.set()

    async def _login(
        self, streams: _Streams, given: dict[str, str]
    ) -> tuple[Session, Verifier | None]:
        """The session of the client that logs in, and what its login was held against."""
        if not self._logins:
            return Session(client="pg", user=_ANYONE), None
        name = given.get("user", "")
        found = await to_thread.run_sync(self._interpreter.catalog.login_of, name)
        user, stored = found or (None, None)
        verifier = Verifier.parse(stored) if stored else Verifier.of_nobody(name, self._mocks)
        exchange = Exchange(verifier)
        try:
            body = await _asked(streams, 10, messages.cstring(MECHANISM) + b"\0")
            if body.text() != MECHANISM:
                raise ScramError("the mechanism is not SCRAM-SHA-256")
            answer = exchange.first(body.value() or b"")
            body = await _asked(streams, 11, answer)
            answer = exchange.final(body.rest())
        except ScramError as error:
            peer = (streams.writer.get_extra_info("peername") or ["?"])[0]
            log.warning("pg: a login was refused, from %s: %s", peer, error)
            raise PgError(
                "28P01",
                f'password authentication failed for user "{name}"',
                hint="the password is the token of the user; ALTER USER .. WITH token = 'new'.",
                fatal=True,
            ) from error
        if user is None:
            raise AssertionError("no proof fits a verifier of nobody")
        streams.writer.write(message(b"R", struct.pack("!i", 12), answer))
        return Session(client="pg", user=user.name, role=Role(user.role)), verifier

    # -- after it -------------------------------------------------------------------------

    async def _serve_client(
        self,
        streams: _Streams,
        session: Session,
        verifier: Verifier | None,
        client: _Client,
        number: int,
        given: dict[str, str],
    ) -> None:
        left = threading.Event()
        session.gone = lambda: left.is_set() or client.cancelled.is_set() or self._stopping.is_set()
        outlet, inbox = Outlet(streams.writer), Inbox(streams.reader, left)
        work = PgSession(self._interpreter, session)
        for name, value in given.items():
            if name not in ("user", "database", "options", "replication"):
                work.variables.set(name, value)
        outlet.put(message(b"R", struct.pack("!i", 0)))
        outlet.put(message(b"K", struct.pack("!i", number), client.secret))
        connection = PgConnection(
            work,
            inbox,
            outlet,
            limiter=self._limiter,
            cancelled=client.cancelled,
            stopping=self._stopping,
            doomed=self._doomed(session, verifier),
        )
        reading = asyncio.create_task(inbox.fill())
        try:
            await connection.serve()
        finally:
            reading.cancel()
            left.set()
            await to_thread.run_sync(connection.close)

    def _doomed(self, session: Session, verifier: Verifier | None) -> Callable[[], PgError | None]:
        """Looks whether the user is still there, with the token of the login, and takes up its
        role: before each statement, as a request over HTTP does."""

        def look() -> PgError | None:
            if verifier is None:
                return None
            found = self._interpreter.catalog.login_of(session.user, note=True)
            if found is None or found[1] != str(verifier):
                return PgError("28000", "the login has ended", fatal=True)
            session.role = Role(found[0].role)
            return None

        return look


async def _asked(streams: _Streams, number: int, data: bytes) -> Body:
    """Send a step of the login, and read the client's answer."""
    streams.writer.write(message(b"R", struct.pack("!i", number), data))
    kind, body = await messages.read_message(streams.reader, messages.LARGEST_BEFORE_LOGIN)
    if kind != b"p":
        raise protocol_error("the client does not log in")
    return body


async def _encrypt(streams: _Streams, tls: ssl.SSLContext) -> None:
    """Go on with TLS. What the client sent before the answer is thrown away: anyone on the way
    could have written it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    streams.writer.write(b"S")
    transport = await loop.start_tls(streams.writer.transport, protocol, tls, server_side=True)
    if transport is None:
        raise EOFError
    protocol.connection_made(transport)
    streams.reader = reader
    streams.writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    streams.encrypted = True


async def _farewell(streams: _Streams, error: PgError) -> None:
    """Say why the connection ends, to a client that may not listen."""
    if streams.writer.transport.is_closing():
        return
    error.fatal = True
    streams.writer.write(error.form())
    try:
        async with asyncio.timeout(_LAST_WORDS):
            streams.writer.close()
            await streams.writer.wait_closed()
    except (OSError, TimeoutError):
        return


def _context(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise unusable_certificate(cert, key, error) from error
    return context


def _number(taken: dict[int, _Client]) -> int:
    while (number := secrets.randbelow(1 << 30) + 1) in taken:
        continue
    return number
