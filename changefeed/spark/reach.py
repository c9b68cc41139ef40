"""Whether a standalone master answers, before Spark tries: it does so for a minute and says nothing
meanwhile."""

from __future__ import annotations

import socket
from typing import Final

from changefeed.core.errors import ChangefeedError, Code

#: How long an address may take to answer, seconds.
ANSWER_SECONDS: Final = 5.0
_STANDALONE: Final = "spark://"


def check_master(master: str, seconds: float = ANSWER_SECONDS) -> None:
    """Refuse a standalone master none of whose addresses takes a connection.

    Raises:
        ChangefeedError: CF4002.
    """
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        except (OSError, OverflowError) as failure:
            reasons.append(getattr(failure, "strerror", None) or str(failure))
        else:
            return
    raise ChangefeedError(
        Code.SPARK_FAILED,
        f"Spark could not be started with master {master}: {', '.join(dict.fromkeys(reasons))}",
        hint="check --master, and that the master runs and this machine reaches it.",
    )
