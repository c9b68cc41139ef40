"""Where a source is: the parameters of its URI that are ours, and libpq's URIs that they lead to.

``ddl_events``, ``failover``, ``publication``, ``read_from`` and ``slot`` are ours, everything else
is libpq's. With ``read_from=host:port`` the log and the tables are read from a standby; what has to
be written goes to whichever of the hosts is the primary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from changefeed.core.errors import ChangefeedError
from changefeed.core.settings import (
    LIBPQ,
    ParameterKind,
    Settings,
    invalid,
    read_flag,
    rest,
    setting,
    several,
)
from changefeed.core.uri import Parts, without
from changefeed.sources.postgres.connect import read_uri

#: Parameters of libpq that say where the server is, in addition to the hosts before the path.
_PLACES = frozenset({"host", "hostaddr", "port", "service"})
#: What PostgreSQL takes as the name of a slot.
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
#: Longer identifiers are cut by the server.
_NAME_BYTES = 63
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/?#@,\s\[\]]+)(:\d{1,5})?")


def _switch(text: str) -> bool:
    """The name alone means true, and ``on`` and ``off`` are PostgreSQL's own words."""
    return read_flag({"": "true", "on": "true", "off": "false"}.get(text.lower(), text))


def _publication(text: str) -> str:
    if not 0 < len(text.encode()) <= _NAME_BYTES:
        raise ValueError(
            f"must be the name of a publication: 1 to {_NAME_BYTES} bytes",
            "leave it out, and changefeed makes a publication.",
        )
    return text


def _slot(text: str) -> str:
    if _SLOT.fullmatch(text) is None:
        raise ValueError(
            "must be the name of a replication slot: 1 to 63 lower-case letters, digits and _",
            "leave it out, and changefeed makes a slot.",
        )
    return text


def _standby(text: str) -> str:
    """``host:port`` of the standby."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError("must be one host, or host:port", _READ_FROM)
    return text if found[2] else f"{text}:5432"


_READ_FROM = "write postgresql://user:password@primary:5432/database?read_from=standby:5432."


@dataclass(frozen=True, kw_only=True)
class Address(Settings):
    """A source's URI, read."""

    called: ClassVar[str] = "PostgreSQL source"

    publication: str = setting(
        "",
        "A publication that an administrator made.",
        shown="changefeed makes one",
        convert=_publication,
    )
    slot: str = setting(
        "",
        "A replication slot that an administrator made; needs publication.",
        shown="changefeed makes one",
        convert=_slot,
    )
    read_from: str = setting(
        "", "The standby whose log and tables are read, host:port.", convert=_standby
    )
    failover: bool | None = setting(
        None,
        "Standbys that synchronise slots have the slot after a promotion.",
        ParameterKind.FLAG,
        shown="true where the server can",
        convert=_switch,
    )
    ddl_events: bool = setting(
        False, "Event triggers write statements of DDL into the log.", convert=_switch
    )
    libpq: Mapping[str, str] = several(*LIBPQ)
    more: tuple[tuple[str, str], ...] = rest(typos=False)

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """The parameters that are not libpq's."""
        return tuple(one.name for one in cls.parameters() if one not in LIBPQ)

    @property
    def apart(self) -> bool:
        """Two servers: a standby is read."""
        return bool(self.read_from)

    @cached_property
    def _plain(self) -> str:
        return without(self.uri.text, self.own())

    @property
    def named(self) -> str:
        """libpq's URI of the URI's hosts in addition to ``read_from``; empty without that."""
        return self._plain if self.apart else ""

    @cached_property
    def primary(self) -> str:
        """libpq's URI of the server where the publication is made."""
        if not self.apart:
            return self._plain
        # The standby first: once it is promoted, it is the primary, whatever the old one does.
        address, _, query = self._at(f"{self.read_from},").partition("?")
        return f"{address}?{query}{'&' if query else ''}target_session_attrs=primary"

    @cached_property
    def reader(self) -> str:
        """libpq's URI of the server whose log and tables are read: the primary's, unless
        ``read_from`` names another."""
        return self._at(self.read_from) if self.apart else self._plain

    def _at(self, standby: str) -> str:
        """The URI with the standby; a comma behind it means the other hosts too."""
        scheme, _, after = without(self._plain, {"target_session_attrs"}).partition("://")
        authority, slash, path = after.partition("/")
        user, at, hosts = authority.rpartition("@")
        return (
            f"{scheme}://{user}{at}{standby}{hosts if standby.endswith(',') else ''}{slash}{path}"
        )

    @classmethod
    def read(cls, uri: str | Parts, options: Mapping[str, Any] | None = None) -> Self:
        """As in the base class; what libpq cannot read comes first, and alone."""
        text = uri if isinstance(uri, str) else uri.text
        read_uri(without(text, cls.own()), cls.own())
        return super().read(uri, options)

    def check(self) -> Iterator[ChangefeedError]:
        if self.slot and not self.publication and "publication" not in self.wrong:
            yield invalid(
                "param slot of the PostgreSQL source needs the param publication: a slot sends "
                "nothing that committed before its publication was made",
                f"write ?publication=<name>&slot={self.slot}",
            )
        if not self.apart:
            return
        if self.failover:
            yield invalid(
                "param failover=true of the PostgreSQL source does not go with read_from: the slot "
                "is on a standby then, and PostgreSQL copies only slots of the primary",
                "leave one of the two out.",
            )
        if placed := sorted(_PLACES & {name for name, _ in self.uri.parameters}):
            yield invalid(
                "param read_from of the PostgreSQL source does not go with the parameter "
                f"{placed[0]}",
                _READ_FROM,
            )
        elif not self.uri.hosts:
            yield invalid(
                "param read_from of the PostgreSQL source needs the primary: the URI must name the "
                "primary's host before the database",
                _READ_FROM,
            )
