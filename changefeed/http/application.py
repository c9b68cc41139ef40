"""The routes of a node, and which requests are answered at all.

On a loopback address there need be no login, so nothing that a browser brings from another site
is answered there: a ``Host`` that is not this machine's, or a change that another page asks for.
With logins each request but the probes has the token of a user.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
from anyio import CapacityLimiter, from_thread, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from changefeed.api import Result, Role, Session
from changefeed.catalog import User
from changefeed.core.addresses import names_this_machine
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.telemetry import log
from changefeed.http.events import EVENTS, ListEvents, of_line
from changefeed.http.figures import suggestions
from changefeed.http.files import file_routes, index_route
from changefeed.http.forms import LINES, PROBLEM, problem, status_of
from changefeed.http.openapi import COMPLETED, document
from changefeed.http.resources import FACTS, RESOURCES, Fact, FactReader, Resource, read_fields
from changefeed.http.series import PACE, Series
from changefeed.http.statements import StatementRequest, StatementRun, collected
from changefeed.monitor import Monitor
from grammar import nodes

#: The largest body of a request, bytes.
LARGEST = 1 << 20

#: Statements that run at once; more wait. Listings and probes have threads of their own.
STATEMENTS = 32
#: Answers line by line at once; more are refused, as each has a thread while its client wants.
STREAMS = 32
#: Clients that watch a list at once; more are refused: each has it read again and again.
WATCHES = 64

_TEXT = "text/plain; charset=utf-8"

#: A page runs the files of this node alone, is in no other page's frame, and is read as what it is.
_PROTECTION = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src 'self';"
    " script-src 'self'; style-src 'self'; frame-ancestors 'none'; base-uri 'none';"
    " form-action 'none'",
}


class Api:
    """Answers the requests; knows no socket."""

    def __init__(
        self,
        monitor: Monitor,
        *,
        local: bool,
        api: bool = True,
        logins: bool = False,
        stopping: threading.Event | None = None,
        patience: float = 10.0,
        stalled: float = 60.0,
        streams: int = STREAMS,
        watches: int = WATCHES,
        largest: int = LARGEST,
        budget: int | None = None,
    ) -> None:
        """
        Args:
            monitor: of the node; its interpreter runs the statements.
            local: the address is this machine's loopback: only its own names are answered.
            api: the paths under ``/v1`` are served.
            logins: a request needs a token; without, one that has none may do everything.
            stopping: ends statements under way.
            patience: seconds until the body of a request must be there.
            stalled: seconds for which a client may leave the lines of an answer unread.
            streams: answers line by line that are given at once.
            watches: clients that watch lists at once.
            largest: bytes of a body.
            budget: bytes that the node allows each change log.
        """
        self._monitor = monitor
        self._interpreter = monitor.interpreter
        self._logins = logins
        self._stopping = stopping or threading.Event()
        self._patience = patience
        self._largest = largest
        self._budget = budget
        self._stalled = stalled
        self._limiter = CapacityLimiter(STATEMENTS)
        self._streams = CapacityLimiter(streams)
        self._watches = CapacityLimiter(watches)
        self._document = json.dumps(document()).encode()
        self._series = Series()
        routes = [
            index_route() if api else Route("/", self._page),
            *file_routes(),
            Route("/metrics", self._metrics),
            Route("/livez", self._alive),
            *(Route(path, self._ready) for path in ("/readyz", "/healthz", "/health")),
        ]
        if api:
            routes += [
                Route("/v1/openapi.json", self._openapi),
                Route("/v1/statements", self._statements, methods=["POST"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                *(Route(row.path, partial(self._fact, row)) for row in FACTS),
                *(
                    Route(row.path, partial(self._resource, row), methods=[row.method])
                    for row in RESOURCES
                ),
            ]
        self.application: ASGIApp = _Guard(
            Starlette(
                routes=routes,
                # Only the API has the series of the feeds.
                lifespan=self._watched if api else None,
                exception_handlers={
                    HTTPException: _not_served,
                    ChangefeedError: _failed,
                    Exception: _crashed,
                },
            ),
            local,
        )

    @asynccontextmanager
    async def _watched(self, _: Starlette) -> AsyncIterator[None]:
        """While the server runs, look at the feeds for their series."""
        looks = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looks.cancel()

    async def _look(self) -> None:
        while True:
            try:
                feeds = await to_thread.run_sync(self._interpreter.health)
            except ChangefeedError as error:  # the state is away: a gap in the series
                log.warning("http: the feeds cannot be looked at: %s", error.message)
            else:
                self._series.look(self._interpreter.clock.now().wall / 1e9, feeds)
            await asyncio.sleep(PACE)

    # -- for people, Prometheus and supervisors -------------------------------------------

    async def _page(self, request: Request) -> Response:
        return Response(await to_thread.run_sync(self._monitor.page), media_type="text/html")

    async def _metrics(self, request: Request) -> Response:
        await self._user(request)
        kind, text = await to_thread.run_sync(self._monitor.metrics)
        return Response(text, headers={"Content-Type": kind})

    async def _alive(self, request: Request) -> Response:
        return Response("ok\n", media_type=_TEXT)

    async def _ready(self, request: Request) -> Response:
        try:
            await to_thread.run_sync(self._monitor.check)
        except ChangefeedError as error:
            return Response(f"{error.message}\n", 503, media_type=_TEXT)
        return Response("ok\n", media_type=_TEXT)

    # -- /v1 ------------------------------------------------------------------------------

    async def _openapi(self, request: Request) -> Response:
        await self._user(request)
        return _listed(request, self._document)

    async def _fact(self, fact: Fact, request: Request) -> Response:
        user = await self._user(request)  # every role may see it
        given = {**read_fields(request.query_params, fact.query), **_parts(request)}
        work = partial(
            fact.read, FactReader(self._interpreter, self._series, self._budget, user), given
        )
        return _listed(request, _json(await to_thread.run_sync(work)))

    async def _resource(self, resource: Resource, request: Request) -> Response | ListEvents:
        left = threading.Event()
        session = await self._session(request, left)
        query = {name: _number(value) for name, value in request.query_params.items()}
        given = {
            **read_fields(query, resource.query),
            **read_fields(await self._object(request), resource.body),
            **_parts(request),
        }
        statement = resource.statement(given)
        events = request.method == "GET" and EVENTS in request.headers.get("accept", "")
        if resource.live and events:
            return self._watch(request, resource, statement)
        work = partial(self._interpreter.execute, statement, session)
        result = await self._while_there(request, left, work)
        return _listed(request, _answer(resource, result))

    def _watch(
        self, request: Request, resource: Resource, statement: nodes.Statement
    ) -> ListEvents:
        if not self._watches.available_tokens:
            raise _bad(HTTPStatus.SERVICE_UNAVAILABLE, "as many clients watch lists as may")

        async def look() -> tuple[str, bytes]:
            # Each time: the user may be gone, or have another role.
            session = await self._session(request, threading.Event())
            work = partial(self._interpreter.execute, statement, session)
            body = _answer(resource, await to_thread.run_sync(work))
            return _tag(body), body

        async def version() -> object:
            return await to_thread.run_sync(self._interpreter.catalog.version)

        known = request.headers.get("last-event-id", "")
        ends = self._stopping.is_set
        return ListEvents(look, version, known, self._stalled, ends, self._watches)

    async def _statements(self, request: Request) -> Response | _Lines:
        left = threading.Event()
        session = await self._session(request, left)
        asked = StatementRequest.read(await self._body(request))
        wanted = request.headers.get("accept", "")
        kind = next((kind for kind in (LINES, EVENTS) if kind in wanted), "")
        last = request.headers.get("last-event-id", "") if kind == EVENTS else None
        run = StatementRun(self._interpreter, asked, session, bool(kind), last)
        if kind:
            if not self._streams.available_tokens:
                raise _bad(HTTPStatus.SERVICE_UNAVAILABLE, "as many clients read lines as may")
            return _Lines(run, left, self._streams, self._stalled, kind)
        answer, error = await self._while_there(request, left, partial(collected, run))
        if error is None:
            return Response(_json(answer), media_type="application/json")
        return Response(_json(answer), status_of(error), media_type=PROBLEM)

    async def _completions(self, request: Request) -> Response:
        # No GET: a statement may have a secret, and addresses are written to logs.
        await self._user(request)
        given = read_fields(await self._object(request), COMPLETED)
        work = partial(suggestions, given.get("statement", ""))
        return Response(_json(await to_thread.run_sync(work)), media_type="application/json")

    async def _session(self, request: Request, left: threading.Event) -> Session:
        """The session of one request: whose it is, and until when it is wanted."""
        user = await self._user(request)
        return Session(
            client="http",
            user=user.name if user else "http client",
            origin=request.client.host if request.client else "http",
            role=Role(user.role) if user else None,
            gone=lambda: left.is_set() or self._stopping.is_set(),
        )

    async def _user(self, request: Request) -> User | None:
        """Who asks; None for a client without a token on an address without logins.

        Raises:
            ChangefeedError: CF1402, there is no token, or no user has it.
        """
        token = _token(request.headers.get("authorization", ""))
        if token is None:
            if not self._logins:
                return None
            raise ChangefeedError(Code.LOGIN_NEEDED, "the request has no token")
        user = await to_thread.run_sync(self._interpreter.catalog.user_of, token)
        if user is None:
            client = request.client.host if request.client else "?"
            log.warning("http: a token that no user has, or that has ended, from %s", client)
            raise ChangefeedError(Code.LOGIN_NEEDED, "no user has this token, or it has ended")
        return user

    async def _while_there(
        self, request: Request, left: threading.Event, work: Callable[[], Any]
    ) -> Any:
        """What ``work`` returns, in a thread; ``left`` is set when the client goes."""
        watch = asyncio.create_task(_note_leaving(request.receive, left))
        try:
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            watch.cancel()

    async def _object(self, request: Request) -> Mapping[str, Any]:
        size = request.headers.get("content-length", "0")
        if size == "0" and "transfer-encoding" not in request.headers:
            return {}
        body = await self._body(request)
        if not isinstance(body, dict):
            raise _bad(HTTPStatus.BAD_REQUEST, "the body is a JSON object")
        return body

    async def _body(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A page of another site can send a form or a text without asking, and no JSON.
            raise _bad(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is application/json")
        data = bytearray()
        try:
            with anyio.fail_after(self._patience):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > self._largest:
                        raise _bad(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"the body has more than {self._largest} bytes",
                        )
        except TimeoutError:
            raise _bad(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time") from None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise _bad(HTTPStatus.BAD_REQUEST, "the body is not JSON in UTF-8") from None


class _Lines:
    """The answer of statements line by line, one JSON object each, as long as its client reads."""

    def __init__(
        self,
        run: StatementRun,
        left: threading.Event,
        limiter: CapacityLimiter,
        stalled: float,
        kind: str,
    ) -> None:
        self._run, self._left, self._limiter = run, left, limiter
        self._stalled, self._kind = stalled, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", self._kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        watch = asyncio.create_task(_note_leaving(receive, self._left))

        async def line(value: Mapping[str, Any]) -> None:
            events = self._kind == EVENTS
            body = of_line(value, _json) if events else _json(value) + b"\n"
            with anyio.fail_after(self._stalled):
                await send({"type": "http.response.body", "body": body, "more_body": True})

        def work() -> None:
            # Closing the lines ends the feed.
            with closing(self._run.lines()) as lines:
                try:
                    for value in lines:
                        if self._left.is_set():
                            return
                        from_thread.run(line, value)
                except ChangefeedError as error:
                    from_thread.run(line, {"error": self._run.problem(error)})

        try:
            await to_thread.run_sync(work, limiter=self._limiter)
        except TimeoutError:
            # The server closes the connection, as the answer has no end.
            log.warning("http: a client left its answer unread for %g s", self._stalled)
            return
        finally:
            watch.cancel()
        await send({"type": "http.response.body", "body": b""})


#: In the place of a slash that is part of a name: ``%2F`` ends no part of a path.
_SLASH = "\ue000"


def _parts(request: Request) -> dict[str, str]:
    return {name: part.replace(_SLASH, "/") for name, part in request.path_params.items()}


class _Guard:
    """Refuses what a browser brings from elsewhere, and protects every answer."""

    def __init__(self, application: ASGIApp, local: bool) -> None:
        self._application = application
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_PROTECTION)
            await send(message)

        if scope["type"] != "http":  # the beginning and the end of the server
            await self._application(scope, receive, send)
            return
        if (raw := scope.get("raw_path")) and b"%2f" in raw.lower():
            path = unquote(re.sub(rb"%2[fF]", _SLASH.encode(), raw).decode())
            scope = {**scope, "path": path}
        refused = self._refused(scope["method"], Headers(scope=scope))
        answer = self._application if refused is None else _problem(refused)
        await answer(scope, receive, protected)

    def _refused(self, method: str, headers: Headers) -> HTTPException | None:
        host = headers.get("host", "")
        if self._local and not names_this_machine(host):
            return _bad(HTTPStatus.MISDIRECTED_REQUEST, "the Host is not a name of this machine")
        if method in ("GET", "HEAD"):
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        if foreign or site not in ("none", "same-origin"):
            return _bad(HTTPStatus.FORBIDDEN, "a page of another site asks for it")
        return None


async def _note_leaving(receive: Receive, left: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    left.set()


def _token(header: str) -> str | None:
    """The token of an ``Authorization`` header: a bearer's, or the password of a browser."""
    scheme, _, value = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value).decode().partition(":")[2]
    except ValueError:
        return ""


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


