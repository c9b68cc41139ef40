"""A schema registry that speaks Confluent's protocol: Confluent's own, Apicurio, Redpanda, ...

Its URL may hold a login (``https://user:password@host``) and, as CockroachDB's, the parameters
``ca_cert``, ``client_cert``, ``client_key`` (PEM in base 64) and ``timeout``; further
``insecure_tls_skip_verify``.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.extras import lacking
from changefeed.core.settings import ParameterKind, Settings, Tls, group, invalid, setting
from changefeed.core.time_limits import PATIENCE, limit_httpx

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T")

#: Seconds one request may take.
TIMEOUT = 10.0

#: Packages of the extra ``registry``, by import name.
_PACKAGES = ("httpx", "authlib", "cachetools")


@dataclass(frozen=True, kw_only=True)
class RegistrySettings(Settings):
    """A checked URL of a registry."""

    called: ClassVar[str] = "schema registry"

    tls: Tls = group(Tls)
    timeout: float = setting(
        TIMEOUT, "Seconds one request may take.", ParameterKind.DURATION, least=0.001
    )

    @property
    def shown(self) -> str:
        """The address, which may be printed."""
        return f"{self.uri.scheme}://{self.uri.hosts[0]}{self.uri.path.rstrip('/')}"

    @property
    def login(self) -> str:
        """User and password with a colon; empty without a user."""
        return "" if self.uri.user is None else f"{self.uri.user}:{self.uri.password or ''}"

    def check(self) -> Iterator[ChangefeedError]:
        if self.uri.scheme not in ("http", "https") or len(self.uri.hosts) != 1:
            yield invalid(
                "confluent_schema_registry must be an http or https URL",
                "write confluent_schema_registry = 'http://host:8081'.",
            )


def parse_registry(text: str) -> RegistrySettings:
    """Check the URL of a registry; connects to nothing.

    Raises:
        ChangefeedError: CF1201, CF1202 or CF1207, none with a secret; CF5005 where the client
            is not installed.
    """
    settings = RegistrySettings.read(text)
    check_installed()
    return settings


def check_installed() -> None:
    """Check that the packages of the registry's client are installed.

    Raises:
        ChangefeedError: CF5005.
    """
    missing = lacking("a schema registry", _PACKAGES, "registry")
    if missing is not None:
        raise missing


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """A schema as registries take it. ``kind`` is ``AVRO`` or ``PROTOBUF``."""

    kind: str
    text: str


class SchemaRegistry:
    """A connection to a registry. Safe to use from several threads."""

    def __init__(self, settings: RegistrySettings, *, patience: float = PATIENCE) -> None:
        """``patience``: the longest time of a request, as a multiple of the registry's time-out."""
        self.settings = settings
        self._patience = patience
        self._client: SchemaRegistryClient | None = None
        self._lock = threading.Lock()

    def register(self, subject: str, schema: RegistrySchema, about: str) -> int:
        """The id of ``schema``, which is registered under ``subject`` if it is new.

        ``about`` names what the schema is of, for errors.

        Raises:
            ChangefeedError: CF5001 the registry does not answer, CF5002 it refuses us, CF5003
                it refuses the schema (incompatible, or not valid to it).
        """
        from confluent_kafka.schema_registry import Schema

        written = Schema(schema.text, schema.kind)
        found = self._ask(
            lambda client: client.register_schema(subject, written),
            subject=f"subject {subject}",
            about=about,
        )
        # The client does not check the answer, which may be a proxy's.
        if type(found) is not int or not 0 <= found < 1 << 32:
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"the schema registry at {self.settings.shown} answered without a schema id",
                hint="is it a schema registry, or does a proxy answer in its place?",
            )
        return found

    def schema(self, number: int, about: str) -> RegistrySchema:
        """The schema with the id ``number``, of ``about``.

        Raises:
            ChangefeedError: CF5001 the registry does not answer, or does not know the id, CF5002
                it refuses us.
        """
        found = self._ask(
            lambda client: client.get_schema(number), subject=f"schema {number}", about=about
        )
        if not isinstance(found.schema_str, str):
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"the schema registry at {self.settings.shown} answered without a schema",
                hint="is it a schema registry, or does a proxy answer in its place?",
            )
        return RegistrySchema(found.schema_type or "AVRO", found.schema_str)

    def _ask(self, work: Callable[[SchemaRegistryClient], T], *, subject: str, about: str) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return work(self._connected())
        except SchemaRegistryError as error:
            raise self._refused(error, subject, about) from error
        except Exception as error:  # the client lets every error of its HTTP library through
            raise ChangefeedError(
                Code.SINK_UNREACHABLE,
                f"cannot reach the schema registry at {self.settings.shown}",
                detail=type(error).__name__,
                hint="check the address of confluent_schema_registry and that the server runs.",
            ) from error

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _refused(self, error: Any, subject: str, about: str) -> ChangefeedError:
        status, shown = int(error.http_status_code), self.settings.shown
        detail = f"HTTP {status}, {subject}"
        if status in (401, 403):
            return ChangefeedError(
                Code.SINK_REFUSED_LOGIN,
                f"the schema registry at {shown} refused the login",
                detail=detail,
            )
        if status == 409:
            return ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"the schema of {about} is not compatible with an earlier version in the "
                "schema registry",
                detail=detail,
                hint=f"change the compatibility rule of {subject}, or give the feed "
                "another avro_schema_prefix, then RESUME.",
            )
        if status == 422:
            return ChangefeedError(
                Code.SINK_REFUSED_DATA,
                f"the schema registry refused the schema of {about}",
                detail=detail,
            )
        return ChangefeedError(
            Code.SINK_UNREACHABLE, f"the schema registry at {shown} failed", detail=detail
        )

    def _connected(self) -> SchemaRegistryClient:
        with self._lock:
            if self._client is None:
                self._client = _client(self.settings, self._patience)
            return self._client


def _client(settings: RegistrySettings, patience: float) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    config: dict[str, Any] = {
        "url": settings.shown,
        "timeout": settings.timeout,
        "max.retries": 0,  # the feed tries again, and shows that it does
    }
    if settings.login:
        config["basic.auth.user.info"] = settings.login
    with ExitStack() as stack:
        # The client reads them when it is made, from files only.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, setting in _FILES.items():
            text: str | None = getattr(settings.tls, name)
            if text is not None:
                path = folder / name
                path.touch(mode=0o600)
                path.write_text(text, "latin-1")
                config[setting] = str(path)
        if settings.tls.insecure_tls_skip_verify:
            config["ssl.ca.location"] = False
        client = SchemaRegistryClient(config)
    limit_httpx(client._rest_client.session, settings.timeout, patience)
    return client


_FILES = {
    "ca_cert": "ssl.ca.location",
    "client_cert": "ssl.certificate.location",
    "client_key": "ssl.key.location",
}


class _RegistryPool:
    """Feeds that use one registry share its connections."""

    LIMIT = 8

    def __init__(self) -> None:
        self._open: OrderedDict[RegistrySettings, SchemaRegistry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, settings: RegistrySettings) -> SchemaRegistry:
        with self._lock:
            if settings not in self._open:
                while len(self._open) >= self.LIMIT:
                    self._open.popitem(last=False)[1].close()
                self._open[settings] = SchemaRegistry(settings)
            self._open.move_to_end(settings)
            return self._open[settings]


_shared = _RegistryPool()


def connect(settings: RegistrySettings) -> SchemaRegistry:
    """The registry, shared by all feeds that use it; it connects at its first use."""
    return _shared.get(settings)
