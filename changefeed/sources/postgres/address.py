"""Where a source is: the parameters of its URI that are ours, and libpq's URIs that they lead to.

``ddl_events``, ``failover``, ``publication``, ``read_from`` and ``slot`` are ours, everything else
is libpq's. With ``read_from=host:port`` the log and the tables are read from a standby; what has to
be written goes to whichever of the hosts is the primary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.postgres.connect import read_uri

#: Parameters of libpq that say where the server is, beside the hosts before the path.
_PLACES = frozenset({"host", "hostaddr", "port", "service"})
_SWITCH = {"true": True, "on": True, "1": True, "": True, "false": False, "off": False, "0": False}
#: What PostgreSQL takes as the name of a slot.
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
#: Longer identifiers are cut by the server.
_NAME_BYTES = 63
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/?#@,\s\[\]]+)(:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Address:
    """A source's URI, read.

    Attributes:
        primary: libpq's URI of the server where the publication is made.
        reader: libpq's URI of the server whose log and tables are read. The same, unless
            ``read_from`` names another.
        ddl_events: event triggers write statements of DDL into the log.
        named: libpq's URI of the hosts that the URI has beside ``read_from``; empty without that.
        publication: an administrator's publication that is read; empty: changefeed makes one.
        slot: an administrator's replication slot that is read; empty: changefeed makes one.
        failover: standbys that synchronise slots have the slot after a promotion. None: where the
            server can.
    """

    primary: str
    reader: str
    named: str = ""
    ddl_events: bool = False
    publication: str = ""
    slot: str = ""
    failover: bool | None = None

    @property
    def apart(self) -> bool:
        """Two servers: a standby is read."""
        return self.primary != self.reader

    @classmethod
    def read(cls, uri: str) -> Address:
        """The address that a URI stands for. The URI is in no error.

        Raises:
            ChangefeedError: CF1201, CF1202, CF1207 it cannot be read.
        """
        head, _, query = uri.partition("?")
        parts = [part.partition("=") for part in query.split("&")] if query else []
        theirs = {name: name + mark + value for name, mark, value in parts}
        ddl_events = _switch("ddl_events", parts)
        theirs.pop("ddl_events", None)
        failover = _switch("failover", parts) if theirs.pop("failover", None) is not None else None
        publication = _publication(_text(theirs.pop("publication", None)))
        slot = _slot(_text(theirs.pop("slot", None)), publication)
        given = theirs.pop("read_from", None)
        plain = _joined(head, theirs.values())
        read_uri(plain)
        if given is None:
            return cls(
                plain,
                plain,
                ddl_events=ddl_events,
                publication=publication or "",
                slot=slot or "",
                failover=failover,
            )
        if failover:
            raise ChangefeedError(
                Code.INVALID_PARAMETER,
                "parameter failover=true of a PostgreSQL source does not go with read_from: the "
                "slot is on a standby then, and PostgreSQL copies only slots of the primary",
                hint="leave one of the two out.",
            )
        standby = _standby(_text(given) or "")
        if placed := sorted(_PLACES & theirs.keys()):
            raise _bad_read_from(f"it does not go with the parameter {placed[0]}")
        scheme, _, rest = head.partition("://")
        authority, slash, path = rest.partition("/")
        user, at, hosts = authority.rpartition("@")
        if not hosts:
            raise _bad_read_from("the URI must name the primary's host before the database")
        theirs.pop("target_session_attrs", None)
        # The standby first: once it is promoted, it is the primary, whatever the old one does.
        primary = f"{scheme}://{user}{at}{standby},{hosts}{slash}{path}"
        reader = f"{scheme}://{user}{at}{standby}{slash}{path}"
        return cls(
            _joined(primary, [*theirs.values(), "target_session_attrs=primary"]),
            _joined(reader, theirs.values()),
            plain,
            ddl_events,
            publication or "",
            slot or "",
            failover,
        )


def _joined(head: str, parameters: Iterable[str]) -> str:
    query = "&".join(parameters)
    return f"{head}?{query}" if query else head


def _switch(name: str, parts: list[tuple[str, str, str]]) -> bool:
    chosen = False
    for key, _, value in parts:
        if key == name:
            if value.lower() not in _SWITCH:
                raise ChangefeedError(
                    Code.INVALID_PARAMETER, f"parameter {name} of a source is true or false"
                )
            chosen = _SWITCH[value.lower()]
    return chosen


def _text(parameter: str | None) -> str | None:
    """The value of ``name=value``, decoded; None where it is not given."""
    return None if parameter is None else unquote(parameter.partition("=")[2])


def _publication(name: str | None) -> str | None:
    if name is not None and not 0 < len(name.encode()) <= _NAME_BYTES:
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"parameter publication of a PostgreSQL source is the name of a publication: 1 to "
            f"{_NAME_BYTES} bytes",
            hint="leave it out, and changefeed makes a publication.",
        )
    return name


def _slot(name: str | None, publication: str | None) -> str | None:
    if name is None:
        return None
    if _SLOT.fullmatch(name) is None:
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            "parameter slot of a PostgreSQL source is the name of a replication slot: 1 to 63 "
            "lower-case letters, digits and _",
            hint="leave it out, and changefeed makes a slot.",
        )
    if publication is None:
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            "parameter slot of a PostgreSQL source needs the parameter publication: a slot sends "
            "nothing that committed before its publication was made",
            hint=f"write ?publication=<name>&slot={name}",
        )
    return name


def _standby(text: str) -> str:
    """``host:port`` of the standby."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise _bad_read_from("it is one host, or host:port")
    return text if found[2] else f"{text}:5432"


def _bad_read_from(why: str) -> ChangefeedError:
    return ChangefeedError(
        Code.INVALID_PARAMETER,
        f"parameter read_from of a PostgreSQL source cannot be used: {why}",
        hint="write postgresql://user:password@primary:5432/database?read_from=standby:5432.",
    )