def _answer(resource: Resource, result: Result) -> bytes:
    rows = result.objects()
    answer = rows[0] if resource.one else {"items": rows, "notices": result.notices}
    if resource.one and result.notices:
        answer = {**answer, "notices": result.notices}
    return _json(answer)


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _listed(request: Request, body: bytes) -> Response:
    """An answer with an ETag, or that the client has it already."""
    tag = _tag(body)
    known = request.method != "POST" and tag in request.headers.get("if-none-match", "")
    headers = {"ETag": tag}
    if known:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


# -------------------------------------------------------------------------------- errors


def _bad(status: HTTPStatus, what: str) -> HTTPException:
    return HTTPException(status, what)


def _problem(error: HTTPException) -> Response:
    """A request that no statement was made of: its own status, and a code for programs."""
    body = problem(
        ChangefeedError(Code.REQUEST_REFUSED, error.detail), HTTPStatus(error.status_code)
    )
    return Response(_json(body), error.status_code, error.headers, media_type=PROBLEM)


async def _not_served(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _problem(error)


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, ChangefeedError):
        raise error
    # A browser asks for the token as for a password.
    login = {"WWW-Authenticate": 'Basic realm="changefeed"'}
    headers = login if error.code is Code.LOGIN_NEEDED else {}
    return Response(_json(problem(error)), status_of(error), headers, media_type=PROBLEM)


async def _crashed(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=HTTPStatus.BAD_REQUEST)
    log.error("http: %s %s", request.method, request.url.path, exc_info=error)
    return await _failed(request, ChangefeedError(Code.INTERNAL_ERROR, "internal error"))
