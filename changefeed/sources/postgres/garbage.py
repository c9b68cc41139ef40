"""What a server sends is not trusted: what cannot be read is CF2105, whatever Python says of it.

Lengths, counts and times are checked where they are read. :func:`readable` is for what only shows
while a value is taken apart: text that is not UTF-8, a number that is none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from changefeed.core.errors import ChangefeedError, Code

#: The server builds a message in one buffer, and none of its buffers is longer than 1 GB.
LONGEST_MESSAGE = 1 << 30

_UNREADABLE = (struct.error, LookupError, ValueError, ArithmeticError, pa.ArrowException)


def garbage(what: str) -> ChangefeedError:
    """CF2105: the server sent ``what``, which cannot be in a replication stream."""
    return ChangefeedError(
        Code.UNEXPECTED_MESSAGE,
        f"the server sent {what}",
        hint="the connection or the server is damaged, or something between them changes bytes.",
    )


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn what Python raises over bytes that make no sense into CF2105.

    Args:
        what: is read, as a noun with its article. No value is shown: it may be a secret.
    """
    try:
        yield
    except ChangefeedError:
        raise
    except _UNREADABLE as error:
        failed = garbage(f"{what} that cannot be read")
        raise ChangefeedError(
            failed.code.number, failed.message, detail=type(error).__name__, hint=failed.hint
        ) from None
