"""TLS for a PostgreSQL connection, with libpq's parameters and their meaning."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from changefeed.core.errors import ChangefeedError

MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOME = Path("~/.postgresql")
_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def attempts(mode: str) -> tuple[bool, ...]:
    """Whether to ask for TLS, for each connection that may be tried in turn."""
    return {"disable": (False,), "allow": (False, True), "prefer": (True, False)}.get(mode, (True,))


def context(parameters: Mapping[str, str]) -> ssl.SSLContext:
    """A client context for libpq's ``ssl*`` parameters.

    ``require`` checks the certificate too when there is a root certificate, as libpq does.

    Raises:
        ChangefeedError: CF1207 a file is missing or unreadable, or a value is unknown.
    """
    mode = parameters.get("sslmode", "prefer")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = _version(parameters.get("ssl_min_protocol_version", "TLSv1.2"))
    if "ssl_max_protocol_version" in parameters:
        made.maximum_version = _version(parameters["ssl_max_protocol_version"])
    _trust(made, mode, parameters)
    _identify(made, parameters)
    if parameters.get("sslnegotiation") == "direct":
        made.set_alpn_protocols(["postgresql"])
    return made


def _trust(made: ssl.SSLContext, mode: str, parameters: Mapping[str, str]) -> None:
    root = parameters.get("sslrootcert", "")
    if root == "system":
        made.load_default_certs()
        made.check_hostname = True
        made.verify_mode = ssl.CERT_REQUIRED
        return
    default = (_HOME / "root.crt").expanduser()
    path = root or (str(default) if default.exists() else "")
    if mode in ("verify-ca", "verify-full") and not path:
        raise _invalid(
            f"sslmode={mode} needs the certificate of the authority",
            "give sslrootcert=FILE, or sslrootcert=system.",
        )
    if not path or mode not in ("require", "verify-ca", "verify-full"):
        return
    try:
        made.load_verify_locations(os.path.expanduser(path))
    except (OSError, ssl.SSLError) as error:
        raise _invalid(f"cannot read sslrootcert: {_reason(error)}") from None
    made.verify_mode = ssl.CERT_REQUIRED
    made.check_hostname = mode == "verify-full"


def _identify(made: ssl.SSLContext, parameters: Mapping[str, str]) -> None:
    """Our own certificate, if there is one."""
    default = (_HOME / "postgresql.crt").expanduser()
    certificate = parameters.get("sslcert") or (str(default) if default.exists() else "")
    if not certificate:
        return
    default_key = (_HOME / "postgresql.key").expanduser()
    key = parameters.get("sslkey") or (str(default_key) if default_key.exists() else None)
    # An encrypted key without a password must not stop to ask on the terminal.
    password = parameters.get("sslpassword", "")
    try:
        made.load_cert_chain(certificate, key, password=lambda: password)
    except (OSError, ssl.SSLError) as error:
        raise _invalid(f"cannot use sslcert and sslkey: {_reason(error)}") from None


def _version(name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise _invalid(f"unknown TLS version {name!r}", f"one of {', '.join(_VERSIONS)}.")
    return _VERSIONS[name]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _invalid(message: str, hint: str = "") -> ChangefeedError:
    return ChangefeedError("CF1207", message, hint=hint)
