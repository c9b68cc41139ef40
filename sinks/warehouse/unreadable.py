"""Answers that a client library of a warehouse cannot take apart: a proxy's, or damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import error as StructError

from changefeed.core.errors import ChangefeedError, Code

#: What libraries stumble over in such an answer.
UNREADABLE = (
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    StructError,
)


def unreadable(error: BaseException, place: str, what: str) -> ChangefeedError:
    """The error for a feed, without the library's text: it may repeat the answer."""
    return ChangefeedError(
        Code.SINK_UNREACHABLE,
        f"an answer of {place} cannot be read",
        detail=f"{what}; {type(error).__name__}",
        hint="does a proxy answer in its place?",
    )


@contextmanager
def readable(place: str, what: str) -> Iterator[None]:
    """For calls of a library and nothing else.

    Raises:
        ChangefeedError: CF5001, the answer cannot be read.
    """
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(error, place, what) from None
