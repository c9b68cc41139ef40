"""The URI of a source that Debezium reads: ``sqlserver://user:password@host:1433/database?..``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import (
    Parameter,
    ParameterKind,
    ServerSettings,
    invalid,
    setting,
    several,
)
from changefeed.core.uri import Parts, invalid_uri, split_uri

#: How parameters begin that are handed to Debezium's connector.
DEBEZIUM = "debezium."
#: Of Debezium's properties those that the source sets itself, or relies on.
OURS = (
    "name",
    "connector.class",
    "topic",
    "tasks.max",
    "offset",
    "schema.history",
    "snapshot",
    "transforms",
    "predicates",
    "converter",
    "key.converter",
    "value.converter",
    "provide.transaction.metadata",
    "decimal.handling.mode",
    "time.precision.mode",
    "binary.handling.mode",
    "interval.handling.mode",
    "bigint.unsigned.handling.mode",
    "hstore.handling.mode",
    "geometry.handling.mode",
    "tombstones.on.delete",
    "skipped.operations",
    "column",
    "message.key.columns",
    "heartbeat",
    "include.schema.changes",
    "unavailable.value.placeholder",
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.dbname",
    "database.names",
    "database.include",
    "database.exclude",
    "event.processing",
    "errors",
    "signal",
    "incremental",
    "read.only",
    "mongodb.connection",
    "mongodb.user",
    "mongodb.password",
    "capture",
    "cursor",
    "internal",
)
#: Of those below one of :data:`OURS` the ones that may be given.
OPEN = frozenset({"capture.mode.full.update.type", "cursor.oversize.handling.mode"})
_HEAP = re.compile(r"[1-9]\d{0,5}[mgMG]")


def _heap(text: str) -> str:
    if _HEAP.fullmatch(text):
        return text.lower()
    raise ValueError("must be a size such as 512m or 2g")


@dataclass(frozen=True, kw_only=True)
class Address(ServerSettings):
    """Where the server is and how to log in. Its port is that of the connector where the URI has
    none."""

    called: ClassVar[str] = "{scheme} source"
    any_case: ClassVar[bool] = True

    heap: str = setting(
        "512m", "Memory of the JVM that captures.", ParameterKind.SIZE, convert=_heap
    )
    connect_timeout: int = setting(
        10, "Seconds until an attempt to connect fails.", least=1, most=3600
    )
    debezium: Mapping[str, str] = several(
        Parameter(f"{DEBEZIUM}*", "Properties of Debezium's connector.")
    )

    @property
    def scheme(self) -> str:
        """The kind of source."""
        return self.uri.scheme

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """Properties of Debezium's connector, as given."""
        return tuple((name.removeprefix(DEBEZIUM), v) for name, v in self.debezium.items())

    @property
    def driver_properties(self) -> dict[str, str]:
        """What goes to the JDBC driver as well: ``debezium.driver.encrypt=false``."""
        found = {}
        for name, value in self.properties:
            for prefix in ("driver.", "database."):
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = value
        return found

    def check(self) -> Iterator[ChangefeedError]:
        for name, _ in self.properties:
            if name not in OPEN and any(f"{name}.".startswith(f"{one}.") for one in OURS):
                yield invalid(
                    f"the property {name[:64]} of Debezium is set by changefeed and cannot be "
                    "given",
                    "leave it out of the URI; docs/source-debezium.md says what can be given.",
                )


def parse(uri: str, default_port: int) -> Address:
    """Read the URI of a source.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207; the message never repeats the URI.
    """
    parts = split_uri(uri)
    if len(parts.hosts) != 1 or not parts.host:
        raise invalid_uri(
            f"the URI of a source {parts.scheme}:// names one host",
            f"write it as {parts.scheme}://user:password@host:{default_port}/database",
        )
    return address_of(parts, default_port)


def address_of(parts: Parts, default_port: int) -> Address:
    """The address that the parts of a URI make.

    Raises:
        ChangefeedError: CF1202, CF1207.
    """
    first, *others = parts.hosts
    hosts = (replace(first, port=first.port or default_port), *others)
    return Address.read(replace(parts, hosts=hosts))
