"""Addresses that are this machine's own, and listening on one."""

from __future__ import annotations

import ipaddress
import re
import socket

from changefeed.core.errors import ChangefeedError, Code


def names_this_machine(host: str) -> bool:
    """A ``Host`` header (or an address) is this machine's loopback.

    On a loopback address only such requests are answered. The name of a foreign domain can be made
    to lead to this machine, and a page of that domain would then read the feeds (DNS rebinding).
    """
    name = host if host.count(":") > 1 and not host.startswith("[") else re.sub(r":\d*$", "", host)
    name = name.strip("[]").lower()
    if name in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Accept connections there; port 0 takes a free one.

    Raises:
        ChangefeedError: CF6006 the address is taken or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ChangefeedError(
            Code.ADDRESS_IN_USE, f"cannot listen on {host}:{port}: {reason}"
        ) from error
    # Connections inherit it. asyncio sets it only where it made the socket itself; without it a
    # short answer in two pieces waits 40 ms for the client's acknowledgment of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    host, port = listener.getsockname()[:2]
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def unusable_certificate(cert: str | None, key: str | None, error: OSError) -> ChangefeedError:
    """CF6007 for what loading a certificate and its key raised (``ssl.SSLError``, too)."""
    reason = error.strerror or str(error)
    return ChangefeedError(Code.CERTIFICATE_NOT_USABLE, f"cannot use {cert} with {key}: {reason}")
