"""The windows of a query with GROUP BY: which stretch of commit time a change belongs to.

A query groups the changes of its table by ``window(event_timestamp(), '1 minute')``, and perhaps by
more. Windows do not overlap and begin at multiples of their length since 1970 UTC, as Spark's do.
All changes of a window are known when the log has reached its end. So a window is evaluated once,
and no state is kept between two windows: the feed's progress is the end of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from changefeed.core.clock import Timestamp
from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.quantities import parse_nanos
from grammar import nodes
from grammar.select import SparkToken, lexemes_of

#: The column of a batch that has the window of each change, and its name in queries.
WINDOW: Final = "window"
#: The same with its type: begin (inclusive) and end (exclusive).
WINDOW_FIELD: Final = pa.field(
    WINDOW,
    pa.struct(
        [
            pa.field("start", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("end", pa.timestamp("us", "UTC"), nullable=False),
        ]
    ),
    nullable=False,
)
#: The number of tokens of ``window(event_timestamp(), '1 minute')``.
CALL_LENGTH: Final = 8
#: The shortest and the longest window in nanoseconds. Longer than the log keeps changes by
#: default would never be whole.
SHORTEST: Final = 1_000_000_000
LONGEST: Final = 24 * 3_600 * SHORTEST

_CALL = ("window", "(", "event_timestamp", "(", ")", ",", None, ")")
HINT = "write GROUP BY window(event_timestamp(), '1 minute'), from '1 second' to '1 day'."


def is_window(tokens: Sequence[SparkToken]) -> bool:
    """Whether tokens begin with ``window(event_timestamp(), '..')``."""
    return len(tokens) >= CALL_LENGTH and all(
        token.kind == "string" if wanted is None else token.text.lower() == wanted
        for token, wanted in zip(tokens, _CALL, strict=False)
    )


def window_length(query: nodes.Query) -> int | None:
    """The length of the query's windows in nanoseconds; None if it does not group.

    Raises:
        ChangefeedError: CF1303 it groups by no window, by several, or by one that cannot be.
    """
    if not query.group:
        return None
    tokens = lexemes_of(query.group)
    found = {
        tokens[place + 6].text[1:-1] for place in range(len(tokens)) if is_window(tokens[place:])
    }
    if len(found) != 1:
        what = "by one window of the commit time" if not found else "by one window only"
        raise ChangefeedError(Code.NOT_SUPPORTED, f"a CDC query groups {what}", hint=HINT)
    (text,) = found
    try:
        length = parse_nanos(text)
    except ValueError as cause:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"a window cannot last '{text}'", hint=HINT
        ) from cause
    if not SHORTEST <= length <= LONGEST or length % 1_000:
        raise ChangefeedError(Code.NOT_SUPPORTED, f"a window cannot last '{text}'", hint=HINT)
    return length


def first_start(done: Timestamp, length: int) -> int:
    """The begin (ns) of the first window that lies wholly above ``done``."""
    return -(-(done.wall + 1) // length) * length


def last_end(upto: Timestamp, length: int) -> int:
    """The end (ns) of the last window that is complete when everything up to ``upto`` is known."""
    return (upto.wall + 1) // length * length


def through(end: int) -> Timestamp:
    """The last timestamp of a window that ends (exclusive) at ``end`` ns."""
    return Timestamp(end).previous()


def windows_of(wall: pa.Array, length: int) -> pa.Array:
    """The column :data:`WINDOW` for commit times in nanoseconds."""
    micros, step = pc.divide(wall, 1_000), length // 1_000
    start = pc.multiply(pc.divide(micros, step), step)
    kind = pa.timestamp("us", "UTC")
    return pa.StructArray.from_arrays(
        [start.cast(kind), pc.add(start, step).cast(kind)], fields=list(WINDOW_FIELD.type)
    )
