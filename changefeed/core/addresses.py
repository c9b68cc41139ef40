"""Addresses that are this machine's own."""

from __future__ import annotations

import ipaddress
import re


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
