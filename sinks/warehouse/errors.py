"""Errors of the client libraries of databases, as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import error as StructError

from changefeed.core.errors import ChangefeedError, Code

#: What libraries raise over an answer that they cannot take apart: a proxy's, or a damaged one.
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


@contextmanager
def explained(ours: Callable[[Exception, str], ChangefeedError]) -> Iterator[None]:
    """An error of the client inside comes out as the one ``ours`` makes of it.

    It is not chained: its text repeats statements and values of rows.

    Args:
        ours: takes the error and the topic it concerns, empty where there is none; raises an
            error that is not the client's again.

    Raises:
        ChangefeedError: what ``ours`` returned, or was raised inside.
    """
    try:
        yield
    except ChangefeedError:
        raise
    except Exception as error:
        raise ours(error, "") from None
