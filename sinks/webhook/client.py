"""One request to a webhook: headers, signature, attempts, and what an answer means.

Nothing of an answer's body is shown: servers like to repeat the request in it.
"""

from __future__ import annotations

import email.utils
import hashlib
import hmac
import logging
import re
import ssl
import tempfile
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import httpx
import pyarrow as pa

from changefeed.core.clock import SYSTEM_CLOCK, Clock
from changefeed.core.errors import Action, ChangefeedError, Code
from changefeed.core.settings import Tls, no_pem, tls_context
from changefeed.core.time_limits import PATIENCE, limit_httpx
from sinks.webhook.options import WebhookSettings

SIGNATURE = "X-Changefeed-Signature"
BATCH_KEY = "Idempotency-Key"

LONGEST_PAUSE = 30.0
"""Seconds between two attempts at most; a server that asks for more gets the feed's own pause."""
MOST_SECONDS = 60.0
"""How long one request is tried with ``Retry.Max`` of ``inf``; then the feed tries again, for as
long as ``retry_for`` says, and can be paused in between."""
_ANSWER_BYTES = 65_536

_BUSY = {408, 425, 429, 503}
_LOGIN = {401, 403, 407}
#: Answers that are about the content: another message may well be taken.
_CONTENT = {400, 409, 413, 415, 422}


class RefusedContent(Exception):
    """The endpoint does not want this content. ``status`` is its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class WebhookClient:
    """POSTs bodies to one endpoint; used by several threads."""

    def __init__(
        self,
        settings: WebhookSettings,
        feed: str,
        halt: threading.Event,
        *,
        patience: float = PATIENCE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``halt`` ends the pause between two attempts, and the attempts; a request may take
        ``patience`` times what the endpoint may be silent."""
        self._settings = settings
        self._clock = clock
        self._halt = halt
        #: Why the last attempt of a request failed; empty once a request succeeds.
        self.trouble = ""
        # At INFO it logs every URL, and a URL may hold a token.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = httpx.Client(
            # Without TLS (and redirects are not followed) there is nothing to load.
            verify=_context(settings.tls) if settings.url.startswith("https:") else False,
            auth=settings.login,
            timeout=settings.timeout,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            headers=_headers(settings, feed),
            follow_redirects=False,
        )
        limit_httpx(self._client, settings.timeout, patience)

    def close(self) -> None:
        self._client.close()

    def post(self, content: bytes, key: str) -> None:
        """Deliver; returns when the endpoint answered with success.

        Raises:
            Refused: it will never take this content.
            ChangefeedError: CF5001, CF5004 after the last attempt; CF5002.
        """
        retry = self._settings.retry
        packed = _packed(content, self._settings.compression)
        deadline = self._clock.monotonic() + MOST_SECONDS
        attempt = 0
        while True:
            attempt += 1
            wanted = 0.0
            try:
                status, wanted = self._attempt(content, packed, key)
            except httpx.HTTPError as error:
                problem = _unreachable(self._settings.place, error)
            else:
                if 200 <= status < 300:
                    self.trouble = ""
                    return
                problem = _judged(self._settings.place, status)
            self.trouble = problem.message
            pause = max(wanted, min(LONGEST_PAUSE, retry.backoff * 2.0 ** min(attempt - 1, 30)))
            spent = retry.max is not None and attempt >= retry.max
            late = self._clock.monotonic() + pause > deadline
            if spent or late or pause > LONGEST_PAUSE or problem.action is not Action.RETRY:
                raise problem
            if self._clock.wait(self._halt, pause):
                raise problem

    def look(self) -> ChangefeedError | None:
        """Why the endpoint cannot be reached; an answer of any kind means that it can."""
        try:
            self._client.head(self._settings.url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _unreachable(self._settings.place, error)
        except httpx.HTTPError:
            return None  # it is there, and does not like the question
        return None

    def _attempt(self, content: bytes, packed: bytes, key: str) -> tuple[int, float]:
        """Returns the status, and the seconds that the server wants us to wait."""
        headers = {BATCH_KEY: key}
        if self._settings.signing_secret is not None:
            headers[SIGNATURE] = signature(
                self._settings.signing_secret, content, self._clock.now().wall / 1e9
            )
        request = self._client.build_request(
            "POST", self._settings.url, content=packed, headers=headers
        )
        response = self._client.send(request, stream=True)
        try:
            _drain(response)
        finally:
            response.close()
        if response.status_code in _CONTENT:
            raise RefusedContent(response.status_code)
        return response.status_code, _retry_after(
            response.headers.get("retry-after"), self._clock.now().wall / 1e9
        )


def signature(secret: str, content: bytes, now: float) -> str:
    """``t=<unix seconds>,v1=<hex>``: HMAC-SHA256 over ``<t>.<body before compression>``.

    The form Stripe made common. A receiver checks the time too, so that a request that was
    listened to cannot be sent again later.
    """
    seconds = str(int(now))
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + content, hashlib.sha256)
    return f"t={seconds},v1={digest.hexdigest()}"


