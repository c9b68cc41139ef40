"""The URI of a MySQL or MariaDB source: ``mysql://user:password@host:3306/database?ssl_mode=..``.

Every connection to the server, for SQL and for the binlog, is made from one :class:`Address`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.settings import (
    ParameterKind,
    ServerSettings,
    Settings,
    group,
    invalid,
    setting,
)
from changefeed.core.uri import invalid_uri

DEFAULT_PORT = 3306

#: What ``ssl_mode`` may be, weakest first; the names are those of MySQL's own clients.
TLS_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


@dataclass(frozen=True, kw_only=True)
class Tls(Settings):
    """How connections are encrypted, and whom they trust."""

    ssl_mode: str | None = setting(
        None, "How TLS is used.", values=TLS_MODES, shown="preferred; verify_ca with ssl_ca"
    )
    ssl_ca: str | None = setting(
        None, "The file with the authorities that are trusted, PEM.", ParameterKind.PATH
    )
    ssl_cert: str | None = setting(
        None, "The file with the client's certificate, PEM; needs ssl_key.", ParameterKind.PATH
    )
    ssl_key: str | None = setting(
        None, "The file with the key of ssl_cert, PEM.", ParameterKind.PATH, secret=True
    )

    @property
    def mode(self) -> str:
        """One of :data:`TLS_MODES`."""
        # A client that knows whom to trust means it: nothing weaker than a check makes sense then.
        mode = self.ssl_mode or ("verify_ca" if self.ssl_ca else "preferred")
        return "required" if self.ssl_cert and mode == "preferred" else mode

    def check(self) -> Iterator[ChangefeedError]:
        if self.ssl_ca and not self.mode.startswith("verify_"):
            yield invalid(
                f"ssl_ca of a MySQL source has no effect with ssl_mode={self.mode}",
                "use ssl_mode=verify_identity (or verify_ca), or leave ssl_ca out.",
            )
        elif (self.ssl_cert is None) is not (self.ssl_key is None):
            yield invalid("ssl_cert and ssl_key of a MySQL source belong together: give both")
        else:
            self.context()

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
            _load("ssl_ca", self.ssl_ca, lambda path: made.load_verify_locations(path))
            if self.ssl_ca is None:
                made.load_default_certs()
        if self.ssl_cert is not None:
            _load("ssl_cert", self.ssl_cert, lambda path: made.load_cert_chain(path, self.ssl_key))
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


@dataclass(frozen=True, kw_only=True)
class Address(ServerSettings):
    """Where the server is and how to log in."""

    called: ClassVar[str] = "MySQL source"
    any_case: ClassVar[bool] = True
    default_port: ClassVar[int] = DEFAULT_PORT

    tls: Tls = group(Tls)
    server_id: int | None = setting(
        None,
        "The id that the reader of the binlog registers with.",
        ParameterKind.NUMBER,
        shown="one above 1,073,741,824",
        least=1,
        most=2**32 - 1,
    )
    connect_timeout: int = setting(
        10, "Seconds until an attempt to connect fails.", least=1, most=3600
    )

    def check(self) -> Iterator[ChangefeedError]:
        if len(self.uri.hosts) != 1:
            yield invalid_uri(
                "the URI of a MySQL source names one host",
                "write it as mysql://user:password@host:3306/database; for failover give a name "
                "or address that always leads to the primary.",
            )
        if "/" in self.database:
            yield invalid_uri(
                "the URI of a MySQL source has more than a database after the host",
                "write it as mysql://user:password@host:3306/database",
            )
