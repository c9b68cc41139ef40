"""Settings that clients make and ask for when they connect. They are kept for the session and have
no effect; one that would change how a client reads results is refused."""

from __future__ import annotations

import re

from changefeed.core.version import __version__
from changefeed.pg.messages import PgError

#: The PostgreSQL whose catalog clients expect.
VERSION = f"14.0 (changefeed {__version__})"

#: What every client is sent when it has logged in, and again when it changes.
REPORTED = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "application_name",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "is_superuser",
    "session_authorization",
    "default_transaction_read_only",
    "in_hot_standby",
)

_DEFAULTS = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "DateStyle": "ISO, MDY",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "0",
    "in_hot_standby": "off",
    "integer_datetimes": "on",
    "IntervalStyle": "postgres",
    "is_superuser": "off",
    "jit": "off",
    "lock_timeout": "0",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "search_path": '"$user", public',
    "server_encoding": "UTF8",
    "server_version": VERSION,
    "server_version_num": "140000",
    "session_authorization": "",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "TimeZone": "UTC",
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
}
_NAMES = {name.lower(): name for name in _DEFAULTS}
_FIXED = {
    "integer_datetimes",
    "in_hot_standby",
    "is_superuser",
    "max_identifier_length",
    "server_encoding",
    "server_version",
    "server_version_num",
    "session_authorization",
}

#: The only values of what results depend on.
_ONLY = {
    "client_encoding": re.compile(r"(utf-?8|unicode)$", re.I),
    "DateStyle": re.compile(r"iso\b", re.I),
    "standard_conforming_strings": re.compile(r"(on|true|yes|1)$", re.I),
    "TimeZone": re.compile(r"(utc|etc/utc|gmt|default)$", re.I),
}

_SET = re.compile(
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?(?:(?P<zone>TIME\s+ZONE)\s+|(?P<name>[\w.]+)\s*(?:=|TO\b)\s*)"
    r"(?P<value>.+)$",
    re.I | re.S,
)
_CHARACTERISTICS = re.compile(r"SET\s+(SESSION\s+CHARACTERISTICS|TRANSACTION)\b", re.I)
_NAMED = re.compile(r"(?P<word>SHOW|RESET)\s+(?P<name>[\w.]+(\s+[\w.]+){0,2})$", re.I)
_IN_WORDS = {
    "time zone": "TimeZone",
    "transaction isolation level": "transaction_isolation",
    "session authorization": "session_authorization",
}


class Variables:
    """Those of one session."""

    def __init__(self, user: str) -> None:
        self._set: dict[str, str] = {}
        self._user = user
        self._sent: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """The value; None where there is no such variable."""
        known = _IN_WORDS.get(" ".join(name.lower().split())) or _NAMES.get(name.lower())
        if known == "session_authorization":
            return self._user
        return self._set.get(known or name.lower(), _DEFAULTS.get(known or ""))

    def set(self, name: str, value: str | None) -> None:
        """Keep a value; None is the default.

        Raises:
            PgError: the variable cannot have it. An unknown variable is kept as it is.
        """
        known = _NAMES.get(name.lower(), name.lower())
        value = None if value is None else value.strip().strip("'\"").strip()
        if known in _FIXED:
            raise PgError("55P02", f'parameter "{known}" cannot be changed')
        if len(self._set) > 200 or len(value or "") > 10_000:
            raise PgError("53400", "the session has too many settings")
        if value is None or value.lower() == "default":
            self._set.pop(known, None)
        elif known in _ONLY:
            # A client reads times and texts as the variable says, and results do not change.
            if not _ONLY[known].match(value):
                raise PgError(
                    "22023",
                    f'parameter "{known}" is {_DEFAULTS[known]} and cannot be "{value}"',
                    hint="times are in UTC, texts in UTF-8." if known == "TimeZone" else "",
                )
        else:
            self._set[known] = value

    def reset(self) -> None:
        """Every variable has its default."""
        self._set.clear()

    def all(self) -> list[tuple[str, str]]:
        """Every variable with its value."""
        return [(name, self.get(name) or "") for name in {**_DEFAULTS, **self._set}]

    def changes(self) -> list[tuple[str, str]]:
        """What a client must be sent since the last call."""
        found = [(name, self.get(name) or "") for name in REPORTED]
        fresh = [(name, value) for name, value in found if self._sent.get(name) != value]
        self._sent.update(fresh)
        return fresh

    # -- statements -----------------------------------------------------------------------

    def shown(self, text: str) -> tuple[str, str] | None:
        """Name and value of ``SHOW name``; None where the text is not that of a variable."""
        found = _NAMED.match(text)
        if not found or found["word"].upper() != "SHOW":
            return None
        value = self.get(found["name"])
        return None if value is None else (found["name"].lower(), value)

    def state(self, text: str) -> str | None:
        """Carry out SET or RESET; returns its tag, None where the text is none of them.

        Raises:
            PgError: as :meth:`set`.
        """
        word = text[:8].upper()
        if word.startswith("RESET"):
            named = _NAMED.match(text)
            if named and named["name"].upper() == "ALL":
                self.reset()
            elif named:
                self.set(named["name"], None)
            return "RESET"
        if not word.startswith("SET"):
            return None
        if _CHARACTERISTICS.match(text):
            return "SET"
        found = _SET.match(text)
        if not found:
            raise PgError("42601", "write SET name = value")
        name = "TimeZone" if found["zone"] else found["name"]
        self.set(name, found["value"])
        return "SET"
