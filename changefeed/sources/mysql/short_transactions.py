"""Transactions in their shortest form, the one of most applications: a statement that changes rows
of one table, few enough for one event.

::

    MySQL      GTID, QUERY "BEGIN", TABLE_MAP, a row event, XID
    MariaDB    MARIA_GTID, TABLE_MAP, a row event, XID

:class:`.transactions.Assembler` takes such a transaction as a whole, and others event by event.
What comes out is the same; a fifth less CPU does it (docs/decisions/short-transactions.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from changefeed.sources.mysql.binlog import (
    CHECKSUM_SIZE,
    HEADER,
    HEADER_SIZE,
    WITH_ITS_CRC,
    EventType,
)
from changefeed.sources.mysql.decode import OPERATIONS
from changefeed.sources.mysql.wire import EventBytes, Packet

_MYSQL = bytes([EventType.GTID, EventType.QUERY, EventType.TABLE_MAP, 0, EventType.XID])
_MARIADB = bytes([EventType.MARIA_GTID, EventType.TABLE_MAP, 0, EventType.XID])
#: Row events that are not compressed: the types of MySQL, which MariaDB has, too.
_ROWS = frozenset(kind for kind in OPERATIONS if kind <= EventType.DELETE_ROWS)
_COMMIT = int(EventType.XID)
#: A packet's status byte, an event's header and its checksum.
_LEAST = 1 + HEADER_SIZE + CHECKSUM_SIZE
#: Where the type is in a packet: behind the status byte and the time.
_KIND = 5


class ShortTransaction(NamedTuple):
    """The events of a transaction, without their checksums, which are right.

    Attributes:
        gtid, begin, table_map, rows, commit: where they are; of MariaDB ``begin`` is ``gtid``.
        kind: of the row event.
        server_id: of the server that made the transaction.
        seconds: when its end was written, since 1970.
        end: the offset behind it in the server's file.
    """

    gtid: EventBytes
    begin: EventBytes
    table_map: EventBytes
    rows: EventBytes
    commit: EventBytes
    kind: int
    server_id: int
    seconds: int
    end: int


def find_short(
    packets: Sequence[Packet], at: int, *, mariadb: bool = False
) -> ShortTransaction | None:
    """The transaction that begins with a packet, if all of it is there in the shortest form.

    None also where something about it is wrong: who takes it event by event finds out what.
    """
    form = _MARIADB if mariadb else _MYSQL
    parts = packets[at : at + len(form)]
    # The last event first: it distinguishes this form from most others.
    if len(parts) < len(form) or not _is_commit(*parts[-1]):
        return None
    events: list[EventBytes] = []
    for (data, start, end), kind in zip(parts, form, strict=True):
        if end - start < _LEAST or data[start]:
            return None
        if data[start + _KIND] != kind and (kind or data[start + _KIND] not in _ROWS):
            return None
        event, upto = start + 1, end - CHECKSUM_SIZE
        if int.from_bytes(data[event + 9 : event + 13], "little") != end - event:
            return None
        if zlib.crc32(data[event:end]) != WITH_ITS_CRC:
            return None
        events.append((data, event, upto))
    commit = events[-1]
    if commit[2] - commit[1] < HEADER_SIZE + 8:  # the transaction's number
        return None
    seconds, _, _, _, offset, flags = HEADER.unpack_from(commit[0], commit[1])
    if flags:
        return None
    gtid, rows = events[0], events[-2]
    server_id = int.from_bytes(gtid[0][gtid[1] + 5 : gtid[1] + 9], "little")
    return ShortTransaction(
        gtid, events[-4], events[-3], rows, commit, rows[0][rows[1] + 4], server_id, seconds, offset
    )


def _is_commit(data: bytes | bytearray, start: int, end: int) -> bool:
    return end - start >= _LEAST and data[start + _KIND] == _COMMIT
