"""Begins of transactions: which transactions were read, by their GTIDs."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from changefeed.core.errors import ChangefeedError, Code
from changefeed.sources.mysql.binlog import MariaEvent, MysqlGtid, misfit
from changefeed.sources.mysql.gtid import GtidSet, MariaGtid
from changefeed.sources.mysql.position import BinlogPosition, GtidPosition

#: Takes a transaction: its server or domain, its number, its moment, and what was before it.
Met = Callable[[str, int, int, tuple[int, int] | None], None]


class MysqlBegins:
    """Which transactions of a MySQL server begin, and which were read."""

    def __init__(self, read: GtidSet, met: Met | None) -> None:
        """
        Args:
            read: what was read, to be added to.
            met: takes note of each transaction.
        """
        self._read, self._met = read, met
        self._server_names: dict[bytes, str] = {}

    def has(self, told: MysqlGtid) -> bool:
        """The transaction was read before."""
        return (told.server, told.number) in self._read

    def meet(self, told: MysqlGtid) -> None:
        """A transaction begins.

        Raises:
            ChangefeedError: CF2103 it is an anonymous one.
        """
        if not told.number:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED, "the server no longer gives its transactions GTIDs"
            )
        if self._met is not None:
            self._met(self._server_name(told.server), told.number, told.commit_us, None)

    def add(self, told: MysqlGtid) -> None:
        """It was read."""
        self._read.add(told.server, told.number)

    def _server_name(self, server: bytes) -> str:
        name = self._server_names.get(server)
        if name is None:
            name = self._server_names[server] = str(uuid.UUID(bytes=server))
        return name


class MariaBegins:
    """Which transactions of a MariaDB server begin, and which were read."""

    def __init__(self, read: MariaGtid, met: Met | None) -> None:
        """See :class:`MysqlBegins`."""
        self._read, self._met = read, met
        #: Domains of which a transaction was met that was not read before.
        self._domains: set[int] = set()

    def has(self, told: MariaEvent) -> bool:
        """The transaction was read before, or one with a higher number of its domain."""
        return self._read.covers(told.domain, told.number)

    def meet(self, told: MariaEvent, seconds: int, *, known: bool) -> None:
        """A transaction begins, which was written at ``seconds``; ``known``: :meth:`has` it.

        Raises:
            ChangefeedError: CF2103 it was not read before, and will not be, for its number.
        """
        if self._met is not None:
            self._met(str(told.domain), told.number, seconds, self._read.last(told.domain))
        if not known:
            self._domains.add(told.domain)
        elif told.domain in self._domains:
            raise ChangefeedError(
                Code.SOURCE_LOG_REPLACED,
                f"transaction {told.domain}-{told.server}-{told.number} comes after "
                "transactions of higher numbers in its domain",
                hint="SET GLOBAL gtid_strict_mode = ON at the server, then RESCAN the feeds "
                "of this source.",
            )

    def add(self, told: MariaEvent) -> None:
        """It was read."""
        self._read.add(told.domain, told.server, told.number)


def mysql_begins(begins: MysqlBegins | MariaBegins) -> MysqlBegins:
    """Those of a log whose transactions have GTIDs of MySQL.

    Raises:
        ChangefeedError: CF2105 what was read is of MariaDB.
    """
    if not isinstance(begins, MysqlBegins):
        raise misfit("a GTID of MySQL in the log of MariaDB")
    return begins


def maria_begins(begins: MysqlBegins | MariaBegins) -> MariaBegins:
    """The same the other way round."""
    if not isinstance(begins, MariaBegins):
        raise misfit("a GTID of MariaDB in the log of MySQL")
    return begins


def begins_of(read_upto: BinlogPosition, met: Met | None) -> MysqlBegins | MariaBegins | None:
    """How the begins behind a position are counted; None where it is a file and an offset."""
    if not isinstance(read_upto, GtidPosition):
        return None
    if isinstance(read_upto.gtids, MariaGtid):
        return MariaBegins(read_upto.gtids, met)
    return MysqlBegins(read_upto.gtids, met)
