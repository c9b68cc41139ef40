"""Parameters of ``webhook-https://`` and the options that concern webhooks.

The URI is that of the endpoint with ``webhook-`` in front. Its query belongs to the endpoint, as
in CockroachDB, except for the parameters named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from changefeed.core.errors import ChangefeedError, Code, raise_all
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.core.uri import SinkURL
from changefeed.options.sink_config import RetryLimits, WebhookSinkConfig
from sinks.parameters import TLS, TOPIC_PREFIX, Parameters

MAX_MESSAGES = 1_000
MAX_BYTES = 1_000_000
"""Body of one request when ``Flush.Bytes`` says nothing: below nginx' usual limit of 1 MiB."""

DEFAULT_PARALLEL = 4
MOST_PARALLEL = 64

#: What is not the endpoint's own.
PARAMETERS = (
    *TLS,
    Parameter(
        "parallel",
        "The most concurrent requests; rows of one key are never in two.",
        ParameterKind.NUMBER,
        default=str(DEFAULT_PARALLEL),
    ),
    TOPIC_PREFIX,
)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts; None is what the system trusts, and no client certificate."""

    verify: bool = True
    ca: str | None = None
    certificate: str | None = None
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """A checked sink URI with its options.

    Attributes:
        url: where to POST, without user and password. Its path and query may hold a token, so
            it is not shown: :attr:`place` is.
        login: user and password of the URI.
        authorization: the whole ``Authorization`` header.
        signing_secret: key of the signature.
        messages, bytes: where a request is full.
        frequency: seconds that changes gather, 0 is not at all.
        parallel: requests in flight; rows of one key never are in two.
        timeout: seconds without a byte after which a request has failed; it may take ten times as
            long altogether.
    """

    url: str = field(repr=False)
    place: str
    tls: Tls
    login: tuple[str, str] | None = field(repr=False)
    authorization: str | None = field(repr=False)
    signing_secret: str | None = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    messages: int
    bytes: int
    frequency: float
    retry: RetryLimits
    timeout: float
    parallel: int
    compression: str
    topic_prefix: str


def parse(uri: str, options: Mapping[str, object]) -> WebhookSettings:
    """Check a webhook's URI and options; connects to nothing.

    Raises:
        ChangefeedError: all problems found (``Problems`` when there are several).
    """
    reader = Parameters(uri, PARAMETERS)
    url = reader.url
    if len(url.hosts) != 1 or not url.host:
        raise ChangefeedError(
            Code.INVALID_URI,
            "a webhook needs one host",
            hint=f"write {url.scheme}://host/path",
        )
    tls = _tls(reader)
    parallel = reader.number("parallel", DEFAULT_PARALLEL, 1, MOST_PARALLEL)
    prefix = reader.text("topic_prefix") or ""
    login = _login(url)
    authorization = _text(options, "webhook_auth_header")
    if login and authorization:
        problem = "cannot specify both webhook_auth_header and a user in the URI"
        reader.found.append(ChangefeedError(Code.OPTIONS_CONTRADICT, problem))
    address = reader.attempt(lambda: _address(uri, url.take_rest()), "")
    raise_all(reader.found)
    config = options.get("webhook_sink_config")
    config = config if isinstance(config, WebhookSinkConfig) else WebhookSinkConfig()
    timeout = options.get("webhook_client_timeout")
    headers = options.get("extra_headers")
    return WebhookSettings(
        url=address,
        place=urlsplit(address).netloc,
        tls=tls,
        login=login,
        authorization=authorization,
        signing_secret=_text(options, "webhook_signing_secret"),
        headers=headers if isinstance(headers, tuple) else (),
        messages=config.flush.messages or MAX_MESSAGES,
        bytes=config.flush.bytes or MAX_BYTES,
        frequency=config.flush.frequency,
        retry=config.retry,
        timeout=float(timeout) if isinstance(timeout, int | float) else 3.0,
        parallel=parallel,
        compression=str(options.get("compression") or "none"),
        topic_prefix=prefix,
    )


def _text(options: Mapping[str, object], name: str) -> str | None:
    value = options.get(name)
    return str(value) if value else None


def _login(url: SinkURL) -> tuple[str, str] | None:
    return None if url.user is None else (url.user, url.password or "")


def _tls(reader: Parameters) -> Tls:
    texts = {name: reader.pem(name) for name in ("ca_cert", "client_cert", "client_key")}
    skip = reader.flag("insecure_tls_skip_verify")
    given = [*(n for n, v in texts.items() if v), *["insecure_tls_skip_verify"] * skip]
    if reader.scheme == "webhook-http":
        for name in given:
            reader.problem(f"{name} requires webhook-https")
    reader.check_certificate(given)
    return Tls(not skip, texts["ca_cert"], texts["client_cert"], texts["client_key"])


def _address(uri: str, query: tuple[tuple[str, str], ...]) -> str:
    """The endpoint: path as it was written, no user, and only parameters that are its own."""
    parts = urlsplit(uri.strip())
    host = parts.netloc.rpartition("@")[2]
    pairs = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in query)
    scheme = parts.scheme.removeprefix("webhook-")
    return f"{scheme}://{host}{parts.path or '/'}" + (f"?{pairs}" if pairs else "")
