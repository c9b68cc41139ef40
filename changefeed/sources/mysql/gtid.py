"""Global transaction ids, and positions in the log as text that sorts.

A position is the *number of transactions* in a set: it is the same on the primary and on every
replica, and rises by at least one with each transaction. The set itself goes into the history of
a frontier, since only the set says which transactions those were.
"""

from __future__ import annotations

import re
import struct
import uuid
from typing import Self

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position

#: ``[first, last]``, both included.
GtidInterval = list[int]

_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?\Z")
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})\Z")


def parse(flavor: str, text: str) -> GtidSet | MariaGtid:
    """``flavor``: ``mysql`` or ``mariadb``.

    Raises:
        ChangefeedError: CF2105 the text is none.
    """
    return MariaGtid.parse(text) if flavor == "mariadb" else GtidSet.parse(text)


def file_position(file: str, offset: int) -> Position:
    """A position by file name and offset, for a server without GTIDs.

    Raises:
        ChangefeedError: CF2105 the name does not end in a number.
    """
    number = file.rpartition(".")[2]
    if not number.isascii() or not number.isdigit():
        raise ChangefeedError(
            Code.UNEXPECTED_MESSAGE, f"a binlog file without a number: {file[:100]!r}"
        )
    return f"{int(number):010d}.{offset:012d}"


class GtidSet:
    """A set of MySQL's GTIDs: intervals of numbers by server."""

    def __init__(self) -> None:
        self._intervals: dict[bytes, list[GtidInterval]] = {}
        self._count = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """``uuid:1-5:7,uuid:1``; empty text is the empty set."""
        found = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, *ranges = part.split(":")
            try:
                server = uuid.UUID(name.strip()).bytes
            except ValueError:
                raise _no_gtids(text) from None
            if not ranges:
                raise _no_gtids(text)
            for given in ranges:
                match = _INTERVAL.match(given.strip())
                if match is None:
                    raise _no_gtids(text)
                first = int(match[1])
                found.add_interval(server, first, int(match[2] or first))
        return found

    @property
    def position(self) -> Position:
        """How many transactions, 20 digits."""
        return f"{self._count:020d}"

    def text(self) -> str:
        """Sorted, as the server prints ``gtid_executed``."""
        return ",".join(
            f"{uuid.UUID(bytes=server)}:" + ":".join(map(_interval_text, intervals))
            for server, intervals in sorted(self._intervals.items())
        )

    def __contains__(self, gtid: tuple[bytes, int]) -> bool:
        server, number = gtid
        intervals = self._intervals.get(server)
        if not intervals or number > intervals[-1][1]:  # a new one, as almost always
            return False
        return any(a <= number <= b for a, b in intervals)

    def add(self, server: bytes, number: int) -> None:
        """One transaction; almost always the next of its server."""
        intervals = self._intervals.get(server)
        if intervals and intervals[-1][1] == number - 1:
            intervals[-1][1] = number
            self._count += 1
        else:
            self.add_interval(server, number, number)

    def add_interval(self, server: bytes, first: int, last: int) -> None:
        if not 0 < first <= last < 1 << 63:
            raise ChangefeedError(
                Code.UNEXPECTED_MESSAGE, f"a GTID interval that cannot be: {first}-{last}"
            )
        merged: list[GtidInterval] = []
        for interval in sorted([*self._intervals.get(server, []), [first, last]]):
            if merged and interval[0] <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], interval[1])
            else:
                merged.append(list(interval))
        self._count -= sum(b - a + 1 for a, b in self._intervals.get(server, []))
        self._count += sum(b - a + 1 for a, b in merged)
        self._intervals[server] = merged

    def without(self, server: bytes, number: int) -> GtidSet:
        """The set but for one transaction."""
        found = GtidSet()
        for name, intervals in self._intervals.items():
            for first, last in intervals:
                if name != server or not first <= number <= last:
                    found.add_interval(name, first, last)
                    continue
                for part in ((first, number - 1), (number + 1, last)):
                    if part[0] <= part[1]:
                        found.add_interval(name, *part)
        return found

    def encoded(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID wants it; ends of intervals are excluded there."""
        parts = [struct.pack("<Q", len(self._intervals))]
        for server, intervals in sorted(self._intervals.items()):
            parts.append(server + struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", a, b + 1) for a, b in intervals]
        return b"".join(parts)


class MariaGtid:
    """Where MariaDB's log stands: the last GTID of each domain."""

    def __init__(self) -> None:
        self._domains: dict[int, tuple[int, int]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """``0-1-25,1-1-7``; empty text is the begin of the log."""
        found = cls()
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB.match(part)
            if match is None:
                raise _no_gtids(text)
            found.add(*map(int, match.groups()))
        return found

    @property
    def position(self) -> Position:
        """The sum of the domains' sequence numbers, 20 digits."""
        return f"{sum(number for _, number in self._domains.values()):020d}"

    def text(self) -> str:
        """As ``gtid_binlog_pos`` prints it."""
        return ",".join(
            f"{domain}-{server}-{number}"
            for domain, (server, number) in sorted(self._domains.items())
        )

    def covers(self, domain: int, number: int) -> bool:
        """That transaction was read."""
        known = self._domains.get(domain)
        return known is not None and number <= known[1]

    def last(self, domain: int) -> tuple[int, int] | None:
        """Server and number of the last transaction of a domain."""
        return self._domains.get(domain)

    def back_to(self, domain: int, server: int, number: int) -> MariaGtid:
        """The same transactions, but for a domain that stands at an earlier transaction."""
        found = MariaGtid()
        found._domains = {**self._domains, domain: (server, number)}
        return found

    def ahead_of(self, other: MariaGtid) -> str:
        """The transactions that ``other`` has not reached, as text; empty if there are none."""
        found = MariaGtid()
        for domain, (server, number) in self._domains.items():
            if not other.covers(domain, number):
                found._domains[domain] = (server, number)
        return found.text()

    def add(self, domain: int, server: int, number: int) -> None:
        """One transaction; a domain's numbers rise."""
        known = self._domains.get(domain)
        if known is None or number > known[1]:
            self._domains[domain] = (server, number)


def _interval_text(interval: GtidInterval) -> str:
    first, last = interval
    return str(first) if first == last else f"{first}-{last}"


def _no_gtids(text: str) -> ChangefeedError:
    return ChangefeedError(Code.UNEXPECTED_MESSAGE, "not a set of GTIDs", detail=text[:200])
