"""The URI of a source that Debezium reads: ``sqlserver://user:password@host:1433/database?..``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import Parts, split_uri

#: Every parameter of the URI and what it means, beside those of Debezium itself.
PARAMETERS = {
    "connect_timeout": "seconds until an attempt to connect fails; 10 when absent",
    "heap": "memory of the JVM that captures, e.g. 512m (when absent) or 2g",
}
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


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is and how to log in.

    Attributes:
        database: what the path names.
        properties: of Debezium's connector, as given.
    """

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    connect_timeout: int = 10
    heap: str = "512m"
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def driver_properties(self) -> dict[str, str]:
        """What goes to the JDBC driver as well: ``debezium.driver.encrypt=false``."""
        found = {}
        for name, value in self.properties:
            for prefix in ("driver.", "database."):
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = value
        return found


def parse(uri: str, default_port: int) -> Address:
    """Read the URI of a source.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207; the message never repeats the URI.
    """
    parts = split_uri(uri)
    if len(parts.hosts) != 1 or not parts.hosts[0].name:
        raise ChangefeedError(
            Code.INVALID_URI,
            f"the URI of a source {parts.scheme}:// names one host",
            hint=f"write it as {parts.scheme}://user:password@host:{default_port}/database",
        )
    return address_of(parts, parts.parameters, default_port)


def address_of(parts: Parts, parameters: Sequence[tuple[str, str]], default_port: int) -> Address:
    """The address that the parts of a URI make, with these of its parameters.

    Raises:
        ChangefeedError: CF1202, CF1207.
    """
    given: dict[str, str] = {}
    properties: dict[str, str] = {}
    for written, value in parameters:
        if written.startswith(DEBEZIUM):
            properties[_allowed(written.removeprefix(DEBEZIUM))] = value
            continue
        name = written.lower().replace("-", "_")
        if name not in PARAMETERS:
            raise _unknown(parts.scheme, written)
        given[name] = value
    return Address(
        scheme=parts.scheme,
        host=parts.hosts[0].name,
        port=parts.hosts[0].port or default_port,
        user=parts.user or "",
        password=parts.password or "",
        database=parts.database,
        connect_timeout=_seconds(given.get("connect_timeout", "10")),
        heap=_heap(given.get("heap", "512m")),
        properties=tuple(properties.items()),
    )


def _unknown(scheme: str, written: str) -> ChangefeedError:
    near = difflib.get_close_matches(written[:64], PARAMETERS, n=1)
    return ChangefeedError(
        Code.UNKNOWN_PARAMETER,
        f"unknown parameter {written[:64]!r} in the URI of a source {scheme}://",
        hint=f'did you mean "{near[0]}"?'
        if near
        else f"it takes {', '.join(PARAMETERS)}, and properties of Debezium's connector as "
        "debezium.<property>.",
    )


def _allowed(name: str) -> str:
    for ours in OURS:
        if name not in OPEN and (name == ours or name.startswith(f"{ours}.")):
            raise ChangefeedError(
                Code.INVALID_PARAMETER,
                f"the property {name[:64]} of Debezium is set by changefeed and cannot be given",
                hint="leave it out of the URI; docs/source-debezium.md says what can be given.",
            )
    return name


def _seconds(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 3600:
        return int(text)
    raise ChangefeedError(
        Code.INVALID_PARAMETER, "parameter connect_timeout must be a whole number from 1 to 3600"
    )


def _heap(text: str) -> str:
    if _HEAP.fullmatch(text):
        return text.lower()
    raise ChangefeedError(
        Code.INVALID_PARAMETER, "parameter heap must be a size such as 512m or 2g"
    )
