"""One address, served by uvicorn on a thread of its own."""

from __future__ import annotations

import threading
import time
from weakref import WeakKeyDictionary

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from changefeed.core.addresses import address_of, listen, unusable_certificate

#: Seconds between two looks at connections that say nothing.
_LOOK = 1
#: Seconds that answers under way have when the server stops.
_FINISH = 2
#: Connections beyond this many are answered 503: each costs memory, a statement a thread.
_CONNECTIONS = 500


class HttpServer:
    """Serves an application until closed. Use as a context manager."""

    def __init__(
        self,
        host: str,
        port: int,
        application: ASGIApp,
        *,
        tls: tuple[str, str] | None = None,
        stopping: threading.Event | None = None,
        read_timeout: float = 10.0,
    ) -> None:
        """Port 0 takes a free one: see :attr:`address`.

        Args:
            application: what answers.
            tls: files of the certificate, with its chain, and of its key, as PEM.
            stopping: set when the server ends, so that statements under way end too.
            read_timeout: seconds until a connection without a request under way is closed.

        Raises:
            ChangefeedError: CF6006 the address is taken or not allowed; CF6007 the certificate or
                the key cannot be used.
        """
        cert, key = tls or (None, None)
        self._scheme = "http" if tls is None else "https"
        self._stopping = stopping or threading.Event()
        self._read_timeout = read_timeout
        self._idle: WeakKeyDictionary[H11Protocol, float] = WeakKeyDictionary()
        self._socket = listen(host, port)
        config = uvicorn.Config(
            application,
            ssl_certfile=cert,
            ssl_keyfile=key,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="auto",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=60,  # that of this class is shorter
            timeout_graceful_shutdown=_FINISH,
            timeout_notify=_LOOK,
            callback_notify=self._close_idle,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise unusable_certificate(cert, key, error) from error
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    @property
    def address(self) -> str:
        """``http://host:port``, or ``https``."""
        return f"{self._scheme}://{address_of(self._socket)}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    async def _close_idle(self) -> None:
        """Close the connections that have had no whole request for too long.

        uvicorn waits for ever for one that says nothing, or a header in a hundred pieces.
        """
        now = time.monotonic()
        for connection in list(self._server.server_state.connections):
            if not isinstance(connection, H11Protocol):
                raise AssertionError("the protocol is h11's")
            cycle, transport = connection.cycle, connection.transport
            ends = transport.is_closing()
            if cycle is not None and not cycle.response_complete and not ends:
                self._idle.pop(connection, None)
            elif now - self._idle.setdefault(connection, now) > self._read_timeout:
                # One that is closed already waits for ever for a client that does not read.
                (transport.abort if ends else transport.close)()
