"""What the URI of an Elasticsearch sink says, and how its indices are called."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import ParameterKind, Settings, Tls, group, invalid, setting
from changefeed.core.uri import invalid_uri
from changefeed.options import ExistingTarget
from sinks.ownership import policy_of

DEFAULT_PORT = 9200
SECURE_SCHEME = "elasticsearch+https"

#: ``json``: what a json column is in a new index.
JSON_MAPPINGS = ("flattened", "object", "stored")


def _plain(value: str) -> str:
    """The name of an index, without a prefix or escapes."""
    if value != index_name(value):
        raise ValueError(
            "must be a name Elasticsearch takes for an index", f"for example {index_name(value)}"
        )
    return value


@dataclass(frozen=True, kw_only=True)
class ElasticsearchSettings(Settings):
    """``elasticsearch://`` and ``elasticsearch+https://``."""

    index_prefix: str = setting("", "Prefix of the name of every index.")
    index: str = setting("", "One index for all tables.", shown="an index per table")
    api_key: str = setting("", "An API key, instead of user and password.", secret=True)
    tls: Tls = group(Tls)
    dead_letter_index: str = setting(
        "", "The index of refused documents.", shown="none: the table stops", convert=_plain
    )
    json: str = setting(
        JSON_MAPPINGS[0], "What a json column is in a new index.", values=JSON_MAPPINGS
    )
    bulk_size: int = setting(5_000, "The most documents in a request.", least=1, most=1_000_000)
    bulk_bytes: int = setting("8MB", "The most bytes in a request.", ParameterKind.SIZE, least=1)
    in_flight: int = setting(4, "The most concurrent requests.", least=1, most=64)
    refresh: str = setting(
        "false",
        "The parameter refresh of Elasticsearch's bulk API.",
        values=("false", "true", "wait_for"),
    )
    timeout: float = setting(
        "60s",
        "How long the server may be silent; a request may take ten times as long.",
        ParameterKind.DURATION,
        least=0.001,
    )

    @property
    def secure(self) -> bool:
        """Requests go by TLS."""
        return self.uri.scheme == SECURE_SCHEME

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Name and port of the nodes."""
        return tuple((host.name, host.port or DEFAULT_PORT) for host in self.uri.hosts)

    @property
    def path_prefix(self) -> str:
        """What every path begins with, at a server behind a proxy."""
        return self.uri.path.rstrip("/")

    @cached_property
    def authorization(self) -> str | None:
        """The value of the header; None without a login."""
        if self.api_key:
            # Elasticsearch shows a key as id and secret, and as "encoded": base 64 of id:secret.
            return f"ApiKey {_packed(self.api_key) if ':' in self.api_key else self.api_key}"
        if self.uri.user is None:
            return None
        return "Basic " + _packed(f"{self.uri.user}:{self.uri.password or ''}")

    @property
    def compress(self) -> bool:
        """Bodies of requests are compressed."""
        return self.options.get("compression") == "gzip"

    @property
    def envelope(self) -> str:
        """What documents look like."""
        return str(self.options.get("envelope") or "row")

    @property
    def existing(self) -> ExistingTarget:
        """What happens to an index whose documents are not the feed's."""
        return policy_of(self.options)

    def index_of(self, name: str) -> str:
        """The index of the table (or topic alias) ``name``."""
        return index_name(self.index_prefix + (self.index or name))

    @property
    def resolved_index(self) -> str:
        """The index for the feed's resolved timestamps."""
        return index_name(f"{self.index_prefix}changefeed_resolved")

    @property
    def shown(self) -> str:
        """The address without secrets, for errors."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{'https' if self.secure else 'http'}://{hosts}{self.path_prefix}"

    def check(self) -> Iterator[ChangefeedError]:
        if not self.uri.host:
            yield invalid_uri(
                "the sink URI names no host",
                f"write {self.uri.scheme}://host:{DEFAULT_PORT}, several with commas.",
            )
        if self.options.get("key_column"):
            yield invalid(
                "this sink is incompatible with option key_column",
                "a document's id is the row's key, or rows would overwrite each other.",
                Code.OPTION_DOES_NOT_FIT_SINK,
            )
        if self.api_key and self.uri.user is not None:
            yield invalid("a user and the param api_key exclude each other")
        if not self.secure:
            for name in self.tls.wanted:
                yield invalid(f"{name} needs TLS", f"write {SECURE_SCHEME}://")


def _packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


MAX_INDEX_BYTES = 255

_FORBIDDEN = re.compile(r'[\\/*?"<>|\s,#:\x00-\x1f\x7f]')
_LOOKS_ESCAPED = re.compile(r"_u[0-9a-f]{4,8}_")
#: A leading dot makes a hidden index, which is Elasticsearch's own business.
_FORBIDDEN_FIRST = "_-+."


def index_name(name: str) -> str:
    """The index for a table called ``name``.

    Letters become lower case; a forbidden character becomes ``_uXXXX_`` (its code point), and what
    looks like that is escaped itself. A forbidden first character is written without the leading
    underscore, as nothing may begin with one: ``_log`` is ``u005f_log``. A result above 255 bytes
    is cut and ends in a digest of the whole name.
    """
    lower = name.lower()
    escaped = _LOOKS_ESCAPED.sub(lambda match: _escape(match[0][0]) + match[0][1:], lower)
    escaped = _FORBIDDEN.sub(lambda match: _escape(match[0]), escaped)
    if lower and lower[0] in _FORBIDDEN_FIRST:
        escaped = _escape(lower[0]) + escaped.removeprefix(lower[0])
    if escaped.startswith("_"):
        escaped = escaped[1:]
    data = escaped.encode()
    if len(data) > MAX_INDEX_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        escaped = f"{data[: MAX_INDEX_BYTES - 17].decode(errors='ignore')}-{digest}"
    return escaped


def _escape(character: str) -> str:
    return f"_u{ord(character):04x}_"
