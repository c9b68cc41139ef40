"""Going on where a Debezium connector stopped: by its GTIDs, or by its binlog file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.base import Handover
from changefeed.sources.connector_offset import demand_streaming
from changefeed.sources.mysql import coordinates
from changefeed.sources.mysql.coordinates import BinlogCoordinates
from changefeed.sources.mysql.session import MySQLSession


def handover(session: MySQLSession, offset: Mapping[str, Any]) -> Handover:
    """See :meth:`changefeed.sources.base.Source.handover`.

    Within a transaction the offset names the transaction's begin (and counts events and rows,
    which are left alone: the transaction comes again, whole). Source of the names:
    BinlogOffsetContext of Debezium 3.6.
    """
    demand_streaming(offset, "snapshot_completed")
    mode = coordinates.mode_of(session)
    found = _by_gtids(session, offset) if mode == "gtid" else _by_file(session, offset)
    begin = {
        "flavor": session.flavor,
        "mode": mode,
        "start": found.position,
        "history": found.history,
    }
    return Handover(found.position, {"begin": begin})


def _by_gtids(session: MySQLSession, offset: Mapping[str, Any]) -> BinlogCoordinates:
    gtids = offset.get("gtids")
    if not isinstance(gtids, str) or not gtids:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the offset has no GTIDs, and this server's log is read by them",
            hint="let the connector write an offset with gtids, or leave cursor out.",
        )
    try:
        found = coordinates.of_gtids(session, gtids)
    except ChangefeedError as error:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"the GTIDs of the offset cannot be read: {error.message}"
        ) from error
    if not coordinates.has(session, found.history):
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the server does not have the transactions that the connector delivered",
        )
    if not coordinates.reaches(session, found.history):
        raise _purged()
    return found


def _by_file(session: MySQLSession, offset: Mapping[str, Any]) -> BinlogCoordinates:
    file, begin = offset.get("file"), offset.get("pos")
    if not isinstance(file, str) or not isinstance(begin, int) or not file:
        raise ChangefeedError(
            Code.NOT_SUPPORTED,
            "the offset has no binlog file and position: it is not one of a MySQL connector",
            hint="its JSON has file and pos; see the topic of offset.storage.topic.",
        )
    lengths = {str(row[0]): int(row[1]) for row in session.rows("SHOW BINARY LOGS")}
    if file not in lengths:
        raise _purged(f"file {file}")
    if begin > lengths[file]:
        raise ChangefeedError(
            Code.NOT_SUPPORTED, f"binlog file {file} ends before the offset: it is another server's"
        )
    return coordinates.of_file(session, file, begin)


def _purged(what: str = "") -> ChangefeedError:
    return ChangefeedError(
        Code.NOT_SUPPORTED,
        "the server no longer has the binlog behind the offset",
        detail=what,
        hint="leave cursor out for an initial scan.",
    )
