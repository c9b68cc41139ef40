"""What the URI of a webhook says, and the options that concern webhooks.

The URI is that of the endpoint with ``webhook-`` in front. Its query belongs to the endpoint, as
in CockroachDB, except for the parameters named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import Settings, Tls, group, invalid, rest, setting
from changefeed.core.uri import invalid_uri, webhook_endpoint
from changefeed.options.sink_config import RetryLimits, WebhookSinkConfig
from sinks.naming import TOPIC_PREFIX

MAX_MESSAGES = 1_000
MAX_BYTES = 1_000_000
"""Body of one request when ``Flush.Bytes`` says nothing: below nginx' usual limit of 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Settings):
    """``webhook-https://`` and ``webhook-http://``."""

    tls: Tls = group(Tls)
    parallel: int = setting(
        4, "The most concurrent requests; rows of one key are never in two.", least=1, most=64
    )
    topic_prefix: str = setting("", TOPIC_PREFIX)
    query: tuple[tuple[str, str], ...] = rest()

    @cached_property
    def url(self) -> str:
        """Where to POST. It may hold a token, so it is not shown: :attr:`place` is."""
        return webhook_endpoint(self.uri.text, self.query)

    @property
    def place(self) -> str:
        """Host and port of the endpoint."""
        return urlsplit(self.uri.text).netloc.rpartition("@")[2]

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password of the URI."""
        return None if self.uri.user is None else (self.uri.user, self.uri.password or "")

    @property
    def authorization(self) -> str | None:
        """The whole ``Authorization`` header."""
        return self._text("webhook_auth_header")

    @property
    def signing_secret(self) -> str | None:
        """The key of the signature."""
        return self._text("webhook_signing_secret")

    def _text(self, option: str) -> str | None:
        value = self.options.get(option)
        return str(value) if value else None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that the option adds."""
        headers = self.options.get("extra_headers")
        return headers if isinstance(headers, tuple) else ()

    @cached_property
    def _config(self) -> WebhookSinkConfig:
        config = self.options.get("webhook_sink_config")
        return config if isinstance(config, WebhookSinkConfig) else WebhookSinkConfig()

    @property
    def messages(self) -> int:
        """The most messages of a request."""
        return self._config.flush.messages or MAX_MESSAGES

    @property
    def bytes(self) -> int:
        """The most bytes of a request's body."""
        return self._config.flush.bytes or MAX_BYTES

    @property
    def frequency(self) -> float:
        """Seconds that changes gather; 0: not at all."""
        return self._config.flush.frequency

    @property
    def retry(self) -> RetryLimits:
        """How often a request is tried."""
        return self._config.retry

    @property
    def timeout(self) -> float:
        """Seconds without a byte after which a request has failed; it may take ten times as long
        altogether."""
        timeout = self.options.get("webhook_client_timeout")
        return float(timeout) if isinstance(timeout, int | float) else 3.0

    @property
    def compression(self) -> str:
        """Of a request's body; ``none``: as it is."""
        return str(self.options.get("compression") or "none")

    def check(self) -> Iterator[ChangefeedError]:
        if len(self.uri.hosts) != 1 or not self.uri.host:
            raise invalid_uri("a webhook needs one host", f"write {self.uri.scheme}://host/path")
        if self.uri.scheme == "webhook-http":
            for name in self.tls.wanted:
                yield invalid(f"{name} requires webhook-https")
        if self.login and self.authorization:
            yield invalid(
                "cannot specify both webhook_auth_header and a user in the URI",
                code=Code.OPTIONS_CONTRADICT,
            )
