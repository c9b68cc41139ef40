"""What an unfinished scan has not delivered of a table, in a form that outlives its image.

A scan that goes on under a later image reads only these ranges. The rows of the others are in the
sink as of an earlier image, and the changes since then follow from the change log, so all rows are
as of the later image when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from changefeed.core.clock import Timestamp


@dataclass(frozen=True, slots=True)
class PartRange:
    """Where the rows of a part are.

    Attributes:
        place: what the bounds are of, in the source's own terms: a file with rows, or the key.
        low, high: ``[low, high)`` in the order of the place; None is no bound. Equal bounds have
            equal texts.
    """

    place: str
    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class UnreadParts:
    """The rest of a scan of which some parts are durable in the sink.

    Attributes:
        since: the instant of the first image that the scan read.
        form: digest of what determines the form of delivered rows; a scan whose rows have another
            form begins again.
        places: every place that the scan had to read.
        left: what it still has to read, in order.
        rows, bytes: what it has delivered.
    """

    since: Timestamp
    form: str
    places: tuple[str, ...]
    left: tuple[PartRange, ...]
    rows: int = 0
    bytes: int = 0

    def to_json(self) -> str:
        """The column value; :meth:`from_json` reads it."""
        return json.dumps(asdict(self) | {"since": str(self.since)})

    @classmethod
    def from_json(cls, text: str) -> UnreadParts:
        known = json.loads(text)
        left = tuple(
            PartRange(r["place"], *(None if r[side] is None else tuple(r[side]) for side in _SIDES))
            for r in known.pop("left")
        )
        since, places = Timestamp.parse(known.pop("since")), tuple(known.pop("places"))
        return cls(since=since, places=places, left=left, **known)


_SIDES = ("low", "high")


def joined(ranges: Iterable[PartRange]) -> tuple[PartRange, ...]:
    """The same ranges, in the same order, neighbours as one.

    >>> joined([PartRange("", None, ("3",)), PartRange("", ("3",), ("7",)), PartRange("", ("9",))])
    (PartRange(place='', low=None, high=('7',)), PartRange(place='', low=('9',), high=None))
    """
    found: list[PartRange] = []
    for one in ranges:
        last = found[-1] if found else None
        if last and last.place == one.place and last.high is not None and last.high == one.low:
            found[-1] = PartRange(one.place, last.low, one.high)
        else:
            found.append(one)
    return tuple(found)
