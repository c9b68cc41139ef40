"""Parameters of ``elasticsearch://`` and ``elasticsearch+https://``."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.parameters import Parameter, ParameterKind
from changefeed.options import ExistingTarget
from changefeed.options.types import parse_duration, parse_size
from sinks.ownership import policy_of
from sinks.parameters import TLS, Parameters

DEFAULT_PORT = 9200
SECURE_SCHEME = "elasticsearch+https"

#: ``json``: what a json column is in a new index.
JSON_MAPPINGS = ("flattened", "object", "stored")
REFRESHES = ("false", "true", "wait_for")

#: What the URIs of the two schemes take.
PARAMETERS = (
    Parameter("index_prefix", "Prefix of the name of every index."),
    Parameter("index", "One index for all tables.", default="an index per table"),
    Parameter("api_key", "An API key, instead of user and password.", secret=True),
    *TLS,
    Parameter(
        "dead_letter_index", "The index of refused documents.", default="none: the table stops"
    ),
    Parameter(
        "json",
        "What a json column is in a new index.",
        ParameterKind.CHOICE,
        JSON_MAPPINGS,
        JSON_MAPPINGS[0],
    ),
    Parameter(
        "bulk_size", "The most documents in a request.", ParameterKind.NUMBER, default="5000"
    ),
    Parameter("bulk_bytes", "The most bytes in a request.", ParameterKind.SIZE, default="8MB"),
    Parameter("in_flight", "The most concurrent requests.", ParameterKind.NUMBER, default="4"),
    Parameter(
        "refresh",
        "The parameter refresh of Elasticsearch's bulk API.",
        ParameterKind.CHOICE,
        REFRESHES,
        REFRESHES[0],
    ),
    Parameter(
        "timeout",
        "How long the server may be silent; a request may take ten times as long.",
        ParameterKind.DURATION,
        default="60s",
    ),
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ElasticsearchSettings:
    """A checked sink URI with its options.

    Attributes:
        hosts: ``(host, port)`` of the nodes.
        path_prefix: put before every path, for a server behind a proxy.
        authorization: value of the header, None without a login.
        ca_cert, client_cert, client_key: PEM texts.
        index_prefix: before every index name, escaped with it.
        index: in place of the table's name; empty means by table.
        dead_letter_index: where refused documents go; empty means that the table stops.
        bulk_size, bulk_bytes: documents and bytes after which a request is sent.
        in_flight: requests under way at once.
        refresh: the bulk parameter of that name.
        timeout: seconds the server may be silent.
        json: mapping of json columns in a new index.
        envelope: how documents look.
        existing: what becomes of an index whose documents are not the feed's.
    """

    hosts: tuple[tuple[str, int], ...]
    secure: bool = False
    path_prefix: str = ""
    authorization: str | None = field(default=None, repr=False)
    ca_cert: str | None = field(default=None, repr=False)
    client_cert: str | None = field(default=None, repr=False)
    client_key: str | None = field(default=None, repr=False)
    verify: bool = True
    index_prefix: str = ""
    index: str = ""
    dead_letter_index: str = ""
    bulk_size: int = 5_000
    bulk_bytes: int = 8_000_000
    in_flight: int = 4
    refresh: str = "false"
    timeout: float = 60.0
    json: str = "flattened"
    compress: bool = False
    envelope: str = "row"
    existing: ExistingTarget = ExistingTarget.REFUSE

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


def parse(uri: str, options: Mapping[str, object]) -> ElasticsearchSettings:
    """Check an Elasticsearch URI and the options that concern it; connects to nothing.

    Raises:
        ChangefeedError: all problems found (``Problems`` when there are several).
    """
    url = _Reader(uri)
    if options.get("key_column"):
        url.found.append(
            ChangefeedError(
                Code.OPTION_DOES_NOT_FIT_SINK,
                "this sink is incompatible with option key_column",
                hint="a document's id is the row's key, or rows would overwrite each other.",
            )
        )
    settings = ElasticsearchSettings(
        hosts=url.hosts(),
        secure=url.secure,
        path_prefix=url.url.path.rstrip("/"),
        authorization=url.authorization(),
        ca_cert=url.pem("ca_cert"),
        client_cert=url.pem("client_cert"),
        client_key=url.pem("client_key"),
        verify=not url.flag("insecure_tls_skip_verify"),
        index_prefix=url.text("index_prefix") or "",
        index=url.text("index") or "",
        dead_letter_index=url.plain_index("dead_letter_index"),
        bulk_size=url.number("bulk_size", 5_000, 1, 1_000_000),
        bulk_bytes=url.size("bulk_bytes", 8_000_000),
        in_flight=url.number("in_flight", 4, 1, 64),
        refresh=url.choice("refresh"),
        timeout=url.duration("timeout", 60.0),
        json=url.choice("json"),
        compress=options.get("compression") == "gzip",
        envelope=str(options.get("envelope") or "row"),
        existing=policy_of(options),
    )
    url.check_tls(settings)
    url.finish()
    return settings


class _Reader(Parameters):
    def __init__(self, uri: str) -> None:
        super().__init__(uri, PARAMETERS)

    @property
    def secure(self) -> bool:
        return self.scheme == SECURE_SCHEME

    def hosts(self) -> tuple[tuple[str, int], ...]:
        if not self.host:
            raise ChangefeedError(
                Code.INVALID_URI,
                "the sink URI names no host",
                hint=f"write {self.scheme}://host:{DEFAULT_PORT}, several with commas.",
            )
        return tuple((host.name, host.port or DEFAULT_PORT) for host in self.url.hosts)

    def authorization(self) -> str | None:
        key = self.text("api_key")
        user, password = self.url.user, self.url.password
        if key and user is not None:
            self.problem("a user and the param api_key exclude each other")
        if key:
            # Elasticsearch shows a key as id and secret, and as "encoded": base 64 of id:secret.
            packed = base64.b64encode(key.encode()).decode() if ":" in key else key
            return f"ApiKey {packed}"
        if user is None:
            return None
        return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()

    def plain_index(self, name: str) -> str:
        """The name of an index, without a prefix or escapes."""
        value = self.text(name) or ""
        if value != index_name(value):
            self.problem(
                f"param {name} must be a name Elasticsearch takes for an index",
                f"for example {index_name(value)}",
            )
        return value

    def size(self, name: str, default: int) -> int:
        return self._measure(name, default, parse_size, "a size such as 8MB")

    def duration(self, name: str, default: float) -> float:
        return self._measure(name, default, parse_duration, "a time such as 30s")

    def _measure(self, name: str, default: T, read: Callable[[str], T], like: str) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            found = read(text)
        except ValueError:
            found = None
        if not found:
            self.problem(f"param {name} must be {like}, not {text}")
        return found or default

    def check_tls(self, settings: ElasticsearchSettings) -> None:
        given = {
            "ca_cert": settings.ca_cert,
            "client_cert": settings.client_cert,
            "client_key": settings.client_key,
            "insecure_tls_skip_verify": not settings.verify,
        }
        names = [name for name, value in given.items() if value]
        if not settings.secure:
            for name in names:
                self.problem(f"{name} needs TLS", f"write {SECURE_SCHEME}://")
        self.check_certificate(names)


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