def _headers(settings: WebhookSettings, feed: str) -> Mapping[str, str]:
    headers = {"User-Agent": f"changefeed/{feed}".encode("ascii", "replace").decode()}
    headers |= dict(settings.headers)
    headers["Content-Type"] = "application/json"
    if settings.compression != "none":
        headers["Content-Encoding"] = settings.compression
    if settings.authorization is not None:
        headers["Authorization"] = settings.authorization
    return headers


def _packed(content: bytes, compression: str) -> bytes:
    if compression == "none":
        return content
    packed: bytes = pa.compress(content, codec=compression, asbytes=True)
    return packed


def _drain(response: httpx.Response) -> None:
    """Read a short answer, so that the connection can be used again; leave a long one."""
    read = 0
    for chunk in response.iter_raw():
        read += len(chunk)
        if read > _ANSWER_BYTES:
            return


def _retry_after(text: str | None, now: float) -> float:
    """Seconds of a ``Retry-After`` header: a number or a date (RFC 9110, 10.2.3)."""
    if not text:
        return 0.0
    if re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return 0.0


def _judged(place: str, status: int) -> ChangefeedError:
    try:
        said = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = str(status)
    if status in _LOGIN:
        return ChangefeedError(
            Code.SINK_REFUSED_LOGIN,
            f"the webhook at {place} refused the login: {said}",
            hint="check webhook_auth_header (ALTER CHANGEFEED .. SET), then RESUME.",
        )
    if status in _BUSY:
        return ChangefeedError(Code.SINK_BUSY, f"the webhook at {place} is busy: {said}")
    if status >= 500:
        return ChangefeedError(
            Code.SINK_UNREACHABLE,
            f"the webhook at {place} failed: {said}",
            hint="check the log of that server.",
        )
    return ChangefeedError(
        Code.SINK_REFUSED_LOGIN,
        f"the webhook at {place} does not accept messages: {said}",
        hint="check path and query of the URI (ALTER CHANGEFEED .. INTO), then RESUME.",
    )


def _unreachable(place: str, error: httpx.HTTPError) -> ChangefeedError:
    """The error for a request without an answer. The client's text names addresses and TLS reasons
    only."""
    if isinstance(error, httpx.TimeoutException):
        what = "it did not answer in time"
        hint = "raise webhook_client_timeout if the server is slow."
    else:
        what, hint = str(error) or type(error).__name__, ""
    if "CERTIFICATE_VERIFY_FAILED" in what:
        hint = "name the authority that signed the server's certificate with ca_cert=<base64>."
    return ChangefeedError(
        Code.SINK_UNREACHABLE, f"cannot reach the webhook at {place}: {what}", hint=hint
    )


def _context(tls: Tls) -> ssl.SSLContext:
    context = tls_context(tls.ca_cert)
    try:
        if tls.insecure_tls_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.client_cert is not None and tls.client_key is not None:
            _load_client(context, tls.client_cert, tls.client_key)
    except (ssl.SSLError, ValueError) as error:
        raise no_pem("client_cert or client_key") from error
    return context


def _load_client(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """OpenSSL's interface takes files only: one that only this user may read, for a moment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.pem"
        path.touch(0o600)
        path.write_text(certificate + "\n" + key)
        context.load_cert_chain(path)
