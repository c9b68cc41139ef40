"""The URI of a MySQL or MariaDB source: ``mysql://user:password@host:3306/database?ssl_mode=..``.

Every connection to the server, for SQL and for the binlog, is made from one :class:`Address`.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.uri import split_uri

DEFAULT_PORT = 3306

#: What ``ssl_mode`` may be, weakest first; the names are those of MySQL's own clients.
TLS_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")

#: Every parameter of the URI and what it means.
PARAMETERS = {
    "ssl_mode": "disabled, preferred (the default), required, verify_ca or verify_identity",
    "ssl_ca": "file with the certificates of the authorities that are trusted",
    "ssl_cert": "file with the certificate that the client shows",
    "ssl_key": "file with the key of ssl_cert",
    "server_id": "the id that the binlog reader registers with; one is chosen when absent",
    "connect_timeout": "seconds until an attempt to connect fails; 10 when absent",
}


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are encrypted, and whom they trust.

    Attributes:
        mode: one of :data:`TLS_MODES`.
        ca, cert, key: files; None where the URI names none.
    """

    mode: str = "preferred"
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def required(self) -> bool:
        """A server without TLS is refused."""
        return self.mode not in ("disabled", "preferred")

    def context(self) -> ssl.SSLContext | None:
        """A client context for the mode; None when encryption is disabled.

        Raises:
            ChangefeedError: CF1207 a file cannot be read or holds no certificate or key.
        """
        if self.mode == "disabled":
            return None
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.check_hostname = self.mode == "verify_identity"
        verified = self.mode.startswith("verify_")
        made.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
        if verified:
            _load("ssl_ca", self.ca, lambda path: made.load_verify_locations(path))
            if self.ca is None:
                made.load_default_certs()
        if self.cert is not None:
            _load("ssl_cert", self.cert, lambda path: made.load_cert_chain(path, self.key))
        return made


def _load(parameter: str, path: str | None, load: Callable[[str], None]) -> None:
    if path is None:
        return
    try:
        load(path)
    except (OSError, ssl.SSLError):
        reason = "is not readable" if not Path(path).is_file() else "has not what it should hold"
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"the file that {parameter} of the MySQL source names {reason}",
            hint="it must be a file in PEM format that changefeed can read.",
        ) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is and how to log in.

    Attributes:
        database: the one that unqualified names belong to; empty: none.
        server_id: what the binlog reader registers with; None: chosen for it.
        connect_timeout: seconds.
    """

    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Tls = Tls()
    server_id: int | None = None
    connect_timeout: float = 10.0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse(uri: str) -> Address:
    """Read the URI of a source.

    Raises:
        ChangefeedError: CF1201, CF1202, CF1207; the message never repeats the URI.
    """
    parts = split_uri(uri)
    if len(parts.hosts) != 1:
        raise ChangefeedError(
            Code.INVALID_URI,
            "the URI of a MySQL source names one host",
            hint="write it as mysql://user:password@host:3306/database; for failover give a name "
            "or address that always leads to the primary.",
        )
    database = parts.database
    if "/" in database:
        raise ChangefeedError(
            Code.INVALID_URI,
            "the URI of a MySQL source has more than a database after the host",
            hint="write it as mysql://user:password@host:3306/database",
        )
    given = _known(parts.parameters)
    host = parts.hosts[0]
    return Address(
        host=host.name,
        port=host.port or DEFAULT_PORT,
        user=parts.user or "",
        password=parts.password or "",
        database=database,
        tls=_tls(given),
        server_id=_whole(given, "server_id", 1, 2**32 - 1),
        connect_timeout=float(_whole(given, "connect_timeout", 1, 3600) or 10),
    )


def _known(parameters: tuple[tuple[str, str], ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for written, value in parameters:
        name = written.lower().replace("-", "_")
        if name not in PARAMETERS:
            near = difflib.get_close_matches(name[:64], PARAMETERS, n=1)
            raise ChangefeedError(
                Code.UNKNOWN_PARAMETER,
                f"unknown parameter {written[:64]!r} in the URI of a MySQL source",
                hint=f'did you mean "{near[0]}"?' if near else f"it takes {', '.join(PARAMETERS)}.",
            )
        if name in given:
            raise ChangefeedError(
                Code.INVALID_PARAMETER, f"parameter {name} of the MySQL source is given twice"
            )
        given[name] = value
    return given


def _tls(given: dict[str, str]) -> Tls:
    ca, cert, key = (given.get(f"ssl_{name}") for name in ("ca", "cert", "key"))
    # A client that is told whom to trust means it: nothing weaker than a check makes sense then.
    mode = given.get("ssl_mode", "verify_ca" if ca else "preferred")
    mode = mode.lower().replace("-", "_")
    if mode not in TLS_MODES:
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"ssl_mode of a MySQL source must be one of {', '.join(TLS_MODES)}",
        )
    if ca and not mode.startswith("verify_"):
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"ssl_ca of a MySQL source has no effect with ssl_mode={mode}",
            hint="use ssl_mode=verify_identity (or verify_ca), or leave ssl_ca out.",
        )
    if (cert is None) is not (key is None):
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            "ssl_cert and ssl_key of a MySQL source belong together: give both",
        )
    if cert and mode == "preferred":
        mode = "required"
    tls = Tls(mode, ca, cert, key)
    tls.context()
    return tls


def _whole(given: dict[str, str], name: str, least: int, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and least <= int(text[:12]) <= most):
        raise ChangefeedError(
            Code.INVALID_PARAMETER,
            f"parameter {name} of the MySQL source must be a whole number from {least} to {most}",
        )
    return int(text)
