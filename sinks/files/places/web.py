"""``http(s)://host/path``: each file by PUT, as WebDAV servers and artifact stores take them.

There is no listing, so there are no manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import tls_context
from changefeed.core.time_limits import PATIENCE, limit_httpx
from sinks.files.places.base import ListedFile, Move, publish_whole
from sinks.files.places.spec import PlaceSpec

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0
"""Seconds without a byte after which a PUT has failed."""
_BUSY = {408, 425, 429, 503}


class WebPlace:
    """A folder on a server."""

    staging = None

    def __init__(
        self, spec: PlaceSpec, *, timeout: float = TIMEOUT, patience: float = PATIENCE
    ) -> None:
        """The server may be silent for ``timeout`` seconds, and a request may take ``patience``
        times as long."""
        self._timeout, self._patience = timeout, patience
        self._root = spec.root
        self._spec = spec
        self._client: httpx.Client | None = None

    def _connected(self) -> httpx.Client:
        if self._client is None:
            import httpx

            # At INFO it logs every URL.
            logging.getLogger("httpx").setLevel(logging.WARNING)
            arguments = self._spec.arguments
            login = arguments.get("user")
            self._client = httpx.Client(
                # Without TLS (and redirects are not followed) there is nothing to load.
                verify=tls_context(arguments.get("ca"))
                if self._root.startswith("https:")
                else False,
                auth=None if login is None else (login, arguments.get("password", "")),
                timeout=self._timeout,
            )
            limit_httpx(self._client, self._timeout, self._patience)
        return self._client

    def prepare(self, job: int, session: str) -> None:
        """Asks nothing: the first PUT shows whether the server takes files."""
        self._connected()

    def look(self) -> ChangefeedError | None:
        """Any answer will do: what the server says of a request without a file means nothing."""
        import httpx

        try:
            self._connected().head(self.url(""))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = str(error) or type(error).__name__
            return ChangefeedError(
                Code.SINK_UNREACHABLE, f"cannot reach {self._spec.shown}: {reason}"
            )
        except httpx.HTTPError:
            return None  # it is there, and does not like the question
        return None

    def publish(self, moves: Sequence[Move]) -> None:
        publish_whole(moves, self._put)

    def put(self, name: str, content: bytes) -> None:
        self._put(name, pa.py_buffer(content))

    def _put(self, name: str, content: pa.Buffer) -> None:
        import httpx

        try:
            answer = self._connected().put(self.url(name), content=content.to_pybytes())
        except httpx.HTTPError as error:
            text = str(error) or type(error).__name__
            raise ChangefeedError(
                Code.SINK_UNREACHABLE, f"cannot reach {self._root}: {text}"
            ) from error
        if not answer.is_success:
            raise _judged(self._root, answer.status_code)

    def remove(self, names: Sequence[str]) -> None:
        import httpx

        for name in names:
            try:
                self._connected().delete(self.url(name))
            except httpx.HTTPError:
                return  # away: the files do no harm

    def folders(self, folder: str) -> list[str]:
        raise NotImplementedError("a server that takes PUT has no listing")

    def files(self, folder: str) -> list[ListedFile]:
        raise NotImplementedError("a server that takes PUT has no listing")

    def url(self, name: str) -> str:
        scheme, _, rest = self._root.partition("://")
        return f"{scheme}://{quote(rest + '/' + name, safe='/:[]')}"

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _judged(shown: str, status: int) -> ChangefeedError:
    """The error for an answer other than success. Its body is not read."""
    try:
        said = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = str(status)
    if status in (401, 403, 407):
        hint = "check user and password in the URI, then RESUME."
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN, f"{shown} refused the login: {said}", hint=hint
        )
    if status == 507:
        return ChangefeedError(Code.SINK_BUSY, f"no room at {shown}: {said}")
    if status in _BUSY:
        return ChangefeedError(Code.SINK_BUSY, f"{shown} is busy: {said}")
    if status >= 500:
        return ChangefeedError(Code.SINK_UNREACHABLE, f"{shown} failed: {said}")
    hint = "the server must take PUT below this path and make folders by itself; then RESUME."
    return ChangefeedError(
        Code.SINK_REFUSED_LOGIN, f"{shown} does not take files: {said}", hint=hint
    )
