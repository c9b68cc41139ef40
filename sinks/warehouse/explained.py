"""What a database's client raises, said as our errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from changefeed.core.errors import ChangefeedError


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
