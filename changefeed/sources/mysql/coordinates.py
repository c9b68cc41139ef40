"""Where the server's binlog ends now, as a position of the change log.

With GTIDs the coordinates are a set of transactions, and the position is their number: the same on
every server that has them. Without, they are a binlog file and an offset, good for one server.
"""

from __future__ import annotations

from dataclasses import dataclass

from changefeed.core.errors import ChangefeedError, Code
from changefeed.core.events import Position
from changefeed.sources.mysql import gtid
from changefeed.sources.mysql.session import MySQLSession


@dataclass(frozen=True, slots=True)
class BinlogCoordinates:
    """Where in the binlog: a position, and what the stream needs to begin there."""

    position: Position
    history: str


def mode_of(session: MySQLSession) -> str:
    """``gtid`` where each transaction has one, else ``file``."""
    if session.is_mariadb:
        return "gtid"
    return "gtid" if session.value("SELECT @@global.gtid_mode") == "ON" else "file"


def of_gtids(session: MySQLSession, executed: str) -> BinlogCoordinates:
    """Those of a set of transactions, as the server writes it."""
    known = gtid.parse(session.flavor, executed.replace("\n", ""))
    return BinlogCoordinates(known.position, known.text())


def present(session: MySQLSession, mode: str) -> BinlogCoordinates:
    """The end of the binlog.

    Raises:
        ChangefeedError: CF2003 the server writes none, CF2004 the user may not ask.
    """
    if mode == "gtid":
        variable = "gtid_binlog_pos" if session.is_mariadb else "gtid_executed"
        return of_gtids(session, str(session.value(f"SELECT @@global.{variable}") or ""))
    file, offset = file_end(session)
    return of_file(session, file, offset)


def server_time(session: MySQLSession) -> int:
    """The server's time, ns."""
    [(seconds,)] = session.rows("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS CHAR)")
    return int(float(seconds) * 1e9)


def of_file(session: MySQLSession, file: str, offset: int) -> BinlogCoordinates:
    """Those of an offset in a file of this server."""
    return BinlogCoordinates(
        gtid.file_position(file, offset), f"{server_of(session)} {file} {offset}"
    )


def file_end(session: MySQLSession) -> tuple[str, int]:
    """The present binlog file and its length.

    Raises:
        ChangefeedError: CF2003 the server writes no binlog, CF2004 the user may not ask.
    """
    rows = session.mappings(end_query(session.version), "ask for the end of the binlog")
    if not rows:
        raise ChangefeedError(
            Code.SOURCE_NOT_SET_UP,
            "the server writes no binlog",
            hint="set log_bin = binlog in the server's configuration, then restart it.",
        )
    return str(rows[0]["File"]), int(rows[0]["Position"])


def end_query(version: tuple[int, ...]) -> str:
    """The statement that returns the present binlog file and its length. MariaDB, whose versions
    begin with 10, knows the old name too."""
    renamed = (8, 2, 0) <= version < (10,)
    return "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS"


def end_right(flavor: str, version: tuple[int, ...]) -> str:
    """The right to ask where the binlog ends, by the server's own name for it."""
    renamed = flavor == "mariadb" and version >= (10, 5, 2)
    return "BINLOG MONITOR" if renamed else "REPLICATION CLIENT"


def has(session: MySQLSession, history: str) -> bool:
    """Whether the server's log holds the transactions of a history in the mode ``gtid``."""
    if not session.is_mariadb:
        known = "".join(filter(lambda letter: letter in _GTID_LETTERS, history))
        return bool(session.value(f"SELECT GTID_SUBSET('{known}', @@global.gtid_executed)"))
    # The last transaction of each domain that each server wrote, as far as this one knows. A
    # replica made of a backup has those up to the backup, and the log from there on.
    known_last: dict[tuple[str, str], int] = {}
    for variable in ("gtid_binlog_state", "gtid_slave_pos"):
        for known in _listed(str(session.value(f"SELECT @@global.{variable}") or "")):
            domain, server, number = known.split("-")
            last = known_last.get((domain, server), 0)
            known_last[domain, server] = max(last, int(number))
    return all(
        int(number) <= known_last.get((domain, server), 0)
        for domain, server, number in (known.split("-") for known in _listed(history))
    )


def reaches(session: MySQLSession, history: str) -> bool:
    """Whether the server still has every transaction that is not in a history in the mode
    ``gtid``. MariaDB reports them only when it is asked to: true then."""
    if session.is_mariadb:
        return True
    known = "".join(filter(lambda letter: letter in _GTID_LETTERS, history))
    return bool(session.value(f"SELECT GTID_SUBSET(@@global.gtid_purged, '{known}')"))


#: What a set of GTIDs consists of.
_GTID_LETTERS = frozenset("0123456789abcdefABCDEF-:,")


def _listed(gtids: str) -> list[str]:
    return [gtid.strip() for gtid in gtids.split(",") if gtid.strip()]


def server_of(session: MySQLSession) -> str:
    """What distinguishes this server from all others; empty where it does not say."""
    variable = "server_uid" if session.is_mariadb else "server_uuid"
    return session.variables(variable).get(variable, "-") or "-"
