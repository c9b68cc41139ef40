"""A node elsewhere that executes statements over HTTP: what the shell uses with ``--url``. It also
answers what a prompt asks.

A token goes to the address that was given and to no other: redirects are not followed, and without
TLS it stays on this machine.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from changefeed.api import KnownNames, Result, Session, ShownTable, StreamRow, Summary
from changefeed.core.addresses import names_this_machine
from changefeed.core.errors import ChangefeedError, Code, Problems
from changefeed.http.answers import error_of, names_of, result_of, summary_of, table_of
from changefeed.http.forms import LINES, restore_session, session_form
from grammar.binding import ParameterValue
from grammar.printer import name as quoted_name
from grammar.printer import parts

T = TypeVar("T")

#: Seconds until what a prompt shows is there, or given up.
_FACTS_TIMEOUT = 10.0
#: Seconds to connect, and until a request is sent; statements answer when they have ended.
_TIMEOUT = httpx.Timeout(10.0, read=None)

_HINT = "look at the address; changefeed start --http serves one."


class RemoteNode:
    """Executes statements at a node, and is its :class:`~changefeed.api.PromptFacts`. Thread-safe;
    close it at the end."""

    def __init__(self, url: str, token: str = "") -> None:
        """``url`` is that of the node; paths of a proxy before ``/v1`` may be in it.

        Raises:
            ChangefeedError: CF1201, the token would travel in the clear.
        """
        self.url = url.rstrip("/")
        parts = urlsplit(url)
        if token and parts.scheme == "http" and not names_this_machine(parts.netloc):
            raise ChangefeedError(
                Code.INVALID_URI,
                f"a token is not sent to {self.url} in the clear",
                hint="use https://.",
            )
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT,
            # The authorities that the machine trusts, or those of SSL_CERT_FILE.
            verify=ssl.create_default_context() if parts.scheme == "https" else True,
        )

    def close(self) -> None:
        self._client.close()

    def execute(
        self,
        text: str,
        session: Session,
        parameters: Sequence[ParameterValue] = (),
        *,
        endless: bool = False,
    ) -> Result:
        """Execute one statement; ``endless`` says that it is a feed without a sink.

        Raises:
            ChangefeedError: the error of the statement; CF6001, the node cannot be reached.
        """
        body = {"statement": text, "session": session_form(session), "display": True}
        if parameters:
            body["parameters"] = list(parameters)
        with self._reported():
            response = self._client.send(
                self._client.build_request(
                    "POST",
                    f"{self.url}/v1/statements",
                    json=body,
                    headers={"Accept": LINES} if endless else {},
                ),
                stream=endless,
            )
            if response.status_code != 200:
                response.read()
                raise _located(error_of(self._object(response, response.content)), text)
            if endless:
                return self._followed(response, text)
            answer = self._object(response, response.content)
            restore_session(answer["session"], session)
            (form,) = answer["results"]
            return result_of(form)

    def names(self) -> KnownNames:
        """See :class:`~changefeed.api.PromptFacts`, as for the next three."""
        return self._read("names", names_of)

    def summary(self) -> Summary:
        return self._read("summary", summary_of)

    def tables(self, source: str) -> list[tuple[str, str]]:
        def read(form: Mapping[str, Any]) -> list[tuple[str, str]]:
            return [(schema, name) for schema, name in (parts(t["table"]) for t in form["items"])]

        return self._read(f"sources/{quote(source, '')}/tables", read)

    def table(self, source: str, name: tuple[str, ...]) -> ShownTable:
        written = ".".join(map(quoted_name, name))
        return self._read(f"sources/{quote(source, '')}/columns", table_of, table=written)

    def _read(self, path: str, read: Callable[[Mapping[str, Any]], T], **query: str) -> T:
        with self._reported():
            response = self._client.get(
                f"{self.url}/v1/{path}", params=query, timeout=_FACTS_TIMEOUT
            )
            answer = self._object(response, response.content)
            if response.status_code != 200:
                raise error_of(answer)
            return read(answer)

    def _followed(self, response: httpx.Response, text: str) -> Result:
        """The result of a feed without a sink; closing its stream ends the feed."""
        lines = _lines(response)
        first = self._object(response, next(lines, b""))
        if "error" in first:
            response.close()
            raise _located(error_of(first["error"]), text)

        def rows() -> Iterator[StreamRow]:
            with self._reported():
                try:
                    for line in lines:
                        value = self._object(response, line)
                        if "error" in value:
                            raise error_of(value["error"])
                        if "session" in value:
                            return
                        table, key, row, op = value["row"]
                        yield table, key, row, op
                finally:
                    response.close()
                raise self._unreachable("the connection ended before the feed did")

        return replace(result_of(first["result"]), stream=rows())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise self._unreachable(*_reason(error)) from error
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreachable("what it answers is not a node's answer") from error

    def _object(self, response: httpx.Response, text: bytes) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._unreachable(f"it answers {response.status_code} and not as a node does")
        return value

    def _unreachable(self, reason: str, hint: str = _HINT) -> ChangefeedError:
        return ChangefeedError(
            Code.STATE_UNREACHABLE, f"the node at {self.url} cannot be used: {reason}", hint=hint
        )


def _reason(error: httpx.HTTPError) -> tuple[str, str]:
    """Why a request failed, and what to do; httpx has the words of the network in its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted: {cause.verify_message}",
                "SSL_CERT_FILE names the file of the authority that issued it.",
            )
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror, _HINT
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__, _HINT


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Lines that end with a line feed: the texts in them may have other ends of lines."""
    held = b""
    for part in response.iter_bytes():
        *whole, held = (held + part).split(b"\n")
        yield from whole


def _located(error: ChangefeedError, text: str) -> ChangefeedError:
    for one in error.problems if isinstance(error, Problems) else ():
        one.located(text)
    return error.located(text)
