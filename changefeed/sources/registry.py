"""Scheme of a connection's URI -> source class. Listing imports nothing; opening imports one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.references import resolved_uri
from changefeed.core.settings import Parameter, of_scheme
from changefeed.core.uri import Host, split_uri
from changefeed.sources.base import Source
from grammar import foreign

#: Entry points of other packages: ``scheme = "module:Class"``.
ENTRY_POINT_GROUP = "changefeed.sources"

#: Our own sources: scheme -> ``module:Class``. The class takes ``(name, uri)``.
SOURCES: dict[str, str] = {
    "dataset": "changefeed.dataset.source:DatasetSource",
    "debezium-mariadb": "changefeed.sources.debezium:DebeziumSource",
    "debezium-mysql": "changefeed.sources.debezium:DebeziumSource",
    "debezium-postgresql": "changefeed.sources.debezium:DebeziumSource",
    "db2": "changefeed.sources.debezium:DebeziumSource",
    "mariadb": "changefeed.sources.mysql:MySQLSource",
    "mongodb": "changefeed.sources.debezium:DebeziumSource",
    "mongodb+srv": "changefeed.sources.debezium:DebeziumSource",
    "mysql": "changefeed.sources.mysql:MySQLSource",
    "oracle": "changefeed.sources.debezium:DebeziumSource",
    "postgresql": "changefeed.sources.postgres:PostgresSource",
    "postgres": "changefeed.sources.postgres:PostgresSource",
    "sqlserver": "changefeed.sources.debezium:DebeziumSource",
}

#: Schemes that mean the same as another one.
SAME: dict[str, str] = {"mariadb": "mysql", "postgres": "postgresql"}

#: The ports that a URI may leave out.
PORTS: dict[str, int] = {
    "db2": 50000,
    "mongodb": 27017,
    "mysql": 3306,
    "oracle": 1521,
    "postgresql": 5432,
    "sqlserver": 1433,
}

#: Parameters that name the server or the database instead of the parts before them.
_PLACES = ("host", "hostaddr", "port", "service", "dbname", "database")

#: Databases that Debezium reads and this program does not.
NOT_READ = frozenset({"spanner-source", "vitess"})


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """Which database a URI leads to, without the login.

    Attributes:
        kind: the scheme, one for all that mean the same.
        server: hosts with their ports; may be empty.
        database: may be empty.
    """

    kind: str
    server: str
    database: str


def address(uri: str) -> SourceAddress:
    """The address in the URI of a source, as it is written: names of hosts are not looked up.

    Raises:
        ChangefeedError: CF1201, the URI is malformed.
    """
    parts = split_uri(uri)
    kind = SAME.get(parts.scheme, parts.scheme)
    hosts = [
        str(host if host.port or kind not in PORTS else Host(host.name, PORTS[kind]))
        for host in parts.hosts
        if host.name
    ]
    named = [f"{name}={value}" for name, value in parts.parameters if name in _PLACES and value]
    return SourceAddress(kind, ",".join([*hosts, *named]), parts.database)


def schemes() -> tuple[str, ...]:
    """The URI schemes a source can have, sorted; imports no source."""
    return tuple(sorted({*SOURCES, *(entry.name for entry in _entry_points())}))


def parameters(scheme: str) -> tuple[Parameter, ...]:
    """The parameters that are declared for URIs of a source; imports its module. None for a scheme
    that no source has."""
    factory = _factory(scheme)
    return of_scheme(getattr(factory, "parameters", ()), scheme)


def open_source(name: str, uri: str) -> Source:
    """The source of connection ``name``. Does not connect yet, but reads the secrets that the URI
    refers to.

    Raises:
        ChangefeedError: CF1201 the URI has no scheme or one that no source knows, CF1208.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"no scheme found for the URI of connection {name!r}",
            hint=f"write it as scheme://user:password@host/database; schemes: {_listed()}",
        )
    factory = _factory(scheme.lower())
    if factory is None:
        raise _unknown(name, scheme)
    return factory(name, resolved_uri(f"{scheme.lower()}://{rest}"))


def _factory(scheme: str) -> Callable[[str, str], Source] | None:
    if scheme in SOURCES:
        module, _, attribute = SOURCES[scheme].partition(":")
        return cast("Callable[[str, str], Source]", getattr(import_module(module), attribute))
    for entry in _entry_points():
        if entry.name == scheme:
            return cast("Callable[[str, str], Source]", entry.load())
    return None


@cache
def _entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=ENTRY_POINT_GROUP)


def _unknown(name: str, scheme: str) -> ChangefeedError:
    # A scheme is short; anything longer is a mangled URI that may hold a secret.
    shown = scheme if len(scheme) <= 20 and "@" not in scheme else "?"
    if scheme.lower() in NOT_READ:
        return ChangefeedError(
            Code.INVALID_URI,
            f"connection {name!r} cannot be a source: {scheme.lower()} is not read",
            hint="docs/source-debezium.md says which databases are, and why this one is not.",
        )
    close = difflib.get_close_matches(scheme.lower(), schemes(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ChangefeedError(
        Code.INVALID_URI,
        f"connection {name!r} cannot be a source: unknown scheme {shown!r}",
        hint=foreign.scheme(scheme) or f"{hint}sources are: {_listed()}",
    )


def _listed() -> str:
    return ", ".join(schemes())
